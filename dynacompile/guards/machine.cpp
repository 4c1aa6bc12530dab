// Runs guard programs: loads values along shared paths and checks them, the path that failed last first.
#include <algorithm>

#include "guards/program.h"

namespace dynacompile {
namespace {

PyObject* cell_content(PyObject* closure, Py_ssize_t index) {
    if (!closure || index >= PyTuple_GET_SIZE(closure)) return nullptr;
    PyObject* cell = PyTuple_GET_ITEM(closure, index);
    return PyCell_Check(cell) ? PyCell_GET(cell) : nullptr;
}

PyObject* sequence_item(PyObject* base, Py_ssize_t index) {
    if (PyTuple_Check(base)) return index < PyTuple_GET_SIZE(base) ? PyTuple_GET_ITEM(base, index) : nullptr;
    return index < PyList_GET_SIZE(base) ? PyList_GET_ITEM(base, index) : nullptr;
}

Loaded deque_item(PyObject* base, Py_ssize_t index) {
    PyObject* item = PySequence_GetItem(base, index);
    if (!item) PyErr_Clear();
    return {item, item != nullptr};
}

Loaded load_item(const Node& node, PyObject* base) {
    if (PyTuple_Check(base) || PyList_Check(base)) return {node.index >= 0 ? sequence_item(base, node.index) : nullptr};
    if (Py_IS_TYPE(base, torch_types.deque)) return node.index >= 0 ? deque_item(base, node.index) : Loaded{};
    return {PyDict_Check(base) ? dict_item(base, node.key.get(), node.hash) : nullptr};
}

bool function_holds(const Check& check, PyObject* value, const Roots& roots) {
    if (!PyFunction_Check(value)) return false;
    auto* function = reinterpret_cast<PyFunctionObject*>(value);
    PyObject* globals = check.second.get();
    return function->func_code == check.expected.get() && function->func_globals == (globals ? globals : roots.globals);
}

// Whether one of the first `written` ranges shares memory with any other: by one pass over all ranges in the order of their beginnings.
bool any_shared(const std::vector<MemoryRange>& ranges, size_t written) {
    std::vector<size_t> order;
    order.reserve(ranges.size());
    for (size_t i = 0; i < ranges.size(); i++) {
        if (ranges[i].begin < ranges[i].end) order.push_back(i);
    }
    std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return ranges[a].begin < ranges[b].begin; });
    uintptr_t end_of_any = 0, end_of_written = 0;
    for (size_t i : order) {
        const bool is_written = i < written;
        if (ranges[i].begin < (is_written ? end_of_any : end_of_written)) return true;
        end_of_any = std::max(end_of_any, ranges[i].end);
        if (is_written) end_of_written = std::max(end_of_written, ranges[i].end);
    }
    return false;
}

constexpr size_t MOST_MOVED = 16;  // ranges that are compared with all others one by one

// Compares the ranges that are not the last call's with all that they must not meet.
bool find_disjoint(Relation& relation, PyObject* const* registers) {
    const size_t count = relation.registers.size();
    const bool fresh = relation.ranges.size() != count;
    std::vector<size_t> moved;
    relation.ranges.resize(count);
    for (size_t i = 0; i < count; i++) {
        MemoryRange now;
        if (!memory_range(registers[relation.registers[i]], now)) return false;
        if (!fresh && !(now != relation.ranges[i])) continue;
        relation.ranges[i] = now;
        moved.push_back(i);
    }
    if (moved.size() > MOST_MOVED) return !any_shared(relation.ranges, relation.written);
    for (size_t i : moved) {
        for (size_t j = 0, end = i < relation.written ? count : relation.written; j < end; j++) {
            if (i != j && relation.ranges[i].overlaps(relation.ranges[j])) return false;
        }
    }
    return true;
}

bool relation_holds(Relation& relation, PyObject* const* registers) {
    const std::vector<int>& of = relation.registers;
    if (relation.kind == Relation::shape) return shape_holds(relation.program, of, registers);
    if (relation.kind == Relation::same) return registers[of[0]] == registers[of[1]];
    if (relation.kind == Relation::disjoint) {
        if (find_disjoint(relation, registers)) return true;
        relation.ranges.clear();
        return false;
    }
    bool seen = relation.passed.size() == of.size();
    for (size_t i = 0; seen && i < of.size(); i++) seen = relation.passed[i] == registers[of[i]];
    if (seen) return true;
    std::vector<PyObject*> values;
    for (int at : of) values.push_back(registers[at]);
    std::vector<PyObject*> sorted = values;
    std::sort(sorted.begin(), sorted.end());
    if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) return false;
    relation.passed = std::move(values);
    return true;
}

// Moves what failed to the front: it is likely to be what differs next time too.
template <class T>
void promote(const Program& program, std::vector<T>& all, size_t at) {
    if (at && program.running == 1) std::rotate(all.begin(), all.begin() + at, all.begin() + at + 1);
}

bool argument_holds(Run& run, const Argument& argument) {
    PyObject* value = argument.slot < run.roots.count ? run.roots.slots[argument.slot] : nullptr;
    if (value && tensor_holds(*argument.check->tensor, value)) {
        if (argument.reg >= 0) run.registers[argument.reg] = value;
        return true;
    }
    run.program.failed = argument.check->guard;
    return false;
}

bool run_program(Run& run) {
    Program& program = run.program;
    for (const Check& check : program.state) {
        if (check.op == Op::state ? state_holds(*check.state) : check_holds(check, nullptr, run.roots)) continue;
        program.failed = check.guard;
        return false;
    }
    for (size_t i = 0; i < program.arguments.size(); i++) {
        if (argument_holds(run, program.arguments[i])) continue;
        promote(program, program.arguments, i);
        return false;
    }
    for (size_t i = 0; i < program.walked.size(); i++) {
        if (visit(run, *program.walked[i], nullptr)) continue;
        promote(program, program.walked, i);
        return false;
    }
    for (Relation& relation : program.relations) {
        if (relation_holds(relation, run.registers)) continue;
        program.failed = relation.guard;
        return false;
    }
    for (const Check& check : program.names) {
        if (names_hold(*check.names)) continue;
        program.failed = check.guard;
        return false;
    }
    return true;
}

// pair: a function of torch without arguments, and the value that it is to give. Asked before anything is loaded, so that nothing is borrowed meanwhile. An error that
// is left is not the function's.
bool flag_holds(PyObject* pair) {
    PyObject* now = PyObject_CallNoArgs(PyTuple_GET_ITEM(pair, 0));
    if (!now && !raises_again(PyTuple_GET_ITEM(pair, 0))) return false;
    bool holds = now && constant_equal(now, PyTuple_GET_ITEM(pair, 1));
    Py_XDECREF(now);
    return holds;
}

// Asked of a value that is kept alive meanwhile.
bool match_holds(MatchCheck& check, PyObject* value) {
    constexpr size_t most_known = 4096;
    if (check.is_fixed && check.known.count(value)) return true;
    PyObject* function = check.holds.get();
    PyObject* now = PyObject_CallOneArg(function, value);
    if (!now && !raises_again(function, value)) return false;
    const bool holds = now == Py_True;
    Py_XDECREF(now);
    if (holds && check.is_fixed) {
        if (check.known.size() >= most_known) check.known.clear();
        check.known.emplace(value, PyRef::share(value));
    }
    return holds;
}

PyObject* call_again(PyObject* function, PyObject* argument) { return argument ? PyObject_CallOneArg(function, argument) : PyObject_CallNoArgs(function); }

}  // namespace

// Calls a function again, which raised. True where it raises the same: the error is cleared, the guard does not hold. Else
// what it raised was a signal handler's, which the program is to get: that error is set.
bool raises_again(PyObject* function, PyObject* argument) {
    if (!PyErr_ExceptionMatches(PyExc_Exception)) return false;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject* again = call_again(function, argument);
    const bool same = !again && PyErr_ExceptionMatches(type);
    Py_XDECREF(again);
    if (same || (!again && !PyErr_ExceptionMatches(PyExc_Exception))) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        if (same) PyErr_Clear();
        return same;
    }
    PyErr_Restore(type, value, traceback);  // drops the other, if there is one
    return false;
}

// What a plain weak reference refers to, borrowed; null where that is gone. Whoever loads it keeps a reference, or the guards run no code that could drop it.
PyObject* referent_of(PyObject* reference) {
    if (!PyWeakref_CheckRefExact(reference)) return nullptr;
    PyObject* target = PyWeakref_GET_OBJECT(reference);
    return target == Py_None ? nullptr : target;
}

Loaded load(const Node& node, PyObject* base, const Roots& roots) {
    switch (node.access) {
        case Access::slot: return {node.index < roots.count ? roots.slots[node.index] : nullptr};
        case Access::free: return {cell_content(roots.closure, node.index)};
        case Access::globals: return {roots.globals};
        case Access::builtins: return {roots.builtins};
        case Access::constant: return {node.key.get()};
        case Access::instance_dict: return {instance_dict(base)};
        case Access::dict_item: return {PyDict_Check(base) ? dict_item(base, node.key.get(), node.hash) : nullptr};
        case Access::attribute: return load_attribute(base, node.key.get());
        case Access::item: return load_item(node, base);
        case Access::link: return {link_result(base)};
        case Access::referent: return {referent_of(base)};
        case Access::applied: return applied(node.key.get(), base);
        case Access::value_at: return {value_at(base, node.index)};
        case Access::type: return {reinterpret_cast<PyObject*>(Py_TYPE(base))};
        case Access::cell: return {PyFunction_Check(base) ? cell_content(PyFunction_GET_CLOSURE(base), node.index) : nullptr};
        case Access::positional_default: {
            PyObject* defaults = PyFunction_Check(base) ? PyFunction_GET_DEFAULTS(base) : nullptr;
            return {defaults ? sequence_item(defaults, node.index) : nullptr};
        }
        case Access::keyword_default: {
            PyObject* defaults = PyFunction_Check(base) ? PyFunction_GET_KW_DEFAULTS(base) : nullptr;
            return {defaults ? dict_item(defaults, node.key.get(), node.hash) : nullptr};
        }
    }
    return {};
}

bool check_holds(const Check& check, PyObject* value, const Roots& roots) {
    switch (check.op) {
        case Op::is: return check.expected.is(value);
        case Op::type: return reinterpret_cast<PyObject*>(Py_TYPE(value)) == check.expected.get();
        case Op::equals: return constant_equal(value, check.expected.get());
        case Op::tensor: return tensor_holds(*check.tensor, value);
        case Op::function: return function_holds(check, value, roots);
        case Op::has_attribute: return has_attribute(value, check.expected.get()) == check.flag;
        case Op::dict_keys: return keys_equal(value, check.expected.get());
        case Op::dict_has: return PyDict_Check(value) && (dict_item(value, check.expected.get(), check.hash) != nullptr) == check.flag;
        case Op::length: return builtin_length(value) == check.number;
        case Op::state: return state_holds(*check.state);
        case Op::flag: return flag_holds(check.expected.get());
        case Op::set: return elements_equal(value, check.expected.get());
        case Op::set_order: return order_equal(value, check.expected.get());
        case Op::names: return names_hold(*check.names);
        case Op::match: return match_holds(*check.match, value);
    }
    return false;
}

bool visit_value(Run& run, Node& node, PyObject* value) {
    for (const Check& check : node.checks) {
        if (!check_holds(check, value, run.roots)) {
            run.program.failed = check.guard;
            return false;
        }
        if (run.recording) record_check(*run.recording, check, value);
    }
    for (size_t i = 0; i < node.children.size(); i++) {
        Node& child = *node.children[i];
        Snapshot* recording = run.recording;
        if (recording && !record_step(*recording, child, value)) run.recording = nullptr;
        bool holds = visit(run, child, value);
        run.recording = recording;
        if (holds) continue;
        promote(run.program, node.children, i);
        return false;
    }
    return true;
}

bool visit(Run& run, Node& node, PyObject* base) {
    Loaded loaded = load(node, base, run.roots);
    if (!loaded.value) {
        run.program.failed = node.first_guard;
        return false;
    }
    PyRef kept = loaded.owned ? PyRef::take(loaded.value) : node.calls ? PyRef::share(loaded.value) : PyRef();
    if (node.reg >= 0) {
        run.registers[node.reg] = loaded.value;
        if (run.recording) run.recording->registers.emplace_back(node.reg, loaded.value);
        if (kept || run.program.calls) run.kept.push_back(PyRef::share(loaded.value));
    }
    return node.snapshots && !run.recording && snapshots_enabled ? visit_snapshot(run, node, loaded.value) : visit_value(run, node, loaded.value);
}

namespace {

struct Running {
    explicit Running(Program& of) : program(of) { program.running++; }
    ~Running() { program.running--; }
    Program& program;
};

}  // namespace

bool program_holds(Program& program, const Roots& roots) {
    constexpr int few = 64;
    PyObject* local[few];
    std::vector<PyObject*> many(program.registers > few ? program.registers : 0);
    Run run{program, roots, program.registers > few ? many.data() : local, nullptr, {}};
    const Running running(program);
    return run_program(run);
}

}  // namespace dynacompile
