// What code objects remember: buckets of entries in LRU order, and marks of code that is left to Python.
#include "hook.h"

#include <structmember.h>

#include <time.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace dynacompile {

PyTypeObject* entry_type;

namespace {

struct SkipRule {
    std::string prefix;
    bool recursive;
};

Py_ssize_t extra_index = -1;
Extra* all_extras = nullptr;
uint64_t next_serial = 0;
uint64_t uses = 0;
constexpr size_t few_entries = 1;  // that need no index
std::vector<SkipRule>* skip_rules;

// Takes the bucket's entries out; they are released by the caller, since releasing may run any code.
std::vector<Entry*> take(Extra* extra, long bucket) {
    std::vector<Entry*> taken;
    for (size_t i = 0; i < extra->buckets.size(); i++) {
        if (extra->buckets[i].id != bucket) continue;
        taken.swap(extra->buckets[i].entries);
        extra->buckets.erase(extra->buckets.begin() + i);
        extra->changes++;
        break;
    }
    extra->serial = next_serial++;
    return taken;
}

std::vector<Entry*> take_all(Extra* extra) {
    std::vector<Entry*> taken;
    for (Bucket& bucket : extra->buckets) taken.insert(taken.end(), bucket.entries.begin(), bucket.entries.end());
    extra->buckets.clear();
    extra->changes++;
    extra->serial = next_serial++;
    return taken;
}

void release(const std::vector<Entry*>& entries) {
    for (Entry* entry : entries) Py_DECREF(entry);
}

// CPython calls it for every code object that has anybody's data, ours or not: `pointer` may be null.
void free_extra(void* pointer) {
    Extra* extra = static_cast<Extra*>(pointer);
    if (!extra || is_finalizing()) return;
    (extra->before ? extra->before->after : all_extras) = extra->after;
    if (extra->after) extra->after->before = extra->before;
    std::vector<Entry*> entries = take_all(extra);
    delete extra;
    release(entries);
}

// `prefix` is the file itself, a folder of it, or a marker such as "<frozen ".
bool covers(const SkipRule& rule, const char* file, size_t length) {
    size_t n = rule.prefix.size();
    if (n > length || rule.prefix.compare(0, n, file, n) != 0) return false;
    return n == length || rule.prefix[0] == '<' || rule.prefix[n - 1] == '/' || file[n] == '/';
}

// The rule of the longest matching path, or null.
const SkipRule* rule_of(PyCodeObject* code) {
    Py_ssize_t length;
    const char* file = PyUnicode_AsUTF8AndSize(code->co_filename, &length);
    if (!file) PyErr_Clear(), file = "", length = 0;
    const SkipRule* longest = nullptr;
    for (const SkipRule& rule : *skip_rules) {
        if (covers(rule, file, length) && (!longest || rule.prefix.size() > longest->prefix.size())) longest = &rule;
    }
    return longest;
}

Mark classify(PyCodeObject* code) {
    const SkipRule* longest = rule_of(code);
    if (longest) return longest->recursive ? Mark::skip_recursive : Mark::skip;
    if (!(code->co_flags & CO_OPTIMIZED)) {  // a module's or a class's body
        return PyUnicode_CompareWithASCIIString(code->co_name, "<module>") == 0 ? Mark::skip_recursive : Mark::skip;
    }
    return code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE) ? Mark::skip : Mark::eligible;
}

// Code of capture/resume.py, by RESUME_PREFIX of its qualified name.
bool is_resume(PyCodeObject* code) {
    static const char prefix[] = "<resume at line ";
    const char* name = PyUnicode_AsUTF8(code->co_qualname);
    if (!name) PyErr_Clear();
    return name && std::strncmp(name, prefix, sizeof prefix - 1) == 0;
}

Bucket* find_bucket(Extra* extra, long id) {
    auto at = std::lower_bound(extra->buckets.begin(), extra->buckets.end(), id, [](const Bucket& b, long wanted) { return b.id < wanted; });
    return at != extra->buckets.end() && at->id == id ? &*at : nullptr;
}

std::vector<Entry*> latest_first(const Bucket& bucket) {
    std::vector<Entry*> entries = bucket.entries;
    std::stable_sort(entries.begin(), entries.end(), [](const Entry* a, const Entry* b) { return a->used > b->used; });
    return entries;
}

Bucket* need_bucket(Extra* extra, long id) {
    auto at = std::lower_bound(extra->buckets.begin(), extra->buckets.end(), id, [](const Bucket& b, long wanted) { return b.id < wanted; });
    if (at == extra->buckets.end() || at->id != id) at = extra->buckets.insert(at, Bucket{id, {}, nullptr});
    return &*at;
}

// Why `code` can't stand in for `original`, or null: arguments and cells must lie where the frame already has them.
const char* mismatch(PyCodeObject* original, PyCodeObject* code) {
    constexpr int shape = CO_VARARGS | CO_VARKEYWORDS | CO_OPTIMIZED | CO_NEWLOCALS;
    if (code == original) return "is the original code";
    if (code->co_argcount != original->co_argcount || code->co_posonlyargcount != original->co_posonlyargcount || code->co_kwonlyargcount != original->co_kwonlyargcount)
        return "has other parameters";
    if ((code->co_flags & shape) != (original->co_flags & shape)) return "has other flags";
    if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE)) return "is a generator";
    return code->co_nfreevars == original->co_nfreevars ? nullptr : "has other free variables";
}

PyCodeObject* as_code(PyObject* object) {
    if (PyCode_Check(object)) return reinterpret_cast<PyCodeObject*>(object);
    PyErr_Format(PyExc_TypeError, "expected a code object, not %.200s", Py_TYPE(object)->tp_name);
    return nullptr;
}

// --- Entry ---

int entry_traverse(PyObject* self, visitproc visit, void* arg) {
    Entry* entry = reinterpret_cast<Entry*>(self);
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(entry->code);
    Py_VISIT(entry->guards);
    Py_VISIT(entry->info);
    return 0;
}

int entry_clear(PyObject* self) {
    Entry* entry = reinterpret_cast<Entry*>(self);
    Py_CLEAR(entry->info);
    return 0;
}

void entry_dealloc(PyObject* self) {
    Entry* entry = reinterpret_cast<Entry*>(self);
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(entry->code);
    Py_XDECREF(entry->guards);
    Py_XDECREF(entry->info);
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject* entry_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    static const char* names[] = {"code", "guards", "info", "whole", nullptr};
    PyObject *code, *guards, *info = Py_None;
    int whole = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|Op:Entry", const_cast<char**>(names), &PyCode_Type, &code, &guards, &info, &whole)) return nullptr;
    if (!is_guard_program(guards)) {
        PyErr_Format(PyExc_TypeError, "Entry: guards must be a GuardProgram, not %.200s", Py_TYPE(guards)->tp_name);
        return nullptr;
    }
    Entry* entry = reinterpret_cast<Entry*>(type->tp_alloc(type, 0));
    if (!entry) return nullptr;
    entry->code = reinterpret_cast<PyCodeObject*>(Py_NewRef(code));
    entry->guards = Py_NewRef(guards);
    entry->info = Py_NewRef(info);
    entry->whole = static_cast<char>(whole);
    return reinterpret_cast<PyObject*>(entry);
}

PyMemberDef entry_members[] = {
    {"code", T_OBJECT, offsetof(Entry, code), READONLY, "the code that runs in the original's place"},
    {"guards", T_OBJECT, offsetof(Entry, guards), READONLY, "its GuardProgram"},
    {"info", T_OBJECT, offsetof(Entry, info), READONLY, "what the compiler keeps about it"},
    {"kind", T_LONG, offsetof(Entry, kind), READONLY, "of the region that made it: it serves regions of this kind only"},
    {"hits", T_PYSSIZET, offsetof(Entry, hits), READONLY, "calls that it served"},
    {"used", T_ULONGLONG, offsetof(Entry, used), READONLY, "larger than that of entries that were used before"},
    {"last_used", T_DOUBLE, offsetof(Entry, last_used), READONLY, "when it last served one: seconds since the epoch; 0 where it has not"},
    {"whole", T_BOOL, offsetof(Entry, whole), READONLY, "the hook is off while it runs"},
    {nullptr},
};

PyType_Slot entry_slots[] = {
    {Py_tp_doc, const_cast<char*>("Entry(code, guards, info=None, whole=False): one compiled version of a code object.")},
    {Py_tp_new, reinterpret_cast<void*>(entry_new)},
    {Py_tp_dealloc, reinterpret_cast<void*>(entry_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(entry_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(entry_clear)},
    {Py_tp_members, entry_members},
    {0, nullptr},
};
PyType_Spec entry_spec = {"dynacompile_native.Entry", sizeof(Entry), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, entry_slots};

// --- module functions ---

PyObject* entries_of(PyObject*, PyObject* object) {
    PyCodeObject* code = as_code(object);
    if (!code) return nullptr;
    PyObject* list = PyList_New(0);
    Extra* extra = find_extra(code);
    if (!list || !extra) return list;
    for (const Bucket& bucket : extra->buckets) {
        for (Entry* entry : latest_first(bucket)) {
            PyObject* pair = Py_BuildValue("(lO)", bucket.id, entry);
            int failed = pair ? PyList_Append(list, pair) : -1;
            Py_XDECREF(pair);
            if (failed) {
                Py_DECREF(list);
                return nullptr;
            }
        }
    }
    return list;
}

PyObject* remove_bucket(PyObject*, PyObject* args) {
    PyObject* object;
    long bucket;
    if (!PyArg_ParseTuple(args, "Ol:remove_bucket", &object, &bucket)) return nullptr;
    if (object == Py_None) {
        drop_bucket(bucket);
        Py_RETURN_NONE;
    }
    PyCodeObject* code = as_code(object);
    if (!code) return nullptr;
    if (Extra* extra = find_extra(code)) release(take(extra, bucket));
    Py_RETURN_NONE;
}

PyObject* remove_entry(PyObject*, PyObject* args) {
    PyObject *object, *entry;
    if (!PyArg_ParseTuple(args, "O!O!:remove_entry", &PyCode_Type, &object, entry_type, &entry)) return nullptr;
    Extra* extra = find_extra(reinterpret_cast<PyCodeObject*>(object));
    for (size_t b = 0; extra && b < extra->buckets.size(); b++) {
        Bucket& bucket = extra->buckets[b];
        auto at = std::find(bucket.entries.begin(), bucket.entries.end(), reinterpret_cast<Entry*>(entry));
        if (at == bucket.entries.end()) continue;
        bucket.index.reset();
        bucket.entries.erase(at);
        if (bucket.entries.empty()) extra->buckets.erase(extra->buckets.begin() + b);
        extra->changes++;
        Py_DECREF(entry);
        Py_RETURN_TRUE;
    }
    Py_RETURN_FALSE;
}

PyObject* reset_code(PyObject*, PyObject* object) {
    PyCodeObject* code = as_code(object);
    if (!code) return nullptr;
    if (Extra* extra = find_extra(code)) {
        extra->mark = classify(code);
        release(take_all(extra));
    }
    Py_RETURN_NONE;
}

PyObject* skip_code(PyObject*, PyObject* args, PyObject* kwargs) {
    static const char* names[] = {"code", "recursive", nullptr};
    PyObject* code;
    int recursive = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|p:skip_code", const_cast<char**>(names), &PyCode_Type, &code, &recursive)) return nullptr;
    Extra* extra = need_extra(reinterpret_cast<PyCodeObject*>(code));
    if (!extra) return nullptr;
    extra->mark = recursive ? Mark::skip_recursive : Mark::skip;
    Py_RETURN_NONE;
}

PyObject* add_skip_prefix(PyObject*, PyObject* args, PyObject* kwargs) {
    static const char* names[] = {"path", "recursive", nullptr};
    const char* path;
    int recursive = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "s|p:add_skip_prefix", const_cast<char**>(names), &path, &recursive)) return nullptr;
    if (!*path) {
        PyErr_SetString(PyExc_ValueError, "add_skip_prefix: path is empty, which would skip all code");
        return nullptr;
    }
    for (SkipRule& rule : *skip_rules) {
        if (rule.prefix != path) continue;
        rule.recursive = recursive;
        Py_RETURN_NONE;
    }
    skip_rules->push_back({path, recursive != 0});
    Py_RETURN_NONE;
}

PyObject* is_skipped(PyObject*, PyObject* code) {
    if (PyCode_Check(code)) return PyBool_FromLong(rule_of(reinterpret_cast<PyCodeObject*>(code)) != nullptr);
    return PyErr_Format(PyExc_TypeError, "is_skipped takes a code object, not %.200s", Py_TYPE(code)->tp_name);
}

PyMethodDef functions[] = {
    {"is_skipped", is_skipped, METH_O, "is_skipped(code) -> bool: whether a path given to add_skip_prefix covers its file."},
    {"entries", entries_of, METH_O, "entries(code) -> list of (bucket, Entry), most recently used first in each bucket."},
    {"remove_bucket", remove_bucket, METH_VARARGS, "remove_bucket(code, bucket): drops its entries; code=None: of every code object."},
    {"remove_entry", remove_entry, METH_VARARGS, "remove_entry(code, entry) -> bool: drops that entry; a call that runs it goes on."},
    {"reset_code", reset_code, METH_O, "reset_code(code): drops all its entries, and what regions decided about it."},
    {"skip_code", reinterpret_cast<PyCFunction>(skip_code), METH_VARARGS | METH_KEYWORDS, "skip_code(code, recursive=False): it runs as Python; recursive: so does all that it calls."},
    {"add_skip_prefix", reinterpret_cast<PyCFunction>(add_skip_prefix), METH_VARARGS | METH_KEYWORDS,
     "add_skip_prefix(path, recursive=False): code of that file or folder runs as Python. The longest matching path decides; code that already ran in a region keeps its mark."},
    {nullptr},
};

}  // namespace

bool has_skip_rule(PyCodeObject* code) { return rule_of(code) != nullptr; }

Extra* find_extra(PyCodeObject* code) {
    void* extra = nullptr;
    get_extra(reinterpret_cast<PyObject*>(code), extra_index, &extra);
    return static_cast<Extra*>(extra);
}

Extra* need_extra(PyCodeObject* code) {
    Extra* extra = find_extra(code);
    if (extra) return extra;
    extra = new Extra{next_serial++, 0, classify(code), is_resume(code), {}, nullptr, all_extras};
    if (set_extra(reinterpret_cast<PyObject*>(code), extra_index, extra) < 0) {
        delete extra;
        return nullptr;
    }
    if (all_extras) all_extras->before = extra;
    all_extras = extra;
    return extra;
}

void mark_used(Entry* entry) {
    timespec now;
    clock_gettime(CLOCK_REALTIME_COARSE, &now);
    entry->hits++;
    entry->used = ++uses;
    entry->last_used = static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

namespace {

enum class Tried { holds, fails, outdated };

Tried try_entry(const Extra& extra, Entry* entry, const Roots& roots) {
    const uint64_t changes = extra.changes;
    Py_INCREF(entry);
    const bool holds = guards_hold(entry->guards, roots);
    const bool outdated = extra.changes != changes;  // a guard let others in, who changed the buckets
    Py_DECREF(entry);
    return outdated ? Tried::outdated : holds ? Tried::holds : Tried::fails;
}

Entry* lookup_by_index(const Extra& extra, const IndexNode& index, long kind, const Roots& roots) {
    Candidates candidates;
    find_candidates(index, roots, candidates);
    Entry** at = candidates.begin();
    for (Entry** end = at + candidates.count; at != end; at++) {
        if ((*at)->kind != kind) continue;
        const Tried tried = try_entry(extra, *at, roots);
        if (tried != Tried::fails) return tried == Tried::holds ? *at : nullptr;
        if (PyErr_Occurred()) return nullptr;
    }
    return nullptr;
}

}  // namespace

Entry* lookup(Extra* extra, long id, long kind, Frame* frame) {
    Bucket* bucket = find_bucket(extra, id);
    if (!bucket) return nullptr;
    PyFunctionObject* function = frame_function(frame);
    Roots roots{frame_slots(frame), frame_code(frame)->co_nlocalsplus, function->func_closure, frame_globals(frame), frame_builtins(frame)};
    if (bucket->entries.size() > few_entries) {
        if (!bucket->index) bucket->index = build_index(bucket->entries);
        return lookup_by_index(*extra, *bucket->index, kind, roots);
    }
    for (Entry* entry : bucket->entries) {
        if (entry->kind == kind) return try_entry(*extra, entry, roots) == Tried::holds ? entry : nullptr;
    }
    return nullptr;
}

bool add_entry(PyCodeObject* original, const RegionState& state, Entry* entry) {
    if (const char* wrong = mismatch(original, entry->code)) {
        PyErr_Format(PyExc_ValueError, "the entry's code %R %s than %R: it can't run in that frame", entry->code, wrong, original);
        return false;
    }
    Extra *replacement = need_extra(entry->code), *extra = need_extra(original);
    if (!replacement || !extra) return false;
    replacement->mark = Mark::skip;
    entry->kind = state.kind;
    Bucket* bucket = need_bucket(extra, state.bucket);
    std::vector<Entry*>& entries = bucket->entries;
    if (std::find(entries.begin(), entries.end(), entry) != entries.end()) return true;  // another thread's, met while waiting for it
    entry->used = ++uses;
    bucket->index.reset();
    entries.insert(entries.begin(), reinterpret_cast<Entry*>(Py_NewRef(reinterpret_cast<PyObject*>(entry))));
    extra->changes++;
    return true;
}

Py_ssize_t count_entries(const Extra& extra, const RegionState& state) {
    Bucket* bucket = find_bucket(const_cast<Extra*>(&extra), state.bucket);
    if (!bucket) return 0;
    return std::count_if(bucket->entries.begin(), bucket->entries.end(), [&](const Entry* entry) { return entry->kind == state.kind; });
}

Py_ssize_t count_entries(const Extra& extra) {
    size_t count = 0;
    for (const Bucket& bucket : extra.buckets) count += bucket.entries.size();
    return static_cast<Py_ssize_t>(count);
}

PyObject* bucket_entries(const Extra& extra, long id) {
    Bucket* bucket = find_bucket(const_cast<Extra*>(&extra), id);
    const std::vector<Entry*> entries = bucket ? latest_first(*bucket) : std::vector<Entry*>{};
    PyObject* tuple = PyTuple_New(entries.size());
    for (Py_ssize_t i = 0; tuple && i < PyTuple_GET_SIZE(tuple); i++) PyTuple_SET_ITEM(tuple, i, Py_NewRef(reinterpret_cast<PyObject*>(entries[i])));
    return tuple;
}

void drop_bucket(long bucket) {
    std::vector<Entry*> dropped;
    for (Extra* extra = all_extras; extra; extra = extra->after) {
        if (!find_bucket(extra, bucket)) continue;
        std::vector<Entry*> taken = take(extra, bucket);
        dropped.insert(dropped.end(), taken.begin(), taken.end());
    }
    release(dropped);
}

bool init_dispatch(PyObject* module) {
    extra_index = request_extra_index(free_extra);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "CPython has no free index for data on code objects");
        return false;
    }
    skip_rules = new std::vector<SkipRule>{{"<frozen importlib", true}, {"<frozen ", false}};
    entry_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&entry_spec));
    return entry_type && PyModule_AddFunctions(module, functions) == 0 && PyModule_AddObjectRef(module, "Entry", reinterpret_cast<PyObject*>(entry_type)) == 0;
}

}  // namespace dynacompile
