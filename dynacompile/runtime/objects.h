// Between Python objects and tensors: owned references, a tensor's TensorImpl, errors in both directions.
#pragma once

#include <Python.h>

#include "frame/boundary.h"
#include "runtime/messages.h"

#include <ATen/core/Tensor.h>

#include <exception>
#include <string>
#include <utility>
#include <vector>

#define DYNACOMPILE_IMPORTED __attribute__((visibility("default")))

// What we take from libtorch_python; its headers cost 11 s of build time.
DYNACOMPILE_IMPORTED PyObject* THPVariable_Wrap(const at::TensorBase& tensor);
namespace torch {
DYNACOMPILE_IMPORTED void translate_exception_to_python(const std::exception_ptr& error);
}

namespace dynacompile::runtime {

class WithGil {
public:
    WithGil() : state_(stay(PyGILState_Ensure)) {}
    ~WithGil() { PyGILState_Release(state_); }
    WithGil(const WithGil&) = delete;
    WithGil& operator=(const WithGil&) = delete;

private:
    PyGILState_STATE state_;
};

// As PyGILState_Check, which says yes to everybody once a subinterpreter was made.
inline bool holds_gil() {
    PyThreadState* mine = PyGILState_GetThisThreadState();
    return mine && mine == _PyThreadState_UncheckedGet();
}

// Lets other threads run Python for a C++ scope, where this thread holds the GIL.
class WithoutGil {
public:
    explicit WithoutGil(bool wanted) : state_(wanted && holds_gil() ? PyEval_SaveThread() : nullptr) {}
    ~WithoutGil() {
        if (state_) stay([this] { PyEval_RestoreThread(state_); });
    }
    WithoutGil(const WithoutGil&) = delete;

private:
    PyThreadState* state_;
};

// Moves the Python error that is set into an exception that torch carries to whichever thread called (the engine knows its type).
[[noreturn]] void throw_python_error();

// Finds out where a tensor object keeps its TensorImpl*; false with a Python error set.
bool probe_tensor_layout();

extern PyTypeObject* tensor_base;  // torch._C.TensorBase
extern Py_ssize_t impl_offset;

inline bool is_tensor(PyObject* object) { return PyObject_TypeCheck(object, tensor_base); }

// The TensorImpl of a tensor object: borrowed.
inline c10::TensorImpl* impl_of(PyObject* tensor) { return *reinterpret_cast<c10::TensorImpl**>(reinterpret_cast<char*>(tensor) + impl_offset); }

inline at::Tensor tensor_of(c10::TensorImpl* impl) { return at::Tensor(c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>::reclaim_copy(impl)); }

inline PyObject* wrap(const at::Tensor& tensor) {
    if (!tensor.defined()) Py_RETURN_NONE;
    return checked(THPVariable_Wrap(tensor));
}

// Reading of the tuples that link.py and differentiable.py make.
int64_t to_int(PyObject* object);
int64_t to_number(PyObject* object);  // an int, or the bits of a float
double real_of(int64_t bits);
std::vector<int64_t> to_ints(PyObject* sequence);
std::string to_string(PyObject* text);
// An int is a number; an instance of a subclass of it (link.Number) the place of one of a call's numbers.
bool is_place(PyObject* object);
PyObject* item(PyObject* tuple, Py_ssize_t index);

}  // namespace dynacompile::runtime
