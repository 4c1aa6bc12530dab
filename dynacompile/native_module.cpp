// The extension module: each stage with native code registers its own types and functions.
#include <Python.h>

#include "frame/boundary.h"

bool init_frame(PyObject* module);
bool init_guards(PyObject* module);
bool init_runtime(PyObject* module);
bool init_fake_devices(PyObject* module);

static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "dynacompile_native", "The native core of dynacompile.", -1, nullptr};

PyMODINIT_FUNC PyInit_dynacompile_native(void) {
    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "dynacompile_native works in the main interpreter only");
        return nullptr;
    }
    PyObject* module = PyModule_Create(&definition);
    if (!module) return nullptr;
    bool ready = false;
    dynacompile::without_throwing([&] { ready = init_frame(module) && init_guards(module) && init_runtime(module) && init_fake_devices(module); });
    if (ready) return module;
    Py_DECREF(module);
    return nullptr;
}
