// Names that code finds in classes and in modules: an entry relies on many lookups, and on few classes, dicts and functions.
//
// Each of these is proved by one word: a class by its version, which no other class nor state of it has, a dict by its version tag, a function by its
// code. Registrations of abstract classes have a number that grows with each. Where something differs, Python repeats the lookups, and where all give
// what they gave, the words are recorded anew.
#include "guards/program.h"

namespace dynacompile {
namespace {

constexpr uint64_t unknown = ~uint64_t{0};

const uint64_t* word_of(PyObject* holder) {
    if (PyType_Check(holder)) return reinterpret_cast<const uint64_t*>(&reinterpret_cast<PyTypeObject*>(holder)->tp_version_tag);  // and the padding beside it
    if (PyFunction_Check(holder)) return reinterpret_cast<const uint64_t*>(&reinterpret_cast<PyFunctionObject*>(holder)->func_code);
    return dict_tag_word(holder);
}

// The word as of now; classes are given a version at the first lookup.
uint64_t fresh_word(const NamesCheck::Word& word) {
    if (PyType_Check(word.holder)) {
        static PyObject* any_name = PyUnicode_InternFromString("__class__");
        auto* type = reinterpret_cast<PyTypeObject*>(word.holder);
        if (!type->tp_version_tag) _PyType_Lookup(type, any_name);
        if (!type->tp_version_tag || !(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) return unknown;
    }
    return *word.at;
}

bool is_gone(const NamesCheck::Word& word) { return word.weak && word.weak->wr_object != word.holder; }

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
        if (is_gone(word) || *word.at != word.value) return false;
    }
    return true;
}

}  // namespace

bool names_hold(NamesCheck& check) {
    if (all_as_recorded(check)) return true;
    for (const NamesCheck::Word& word : check.words) {
        if (is_gone(word)) return false;
    }
    PyObject* counted = registrations(check);
    PyObject* answer = PyObject_CallNoArgs(check.repeat);
    if (!answer) raises_again(check.repeat);  // an error that is left is a signal handler's, for the caller
    const bool holds = answer == Py_True;
    Py_XDECREF(answer);
    if (!holds) {
        Py_XDECREF(counted);
        return false;
    }
    for (NamesCheck::Word& word : check.words) word.value = is_gone(word) ? unknown : fresh_word(word);
    PyObject* before = check.counted;
    check.counted = counted;
    Py_XDECREF(before);
    return true;
}

namespace {

// The first check repeats the lookups: they were made before the guard was.
bool add_holders(NamesCheck& check, PyObject* holders, bool lasting) {
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(holders); i++) {
        PyObject* holder = PyTuple_GET_ITEM(holders, i);
        if (!PyType_Check(holder) && !PyDict_Check(holder) && !PyFunction_Check(holder)) {
            PyErr_Format(PyExc_TypeError, "names are looked up in classes, dicts and functions, not in a %.200s", Py_TYPE(holder)->tp_name);
            return false;
        }
        PyObject* kept = lasting ? Py_NewRef(holder) : PyWeakref_NewRef(holder, nullptr);
        if (!kept) return false;
        check.kept.push_back(kept);
        check.words.push_back({word_of(holder), unknown, holder, lasting ? nullptr : reinterpret_cast<PyWeakReference*>(kept)});
    }
    return true;
}

}  // namespace

std::unique_ptr<NamesCheck> parse_names(PyObject* argument) {
    PyObject *lasting, *others, *repeat, *counter;
    if (!PyArg_ParseTuple(argument, "O!O!OO", &PyTuple_Type, &lasting, &PyTuple_Type, &others, &repeat, &counter)) return nullptr;
    auto check = std::make_unique<NamesCheck>();
    if (!add_holders(*check, others, false) || !add_holders(*check, lasting, true)) return nullptr;
    check->repeat = Py_NewRef(repeat);
    check->counter = counter == Py_None ? nullptr : Py_NewRef(counter);
    return check;
}

}  // namespace dynacompile
