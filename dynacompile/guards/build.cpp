// GuardProgram, the Python type: built from flat lists that guards/program.py makes, run by the hook or by `check`.
#include <Python.h>
#include <structmember.h>

#include <ATen/SavedTensorHooks.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "guards/program.h"

namespace dynacompile {
namespace {

struct GuardProgram {
    PyObject_HEAD
    Program* program;
};

PyTypeObject* program_type;

struct AccessName {
    const char* name;
    Access access;
    char argument;  // i: an index, s: a key, o: an object, -: none
};
constexpr AccessName accesses[] = {
    {"slot", Access::slot, 'i'},           {"free", Access::free, 'i'},         {"globals", Access::globals, '-'},
    {"builtins", Access::builtins, '-'},   {"constant", Access::constant, 'o'}, {"instance_dict", Access::instance_dict, '-'},
    {"dict_item", Access::dict_item, 's'}, {"attribute", Access::attribute, 's'}, {"item", Access::item, 's'},
    {"type", Access::type, '-'},           {"cell", Access::cell, 'i'},         {"positional_default", Access::positional_default, 'i'},
    {"keyword_default", Access::keyword_default, 's'}, {"link", Access::link, '-'},
    {"referent", Access::referent, '-'},   {"applied", Access::applied, 'o'},  {"value_at", Access::value_at, 'i'},
};

struct OpName {
    const char* name;
    Op op;
};
constexpr OpName ops[] = {
    {"is", Op::is},           {"type", Op::type},         {"equals", Op::equals}, {"tensor", Op::tensor}, {"function", Op::function}, {"has_attribute", Op::has_attribute},
    {"dict_keys", Op::dict_keys}, {"dict_has", Op::dict_has}, {"length", Op::length}, {"state", Op::state}, {"flag", Op::flag}, {"set", Op::set},
    {"set_order", Op::set_order},
    {"names", Op::names}, {"match", Op::match},
};

bool parse_key(PyObject* key, Node& node) {
    if (!is_key(key)) {
        PyErr_Format(PyExc_ValueError, "a guard can't look up a key of type %.200s", Py_TYPE(key)->tp_name);
        return false;
    }
    node.key.hold_strong(key);
    node.hash = PyObject_Hash(key);
    node.index = -1;
    if (PyLong_CheckExact(key)) node.index = PyLong_AsSsize_t(key);
    PyErr_Clear();
    return node.hash != -1;
}

bool parse_pair(PyObject* argument, PyObject** object, bool* flag) {
    int present;
    if (!PyArg_ParseTuple(argument, "Op", object, &present)) return false;
    *flag = present;
    return true;
}

bool parse_constant(PyObject* argument, Check& check) {
    if (is_constant(argument)) {
        check.expected.hold_strong(argument);
        return true;
    }
    PyErr_Format(PyExc_ValueError, "a guard can't compare a value of type %.200s", Py_TYPE(argument)->tp_name);
    return false;
}

bool parse_keys(PyObject* argument, Check& check) {
    bool known = PyTuple_Check(argument);
    for (Py_ssize_t i = 0; known && i < PyTuple_GET_SIZE(argument); i++) known = is_key(PyTuple_GET_ITEM(argument, i));
    if (known) {
        check.expected.hold_strong(argument);
    } else {
        PyErr_SetString(PyExc_ValueError, "dict_keys and set_order take a tuple of constants and of objects that hash by identity");
    }
    return known;
}

bool parse_elements(PyObject* argument, Check& check) {
    if (!PyFrozenSet_CheckExact(argument) || !is_key(argument)) {
        return PyErr_SetString(PyExc_ValueError, "set takes a frozenset of constants and of objects that hash by identity"), false;
    }
    const PyRef elements = PyRef::take(PyDict_New());
    PyObject* element;
    Py_hash_t hash;
    Py_ssize_t at = 0;
    while (elements && _PySet_NextEntry(argument, &at, &element, &hash)) {
        if (PyDict_SetItem(elements.get(), element, element) < 0) return false;
    }
    check.expected.hold_strong(elements.get());
    return static_cast<bool>(elements);
}

bool parse_match(PyObject* argument, Check& check) {
    PyObject* holds;
    int is_fixed;
    if (!PyArg_ParseTuple(argument, "Op:match", &holds, &is_fixed)) return false;
    check.match.reset(new MatchCheck{PyRef::share(holds), is_fixed != 0, {}});
    return true;
}

bool parse_function(PyObject* argument, Check& check) {
    PyObject *code, *globals;
    if (!PyArg_ParseTuple(argument, "O!O", &PyCode_Type, &code, &globals)) return false;
    if (globals != Py_None && !PyDict_Check(globals)) return PyErr_SetString(PyExc_TypeError, "function takes (code, a globals dict or None for the frame's)"), false;
    if (globals != Py_None) check.second.hold_strong(globals);
    return check.expected.hold(code);
}

int relative_cost(const Check& check) { return check.op == Op::match ? 4 : check.op == Op::tensor ? 3 : check.op == Op::dict_keys || check.op == Op::has_attribute ? 2 : 1; }

bool add_nodes(Program& program, PyObject* list) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        const char* op;
        Py_ssize_t parent;
        PyObject* argument;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "snO", &op, &parent, &argument)) return false;
        auto node = std::make_unique<Node>();
        if (!parse_access(op, argument, *node)) return false;
        if (parent >= i || parent < -1 || (parent < 0) != (node->access <= Access::constant)) {
            PyErr_Format(PyExc_ValueError, "accessor %zd (%s) can't start from %zd", i, op, parent);
            return false;
        }
        node->parent = parent < 0 ? nullptr : program.nodes[parent].get();
        (parent < 0 ? program.roots : program.nodes[parent]->children).push_back(node.get());
        if (node->access == Access::instance_dict) program.nodes[parent]->snapshots = true;
        if (node->access == Access::constant && PyType_Check(node->key.get())) node->snapshots = true;
        program.nodes.push_back(std::move(node));
    }
    return true;
}

bool node_index(const Program& program, Py_ssize_t node) {
    if (node >= 0 && node < static_cast<Py_ssize_t>(program.nodes.size())) return true;
    PyErr_Format(PyExc_ValueError, "there is no accessor %zd", node);
    return false;
}

bool add_checks(Program& program, PyObject* list) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        const char* op;
        Py_ssize_t node;
        PyObject* argument;
        Check check;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "snOi", &op, &node, &argument, &check.guard) || !parse_check(op, argument, check)) return false;
        program.guards = std::max(program.guards, check.guard + 1);
        if (check.op == Op::state || check.op == Op::flag) {
            program.state.push_back(std::move(check));
            continue;
        }
        if (check.op == Op::names) {
            program.names.push_back(std::move(check));
            continue;
        }
        if (!node_index(program, node)) return false;
        Node& at = *program.nodes[node];
        at.cost += relative_cost(check);
        if (at.first_guard < 0) at.first_guard = check.guard;
        at.checks.push_back(std::move(check));
    }
    return true;
}

bool parse_relation(const char* op, Relation& relation) {
    for (auto [name, kind] : {std::pair{"same", Relation::same}, {"distinct", Relation::distinct}, {"disjoint", Relation::disjoint}, {"shape", Relation::shape}}) {
        relation.kind = kind;
        if (std::strcmp(op, name) == 0) return true;
    }
    return false;
}

bool add_relations(Program& program, PyObject* list) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        const char* op;
        PyObject* nodes;
        Relation relation;
        Py_ssize_t written;
        PyObject* shape = nullptr;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "sO!in|O!", &op, &PyTuple_Type, &nodes, &relation.guard, &written, &PyTuple_Type, &shape)) return false;
        if (!parse_relation(op, relation) || (relation.kind == Relation::same && PyTuple_GET_SIZE(nodes) != 2)) {
            PyErr_Format(PyExc_ValueError, "a relation is 'same' of two accessors, 'distinct', 'disjoint' or 'shape' of any number, not '%s'", op);
            return false;
        }
        relation.written = static_cast<size_t>(written);
        if (relation.kind == Relation::shape && !parse_shape(shape, static_cast<size_t>(PyTuple_GET_SIZE(nodes)), relation.program)) return false;
        program.guards = std::max(program.guards, relation.guard + 1);
        for (Py_ssize_t n = 0; n < PyTuple_GET_SIZE(nodes); n++) {
            Py_ssize_t at = PyLong_AsSsize_t(PyTuple_GET_ITEM(nodes, n));
            if (PyErr_Occurred() || !node_index(program, at)) return false;
            Node& node = *program.nodes[at];
            if (node.reg < 0) node.reg = program.registers++;
            if (node.first_guard < 0) node.first_guard = relation.guard;
            relation.registers.push_back(node.reg);
        }
        program.relations.push_back(std::move(relation));
    }
    return true;
}

// Cheap checks and small subtrees first; each node knows a guard to name when it can't be loaded.
void settle(Program& program) {
    auto cheaper = [](const Node* a, const Node* b) { return a->cost < b->cost; };
    for (size_t i = program.nodes.size(); i-- > 0;) {
        Node& node = *program.nodes[i];
        const bool asks = std::any_of(node.checks.begin(), node.checks.end(), [](const Check& check) { return check.op == Op::match; });
        node.calls = node.calls || asks || calls_out(node.access);
        for (Node* child : node.children) {
            node.calls = node.calls || child->calls;
            node.cost += child->cost + 1;
            if (node.first_guard < 0) node.first_guard = child->first_guard;
        }
        std::stable_sort(node.children.begin(), node.children.end(), cheaper);
        std::stable_sort(node.checks.begin(), node.checks.end(), [](const Check& a, const Check& b) { return relative_cost(a) < relative_cost(b); });
        program.calls = program.calls || node.calls;
    }
    std::stable_sort(program.roots.begin(), program.roots.end(), cheaper);
    for (Node* root : program.roots) {
        const bool simple = root->access == Access::slot && root->children.empty() && root->checks.size() == 1 && root->checks[0].op == Op::tensor;
        if (simple) program.arguments.push_back({root->index, root->reg, &root->checks[0]});
        else program.walked.push_back(root);
    }
}

PyObject* program_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject *accessors, *checks, *relations;
    if (!PyArg_ParseTuple(args, "O!O!O!:GuardProgram", &PyList_Type, &accessors, &PyList_Type, &checks, &PyList_Type, &relations)) return nullptr;
    auto program = std::make_unique<Program>();
    if (!add_nodes(*program, accessors) || !add_checks(*program, checks) || !add_relations(*program, relations)) return nullptr;
    settle(*program);
    find_features(*program);
    GuardProgram* made = reinterpret_cast<GuardProgram*>(type->tp_alloc(type, 0));
    if (made) made->program = program.release();
    return reinterpret_cast<PyObject*>(made);
}

void program_dealloc(PyObject* self) noexcept {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<GuardProgram*>(self)->program;
    type->tp_free(self);
    Py_DECREF(type);
}

bool parse_roots(PyObject* slots, PyObject* closure, PyObject* globals, PyObject* builtins, Roots& roots) {
    if (closure != Py_None && !PyTuple_Check(closure)) {
        PyErr_SetString(PyExc_TypeError, "check: closure is a tuple of cells or None");
        return false;
    }
    roots = {&PyTuple_GET_ITEM(slots, 0), PyTuple_GET_SIZE(slots), closure == Py_None ? nullptr : closure, globals, builtins};
    return true;
}

PyObject* program_check(PyObject* self, PyObject* args) {
    PyObject *slots, *closure, *globals, *builtins;
    Roots roots;
    if (!PyArg_ParseTuple(args, "O!OO!O!:check", &PyTuple_Type, &slots, &closure, &PyDict_Type, &globals, &PyDict_Type, &builtins)) return nullptr;
    if (!parse_roots(slots, closure, globals, builtins, roots)) return nullptr;
    const bool holds = guards_hold(self, roots);
    return !holds && PyErr_Occurred() ? nullptr : PyBool_FromLong(holds);
}

// Counts a check that holds. False with an error set, where a signal handler raised meanwhile.
bool count_held(PyObject* self, const Roots& roots, Py_ssize_t& held) {
    const bool holds = guards_hold(self, roots);
    held += holds;
    return holds || !PyErr_Occurred();
}

using Clock = std::chrono::steady_clock;

double nanoseconds_since(Clock::time_point start) { return std::chrono::duration<double, std::nano>(Clock::now() - start).count(); }

// Fills the first and second level of the processor's cache with other memory.
void cool_caches() {
    static std::vector<uint64_t> other((size_t{4} << 20) / sizeof(uint64_t));
    for (size_t i = 0; i < other.size(); i += 8) reinterpret_cast<volatile uint64_t*>(other.data())[i]++;
}

PyObject* program_measure(PyObject* self, PyObject* args) {
    PyObject *slots, *closure, *globals, *builtins;
    Py_ssize_t times;
    Roots roots;
    if (!PyArg_ParseTuple(args, "O!OO!O!n:measure", &PyTuple_Type, &slots, &closure, &PyDict_Type, &globals, &PyDict_Type, &builtins, &times)) return nullptr;
    if (!parse_roots(slots, closure, globals, builtins, roots)) return nullptr;
    if (times < 1) return PyErr_Format(PyExc_ValueError, "measure: times must be 1 or more");
    Py_ssize_t held = 0;
    if (!count_held(self, roots, held)) return nullptr;
    cool_caches();
    Clock::time_point start = Clock::now();
    if (!count_held(self, roots, held)) return nullptr;
    const double cold = nanoseconds_since(start);
    start = Clock::now();
    for (Py_ssize_t i = 0; i < times; i++) {
        if (!count_held(self, roots, held)) return nullptr;
    }
    return Py_BuildValue("ddn", nanoseconds_since(start) / static_cast<double>(times), cold, held);
}

PyObject* program_failed(PyObject* self, void*) { return PyLong_FromLong(reinterpret_cast<GuardProgram*>(self)->program->failed); }
Py_ssize_t program_length(PyObject* self) { return reinterpret_cast<GuardProgram*>(self)->program->guards; }

PyMethodDef program_methods[] = {
    {"check", boundary<program_check>, METH_VARARGS, "check(slots, closure, globals, builtins) -> bool: whether every guard holds for these roots of a frame."},
    {"measure", boundary<program_measure>, METH_VARARGS,
     "measure(slots, closure, globals, builtins, times) -> (hot, cold, held): nanoseconds of a check, mean of `times` and with caches cooled; how many of times + 2 held."},
    {nullptr},
};
PyGetSetDef program_fields[] = {{"last_failed", boundary<program_failed>, nullptr, "index of the guard that failed last, or -1"}, {nullptr}};

PyType_Slot program_slots[] = {
    {Py_tp_doc, const_cast<char*>("GuardProgram(accessors, checks, relations): lists made by dynacompile.guards.program.")},
    {Py_tp_new, as_slot<program_new>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(program_dealloc)},
    {Py_tp_methods, program_methods},
    {Py_tp_getset, program_fields},
    {Py_sq_length, as_slot<program_length>()},
    {0, nullptr},
};
PyType_Spec program_spec = {"dynacompile_native.GuardProgram", sizeof(GuardProgram), 0, Py_TPFLAGS_DEFAULT, program_slots};

PyObject* configure(PyObject*, PyObject* args) {
    PyObject *tensor, *parameter, *size, *device, *deque, *singletons, *hooks, *forward_ad, *device_context, *a_tensor, *a_parameter;
    if (!PyArg_ParseTuple(args, "O!O!O!O!O!O!O!O!O!OO:configure", &PyType_Type, &tensor, &PyType_Type, &parameter, &PyType_Type, &size, &PyType_Type, &device, &PyType_Type, &deque,
                          &PyTuple_Type, &singletons, &PyTuple_Type, &hooks, &PyDict_Type, &forward_ad, &PyType_Type, &device_context, &a_tensor,
                          &a_parameter))
        return nullptr;
    auto keep = [](PyObject* type) { return reinterpret_cast<PyTypeObject*>(Py_NewRef(type)); };
    torch_types = {keep(tensor), keep(parameter), keep(size), keep(device), keep(deque), Py_NewRef(singletons)};
    watch_state(hooks, forward_ad, device_context);
    if (!probe_tensor_offset(a_tensor, a_parameter)) return nullptr;
    Py_RETURN_NONE;
}

PyObject* ask_key(PyObject*, PyObject* object) { return PyBool_FromLong(is_key(object)); }

PyObject* use_dict_tags(PyObject*, PyObject* on) {
    int truth = PyObject_IsTrue(on);
    if (truth < 0) return nullptr;
    snapshots_enabled = truth;
    Py_RETURN_NONE;
}

PyObject* use_watchers(PyObject*, PyObject* on) {
    int truth = PyObject_IsTrue(on);
    if (truth < 0) return nullptr;
    use_dict_watchers(truth);
    Py_RETURN_NONE;
}

PyObject* dict_of(PyObject* object) {
    PyObject* dict = PyDict_Check(object) ? object : instance_dict(object);
    if (!dict) PyErr_SetString(PyExc_TypeError, "this takes a dict or an object that has one");
    return dict;
}

PyObject* result_of_link(PyObject*, PyObject* object) {
    PyObject* result = link_result(object);
    if (!result) return PyErr_Format(PyExc_TypeError, "this takes an entry of functools.lru_cache");
    return Py_NewRef(result);
}

PyObject* try_links_by(PyObject*, PyObject* args) {
    PyObject *entry, *key, *result;
    if (!PyArg_ParseTuple(args, "OOO:try_links", &entry, &key, &result)) return nullptr;
    return PyBool_FromLong(try_links(entry, key, result));
}

PyObject* ask_links(PyObject*, PyObject*) { return PyBool_FromLong(links_are_known()); }

PyObject* function_modes_of_call(PyObject*, PyObject*) { return function_modes(); }

PyObject* ask_where_saving_is_hooked(PyObject* ask, PyObject*) {
    if (at::SavedTensorDefaultHooks::get_tls_state().stack.empty()) Py_RETURN_FALSE;
    return PyObject_CallNoArgs(ask);
}

PyMethodDef asked_where_saving_is_hooked = {"ask_where_saving_is_hooked", boundary<ask_where_saving_is_hooked>, METH_NOARGS, nullptr};

PyObject* where_saving_is_hooked(PyObject*, PyObject* ask) { return PyCFunction_New(&asked_where_saving_is_hooked, ask); }

PyObject* tag_of(PyObject*, PyObject* object) {
    PyObject* dict = dict_of(object);
    return dict ? PyLong_FromUnsignedLongLong(dict_tag(dict)) : nullptr;
}

PyObject* epoch_of(PyObject*, PyObject* object) {
    PyObject* dict = dict_of(object);
    if (!dict) return nullptr;
    watch_dict(dict);
    return PyLong_FromUnsignedLongLong(dict_epoch());
}

PyMethodDef functions[] = {
    {"configure", boundary<configure>, METH_VARARGS, "configure(Tensor, Parameter, Size, device, deque, singleton_types, hook_dicts, forward_ad, device_mode, a_tensor, a_parameter): torch's types; probes where tensors keep their TensorImpl."},
    {"use_dict_tags", boundary<use_dict_tags>, METH_O, "use_dict_tags(on): whether unchanged objects are recognised by their dicts' version tags."},
    {"use_dict_watchers", boundary<use_watchers>, METH_O, "use_dict_watchers(on): whether one number tells that no dict of an unchanged object has changed, where CPython can watch dicts."},
    {"dict_epoch", boundary<epoch_of>, METH_O, "dict_epoch(object) -> int: a number that changes when a watched dict does; the dict, or the object's, is watched from now on. 0: dicts can't be watched."},
    {"can_be_key", boundary<ask_key>, METH_O, "can_be_key(object) -> bool: whether guards look up such a key of a dict: comparing it runs no code of a user."},
    {"link_result", boundary<result_of_link>, METH_O, "link_result(entry) -> object: what functools.lru_cache remembers in an entry of a bounded cache."},
    {"try_links", boundary<try_links_by>, METH_VARARGS, "try_links(entry, key, result) -> bool: whether entries of bounded caches look as expected, by one whose content is known. Else link_result takes none."},
    {"links_are_known", boundary<ask_links>, METH_NOARGS, "links_are_known() -> bool: what try_links found."},
    {"function_modes", boundary<function_modes_of_call>, METH_NOARGS, "function_modes() -> tuple: the torch-function modes of this thread, of the call where one is compiled, outermost first."},
    {"where_saving_is_hooked", boundary<where_saving_is_hooked>, METH_O, "where_saving_is_hooked(ask) -> function: what ask() gives where this thread has hooks for saved tensors; else False, without asking."},
    {"dict_tag", boundary<tag_of>, METH_O, "dict_tag(object) -> int: the version tag of a dict, or of the object's dict."},
    {nullptr},
};

}  // namespace

bool parse_access(const char* op, PyObject* argument, Node& node) {
    for (const AccessName& row : accesses) {
        if (std::strcmp(row.name, op) != 0) continue;
        node.access = row.access;
        if (row.argument == 's') return parse_key(argument, node);
        if (row.argument == 'o') node.key.hold_strong(argument);
        if (row.argument != 'i') return true;
        node.index = PyLong_AsSsize_t(argument);
        if (node.index >= 0) return true;
        if (!PyErr_Occurred()) PyErr_Format(PyExc_ValueError, "accessor %s takes an index of 0 or more", op);
        return false;
    }
    PyErr_Format(PyExc_ValueError, "unknown accessor '%s'", op);
    return false;
}

bool parse_check(const char* op, PyObject* argument, Check& check) {
    const OpName* row = nullptr;
    for (const OpName& candidate : ops) {
        if (std::strcmp(candidate.name, op) == 0) row = &candidate;
    }
    if (!row) {
        PyErr_Format(PyExc_ValueError, "unknown check '%s'", op);
        return false;
    }
    check.op = row->op;
    PyObject* object;
    switch (check.op) {
        case Op::is:
        case Op::type: return check.expected.hold(argument);
        case Op::equals: return parse_constant(argument, check);
        case Op::dict_keys:
        case Op::set_order: return parse_keys(argument, check);
        case Op::tensor: return (check.tensor = parse_tensor(argument)) != nullptr;
        case Op::state: return (check.state = parse_state(argument)) != nullptr;
        case Op::names: return (check.names = parse_names(argument)) != nullptr;
        case Op::set:
            return parse_elements(argument, check);
        case Op::flag:
            if (!PyTuple_Check(argument) || PyTuple_GET_SIZE(argument) != 2) return PyErr_SetString(PyExc_TypeError, "flag takes (function, value)"), false;
            check.expected.hold_strong(argument);
            return true;
        case Op::function: return parse_function(argument, check);
        case Op::match: return parse_match(argument, check);
        case Op::length: check.number = PyLong_AsSsize_t(argument); return !PyErr_Occurred();
        case Op::has_attribute:
        case Op::dict_has:
            if (!parse_pair(argument, &object, &check.flag)) return false;
            if (is_key(object)) {
                check.expected.hold_strong(object);
            } else if (!parse_constant(object, check)) {
                return false;
            }
            check.hash = PyObject_Hash(object);
            return check.hash != -1;
    }
    return false;
}

bool is_guard_program(PyObject* object) { return Py_IS_TYPE(object, program_type); }

bool guards_hold(PyObject* program, const Roots& roots) { return program_holds(*reinterpret_cast<GuardProgram*>(program)->program, roots); }

namespace {
const Feature& feature_at(PyObject* program, size_t feature) { return reinterpret_cast<GuardProgram*>(program)->program->features[feature]; }
}  // namespace

size_t feature_count(PyObject* program) { return reinterpret_cast<GuardProgram*>(program)->program->features.size(); }
uint64_t feature_key(PyObject* program, size_t feature) { return feature_at(program, feature).key; }
int feature_cost(PyObject* program, size_t feature) { return feature_at(program, feature).cost; }
uint64_t feature_wanted(PyObject* program, size_t feature) { return wanted_number(feature_at(program, feature)); }
uint64_t feature_now(PyObject* program, size_t feature, const Roots& roots) { return number_now(feature_at(program, feature), roots); }

}  // namespace dynacompile

bool init_guards(PyObject* module) {
    using namespace dynacompile;
    program_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&program_spec));
    return program_type && PyModule_AddObjectRef(module, "GuardProgram", reinterpret_cast<PyObject*>(program_type)) == 0 && PyModule_AddFunctions(module, functions) == 0 &&
           init_gather(module);
}
