// The devices of fake tensors.
//
// Where torch was built for CUDA and finds no device, it gives CUDA a device guard that does nothing, kept in the storage of the thread that was the first to
// enter a FakeTensorMode: when that thread ends, the process is left with a pointer to what is gone, and the next thread that compiles reads it. A guard that
// stays is put there first.
//
// Which device a fake is on, torch asks Python, and in functions that are declared not to throw, such as the one that gives a node of autograd an input: an
// exception that a signal handler raises there, or one that another thread sets on this one, ends the process. So the question is answered here, where
// no bytecode runs.
#include <Python.h>

#include <c10/core/impl/FakeGuardImpl.h>

#include "frame/boundary.h"

using namespace dynacompile;

namespace {

PyObject* keep_fake_devices(PyObject*, PyObject*) {
    static bool done = false;
    auto& cuda = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)];
    const c10::impl::DeviceGuardImplInterface* guard = done ? nullptr : cuda.load();
    if (guard && guard->deviceCount() == 0) cuda.store(new c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>());
    done = true;
    Py_RETURN_NONE;
}

// What answers. classes: a set, of those whose own answer is the fake's device. Kept for ever.
struct {
    PyObject *question, *classes, *inside, *rule;  // inside: the device that a fake has for kernels
    vectorcallfunc find;
} devices;

// An attribute of an instance of torch's, read without running Python code; null where there is none.
PyRef own_attribute(PyObject* object, const char* name) {
    const PyRef key = PyRef::take(PyUnicode_InternFromString(name));
    PyRef value = PyRef::take(key ? PyObject_GenericGetAttr(object, key.get()) : nullptr);
    if (!value) PyErr_Clear();
    return value;
}

// New; null without an error where it is not known here.
PyObject* device_of(PyObject* fake) {
    const PyRef mode = own_attribute(fake, "fake_mode");
    const PyRef in_kernel = mode ? own_attribute(mode.get(), "in_kernel_invocation") : PyRef();
    if (in_kernel.get() == Py_True) return Py_NewRef(devices.inside);
    if (in_kernel.get() != Py_False) return nullptr;
    PyRef device = own_attribute(fake, "_fake_device");
    if (!device) device = own_attribute(fake, "fake_device");  // of a torch that keeps it there
    return device.release();
}

// A rule of torch's dispatch, called with a mode or a class, the operator, types, and the operator's arguments.
PyObject* answer_device(PyObject*, PyObject* const* args, Py_ssize_t count) {
    if (count >= 4 && PyTuple_CheckExact(args[3]) && PyTuple_GET_SIZE(args[3]) == 1) {
        if (PyObject* device = device_of(PyTuple_GET_ITEM(args[3], 0))) return device;
    }
    const PyRef own = PyRef::take(count ? PyObject_GetAttrString(args[0], "__torch_dispatch__") : nullptr);
    return own ? PyObject_Vectorcall(own.get(), args + 1, count - 1, nullptr) : nullptr;
}

// In the place of torch's function that finds a rule for an operator and the class of a mode or a tensor.
PyObject* find_rule(PyObject* function, PyObject* const* args, size_t count, PyObject* names) {
    if (PyVectorcall_NARGS(count) == 2 && !names && args[0] == devices.question) {
        if (PySet_Contains(devices.classes, args[1]) == 1) return Py_NewRef(devices.rule);
        PyErr_Clear();
    }
    return devices.find(function, args, count, names);
}

PyMethodDef rule = {"device_of_fake", as_method<answer_device>(), METH_FASTCALL, nullptr};

PyObject* answer_devices(PyObject*, PyObject* args) {
    PyObject *finds, *question, *classes, *inside;
    if (!PyArg_ParseTuple(args, "O!OO!O:answer_devices", &PyFunction_Type, &finds, &question, &PySet_Type, &classes, &inside)) return nullptr;
    if (devices.find) Py_RETURN_NONE;
    PyObject* made = checked(PyCFunction_New(&rule, nullptr));
    devices = {Py_NewRef(question), Py_NewRef(classes), Py_NewRef(inside), made, reinterpret_cast<PyFunctionObject*>(finds)->vectorcall};
    set_vectorcall(finds, boundary<find_rule>);
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"answer_devices", boundary<answer_devices>, METH_VARARGS,
     "answer_devices(finds, question, classes, inside): torch's function `finds`, which looks for a rule of dispatch, finds one for the operator `question` and each of the "
     "set `classes` that runs no Python code. inside: the device that fakes have within kernels."},
    {"keep_fake_devices", boundary<keep_fake_devices>, METH_NOARGS, "keep_fake_devices(): to be called before the first FakeTensorMode, on any thread."},
    {nullptr},
};

}  // namespace

bool init_fake_devices(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }
