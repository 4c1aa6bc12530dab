#include "frame/boundary.h"
#include "guards/values.h"

#include <ATen/PythonTorchFunctionTLS.h>

#include <cstring>

namespace dynacompile {

TorchTypes torch_types{};

bool Held::hold(PyObject* object) {
    if (PyType_SUPPORTS_WEAKREFS(Py_TYPE(object))) {
        weak_ = PyWeakref_NewRef(object, nullptr);
        return weak_ != nullptr;
    }
    strong_ = Py_NewRef(object);
    return true;
}

namespace {

// As Modules/_functoolsmodule.c has it in the versions known. Nothing is read by it before `try_links` found it right.
struct CacheLink {
    PyObject_HEAD
    CacheLink *previous, *next;
    Py_hash_t hash;
    PyObject *key, *result;
};

bool links_known = false;

bool is_link(PyObject* object) {
    return std::strcmp(Py_TYPE(object)->tp_name, "functools._lru_list_elem") == 0 && Py_TYPE(object)->tp_basicsize == static_cast<Py_ssize_t>(sizeof(CacheLink));
}

}  // namespace

// Compares addresses alone, so that a layout that is another one does no harm.
bool try_links(PyObject* entry, PyObject* key, PyObject* result) {
    const auto* link = reinterpret_cast<CacheLink*>(entry);
    links_known = is_link(entry) && link->key == key && link->result == result;
    return links_known;
}

bool links_are_known() { return links_known; }

PyObject* link_result(PyObject* object) { return links_known && is_link(object) ? reinterpret_cast<CacheLink*>(object)->result : nullptr; }

PyObject** instance_dict_slot(PyObject* object) { return _PyObject_GetDictPtr(object); }

PyObject* instance_dict(PyObject* object) {
    PyObject** slot = _PyObject_GetDictPtr(object);
    return slot ? *slot : nullptr;
}

namespace {

bool is_c_field(PyObject* descriptor) { return Py_IS_TYPE(descriptor, &PyGetSetDescr_Type) || Py_IS_TYPE(descriptor, &PyMemberDescr_Type); }

// What a class of tensors says to torch's functions.
PyObject* override_of(PyTypeObject* type) {
    static PyObject* name = PyUnicode_InternFromString("__torch_function__");
    return _PyType_Lookup(type, name);
}

// Getters of a tensor subclass may hand over to its __torch_function__, unless that is switched off, as that of parameters is.
bool getters_are_native(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    if (!PyType_IsSubtype(type, torch_types.tensor) || type == torch_types.tensor || type == torch_types.parameter) return true;
    return override_of(type) == override_of(torch_types.parameter);
}

// Whether the class of a tensor leaves `__torch_function__` to torch. Then torch's getter of a gradient gives what it gives of any tensor.
bool asks_torch(PyTypeObject* type) { return PyType_IsSubtype(type, torch_types.tensor) && override_of(type) == override_of(torch_types.tensor); }

// No class of a tensor is asked meanwhile.
class Unasked {
  public:
    Unasked() : before_(at::impl::PythonTorchFunctionTLS::get_disabled_state()) {
        at::impl::PythonTorchFunctionTLS::set_disabled_state(at::impl::TorchFunctionDisabledState::SUBCLASSES_DISABLED);
    }
    ~Unasked() { at::impl::PythonTorchFunctionTLS::set_disabled_state(before_); }
    Unasked(const Unasked&) = delete;

  private:
    at::impl::TorchFunctionDisabledState before_;
};

bool binds_natively(PyObject* found) {
    PyTypeObject* type = Py_TYPE(found);
    return type == &PyFunction_Type || type == &PyMethodDescr_Type || type == &PyWrapperDescr_Type || type == &PyClassMethodDescr_Type ||
           type == &PyStaticMethod_Type || type == &PyClassMethod_Type;
}

// Torch's own, of tensors; null where a program has put something else in its place.
PyObject* getter_of(const char* name) {
    PyObject* text = PyUnicode_InternFromString(name);
    PyObject* found = text ? _PyType_Lookup(torch_types.tensor, text) : nullptr;
    Py_XDECREF(text);
    PyErr_Clear();
    return found && is_c_field(found) ? Py_NewRef(found) : nullptr;
}

Loaded owned_or_nothing(PyObject* made) {
    if (!made) PyErr_Clear();
    return {made, made != nullptr};
}

Loaded bind(PyObject* found, PyObject* object, PyObject* type) {
    descrgetfunc get = Py_TYPE(found)->tp_descr_get;
    // Read off their class, functions and properties give themselves.
    if (!get || (!object && (Py_IS_TYPE(found, &PyFunction_Type) || Py_IS_TYPE(found, &PyProperty_Type)))) return {found, false};
    if (!binds_natively(found)) return {};
    const NoCollection quiet;
    return owned_or_nothing(get(found, object, type));
}

}  // namespace

Loaded load_attribute(PyObject* object, PyObject* name) {
    static PyObject* const leaf_getter = getter_of("is_leaf");
    PyTypeObject* type = Py_TYPE(object);
    PyObject* found = _PyType_Lookup(type, name);
    if (found == leaf_getter && found && (type == torch_types.tensor || type == torch_types.parameter)) {
        if (PyObject* leaf = known_leaf(object)) return {leaf, false};
    }
    if (found && PyDescr_IsData(found)) {
        const bool is_native = Py_IS_TYPE(found, &PyMemberDescr_Type) || getters_are_native(object) || PyUnicode_CompareWithASCIIString(name, "__dict__") == 0;
        const bool is_gradient = !is_native && is_c_field(found) && PyUnicode_CompareWithASCIIString(name, "grad") == 0 && asks_torch(type);
        if (!is_c_field(found) || !(is_native || is_gradient)) return {};
        const NoCollection quiet;
        const PyRef kept = PyRef::share(found);
        if (is_gradient) {
            const Unasked unasked;
            return owned_or_nothing(Py_TYPE(found)->tp_descr_get(found, object, reinterpret_cast<PyObject*>(type)));
        }
        return owned_or_nothing(Py_TYPE(found)->tp_descr_get(found, object, reinterpret_cast<PyObject*>(type)));
    }
    if (PyType_Check(object)) {
        PyObject* own = _PyType_Lookup(reinterpret_cast<PyTypeObject*>(object), name);
        if (own) return bind(own, nullptr, object);
    } else if (PyObject* dict = instance_dict(object)) {
        PyObject* own = PyDict_GetItemWithError(dict, name);
        if (own) return {own, false};
        PyErr_Clear();
    }
    return found ? bind(found, object, reinterpret_cast<PyObject*>(type)) : Loaded{};
}

Loaded applied(PyObject* function, PyObject* object) {
    const NoCollection quiet;
    PyObject* made = PyObject_CallOneArg(function, object);
    if (!made && PyErr_ExceptionMatches(PyExc_Exception)) PyErr_Clear();  // else a signal handler's, which the program is to get
    return {made, made != nullptr};
}

bool has_attribute(PyObject* object, PyObject* name) {
    if (_PyType_Lookup(Py_TYPE(object), name)) return true;
    if (PyType_Check(object)) return _PyType_Lookup(reinterpret_cast<PyTypeObject*>(object), name) != nullptr;
    PyObject* dict = instance_dict(object);
    if (!dict) return false;
    int contains = PyDict_Contains(dict, name);
    if (contains < 0) PyErr_Clear();
    return contains > 0;
}

Py_ssize_t builtin_length(PyObject* object) {
    if (PyList_Check(object)) return PyList_GET_SIZE(object);
    if (PyTuple_Check(object)) return PyTuple_GET_SIZE(object);
    if (PyDict_Check(object)) return PyDict_GET_SIZE(object);
    if (PyAnySet_Check(object)) return PySet_GET_SIZE(object);
    if (PyUnicode_Check(object)) return PyUnicode_GET_LENGTH(object);
    if (PyBytes_Check(object)) return PyBytes_GET_SIZE(object);
    if (Py_IS_TYPE(object, torch_types.deque) || Py_IS_TYPE(object, &PyRange_Type)) {
        Py_ssize_t length = PyObject_Size(object);
        if (length < 0) PyErr_Clear();
        return length;
    }
    return -1;
}

namespace {

bool same_bits(double left, double right) { return std::memcmp(&left, &right, sizeof left) == 0; }

// Exact builtin or torch types whose own comparison is native and means equality of value.
bool compares_natively(PyTypeObject* type) { return type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type || type == torch_types.device; }

bool is_singleton(PyTypeObject* type) {
    for (Py_ssize_t i = 0; torch_types.singletons && i < PyTuple_GET_SIZE(torch_types.singletons); i++) {
        if (PyTuple_GET_ITEM(torch_types.singletons, i) == reinterpret_cast<PyObject*>(type)) return true;
    }
    return type == &PyBool_Type || type == &PyType_Type || type == Py_TYPE(Py_None) || type == Py_TYPE(Py_Ellipsis) || type == Py_TYPE(Py_NotImplemented);
}

bool native_equal(PyObject* left, PyObject* right) {
    int equal = PyObject_RichCompareBool(left, right, Py_EQ);
    if (equal < 0) PyErr_Clear();
    return equal > 0;
}

bool range_equal(PyObject* left, PyObject* right) {
    for (const char* part : {"start", "stop", "step"}) {
        PyObject *a = PyObject_GetAttrString(left, part), *b = PyObject_GetAttrString(right, part);
        bool equal = a && b && native_equal(a, b);
        PyErr_Clear();
        Py_XDECREF(a);
        Py_XDECREF(b);
        if (!equal) return false;
    }
    return true;
}

}  // namespace

bool constant_equal(PyObject* left, PyObject* right) {
    if (left == right) return true;
    PyTypeObject* type = Py_TYPE(left);
    if (type != Py_TYPE(right)) return false;
    if (type == &PyFloat_Type) return same_bits(PyFloat_AS_DOUBLE(left), PyFloat_AS_DOUBLE(right));
    if (compares_natively(type)) return native_equal(left, right);
    if (type == &PyTuple_Type || type == torch_types.size) {
        Py_ssize_t n = PyTuple_GET_SIZE(left);
        if (n != PyTuple_GET_SIZE(right)) return false;
        for (Py_ssize_t i = 0; i < n; i++) {
            if (!constant_equal(PyTuple_GET_ITEM(left, i), PyTuple_GET_ITEM(right, i))) return false;
        }
        return true;
    }
    if (type == &PyFrozenSet_Type) {  // in the order in which a program would see them
        if (PySet_GET_SIZE(left) != PySet_GET_SIZE(right)) return false;
        PyObject *one, *other;
        Py_hash_t hash;
        Py_ssize_t left_at = 0, right_at = 0;
        while (_PySet_NextEntry(left, &left_at, &one, &hash) && _PySet_NextEntry(right, &right_at, &other, &hash)) {
            if (!constant_equal(one, other)) return false;
        }
        return true;
    }
    if (type == &PyComplex_Type) {
        Py_complex a = PyComplex_AsCComplex(left), b = PyComplex_AsCComplex(right);
        return same_bits(a.real, b.real) && same_bits(a.imag, b.imag);
    }
    if (type == &PySlice_Type) {
        auto *a = reinterpret_cast<PySliceObject*>(left), *b = reinterpret_cast<PySliceObject*>(right);
        return constant_equal(a->start, b->start) && constant_equal(a->stop, b->stop) && constant_equal(a->step, b->step);
    }
    return type == &PyRange_Type && range_equal(left, right);
}

bool is_constant(PyObject* object) {
    PyTypeObject* type = Py_TYPE(object);
    if (is_singleton(type)) return true;
    if (type == &PyFloat_Type || type == &PyComplex_Type || type == &PyRange_Type || compares_natively(type)) return true;
    if (type == &PySlice_Type) {
        auto* slice = reinterpret_cast<PySliceObject*>(object);
        return is_constant(slice->start) && is_constant(slice->stop) && is_constant(slice->step);
    }
    if (type != &PyTuple_Type && type != torch_types.size) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++) {
        if (!is_constant(PyTuple_GET_ITEM(object, i))) return false;
    }
    return true;
}

PyObject* value_at(PyObject* dict, Py_ssize_t index) {
    if (!PyDict_Check(dict) || index >= PyDict_GET_SIZE(dict)) return nullptr;
    PyObject *key, *value;
    Py_ssize_t at = 0;
    if (!Py_IS_TYPE(dict, &PyODict_Type)) {
        if (Py_TYPE(dict)->tp_iter != PyDict_Type.tp_iter) return nullptr;  // a user's subclass may order its keys as it likes
        for (Py_ssize_t i = 0; PyDict_Next(dict, &at, &key, &value); i++)
            if (i == index) return value;
        return nullptr;
    }
    const NoCollection quiet;
    PyObject* iterator = PyObject_GetIter(dict);
    key = nullptr;
    for (Py_ssize_t i = 0; iterator && i <= index; i++) {
        Py_XDECREF(key);
        key = PyIter_Next(iterator);
    }
    PyErr_Clear();
    value = key ? PyDict_GetItemWithError(dict, key) : nullptr;
    PyErr_Clear();
    Py_XDECREF(key);
    Py_XDECREF(iterator);
    return value;
}

bool keys_equal(PyObject* dict, PyObject* keys) {
    Py_ssize_t n = PyTuple_GET_SIZE(keys);
    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != n) return false;
    if (!Py_IS_TYPE(dict, &PyODict_Type) && Py_TYPE(dict)->tp_iter == PyDict_Type.tp_iter) {  // a dict, or a subclass with its order
        PyObject *key, *value;
        Py_ssize_t at = 0;
        for (Py_ssize_t i = 0; i < n; i++) {
            if (!PyDict_Next(dict, &at, &key, &value) || !constant_equal(key, PyTuple_GET_ITEM(keys, i))) return false;
        }
        return true;
    }
    if (Py_TYPE(dict)->tp_iter != PyODict_Type.tp_iter) return false;  // a user's subclass may order its keys as it likes
    const NoCollection quiet;
    PyObject* iterator = PyObject_GetIter(dict);
    bool equal = iterator != nullptr;
    for (Py_ssize_t i = 0; equal && i < n; i++) {
        PyObject* key = PyIter_Next(iterator);
        equal = key && constant_equal(key, PyTuple_GET_ITEM(keys, i));
        Py_XDECREF(key);
    }
    PyErr_Clear();
    Py_XDECREF(iterator);
    return equal;
}

namespace {

bool is_tensor_type(PyTypeObject* type) {  // tensors hash by identity, too, and a dict that has one finds it without comparing
    while (type && std::strcmp(type->tp_name, "torch._C.TensorBase") != 0) type = type->tp_base;
    return type != nullptr;
}

}  // namespace

// Of bound special methods that are written in C.
static PyTypeObject* method_wrapper_type() {
    static PyTypeObject* const type = [] {
        const PyRef bound = PyRef::take(PyObject_GetAttrString(Py_None, "__str__"));
        if (!bound) PyErr_Clear();
        return bound ? Py_TYPE(bound.get()) : nullptr;
    }();
    return type;
}

bool hashes_by_identity(PyObject* object) {  // classes, functions and the like; those written in C compare by what they are bound to, natively
    PyTypeObject* type = Py_TYPE(object);
    if (type == &PyCFunction_Type || type == method_wrapper_type()) return true;
    return (type->tp_hash == PyBaseObject_Type.tp_hash && type->tp_richcompare == PyBaseObject_Type.tp_richcompare) || is_tensor_type(type);
}

static PyTypeObject* class_of_enums() {
    static PyTypeObject* const type = [] {
        const PyRef module = module_named("enum");
        PyObject* const found = module ? PyObject_GetAttrString(module.get(), "EnumMeta") : nullptr;
        if (!found) PyErr_Clear();
        return reinterpret_cast<PyTypeObject*>(found);
    }();
    return type;
}

static bool is_enum_member(PyObject* object) {
    PyTypeObject *type = Py_TYPE(object), *enums = class_of_enums();
    if (!enums || !PyType_IsSubtype(Py_TYPE(type), enums)) return false;
    for (PyTypeObject* plain : {&PyBaseObject_Type, &PyLong_Type, &PyUnicode_Type, &PyBytes_Type, &PyFloat_Type}) {
        if (type->tp_richcompare == plain->tp_richcompare) return true;
    }
    return false;
}

bool is_key(PyObject* object) {
    if (is_constant(object) || hashes_by_identity(object) || is_enum_member(object)) return true;
    if (PyFrozenSet_CheckExact(object)) {
        PyObject* element;
        Py_hash_t hash;
        Py_ssize_t at = 0;
        while (_PySet_NextEntry(object, &at, &element, &hash)) {
            if (!is_key(element)) return false;
        }
        return true;
    }
    if (!PyTuple_CheckExact(object)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(object); i++) {
        if (!is_key(PyTuple_GET_ITEM(object, i))) return false;
    }
    return true;
}

bool elements_equal(PyObject* set, PyObject* elements) {
    if (!PyAnySet_CheckExact(set) || PySet_GET_SIZE(set) != PyDict_GET_SIZE(elements)) return false;
    PyObject* key;
    Py_hash_t hash;
    Py_ssize_t at = 0;
    while (_PySet_NextEntry(set, &at, &key, &hash)) {
        if (!is_key(key) || is_tensor_type(Py_TYPE(key))) return false;  // looking up others may run code of a user
        PyObject* const expected = dict_item(elements, key, hash);
        if (!expected || !constant_equal(key, expected)) return false;
    }
    return true;
}

bool order_equal(PyObject* set, PyObject* elements) {
    if (!PyAnySet_CheckExact(set) || PySet_GET_SIZE(set) != PyTuple_GET_SIZE(elements)) return false;
    PyObject* key;
    Py_hash_t hash;
    Py_ssize_t at = 0;
    for (Py_ssize_t i = 0; _PySet_NextEntry(set, &at, &key, &hash); i++) {
        if (!constant_equal(key, PyTuple_GET_ITEM(elements, i))) return false;
    }
    return true;
}

}  // namespace dynacompile
