// Names that code finds in classes and in modules: an entry relies on many lookups, and on few classes, dicts and functions.
//
// Each of these is proved by one word: a class by its version, which no other class nor state of it has, a dict by its version tag, a function by its
// code. Registrations of abstract classes have a number that grows with each. Where something differs, Python repeats the lookups, and where all give what they gave, the
// words are recorded anew.
#include <new>

#include "guards/program.h"

namespace dynacompile {
namespace {

constexpr uint64_t unknown = ~uint64_t{0};

// 0: the class has no version.
uint64_t version_of(PyTypeObject* type) { return type->tp_version_tag; }

uint64_t word_of(PyObject* holder) {
    if (PyType_Check(holder)) return version_of(reinterpret_cast<PyTypeObject*>(holder));
    if (PyFunction_Check(holder)) return reinterpret_cast<uint64_t>(PyFunction_GET_CODE(holder));
    return dict_tag(holder);
}

// The word as of now; classes are given a version at the first lookup.
uint64_t fresh_word(PyObject* holder) {
    if (PyType_Check(holder)) {
        static PyObject* any_name = PyUnicode_InternFromString("__class__");
        auto* type = reinterpret_cast<PyTypeObject*>(holder);
        if (!type->tp_version_tag) _PyType_Lookup(type, any_name);
        if (!type->tp_version_tag || !(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) return unknown;
    }
    return word_of(holder);
}

bool is_gone(const Held& holder) { return holder.get() == Py_None; }

// The number of registrations; null, with no error set, where nobody asked or it can't be had.
PyObject* registrations(const NamesCheck& check) {
    if (!check.counter) return nullptr;
    PyObject* now = PyObject_CallNoArgs(check.counter);
    if (!now) PyErr_Clear();
    return now;
}

bool all_as_recorded(const NamesCheck& check) {
    if (check.counter) {
        PyObject* now = registrations(check);
        bool same = now && check.counted && PyObject_RichCompareBool(now, check.counted, Py_EQ) == 1;
        Py_XDECREF(now);
        if (!same) return false;
    }
    for (const NamesCheck::Word& word : check.words) {
        PyObject* holder = word.holder.get();
        if (holder == Py_None || word_of(holder) != word.value) return false;
    }
    return true;
}

}  // namespace

bool names_hold(NamesCheck& check) {
    if (all_as_recorded(check)) return true;
    for (const NamesCheck::Word& word : check.words) {
        if (is_gone(word.holder)) return false;
    }
    PyObject* counted = registrations(check);
    PyObject* answer = PyObject_CallNoArgs(check.repeat);
    if (!answer) PyErr_Clear();
    const bool holds = answer == Py_True;
    Py_XDECREF(answer);
    if (!holds) {
        Py_XDECREF(counted);
        return false;
    }
    for (NamesCheck::Word& word : check.words) word.value = is_gone(word.holder) ? unknown : fresh_word(word.holder.get());
    PyObject* before = check.counted;
    check.counted = counted;
    Py_XDECREF(before);
    return true;
}

std::unique_ptr<NamesCheck> parse_names(PyObject* argument) {
    PyObject *holders, *repeat, *counter;
    if (!PyArg_ParseTuple(argument, "O!OO", &PyTuple_Type, &holders, &repeat, &counter)) return nullptr;
    auto check = std::make_unique<NamesCheck>();
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(holders); i++) {
        PyObject* holder = PyTuple_GET_ITEM(holders, i);
        if (!PyType_Check(holder) && !PyDict_Check(holder) && !PyFunction_Check(holder)) {
            PyErr_Format(PyExc_TypeError, "names are looked up in classes, dicts and functions, not in a %.200s", Py_TYPE(holder)->tp_name);
            return nullptr;
        }
        NamesCheck::Word word;
        if (!word.holder.hold(holder)) return nullptr;
        word.value = unknown;  // the first check repeats the lookups: they were made before the guard was
        check->words.push_back(std::move(word));
    }
    check->repeat = Py_NewRef(repeat);
    check->counter = counter == Py_None ? nullptr : Py_NewRef(counter);
    return check;
}

}  // namespace dynacompile
