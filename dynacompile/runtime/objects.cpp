#include "runtime/objects.h"

#include <cstring>
#include <new>

// torch's exception for a Python error, caught by its engine and its translation by the type's name. Declared here because its own
// header costs 6 s of build time; the layout is that of torch 2.11 to 2.13, and tests/runtime checks that errors arrive unchanged.
struct DYNACOMPILE_IMPORTED python_error : public std::exception {
    python_error(PyObject* t, PyObject* v, PyObject* tb, std::string m) : type(t), value(v), traceback(tb), message(std::move(m)) {}
    python_error(const python_error& other) : std::exception(other), type(other.type), value(other.value), traceback(other.traceback), message(other.message) {
        dynacompile::runtime::WithGil gil;
        Py_XINCREF(type);
        Py_XINCREF(value);
        Py_XINCREF(traceback);
    }
    ~python_error() override {
        if (!type && !value && !traceback) return;
        dynacompile::runtime::WithGil gil;
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
    }
    const char* what() const noexcept override { return message.c_str(); }

    PyObject* type;
    PyObject* value;
    PyObject* traceback;
    std::string message;
};

namespace dynacompile {

void set_python_error() noexcept {
    try {
        throw;
    } catch (const PythonErrorSet&) {
    } catch (const std::bad_alloc&) {
        PyErr_NoMemory();
    } catch (...) {
        try {
            torch::translate_exception_to_python(std::current_exception());
        } catch (...) {  // its text takes memory
            PyErr_NoMemory();
        }
    }
}

}  // namespace dynacompile

namespace dynacompile::runtime {

void throw_python_error() {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    python_error error(type, value, traceback, std::string());  // it owns them
    PyRef text = PyRef::take(value ? PyObject_Str(value) : nullptr);
    const char* chars = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
    PyErr_Clear();
    error.message = chars ? chars : "a Python error";
    throw error;
}

PyTypeObject* tensor_base = nullptr;
Py_ssize_t impl_offset = 0;

bool probe_tensor_layout() {
    PyRef torch = module_named("torch");
    if (!torch) return false;
    PyRef core = PyRef::take(PyObject_GetAttrString(torch.get(), "_C"));
    PyRef base = core ? PyRef::take(PyObject_GetAttrString(core.get(), "TensorBase")) : PyRef();
    PyRef nn = module_named("torch.nn");
    PyRef parameter = nn ? PyRef::take(PyObject_GetAttrString(nn.get(), "Parameter")) : PyRef();
    if (!base || !parameter) return false;
    PyRef empty = PyRef::take(PyObject_GetAttrString(torch.get(), "empty"));
    PyRef size = PyRef::take(Py_BuildValue("(i)", 1));
    PyRef on_the_cpu = PyRef::take(Py_BuildValue("{s:s}", "device", "cpu"));  // whatever the program's default device is
    if (!empty || !size || !on_the_cpu) return false;
    PyRef plain = PyRef::take(PyObject_Call(empty.get(), size.get(), on_the_cpu.get()));
    if (!plain) return false;
    PyRef wrapped = PyRef::take(PyObject_CallOneArg(parameter.get(), plain.get()));
    if (!wrapped) return false;
    Py_ssize_t found = 0;
    for (PyObject* sample : {plain.get(), wrapped.get()}) {
        PyRef address = PyRef::take(PyObject_GetAttrString(sample, "_cdata"));
        if (!address) return false;
        void* impl = PyLong_AsVoidPtr(address.get());
        Py_ssize_t offset = sizeof(PyObject);
        Py_ssize_t limit = Py_TYPE(sample)->tp_basicsize - Py_ssize_t(sizeof(void*));
        while (offset <= limit && *reinterpret_cast<void**>(reinterpret_cast<char*>(sample) + offset) != impl) offset += sizeof(void*);
        if (!impl || offset > limit || (found && found != offset)) {
            PyErr_SetString(PyExc_ImportError, "dynacompile does not know where this version of torch keeps a tensor's TensorImpl");
            return false;
        }
        found = offset;
    }
    impl_offset = found;
    tensor_base = reinterpret_cast<PyTypeObject*>(base.release());  // lives as long as the process, as torch._C does
    return true;
}

int64_t to_int(PyObject* object) {
    int64_t value = PyLong_AsLongLong(object);
    if (value == -1 && PyErr_Occurred()) throw PythonErrorSet();
    return value;
}

PyObject* item(PyObject* tuple, Py_ssize_t index) {
    if (!PyTuple_Check(tuple)) raise(PyExc_TypeError, std::string("expected a tuple, got ") + Py_TYPE(tuple)->tp_name);
    return checked(PyTuple_GetItem(tuple, index));
}

int64_t to_number(PyObject* object) {
    if (!PyFloat_Check(object)) return to_int(object);
    const double number = PyFloat_AS_DOUBLE(object);
    int64_t bits;
    std::memcpy(&bits, &number, sizeof bits);
    return bits;
}

double real_of(int64_t bits) {
    double number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

std::vector<int64_t> to_ints(PyObject* sequence) {
    PyRef fast = PyRef::take(checked(PySequence_Fast(sequence, "expected a sequence of ints")));
    std::vector<int64_t> values(PySequence_Fast_GET_SIZE(fast.get()));
    for (size_t i = 0; i < values.size() && Py_ssize_t(i) < PySequence_Fast_GET_SIZE(fast.get()); ++i)  // __index__ may shorten a list
        values[i] = to_int(PyRef::share(PySequence_Fast_GET_ITEM(fast.get(), i)).get());
    return values;
}

bool is_place(PyObject* object) { return PyLong_Check(object) && !PyLong_CheckExact(object) && !PyBool_Check(object); }

std::string to_string(PyObject* text) {
    Py_ssize_t size = 0;
    const char* chars = PyUnicode_AsUTF8AndSize(text, &size);
    if (!chars) throw PythonErrorSet();
    return std::string(chars, size);
}

}  // namespace dynacompile::runtime
