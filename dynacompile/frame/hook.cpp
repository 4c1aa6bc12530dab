#include <Python.h>
bool init_frame(PyObject*) { return true; }
