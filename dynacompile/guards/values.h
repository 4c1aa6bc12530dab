// Reading Python values without running Python code of the user.
#pragma once
#include <Python.h>

#include <cstdint>
#include <utility>

namespace dynacompile {

// An expected object: weakly held where its type allows it, so that an entry keeps no user object alive.
class Held {
  public:
    Held() = default;
    Held(Held&& other) noexcept : strong_(std::exchange(other.strong_, nullptr)), weak_(std::exchange(other.weak_, nullptr)) {}
    Held& operator=(Held&& other) noexcept {
        std::swap(strong_, other.strong_);
        std::swap(weak_, other.weak_);
        return *this;
    }
    ~Held() {
        Py_XDECREF(strong_);
        Py_XDECREF(weak_);
    }
    bool hold(PyObject* object);    // false with an error set
    void hold_strong(PyObject* object) { strong_ = Py_NewRef(object); }
    PyObject* get() const { return weak_ ? PyWeakref_GET_OBJECT(weak_) : strong_; }  // None once a weakly held object is gone
    bool is(PyObject* object) const { return get() == object && (object != Py_None || !weak_); }  // a dead object is not None

  private:
    PyObject* strong_ = nullptr;
    PyObject* weak_ = nullptr;
};

// A loaded value and whether it is a new reference.
struct Loaded {
    PyObject* value = nullptr;
    bool owned = false;
};

// Types that the host passes in, since torch's Python types have no C names here.
struct TorchTypes {
    PyTypeObject *tensor, *parameter, *size, *device, *deque;
    PyObject* singletons;  // a tuple of types whose values are compared by identity
};
extern TorchTypes torch_types;

PyObject* link_result(PyObject* object);                 // of an entry of functools.lru_cache, borrowed; null: it is none, or how entries look is not known
bool try_links(PyObject* entry, PyObject* key, PyObject* result);  // whether entries look as expected, by one whose key and result are known
bool links_are_known();
PyObject* instance_dict(PyObject* object);               // borrowed; null: it has none
PyObject** instance_dict_slot(PyObject* object);         // where the object keeps it; null: nowhere
Loaded applied(PyObject* function, PyObject* object);    // function(object), of a function that runs no code of the user; a null value: it raised
PyObject* known_leaf(PyObject* tensor);                   // whether a plain tensor is a leaf, as `is_leaf` says; borrowed, null: only its getter can tell
Loaded load_attribute(PyObject* object, PyObject* name);  // the generic protocol; a null value: not found, or only a user's code could tell
bool has_attribute(PyObject* object, PyObject* name);     // by the type and the instance dict
bool hashes_by_identity(PyObject* object);                 // a lookup of it in a dict or set runs no user code
bool elements_equal(PyObject* set, PyObject* elements);   // a set or frozenset of these keys; elements: a dict with each as its own value
bool order_equal(PyObject* set, PyObject* elements);      // a set or frozenset that gives these elements in this order; elements: a tuple
Py_ssize_t builtin_length(PyObject* object);              // of builtin containers; -1 for others
bool constant_equal(PyObject* left, PyObject* right);     // type-exact, floats bit by bit
bool is_key(PyObject* object);                            // whether a lookup of it compares natively
bool is_constant(PyObject* object);                       // whether constant_equal knows its type
PyObject* value_at(PyObject* dict, Py_ssize_t index);  // the value at a place in the order of a dict, borrowed; null where there is none
bool keys_equal(PyObject* dict, PyObject* keys);          // keys: a tuple of constants, in order

// A dict's item, borrowed, or null; never an error.
inline PyObject* dict_item(PyObject* dict, PyObject* key, Py_hash_t hash) {
    PyObject* found = _PyDict_GetItem_KnownHash(dict, key, hash);
    if (!found && PyErr_Occurred()) PyErr_Clear();
    return found;
}

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// Changes with every change of the dict, and belongs to no other dict.
inline const uint64_t* dict_tag_word(PyObject* dict) { return &reinterpret_cast<PyDictObject*>(dict)->ma_version_tag; }
inline uint64_t dict_tag(PyObject* dict) { return *dict_tag_word(dict); }
#pragma GCC diagnostic pop

// A number that changes when any watched dict does or dies; 0 where dicts can't be watched (CPython 3.11).
uint64_t dict_epoch();
void watch_dict(PyObject* dict);
void use_dict_watchers(bool on);

}  // namespace dynacompile
