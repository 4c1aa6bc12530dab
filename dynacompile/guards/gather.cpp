// Gather: a native callable between residual code and a compiled graph; it loads the graph's inputs from the few roots that the code passes.
#include "guards/program.h"

#include <structmember.h>

#include <cstring>
#include <optional>

#include "guards/function_modes.h"

namespace dynacompile {
namespace {

struct Step {
    Node node;
    int parent;  // -1: the argument at node.index, or a constant
    std::vector<int> places;       // of the steps that a number is computed from
    std::vector<int64_t> program;  // the number, as in shapes.cpp; empty for a step that loads
};

struct Gather {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject* target;
    PyObject* text;
    std::vector<Step>* steps;
    std::vector<int>* outputs;
    Py_ssize_t arguments;
    bool calls;  // some step is a getter
    bool without_modes;  // calls the target while no torch-function mode is on
};

PyTypeObject* gather_type;

// Room for values of a trivial type, on the stack where they are few. Nothing is in it at first.
template <typename T>
class Room {
  public:
    explicit Room(size_t count) : many_(count > few ? new T[count] : nullptr) {}
    ~Room() { delete[] many_; }
    Room(const Room&) = delete;
    T* data() { return many_ ? many_ : reinterpret_cast<T*>(here_); }

  private:
    static constexpr size_t few = 16;
    T* many_;
    alignas(T) unsigned char here_[few * sizeof(T)];
};

// What the steps have loaded. A callee may drop what objects hold, and so may a getter: what is passed on is kept alive, and where a getter is among
// the steps, all is.
class Values {
  public:
    Values(size_t steps, size_t outputs) : loaded_(steps), arguments_(outputs + 1) {}
    ~Values() {
        for (size_t i = 0; i < steps_; i++) {
            if (loaded()[i].owned) Py_DECREF(loaded()[i].value);
        }
        for (size_t i = 0; i < outputs_; i++) Py_DECREF(arguments()[i]);
    }
    Values(const Values&) = delete;
    void load(const Loaded& value) { loaded()[steps_++] = value; }
    void pass(const Loaded& value) { arguments()[outputs_++] = Py_NewRef(value.value); }
    Loaded* loaded() { return loaded_.data(); }
    PyObject** arguments() { return arguments_.data() + 1; }  // the one before is scratch for the callee

  private:
    Room<Loaded> loaded_;
    Room<PyObject*> arguments_;  // new references
    size_t steps_ = 0, outputs_ = 0;
};

// What a step loads or computes; value null where it can't.
Loaded take(const Step& step, const Loaded* before, const Roots& roots) {
    if (step.program.empty()) return load(step.node, step.parent < 0 ? nullptr : before[step.parent].value, roots);
    std::vector<PyObject*> objects;
    for (int place : step.places) objects.push_back(before[place].value);
    PyObject* number = number_from(step.program, objects.data());
    return {number, number != nullptr};
}

PyObject* gather_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    Gather* gather = reinterpret_cast<Gather*>(self);
    Py_ssize_t count = PyVectorcall_NARGS(nargsf);
    if (count != gather->arguments || kwnames) {
        PyErr_Format(PyExc_TypeError, "%U takes %zd positional arguments, got %zd", gather->text, gather->arguments, count);
        return nullptr;
    }
    const std::vector<Step>& steps = *gather->steps;
    Values values(steps.size(), gather->outputs->size());
    Roots roots{args, count, nullptr, nullptr, nullptr};
    for (size_t i = 0; i < steps.size(); i++) {
        Loaded loaded = take(steps[i], values.loaded(), roots);
        if (!loaded.value) {
            if (PyErr_Occurred()) return nullptr;
            PyErr_Format(PyExc_RuntimeError, "%U: step %zd of its inputs can't be loaded, though the guards hold", gather->text, static_cast<Py_ssize_t>(i));
            return nullptr;
        }
        if (gather->calls && !loaded.owned) loaded = {Py_NewRef(loaded.value), true};
        values.load(loaded);
    }
    for (int step : *gather->outputs) values.pass(values.loaded()[step]);
    std::optional<FunctionModesOff> off;
    if (gather->without_modes) off.emplace();
    return call_object(gather->target, values.arguments(), gather->outputs->size() | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
}

// argument: (steps, program in postfix form)
bool parse_number(PyObject* argument, Py_ssize_t before, Step& step) {
    PyObject *places, *program;
    if (!PyArg_ParseTuple(argument, "O!O!", &PyTuple_Type, &places, &PyTuple_Type, &program)) return false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(places); i++) {
        const long place = PyLong_AsLong(PyTuple_GET_ITEM(places, i));
        if (PyErr_Occurred()) return false;
        if (place < 0 || place >= before) {
            PyErr_Format(PyExc_ValueError, "there is no step %ld before step %zd", place, before);
            return false;
        }
        step.places.push_back(static_cast<int>(place));
    }
    return parse_shape(program, step.places.size(), step.program);
}

bool add_steps(Gather& gather, PyObject* list) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        const char* op;
        PyObject* argument;
        Step step;
        if (!PyArg_ParseTuple(PyList_GET_ITEM(list, i), "siO", &op, &step.parent, &argument)) return false;
        if (std::strcmp(op, "number") == 0) {
            if (!parse_number(argument, i, step)) return false;
            gather.steps->push_back(std::move(step));
            continue;
        }
        if (!parse_access(op, argument, step.node)) return false;
        bool is_root = step.node.access == Access::slot || step.node.access == Access::constant;
        if (step.parent >= i || step.parent < -1 || (step.parent < 0) != is_root) {
            PyErr_Format(PyExc_ValueError, "step %zd (%s) can't start from %d", i, op, step.parent);
            return false;
        }
        gather.calls = gather.calls || calls_out(step.node.access);
        gather.steps->push_back(std::move(step));
    }
    return true;
}

bool add_outputs(Gather& gather, PyObject* list) {
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(list); i++) {
        long output = PyLong_AsLong(PyList_GET_ITEM(list, i));
        if (PyErr_Occurred()) return false;
        if (output < 0 || output >= static_cast<long>(gather.steps->size())) {
            PyErr_Format(PyExc_ValueError, "there is no step %ld", output);
            return false;
        }
        gather.outputs->push_back(static_cast<int>(output));
    }
    return true;
}

PyObject* gather_new(PyTypeObject* type, PyObject* args, PyObject*) {
    Py_ssize_t arguments;
    PyObject *steps, *outputs, *target, *text;
    int without_modes = 0;
    if (!PyArg_ParseTuple(args, "nO!O!OU|p:Gather", &arguments, &PyList_Type, &steps, &PyList_Type, &outputs, &target, &text, &without_modes)) return nullptr;
    if (!PyCallable_Check(target)) {
        PyErr_SetString(PyExc_TypeError, "Gather: the target must be callable");
        return nullptr;
    }
    PyRef made = PyRef::take(checked(type->tp_alloc(type, 0)));
    Gather* gather = reinterpret_cast<Gather*>(made.get());
    gather->call = boundary<gather_call>;
    gather->target = Py_NewRef(target);
    gather->text = Py_NewRef(text);
    gather->steps = new std::vector<Step>();
    gather->outputs = new std::vector<int>();
    gather->arguments = arguments;
    gather->without_modes = without_modes != 0;
    return add_steps(*gather, steps) && add_outputs(*gather, outputs) ? made.release() : nullptr;
}

int gather_traverse(PyObject* self, visitproc visit, void* arg) noexcept {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(reinterpret_cast<Gather*>(self)->target);
    return 0;
}

void gather_dealloc(PyObject* self) noexcept {
    Gather* gather = reinterpret_cast<Gather*>(self);
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_XDECREF(gather->target);
    Py_XDECREF(gather->text);
    delete gather->steps;
    delete gather->outputs;
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject* gather_repr(PyObject* self) { return PyUnicode_FromFormat("<%U>", reinterpret_cast<Gather*>(self)->text); }

PyMemberDef gather_members[] = {
    {"target", T_OBJECT, offsetof(Gather, target), READONLY, "what it calls with the loaded inputs"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Gather, call), READONLY},
    {nullptr},
};

PyType_Slot gather_slots[] = {
    {Py_tp_new, as_slot<gather_new>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(gather_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(gather_traverse)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_repr, as_slot<gather_repr>()},
    {Py_tp_members, gather_members},
    {0, nullptr},
};
PyType_Spec gather_spec = {"dynacompile_native.Gather", sizeof(Gather), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL, gather_slots};

}  // namespace

bool init_gather(PyObject* module) {
    gather_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&gather_spec));
    return gather_type && PyModule_AddObjectRef(module, "Gather", reinterpret_cast<PyObject*>(gather_type)) == 0;
}

}  // namespace dynacompile
