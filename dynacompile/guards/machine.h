// What the frame stage needs of the guard machine: run one program over the values of a frame.
#pragma once
#include <Python.h>

namespace dynacompile {

// Borrowed values that accessors start from. slots: localsplus or a tuple's items; closure: tuple of cells or null.
struct Roots {
    PyObject* const* slots;
    Py_ssize_t count;
    PyObject* closure;
    PyObject* globals;
    PyObject* builtins;
};

bool is_guard_program(PyObject* object);

// Whether every guard holds. Sets no error; runs no Python code of the user.
bool guards_hold(PyObject* program, const Roots& roots);

}  // namespace dynacompile
