// Snapshots: an unchanged object tree is recognised by the version tags of its dicts instead of being walked.
//
// While a walk below an object holds, it records what it read: for a dict its version tag (unique to that state of that dict), for an object where its
// dict is, for a type check the object. Facts stand in the order of reading, and each is about an object that the facts before it prove to be the one
// that was seen, hence alive; the first is about the object at hand. What tags can't tell (a tensor's metadata, list items, cells, functions) is looked
// at on every call, without a lookup. A tag is an accelerator only: where one differs, the full walk decides.
#include "guards/program.h"

namespace dynacompile {

bool snapshots_enabled = true;

namespace {

constexpr size_t most_objects = 256;     // per node
constexpr unsigned patience = 4;         // changes in a row after which not every walk records
constexpr unsigned record_every = 64;

uint64_t class_version(PyObject* type) {
    auto* t = reinterpret_cast<PyTypeObject*>(type);
    return t->tp_flags & Py_TPFLAGS_VALID_VERSION_TAG ? t->tp_version_tag : 0;
}

bool fact_holds(const Fact& fact) {
    switch (fact.kind) {
        case Fact::dict: return dict_tag(fact.about) == fact.stamp;
        case Fact::object: return reinterpret_cast<uint64_t>(*static_cast<PyObject* const*>(fact.place)) == fact.stamp;
        case Fact::type: return reinterpret_cast<PyObject*>(Py_TYPE(fact.about)) == static_cast<const Held*>(fact.place)->get();
        case Fact::class_of: return Py_TYPE(fact.about) == fact.place && class_version(reinterpret_cast<PyObject*>(Py_TYPE(fact.about))) == fact.stamp;
        case Fact::class_version: return class_version(fact.about) == fact.stamp;
    }
    return false;
}

// The root may be another object at the same address: where its dict is kept is asked anew.
bool unchanged(const Snapshot& snapshot, PyObject* root) {
    if (Py_TYPE(root) != snapshot.root_type) return false;
    for (const Fact& fact : snapshot.facts) {
        if (fact.kind == Fact::object && fact.about == root) {
            if (reinterpret_cast<uint64_t>(instance_dict(root)) != fact.stamp) return false;
        } else if (!fact_holds(fact)) {
            return false;
        }
    }
    return true;
}

bool rest_holds(Run& run, const Snapshot& snapshot) {
    for (const auto& [reg, value] : snapshot.registers) run.registers[reg] = value;
    for (const Rest& rest : snapshot.rest) {
        if (!rest.check) {
            if (!visit(run, *rest.node, rest.value)) return false;
        } else if (!check_holds(*rest.check, rest.value)) {
            run.program.failed = rest.check->guard;
            return false;
        }
    }
    return true;
}

void add_dict(Snapshot& into, PyObject* dict) {
    if (into.recorded.insert(dict).second) into.facts.push_back({Fact::dict, dict, nullptr, dict_tag(dict)});
}

bool is_immutable(PyObject* value) { return PyTuple_CheckExact(value) || PyUnicode_CheckExact(value) || PyBytes_CheckExact(value) || PyFrozenSet_CheckExact(value); }

// Versions are given out at the first lookup.
uint64_t need_class_version(PyObject* type) {
    static PyObject* any_name = PyUnicode_InternFromString("__class__");
    if (!class_version(type)) _PyType_Lookup(reinterpret_cast<PyTypeObject*>(type), any_name);
    return class_version(type);
}

// Whether the attribute is an object of its own at each reading, which nothing keeps alive.
bool makes_new_object(const Node& child, PyObject* base) {
    Loaded loaded = load_attribute(base, child.key.get());
    if (loaded.owned) Py_DECREF(loaded.value);
    return loaded.owned;
}

}  // namespace

void record_check(Snapshot& into, const Check& check, PyObject* value) {
    switch (check.op) {
        case Op::is:
        case Op::equals: return;  // about the identity or an immutable value
        case Op::type: into.facts.push_back({Fact::type, value, &check.expected, 0}); return;
        case Op::dict_keys:
            if (PyDict_CheckExact(value)) return add_dict(into, value);
            break;
        case Op::dict_has:
        case Op::length:
            if (PyDict_Check(value)) return add_dict(into, value);
            if (is_immutable(value)) return;
            break;
        default: break;
    }
    into.rest.push_back({&check, nullptr, value});
}

bool record_step(Snapshot& into, const Node& child, PyObject* base) {
    bool constant = false;
    switch (child.access) {
        case Access::instance_dict:
            if (PyObject** slot = instance_dict_slot(base)) {
                if (into.recorded.insert(base).second) into.facts.push_back({Fact::object, base, slot, reinterpret_cast<uint64_t>(*slot)});
                constant = true;
            }
            break;
        case Access::dict_item:
        case Access::item:
            if (PyDict_Check(base)) {
                add_dict(into, base);
                constant = true;
            } else {
                constant = PyTuple_CheckExact(base);
            }
            break;
        case Access::type: {
            PyObject* type = reinterpret_cast<PyObject*>(Py_TYPE(base));
            uint64_t version = need_class_version(type);
            if (version) into.facts.push_back({Fact::class_of, base, type, version});
            constant = version != 0;
            break;
        }
        case Access::attribute: {
            if (!Py_IS_TYPE(base, &PyType_Type) || makes_new_object(child, base)) break;
            uint64_t version = need_class_version(base);
            if (version) into.facts.push_back({Fact::class_version, base, nullptr, version});
            constant = version != 0;
            break;
        }
        default: break;
    }
    if (!constant) into.rest.push_back({nullptr, const_cast<Node*>(&child), base});
    return constant;
}

bool visit_snapshot(Run& run, Node& node, PyObject* value) {
    auto known = node.known.find(value);
    if (known != node.known.end()) {
        if (unchanged(known->second, value)) {
            node.changed = 0;
            return rest_holds(run, known->second);
        }
        node.known.erase(known);
        node.changed++;
    }
    if (node.changed > patience && node.changed++ % record_every) return visit_value(run, node, value);
    Snapshot recorded;
    recorded.root_type = Py_TYPE(value);
    run.recording = &recorded;
    bool holds = visit_value(run, node, value);
    run.recording = nullptr;
    if (!holds) return false;
    recorded.recorded.clear();
    if (node.known.size() >= most_objects) node.known.clear();
    node.known.emplace(value, std::move(recorded));
    return true;
}

}  // namespace dynacompile
