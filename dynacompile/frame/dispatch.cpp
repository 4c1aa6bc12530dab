// What code objects remember: buckets of entries in LRU order, and marks of code that is left to Python.
#include "hook.h"

#include <structmember.h>

#include <time.h>

#include <algorithm>
#include <cstring>
#include <new>
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

// Entries that were taken out of their buckets, to be released once nothing is iterated: releasing may run any code. It takes no memory.
class Dropped {
  public:
    Dropped() = default;
    Dropped(const Dropped&) = delete;
    void add(const std::vector<Entry*>& entries) noexcept {
        for (Entry* entry : entries) entry->next = std::exchange(first_, entry);
    }
    ~Dropped() {
        while (Entry* entry = first_) {
            first_ = std::exchange(entry->next, nullptr);
            Py_DECREF(entry);
        }
    }

  private:
    Entry* first_ = nullptr;
};

// Takes the bucket's entries out.
void take(Extra* extra, long bucket, Dropped& into) noexcept {
    for (size_t i = 0; i < extra->buckets.size(); i++) {
        if (extra->buckets[i].id != bucket) continue;
        into.add(extra->buckets[i].entries);
        extra->buckets.erase(extra->buckets.begin() + i);
        extra->changes++;
        break;
    }
    extra->serial = next_serial++;
}

void take_all(Extra* extra, Dropped& into) noexcept {
    for (const Bucket& bucket : extra->buckets) into.add(bucket.entries);
    extra->buckets.clear();
    extra->changes++;
    extra->serial = next_serial++;
}

// CPython calls it for every code object that has anybody's data, ours or not: `pointer` may be null.
void free_extra(void* pointer) noexcept {
    Extra* extra = static_cast<Extra*>(pointer);
    if (!extra || is_finalizing()) return;
    (extra->before ? extra->before->after : all_extras) = extra->after;
    if (extra->after) extra->after->before = extra->before;
    Dropped dropped;
    take_all(extra, dropped);
    delete extra;
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

// Code of capture/resume.py, by RESUME_PREFIX of its qualified name.
bool is_resume(PyCodeObject* code) {
    static const char prefix[] = "<resume at line ";
    const char* name = PyUnicode_AsUTF8(code->co_qualname);
    if (!name) PyErr_Clear();
    return name && std::strncmp(name, prefix, sizeof prefix - 1) == 0;
}

// wanted: it is compiled wherever it lies, as what goes on after a break in compiled code is.
Mark classify(PyCodeObject* code, bool wanted) {
    const SkipRule* longest = wanted || is_resume(code) ? nullptr : rule_of(code);
    if (longest && longest->recursive) return Mark::skip_recursive;
    if (!(code->co_flags & CO_OPTIMIZED)) {  // a module's or a class's body
        return !longest && PyUnicode_CompareWithASCIIString(code->co_name, "<module>") == 0 ? Mark::skip_recursive : Mark::skip;
    }
    if (code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR | CO_ITERABLE_COROUTINE)) return Mark::skip;
    return longest ? Mark::elsewhere : Mark::eligible;
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

int entry_traverse(PyObject* self, visitproc visit, void* arg) noexcept {
    Entry* entry = reinterpret_cast<Entry*>(self);
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(entry->code);
    Py_VISIT(entry->guards);
    Py_VISIT(entry->info);
    return 0;
}

int entry_clear(PyObject* self) noexcept {
    Entry* entry = reinterpret_cast<Entry*>(self);
    Py_CLEAR(entry->info);
    return 0;
}

void entry_dealloc(PyObject* self) noexcept {
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
    static const char* names[] = {"code", "guards", "info", "whole", "restarts", nullptr};
    PyObject *code, *guards, *info = Py_None;
    int whole = 0, restarts = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|Opp:Entry", const_cast<char**>(names), &PyCode_Type, &code, &guards, &info, &whole, &restarts)) return nullptr;
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
    entry->restarts = static_cast<char>(restarts);
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
    {"restarts", T_BOOL, offsetof(Entry, restarts), READONLY, "where its code raises Restart, the call runs as Python from its start"},
    {nullptr},
};

PyType_Slot entry_slots[] = {
    {Py_tp_doc, const_cast<char*>("Entry(code, guards, info=None, whole=False, restarts=False): one compiled version of a code object.")},
    {Py_tp_new, as_slot<entry_new>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(entry_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(entry_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(entry_clear)},
    {Py_tp_members, entry_members},
    {0, nullptr},
};
PyType_Spec entry_spec = {"dynacompile_native.Entry", sizeof(Entry), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC, entry_slots};

// --- module functions ---

// New references, with their buckets: what is done with them may run code that drops entries.
std::vector<std::pair<long, PyRef>> owned_entries(const Extra& extra) {
    std::vector<std::pair<long, PyRef>> found;
    for (const Bucket& bucket : extra.buckets) {
        for (Entry* entry : latest_first(bucket)) found.emplace_back(bucket.id, PyRef::share(reinterpret_cast<PyObject*>(entry)));
    }
    return found;
}

PyObject* entries_of(PyObject*, PyObject* object) {
    PyCodeObject* code = as_code(object);
    if (!code) return nullptr;
    PyRef list = PyRef::take(checked(PyList_New(0)));
    Extra* extra = find_extra(code);
    if (!extra) return list.release();
    for (const auto& [bucket, entry] : owned_entries(*extra)) {
        PyRef pair = PyRef::take(checked(Py_BuildValue("(lO)", bucket, entry.get())));
        if (PyList_Append(list.get(), pair.get())) return nullptr;
    }
    return list.release();
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
    if (Extra* extra = find_extra(code)) {
        Dropped dropped;
        take(extra, bucket, dropped);
    }
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
        extra->mark = classify(code, extra->wanted);
        extra->refused = false;
        Dropped dropped;
        take_all(extra, dropped);
    }
    Py_RETURN_NONE;
}

PyObject* meet_code(PyObject*, PyObject* object) {
    PyCodeObject* code = as_code(object);
    Extra* extra = code ? need_extra(code) : nullptr;
    if (!extra) return nullptr;
    extra->wanted = true;
    extra->mark = classify(code, true);
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

// Why no region compiles `code`, or None.
PyObject* left_to_python(PyObject*, PyObject* object) {
    PyCodeObject* code = as_code(object);
    Extra* extra = code ? need_extra(code) : nullptr;
    if (!extra) return nullptr;
    if (extra->mark == Mark::skip_recursive) return PyUnicode_FromString("recursive");
    if (extra->mark == Mark::skip) return PyUnicode_FromString("alone");
    Py_RETURN_NONE;
}

PyObject* is_skipped(PyObject*, PyObject* code) {
    if (PyCode_Check(code)) return PyBool_FromLong(rule_of(reinterpret_cast<PyCodeObject*>(code)) != nullptr);
    return PyErr_Format(PyExc_TypeError, "is_skipped takes a code object, not %.200s", Py_TYPE(code)->tp_name);
}

PyMethodDef dispatch_functions[] = {
    {"is_skipped", boundary<is_skipped>, METH_O, "is_skipped(code) -> bool: whether a path given to add_skip_prefix covers its file."},
    {"entries", boundary<entries_of>, METH_O, "entries(code) -> list of (bucket, Entry), most recently used first in each bucket."},
    {"remove_bucket", boundary<remove_bucket>, METH_VARARGS, "remove_bucket(code, bucket): drops its entries; code=None: of every code object."},
    {"remove_entry", boundary<remove_entry>, METH_VARARGS, "remove_entry(code, entry) -> bool: drops that entry; a call that runs it goes on."},
    {"reset_code", boundary<reset_code>, METH_O, "reset_code(code): drops all its entries, and what regions decided about it."},
    {"meet_code", boundary<meet_code>, METH_O, "meet_code(code): it is compiled wherever it lies, as code of the program is."},
    {"skip_code", as_method<skip_code>(), METH_VARARGS | METH_KEYWORDS, "skip_code(code, recursive=False): it runs as Python; recursive: so does all that it calls."},
    {"left_to_python", boundary<left_to_python>, METH_O, "left_to_python(code): 'recursive' where it runs as Python with all that it calls, 'alone' where it alone does, None where a region may compile it."},
    {"add_skip_prefix", as_method<add_skip_prefix>(), METH_VARARGS | METH_KEYWORDS,
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

Extra* need_extra(PyCodeObject* code) noexcept {
    Extra* extra = find_extra(code);
    if (extra) return extra;
    extra = new (std::nothrow) Extra{next_serial++, 0, classify(code, false), is_resume(code), {}, nullptr, all_extras};
    if (!extra || set_extra(reinterpret_cast<PyObject*>(code), extra_index, extra) < 0) {
        delete extra;
        if (!PyErr_Occurred()) PyErr_NoMemory();
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

[[gnu::always_inline]] inline Tried try_entry(const Extra& extra, Entry* entry, const Roots& roots) {
    const uint64_t changes = extra.changes;
    const PyRef kept = PyRef::share(reinterpret_cast<PyObject*>(entry));
    const bool holds = guards_hold(entry->guards, roots);
    const bool outdated = extra.changes != changes;  // a guard let others in, who changed the buckets
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
    entries.insert(entries.begin(), entry);
    Py_INCREF(entry);
    entry->used = ++uses;
    bucket->index.reset();
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
    std::vector<PyRef> entries;
    if (const Bucket* bucket = find_bucket(const_cast<Extra*>(&extra), id)) {
        for (Entry* entry : latest_first(*bucket)) entries.push_back(PyRef::share(reinterpret_cast<PyObject*>(entry)));
    }
    PyObject* tuple = checked(PyTuple_New(static_cast<Py_ssize_t>(entries.size())));
    for (size_t i = 0; i < entries.size(); i++) PyTuple_SET_ITEM(tuple, static_cast<Py_ssize_t>(i), entries[i].release());
    return tuple;
}

void drop_bucket(long bucket) noexcept {
    Dropped dropped;
    for (Extra* extra = all_extras; extra; extra = extra->after) {
        if (find_bucket(extra, bucket)) take(extra, bucket, dropped);
    }
}

bool init_dispatch(PyObject* module) {
    extra_index = request_extra_index(free_extra);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "CPython has no free index for data on code objects");
        return false;
    }
    skip_rules = new std::vector<SkipRule>{{"<frozen importlib", true}, {"<frozen ", false}};
    entry_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&entry_spec));
    return entry_type && PyModule_AddFunctions(module, dispatch_functions) == 0 && PyModule_AddObjectRef(module, "Entry", reinterpret_cast<PyObject*>(entry_type)) == 0;
}

}  // namespace dynacompile
