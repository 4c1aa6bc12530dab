// Features: what the checks near the roots of a program look at, as numbers by which a call is sorted to the entries that it may belong to.
#include <algorithm>

#include "guards/program.h"

namespace dynacompile {
namespace {

constexpr size_t most_features = 512;

uint64_t word(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

// Equal for what constant_equal finds equal.
uint64_t constant_number(PyObject* value) {
    PyTypeObject* type = Py_TYPE(value);
    if (type == &PyLong_Type || type == &PyUnicode_Type || type == &PyBytes_Type) return mix(word(type), static_cast<uint64_t>(PyObject_Hash(value)));
    if (type == &PyFloat_Type) {
        double number = PyFloat_AS_DOUBLE(value);
        uint64_t bits;
        static_assert(sizeof bits == sizeof number);
        __builtin_memcpy(&bits, &number, sizeof bits);
        return mix(word(type), bits);
    }
    if (type == &PyTuple_Type || type == torch_types.size) {
        uint64_t number = word(type);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(value); i++) number = mix(number, constant_number(PyTuple_GET_ITEM(value, i)));
        return number;
    }
    const bool by_value = type == &PyComplex_Type || type == &PyRange_Type || type == &PySlice_Type || type == torch_types.device;
    return mix(word(type), by_value || !is_constant(value) ? 0 : word(value));
}

uint64_t fixed_extents(uint64_t key, const std::vector<int64_t>& extents) {
    for (int64_t extent : extents) key = mix(key, extent >= 0);
    return key;
}

// What of a value the check looks at; 0: it doesn't sort.
uint64_t sort_key(const Check& check) {
    switch (check.op) {
        case Op::is:
        case Op::type:
        case Op::equals:
        case Op::function:
        case Op::length: return static_cast<uint64_t>(check.op) + 1;
        default: return 0;
    }
}

uint64_t part_key(const TensorCheck& check, TensorPart part) {
    if (part == TensorPart::sizes) return fixed_extents(100, check.sizes);
    return fixed_extents(check.any_strides ? 101 : 102, check.strides);
}

uint64_t wanted(const Check& check) {
    switch (check.op) {
        case Op::is:
        case Op::type:
        case Op::function: return word(check.expected.get());
        case Op::equals: return constant_number(check.expected.get());
        case Op::length: return static_cast<uint64_t>(check.number);
        case Op::state: return state_number(*check.state);
        default: return 0;
    }
}

uint64_t now(const Check& check, PyObject* value) {
    switch (check.op) {
        case Op::is: return word(value);
        case Op::type: return word(Py_TYPE(value));
        case Op::function: return PyFunction_Check(value) ? word(PyFunction_GET_CODE(value)) : 0;
        case Op::equals: return constant_number(value);
        case Op::length: return static_cast<uint64_t>(builtin_length(value));
        case Op::state: return state_number();
        default: return 0;
    }
}

// The value by borrowed references alone: nothing is made, so that nothing is collected meanwhile.
PyObject* borrow(const Node* node, const Roots& roots) {
    PyObject* base = node->parent ? borrow(node->parent, roots) : nullptr;
    if (node->parent && !base) return nullptr;
    const Loaded loaded = load(*node, base, roots);
    if (loaded.owned) Py_DECREF(loaded.value);  // a deque's item, which the deque holds; attributes have no features
    return loaded.value;
}

uint64_t step_key(uint64_t parent, const Node& node) {
    PyObject* key = node.key.get();
    const bool by_value = key && node.access != Access::constant && is_constant(key);
    const uint64_t argument = by_value ? constant_number(key) : key ? word(key) : static_cast<uint64_t>(node.index);
    return mix(mix(parent, static_cast<uint64_t>(node.access) + 1), argument);
}

void add_below(std::vector<Feature>& found, const Node& node, uint64_t parent, int depth) {
    if (node.access == Access::attribute || node.access == Access::value_at) return;
    const uint64_t key = step_key(parent, node);
    for (const Check& check : node.checks) {
        if (uint64_t sort = sort_key(check)) found.push_back({mix(key, sort), &node, &check, {}, depth * 4 + 4});
        if (check.op != Op::tensor) continue;
        found.push_back({mix(key, part_key(*check.tensor, TensorPart::sizes)), &node, &check, TensorPart::sizes, depth * 4 + 6});
        if (check.tensor->wraps) continue;
        found.push_back({mix(key, part_key(*check.tensor, TensorPart::layout)), &node, &check, TensorPart::layout, depth * 4 + 10});
    }
    for (const Node* child : node.children) add_below(found, *child, key, depth + 1);
}

}  // namespace

void find_features(Program& program) {
    std::vector<Feature>& found = program.features;
    for (const Check& check : program.state) {
        if (check.op == Op::state) found.push_back({1, nullptr, &check, {}, 16});
    }
    for (const Node* root : program.roots) add_below(found, *root, 0, 0);
    std::stable_sort(found.begin(), found.end(), [](const Feature& a, const Feature& b) { return a.cost < b.cost; });
    if (found.size() > most_features) found.resize(most_features);
}

uint64_t wanted_number(const Feature& feature) {
    return feature.check->op == Op::tensor ? tensor_number(*feature.check->tensor, feature.part) : wanted(*feature.check);
}

uint64_t number_now(const Feature& feature, const Roots& roots) {
    if (!feature.node) return now(*feature.check, nullptr);
    PyObject* value = borrow(feature.node, roots);
    if (!value) return 0;
    return feature.check->op == Op::tensor ? tensor_number(*feature.check->tensor, feature.part, value) : now(*feature.check, value);
}

}  // namespace dynacompile
