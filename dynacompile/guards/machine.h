// What the frame stage needs of the guard machine: run one program over the values of a frame.
#pragma once
#include <Python.h>

#include <cstddef>
#include <cstdint>

namespace dynacompile {

// Borrowed values that accessors start from. slots: localsplus or a tuple's items; closure: tuple of cells or null.
struct Roots {
    PyObject* const* slots;
    Py_ssize_t count;
    PyObject* closure;
    PyObject* globals;
    PyObject* builtins;
};

// The address of a thread-local variable, as a value that the compiler does not know: it would find the address anew at each use, by a call.
template <typename T>
T* found_once(T* address) {
    asm("" : "+r"(address));
    return address;
}

bool is_guard_program(PyObject* object);

// Whether every guard holds. Runs no Python code of the user, but signals may be handled meanwhile: where it is false, an error may be set, which the
// program is to get.
bool guards_hold(PyObject* program, const Roots& roots);

// Facts of a call that a program demands, each as a number: equal where the fact is, so that entries can be found by hash. They may miss a difference,
// never see one that the guards don't. `key` names the fact, alike in all programs.
size_t feature_count(PyObject* program);
uint64_t feature_key(PyObject* program, size_t feature);
int feature_cost(PyObject* program, size_t feature);
uint64_t feature_wanted(PyObject* program, size_t feature);
uint64_t feature_now(PyObject* program, size_t feature, const Roots& roots);  // runs no Python code, changes nothing

// global_state.cpp
const void* dispatch_keys();         // where this thread's lie, as long as it lives
bool is_traced(const void* keys);  // by those of a thread: torch.jit.trace records its operations

}  // namespace dynacompile
