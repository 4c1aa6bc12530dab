// Raises an exception at the n-th place at which CPython looks for signals: as a signal handler written in C would, without a frame of its own.
#include <Python.h>

#include <csignal>

static const int number = SIGUSR2;
static PyObject* error = nullptr;   // what is raised
static PyObject* notice = nullptr;  // called before
static long long left = 0, seen = 0;  // places until then; so far
static int then_signal = 0;         // the signal to send instead of raising; 0: none

static PyObject* on_signal(PyObject*, PyObject*) {
    if (left <= 0) Py_RETURN_NONE;
    seen++;
    if (--left > 0) {
        PyErr_SetInterruptEx(number);  // at the next place again
        Py_RETURN_NONE;
    }
    if (then_signal) {
        PyErr_SetInterruptEx(then_signal);
        Py_RETURN_NONE;
    }
    PyObject* noticed = PyObject_CallNoArgs(notice);
    if (!noticed) return nullptr;
    Py_DECREF(noticed);
    if (error == Py_None) Py_RETURN_NONE;
    PyErr_SetObject(reinterpret_cast<PyObject*>(Py_TYPE(error)), error);
    return nullptr;
}

static PyObject* start(PyObject*, PyObject* args) {
    PyObject *raised, *called;
    long long places;
    if (!PyArg_ParseTuple(args, "LOiO", &places, &raised, &then_signal, &called)) return nullptr;
    Py_XSETREF(error, Py_NewRef(raised));
    Py_XSETREF(notice, Py_NewRef(called));
    left = places;
    seen = 0;
    PyErr_SetInterruptEx(number);
    Py_RETURN_NONE;
}

static PyObject* stop(PyObject*, PyObject*) {
    const bool fired = left == 0;
    left = 0;
    Py_CLEAR(error);
    Py_CLEAR(notice);
    return Py_BuildValue("LO", seen, fired ? Py_True : Py_False);
}

static PyMethodDef functions[] = {
    {"on_signal", on_signal, METH_VARARGS, "The handler of SIGUSR2."},
    {"start", start, METH_VARARGS, "start(n, error, signal, notice): at the n-th place from now `notice` is called and `error` raised, unless it is None; or where signal is not 0, that signal comes."},
    {"stop", stop, METH_NOARGS, "stop() -> (places so far, whether it was raised)"},
    {nullptr},
};
static PyModuleDef definition = {PyModuleDef_HEAD_INIT, "ticks", nullptr, -1, functions};

PyMODINIT_FUNC PyInit_ticks(void) { return PyModule_Create(&definition); }
