// Fakes of CUDA tensors where torch was built for CUDA and finds no device.
//
// Torch then gives CUDA a device guard that does nothing, kept in the storage of the thread that was the first to enter a FakeTensorMode: when that thread
// ends, the process is left with a pointer to what is gone, and the next thread that compiles reads it. A guard that stays is put there first.
#include <Python.h>

#include <c10/core/impl/FakeGuardImpl.h>

#include "frame/boundary.h"

namespace {

PyObject* keep_fake_devices(PyObject*, PyObject*) {
    static bool done = false;
    auto& cuda = c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)];
    const c10::impl::DeviceGuardImplInterface* guard = done ? nullptr : cuda.load();
    if (guard && guard->deviceCount() == 0) cuda.store(new c10::impl::FakeGuardImpl<c10::DeviceType::CUDA>());
    done = true;
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"keep_fake_devices", dynacompile::boundary<keep_fake_devices>, METH_NOARGS, "keep_fake_devices(): to be called before the first FakeTensorMode, on any thread."},
    {nullptr},
};

}  // namespace

bool init_fake_devices(PyObject* module) { return PyModule_AddFunctions(module, functions) == 0; }
