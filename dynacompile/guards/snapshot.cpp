// Snapshots: an unchanged object tree is recognised by the version tags of its dicts instead of being walked.
//
// While a walk below an object holds, it records the words that prove what it read: of a dict its version tag (unique to that state of that dict), of
// an object its class and where its dict is, of a class its version. Words stand in the order of reading, and each is of an object that the words before
// it prove to be the one that was seen, hence alive; the first are of the object at hand. What no word tells (a tensor's metadata, list items, cells,
// functions) is looked at on every call, without a lookup. A snapshot is an accelerator only: where a word differs, the full walk decides.
#include "guards/program.h"

namespace dynacompile {

bool snapshots_enabled = true;

namespace {

constexpr size_t most_objects = 256;     // per node
constexpr unsigned patience = 4;         // changes in a row after which not every walk records
constexpr unsigned record_every = 64;

// The root may be another object at the same address: where its dict is kept is asked anew.
bool unchanged(const Snapshot& snapshot, PyObject* root) {
    if (Py_TYPE(root) != snapshot.root_type || (snapshot.root_dict && instance_dict(root) != snapshot.root_dict)) return false;
    const uint64_t epoch = dict_epoch();
    const bool watched = epoch && snapshot.epoch == epoch;
    for (const Fact& fact : watched ? snapshot.words : snapshot.facts) {
        if (*fact.at != fact.value) return false;
    }
    if (snapshot.epoch) snapshot.epoch = epoch;  // else some dict may not be watched
    for (const auto& [held, type] : snapshot.types) {
        if (held->get() != type) return false;
    }
    return true;
}

bool rest_holds(Run& run, const Snapshot& snapshot) {
    std::vector<PyRef> kept;
    if (snapshot.calls) {  // what one of them calls may drop the others, and make the words untrue
        for (const Rest& rest : snapshot.rest) kept.push_back(PyRef::share(rest.value));
    }
    for (const auto& [reg, value] : snapshot.registers) {
        run.registers[reg] = value;
        if (run.program.calls) run.kept.push_back(PyRef::share(value));
    }
    if (!snapshot.tensors.hold(run.program.failed)) return false;
    for (const Rest& rest : snapshot.rest) {
        if (!rest.check) {
            if (!visit(run, *rest.node, rest.value)) return false;
        } else if (!check_holds(*rest.check, rest.value, run.roots)) {
            run.program.failed = rest.check->guard;
            return false;
        }
    }
    return true;
}

void add_fact(Snapshot& into, const uint64_t* at, uint64_t value) {
    into.facts.push_back({at, value});
    into.words.push_back({at, value});
}

void add_word(Snapshot& into, const void* at, const void* value) {
    add_fact(into, static_cast<const uint64_t*>(at), reinterpret_cast<uint64_t>(value));
}

void add_dict(Snapshot& into, PyObject* dict) {
    if (!into.recorded.insert(dict).second) return;
    watch_dict(dict);  // first: it marks the tag
    into.facts.push_back({dict_tag_word(dict), dict_tag(dict)});
}

void add_type(Snapshot& into, PyObject* value) {
    if (into.recorded.insert(&value->ob_type).second) add_word(into, &value->ob_type, Py_TYPE(value));
}

// Where the object keeps its dict; false: nowhere.
bool add_dict_slot(Snapshot& into, PyObject* object) {
    PyObject** slot = instance_dict_slot(object);
    if (!slot || (object == into.root && !*slot)) return false;
    if (object == into.root) {
        into.root_dict = *slot;
    } else if (into.recorded.insert(slot).second) {
        add_word(into, slot, *slot);
    }
    return true;
}

bool is_immutable(PyObject* value) { return PyTuple_CheckExact(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) || PyFrozenSet_CheckExact(value); }

// The class's version, which belongs to no other class nor state of it; false: it has none. Versions are given out at the first lookup.
bool add_class_version(Snapshot& into, PyTypeObject* type) {
    static PyObject* any_name = PyUnicode_InternFromString("__class__");
    if (!type->tp_version_tag) _PyType_Lookup(type, any_name);
    if (!type->tp_version_tag || !(type->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG)) return false;
    const auto* at = reinterpret_cast<const uint64_t*>(&type->tp_version_tag);  // and the padding beside it
    if (into.recorded.insert(at).second) add_fact(into, at, *at);
    return true;
}

// Whether the attribute is an object of its own at each reading, which nothing keeps alive.
bool makes_new_object(const Node& child, PyObject* base) {
    Loaded loaded = load_attribute(base, child.key.get());
    if (loaded.owned) Py_DECREF(loaded.value);
    return loaded.owned;
}

// An attribute that class and instance dict alone decide.
bool record_attribute(Snapshot& into, const Node& child, PyObject* base) {
    PyTypeObject* type = Py_TYPE(base);
    if (type == &PyType_Type) return !makes_new_object(child, base) && add_class_version(into, reinterpret_cast<PyTypeObject*>(base));
    PyObject* found = _PyType_Lookup(type, child.key.get());
    if (PyType_Check(base) || (found && PyDescr_IsData(found)) || makes_new_object(child, base)) return false;
    add_type(into, base);
    if (!add_class_version(into, type)) return false;
    if (add_dict_slot(into, base)) {
        if (PyObject* dict = instance_dict(base)) add_dict(into, dict);
    }
    return true;
}

// Whether class and instance dict, which alone decide what attributes there are, can be told by words.
bool record_attributes(Snapshot& into, PyObject* value) {
    add_type(into, value);
    if (!add_class_version(into, Py_TYPE(value))) return false;
    if (PyType_Check(value)) return add_class_version(into, reinterpret_cast<PyTypeObject*>(value));
    if (!instance_dict_slot(value)) return true;
    if (!add_dict_slot(into, value)) return false;
    if (PyObject* dict = instance_dict(value)) add_dict(into, dict);
    return true;
}

}  // namespace

void record_check(Snapshot& into, const Check& check, PyObject* value) {
    switch (check.op) {
        case Op::is:
        case Op::equals: return;  // about the identity or an immutable value
        case Op::type:
            add_type(into, value);
            if (into.recorded.insert(Py_TYPE(value)).second) into.types.emplace_back(&check.expected, reinterpret_cast<PyObject*>(Py_TYPE(value)));
            return;
        case Op::tensor: into.tensors.add(check, value); return;
        case Op::dict_keys:
            if (PyDict_CheckExact(value)) return add_dict(into, value);
            break;
        case Op::has_attribute:
            if (record_attributes(into, value)) return;
            break;
        case Op::dict_has:
        case Op::length:
            if (PyDict_Check(value)) return add_dict(into, value);
            if (is_immutable(value)) return;
            break;
        case Op::match:
            if (check.match->is_fixed) return;  // about the identity of an object, which is what it was
            into.calls = true;
            break;
        default: break;
    }
    into.rest.push_back({&check, nullptr, value});
}

bool record_step(Snapshot& into, const Node& child, PyObject* base) {
    bool constant = false;
    switch (child.access) {
        case Access::instance_dict: constant = add_dict_slot(into, base); break;
        case Access::dict_item:
        case Access::item:
            if (PyDict_Check(base)) {
                add_dict(into, base);
                constant = true;
            } else {
                constant = PyTuple_CheckExact(base);
            }
            break;
        case Access::type:
            add_type(into, base);
            constant = add_class_version(into, Py_TYPE(base));
            break;
        case Access::attribute: constant = record_attribute(into, child, base); break;
        default: break;
    }
    if (!constant) into.rest.push_back({nullptr, const_cast<Node*>(&child), base});
    if (!constant && child.calls) into.calls = true;
    return constant;
}

bool visit_snapshot(Run& run, Node& node, PyObject* value) {
    const Snapshot* snapshot = node.latest;
    if (!snapshot || snapshot->root != value) {
        auto known = node.known.find(value);
        snapshot = known == node.known.end() ? nullptr : &known->second;
    }
    const bool alone = run.program.running == 1;
    if (snapshot && unchanged(*snapshot, value)) {
        if (alone) {
            node.changed = 0;
            node.latest = snapshot;
        }
        return rest_holds(run, *snapshot);
    }
    if (!alone) return visit_value(run, node, value);
    if (snapshot) {
        node.latest = nullptr;
        node.known.erase(value);
        node.changed++;
    }
    if (node.changed > patience && node.changed++ % record_every) return visit_value(run, node, value);
    Snapshot recorded;
    recorded.root = value;
    recorded.root_type = Py_TYPE(value);
    recorded.epoch = dict_epoch();
    run.recording = &recorded;
    bool holds = visit_value(run, node, value);
    run.recording = nullptr;
    if (!holds) return false;
    if (run.program.running != 1) return true;
    recorded.recorded.clear();
    if (node.known.size() >= most_objects) {
        node.latest = nullptr;
        node.known.clear();
    }
    node.known.insert_or_assign(value, std::move(recorded));
    return true;
}

}  // namespace dynacompile
