#include <Python.h>
#include "guards/machine.h"
namespace dynacompile {
bool is_guard_program(PyObject* o) { return o == Py_None; }
bool guards_hold(PyObject*, const Roots& r) { return r.count == 0 || r.slots[0] != Py_None; }
}
static PyObject* configure(PyObject*, PyObject*) { Py_RETURN_NONE; }
static PyMethodDef methods[] = {{"configure", configure, METH_VARARGS, ""}, {nullptr}};
bool init_guards(PyObject* module) { return PyModule_AddFunctions(module, methods) == 0; }
