// The boundary between CPython and C++: no C++ exception leaves it, and references are owned by objects of C++.
#pragma once
#include <Python.h>

#include <cxxabi.h>
#include <unistd.h>

#include <string>
#include <type_traits>
#include <utility>

#include "cpython/cpython.h"

namespace dynacompile {

// An owned reference. Copy, assign and destroy it with the GIL held.
class PyRef {
  public:
    PyRef() = default;
    static PyRef take(PyObject* object) { return PyRef(object); }
    static PyRef share(PyObject* object) { return PyRef(Py_XNewRef(object)); }
    PyRef(const PyRef& other) : object_(Py_XNewRef(other.object_)) {}
    PyRef(PyRef&& other) noexcept : object_(std::exchange(other.object_, nullptr)) {}
    PyRef& operator=(PyRef other) noexcept {
        std::swap(object_, other.object_);
        return *this;
    }
    ~PyRef() { Py_XDECREF(object_); }
    PyObject* get() const { return object_; }
    PyObject* release() { return std::exchange(object_, nullptr); }
    explicit operator bool() const { return object_ != nullptr; }

  private:
    explicit PyRef(PyObject* object) : object_(object) {}
    PyObject* object_ = nullptr;
};

// A module, mostly one that is loaded. PyImport_ImportModule calls `builtins.__import__`, which may be a function of the program's: the hook would meet its
// frame in the midst of a compile, compile it, and so on without end.
inline PyRef module_named(const char* name) {
    const PyRef key = PyRef::take(PyUnicode_FromString(name));
    PyRef module = PyRef::take(key ? PyImport_GetModule(key.get()) : nullptr);
    return module || PyErr_Occurred() ? module : PyRef::take(PyImport_ImportModule(name));
}

// Thrown where a Python error is already set, by code that holds the GIL until it is caught.
struct PythonErrorSet {};

[[noreturn]] inline void raise(PyObject* type, const std::string& message) {
    PyErr_SetString(type, message.c_str());
    throw PythonErrorSet();
}

inline PyObject* checked(PyObject* object) {
    if (!object) throw PythonErrorSet();
    return object;
}

// The result of a call that takes the GIL or runs Python. While the interpreter ends, CPython ends a daemon thread that asks for the GIL by unwinding its
// stack, through our frames, whose destructors would then touch objects without the GIL: such a thread waits here for the end of the process instead.
// The unwinding has no C++ object: the runtime gives the handler a null reference, which nothing reads. UndefinedBehaviorSanitizer need not tell of it, and
// asks after inlining.
#ifdef __SANITIZE_ADDRESS__
#define STAY_ATTRIBUTES [[gnu::noinline, gnu::no_sanitize("null")]]
#else
#define STAY_ATTRIBUTES [[gnu::always_inline]] inline
#endif

template <typename Call>
STAY_ATTRIBUTES auto stay(Call&& call) -> decltype(call()) {
    try {
        return call();
    } catch (abi::__forced_unwind&) {
        for (;;) pause();
    }
}

// Calls a Python object, as PyObject_Vectorcall does.
inline PyObject* call_object(PyObject* callable, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    return stay([&] { return PyObject_Vectorcall(callable, args, nargsf, kwnames); });
}

// Sets the Python error for the C++ exception in flight: MemoryError for std::bad_alloc, torch's translation for the others.
void set_python_error() noexcept;

// Runs `body`; false with a Python error set where it throws.
template <typename Body>
bool without_throwing(Body&& body) noexcept {
    try {
        stay(body);
        return true;
    } catch (...) {
        set_python_error();
        return false;
    }
}

template <auto function>
struct Boundary;

template <typename Result, typename... Args, Result (*function)(Args...)>
struct Boundary<function> {
    static Result call(Args... args) noexcept {
        try {
            return stay([&] { return function(args...); });
        } catch (...) {
            set_python_error();
            if constexpr (std::is_pointer_v<Result>) return nullptr;
            else return Result(-1);
        }
    }
};

// `function` as CPython may call it: an exception becomes the Python error, and the result null or -1.
template <auto function>
constexpr auto boundary = &Boundary<function>::call;

template <auto function>
PyCFunction as_method() {
    return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(boundary<function>));
}

template <auto function>
void* as_slot() {
    return reinterpret_cast<void*>(boundary<function>);
}

// Keeps the cyclic collector, and so finalizers and callbacks of weak references, from running while containers are made.
class NoCollection {
  public:
    NoCollection() : enabled_(collects_when_allocating && PyGC_Disable()) {}
    ~NoCollection() {
        if (enabled_) PyGC_Enable();
    }
    NoCollection(const NoCollection&) = delete;

  private:
    const bool enabled_;
};

}  // namespace dynacompile
