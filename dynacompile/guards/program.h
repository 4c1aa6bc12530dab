// A guard program: a tree of accessors that share prefixes, with checks on the values that they load.
#pragma once
#include <Python.h>

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "frame/boundary.h"
#include "guards/machine.h"
#include "guards/values.h"

namespace dynacompile {

enum class Access : uint8_t { slot, free, globals, builtins, constant, instance_dict, dict_item, attribute, item, type, cell, positional_default, keyword_default, link, referent, applied, value_at };
// Whether loading calls a function of C, and gives a new reference.
inline bool calls_out(Access access) { return access == Access::attribute || access == Access::applied; }

enum class Op : uint8_t { is, type, equals, tensor, function, has_attribute, dict_keys, dict_has, length, state, flag, set, set_order, names, match };

// What a tensor must be. -1 in sizes and strides: any; strides empty with any_strides: not looked at.
struct TensorCheck {
    Held type;
    PyTypeObject* exact = nullptr;  // the type, where it is one of torch's own, which stay
    int8_t dtype, device_type, device_index;
    bool requires_grad, any_strides;
    bool wraps = false;  // others, by a class in Python
    std::vector<int64_t> sizes, strides;
    mutable uint64_t keys = 0, facts = 0;  // of the last tensor that passed; see tensor_words.h
};

// What thread and process must be like; see ir/guard_facts.py for the meaning of the fields.
struct StateCheck {
    bool grad_mode, inference_mode, deterministic, functorch;
    int8_t default_dtype;
    int8_t autocast[2];  // dtype on CPU and CUDA, -1 where autocast is off
    int torch_function;
    int64_t dispatch_modes;
    Py_ssize_t module_hooks;
    PyObject* function_modes = nullptr;  // a tuple, owned: modes, and devices for those that do nothing but make one the default
    ~StateCheck() { Py_XDECREF(function_modes); }
};

// Lookups in classes, dicts and functions; see names.cpp.
struct NamesCheck {
    struct Word {
        const uint64_t* at;
        uint64_t value;
        PyObject* holder;               // compared only, where `weak` is set: kept alive otherwise
        PyWeakReference* weak;          // null: the holder lasts
    };
    std::vector<Word> words;
    std::vector<PyObject*> kept;        // holders that last, and weak references to the others
    PyObject* repeat = nullptr;   // makes the lookups again, and tells whether they give what they gave
    PyObject* counter = nullptr;  // the number of registrations of abstract classes; null: nobody asked
    PyObject* counted = nullptr;  // what it gave last
    ~NamesCheck() {
        Py_XDECREF(repeat);
        Py_XDECREF(counter);
        Py_XDECREF(counted);
        for (PyObject* object : kept) Py_DECREF(object);
    }
};

// A value that a function of Python is to say yes to; see MATCH in ir/guard_facts.py.
struct MatchCheck {
    PyRef holds;
    bool is_fixed;
    std::unordered_map<PyObject*, PyRef> known;  // values that it has said yes to, where that lasts
};

struct Check {
    Op op;
    bool flag = false;             // for has_attribute and dict_has: is it to be there?
    int guard = -1;                // index of the guard that it belongs to
    Py_ssize_t number = 0;
    Py_hash_t hash = 0;
    Held expected;
    Held second;
    std::unique_ptr<TensorCheck> tensor;
    std::unique_ptr<StateCheck> state;
    std::unique_ptr<NamesCheck> names;
    std::unique_ptr<MatchCheck> match;
};

struct Node;

// What a walk below one object relied on, so that the next one can compare a few words instead. See snapshot.cpp.
struct Fact {              // a word of an object that was read, and what it was
    const uint64_t* at;
    uint64_t value;
};
struct KnownTensor {       // a tensor that passed its check, and its metadata then; see tensor_words.h
    const Check* check;
    PyObject* value;
    PyTypeObject* type;    // null: not one of torch's own, so that the check decides each time
    const void *impl, *requires_grad_word;  // compared and prefetched only
    uint64_t keys, facts;
    int64_t outer[4];      // first and last size, first and last stride
    uint32_t dim;
    bool requires_grad;
};
struct KnownTensors {
    std::vector<KnownTensor> tensors;
    std::vector<int64_t> inner;    // size and stride of each dimension between first and last, of one tensor after the other
    void add(const Check& check, PyObject* value);
    bool hold(int& failed) const;  // failed: set to the guard of one that doesn't
};
struct Rest {              // what must be looked at on every call
    const Check* check;    // on `value`; or, when null,
    Node* node;            // the subtree, loaded from `value`
    PyObject* value;
};
struct Snapshot {
    bool calls = false;               // some of `rest` does, see Node
    PyObject* root;
    PyTypeObject* root_type;          // compared only
    PyObject* root_dict = nullptr;    // compared only; null: not relied on
    std::vector<Fact> facts;
    std::vector<Fact> words;          // the facts that are no version tags of dicts
    mutable uint64_t epoch = 0;       // while dict_epoch() is this, none of the dicts has changed or died; 0: not known
    std::vector<std::pair<const Held*, PyObject*>> types;  // classes that must not have died, since their address could be another's then
    KnownTensors tensors;
    std::vector<Rest> rest;
    std::vector<std::pair<int, PyObject*>> registers;
    std::unordered_set<const void*> recorded;  // what has a fact; used while recording only
};

struct Node {
    Access access;
    bool snapshots = false;  // an object that is read through its instance dict, or a class
    bool calls = false;      // it, or one below, is read through a getter written in C, which may call others, who may drop what we only borrow
    Py_ssize_t index = 0;
    Py_hash_t hash = 0;
    Held key;
    int reg = -1;            // where relations find the value
    int first_guard = -1;    // the guard to name when the value can't be loaded
    int cost = 0;
    std::vector<Check> checks;
    std::vector<Node*> children;
    Node* parent = nullptr;
    std::unordered_map<PyObject*, Snapshot> known;  // by object
    const Snapshot* latest = nullptr;               // of them, the one that held last
    unsigned changed = 0;    // snapshots that did not hold since the last that did
};

// Where the elements of a tensor lie: bytes from `begin` up to `end`; empty where it has no memory.
struct MemoryRange {
    uintptr_t begin = 0, end = 0;
    bool operator!=(const MemoryRange& other) const { return begin != other.begin || end != other.end; }
    bool overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }
};

struct Relation {
    enum Kind : uint8_t { same, distinct, disjoint, shape } kind;
    int guard;
    size_t written = 0;  // disjoint: so many of the registers, the first ones, must share no memory with any other
    std::vector<int> registers;
    std::vector<PyObject*> passed;    // distinct: the last pointers that were found distinct
    std::vector<MemoryRange> ranges;  // disjoint: the last ranges that were found disjoint
    std::vector<int64_t> program;     // shape: an expression in postfix form, see shapes.cpp
};

enum class TensorPart : uint8_t { sizes, layout };  // dtype and sizes, or what else a tensor check looks at

// A fact by which a call is sorted to the entries that it may belong to: what one check looks at, as a number. See features.cpp.
struct Feature {
    uint64_t key;        // equal in programs that look at the same place for the same sort of thing
    const Node* node;    // null: the state of thread and process
    const Check* check;
    TensorPart part;     // of a tensor check
    int cost;
};

// A root of which nothing is asked but that it is some tensor.
struct Argument {
    Py_ssize_t slot;
    int reg;
    const Check* check;
};

struct Program {
    std::vector<std::unique_ptr<Node>> nodes;
    std::vector<Node*> roots;
    std::vector<Argument> arguments;  // of the roots, in the order of checking; and
    std::vector<Node*> walked;        // the others
    std::vector<Check> state;
    std::vector<Check> names;          // last: they seldom differ
    std::vector<Relation> relations;
    int registers = 0;
    int guards = 0;
    int failed = -1;  // the guard that failed last
    bool calls = false;  // some node does
    int running = 0;  // runs under way. What a run may free or reorder is touched only where this is 1: a run can let another thread in.
    std::vector<Feature> features;
};

// One run of a program.
struct Run {
    Program& program;
    const Roots& roots;
    PyObject** registers;
    Snapshot* recording;
    std::vector<PyRef> kept;  // what registers point to, where nothing else may keep it alive
};

bool program_holds(Program& program, const Roots& roots);
bool visit(Run& run, Node& node, PyObject* base);         // loads from base, checks, descends
bool visit_value(Run& run, Node& node, PyObject* value);  // checks, descends
bool check_holds(const Check& check, PyObject* value, const Roots& roots);
Loaded load(const Node& node, PyObject* base, const Roots& roots);

// features.cpp
void find_features(Program& program);
uint64_t wanted_number(const Feature& feature);
uint64_t number_now(const Feature& feature, const Roots& roots);

// snapshot.cpp
extern bool snapshots_enabled;
bool visit_snapshot(Run& run, Node& node, PyObject* value);
void record_check(Snapshot& into, const Check& check, PyObject* value);
bool record_step(Snapshot& into, const Node& child, PyObject* base);  // false: the child is to be visited on every call

// tensor_match.cpp
bool tensor_holds(const TensorCheck& check, PyObject* value);
uint64_t tensor_number(const TensorCheck& check, TensorPart part, PyObject* value);  // of any value
uint64_t tensor_number(const TensorCheck& check, TensorPart part);                   // as the check wants it
bool memory_range(PyObject* value, MemoryRange& range);  // false: no tensor
std::unique_ptr<TensorCheck> parse_tensor(PyObject* tuple);  // null with an error set
bool probe_tensor_offset(PyObject* tensor, PyObject* parameter);

bool extent_of(PyObject* value, bool stride, int64_t dim, int64_t& into);  // a size or stride; false: no tensor with that dimension

// shapes.cpp
bool shape_holds(const std::vector<int64_t>& program, const std::vector<int>& places, PyObject* const* registers);
bool parse_shape(PyObject* tuple, size_t places, std::vector<int64_t>& into);  // false with an error set
PyObject* number_from(const std::vector<int64_t>& program, PyObject* const* objects);  // a new int or float; null where there is none

// machine.cpp
bool raises_again(PyObject* function, PyObject* argument = nullptr);  // called where a call of it raised: true, and the error cleared, where that is its own; else the error is left set

// names.cpp
bool names_hold(NamesCheck& check);  // looks at classes and modules, where a word differs, in Python; false with an error set where a signal handler raised meanwhile
std::unique_ptr<NamesCheck> parse_names(PyObject* tuple);  // null with an error set

// global_state.cpp
bool state_holds(const StateCheck& check);
uint64_t state_number();                         // of the facts that tell calls apart most
uint64_t state_number(const StateCheck& check);
std::unique_ptr<StateCheck> parse_state(PyObject* tuple);
void watch_state(PyObject* hook_dicts, PyObject* forward_ad, PyObject* device_context);  // a tuple of dicts; the namespace of torch.autograd.forward_ad; a class. All are kept.
PyObject* function_modes();  // a tuple of the modes that guards look at, outermost first

inline uint64_t mix(uint64_t seed, uint64_t value) {
    uint64_t x = (seed ^ value) * 0x9E3779B97F4A7C15ull;
    return x ^ (x >> 29);
}

// build.cpp
bool parse_access(const char* op, PyObject* argument, Node& node);
bool parse_check(const char* op, PyObject* argument, Check& check);
bool init_gather(PyObject* module);

}  // namespace dynacompile
