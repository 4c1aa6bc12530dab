// Region: a native callable around a Python function, in whose dynamic extent the hook is on. RegionState: its options.
#include "hook.h"

#include <structmember.h>

#include <memory>
#include <unordered_map>
#include <vector>

namespace dynacompile {

PyTypeObject* state_type;

namespace {

struct Region {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject* function;
    PyObject* on_miss;  // null: the hook is off in this region
    RegionState* state;
    PyObject* choose;    // null, or the user's dispatch: (*args, **kwargs) -> key
    PyObject* new_state;  // key -> RegionState
    PyObject* states;    // a dict: the RegionState of each key that was met
    PyCodeObject* target;  // null, or the code that the region is about, which it compiles wherever it lies
    PyCodeObject* caller;  // null, or the code of a method that finds the region, bound, in an attribute of its object
    PyObject* dict;
    PyObject* weakrefs;
};

PyTypeObject* region_type;
std::unordered_map<long, int>* states_of_bucket;

// --- RegionState ---

// A bucket ends with its last state.
void leave_bucket(long bucket) noexcept {
    auto states = states_of_bucket->find(bucket);
    if (--states->second > 0) return;
    states_of_bucket->erase(states);
    if (bucket != default_bucket && !is_finalizing()) drop_bucket(bucket);
}

PyObject* state_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    static const char* names[] = {"bucket", "fallback", "limit", "accumulated_limit", "name", "owner", "kind", nullptr};
    long bucket = default_bucket, limit = 8, accumulated = 256, kind = 0;
    int fallback = 1;
    PyObject *name = nullptr, *owner = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|lpllUOl:RegionState", const_cast<char**>(names), &bucket, &fallback, &limit, &accumulated, &name, &owner, &kind)) return nullptr;
    if (bucket < default_bucket || limit < 1 || accumulated < 1) {
        PyErr_SetString(PyExc_ValueError, "RegionState: bucket must be -1 or more, limit and accumulated_limit 1 or more");
        return nullptr;
    }
    auto full = std::make_unique<std::unordered_set<uint64_t>>();
    ++(*states_of_bucket)[bucket];  // first: making an object may set off a collection, which drops states
    RegionState* state = reinterpret_cast<RegionState*>(type->tp_alloc(type, 0));
    if (!state) {
        leave_bucket(bucket);
        return nullptr;
    }
    state->bucket = bucket;
    state->kind = kind;
    state->fallback = static_cast<char>(fallback);
    state->limit = limit;
    state->accumulated_limit = accumulated;
    state->name = name ? Py_NewRef(name) : PyUnicode_FromString("");
    state->owner = Py_NewRef(owner);
    state->full = full.release();
    return reinterpret_cast<PyObject*>(state);
}

int state_traverse(PyObject* self, visitproc visit, void* arg) noexcept {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(reinterpret_cast<RegionState*>(self)->owner);
    return 0;
}

int state_clear(PyObject* self) noexcept {
    RegionState* state = reinterpret_cast<RegionState*>(self);
    PyObject* owner = state->owner;
    state->owner = Py_NewRef(Py_None);
    Py_XDECREF(owner);
    return 0;
}

void state_dealloc(PyObject* self) noexcept {
    RegionState* state = reinterpret_cast<RegionState*>(self);
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    long bucket = state->bucket;
    if (state->weakrefs) PyObject_ClearWeakRefs(self);
    Py_XDECREF(state->name);
    Py_XDECREF(state->owner);
    delete state->full;
    type->tp_free(self);
    Py_DECREF(type);
    leave_bucket(bucket);
}

PyMemberDef state_members[] = {
    {"bucket", T_LONG, offsetof(RegionState, bucket), READONLY, "id of the bucket that new entries go to; -1 is shared by all"},
    {"kind", T_LONG, offsetof(RegionState, kind), READONLY, "what sort of code it makes: entries of another kind don't serve it"},
    {"fallback", T_BOOL, offsetof(RegionState, fallback), READONLY, "entries of bucket -1 are used too"},
    {"limit", T_LONG, offsetof(RegionState, limit), READONLY, "entries per code object in this bucket"},
    {"accumulated_limit", T_LONG, offsetof(RegionState, accumulated_limit), READONLY, "entries per code object over all buckets"},
    {"name", T_OBJECT, offsetof(RegionState, name), READONLY, "what events call this region"},
    {"owner", T_OBJECT, offsetof(RegionState, owner), 0, "any Python data"},
    {"met", T_BOOL, offsetof(RegionState, met), READONLY, "whether a call below it ran an entry, or asked for one"},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(RegionState, weakrefs), READONLY},
    {nullptr},
};

PyType_Slot state_slots[] = {
    {Py_tp_doc, const_cast<char*>("RegionState(bucket=-1, fallback=True, limit=8, accumulated_limit=256, name='', owner=None, kind=0): options of one compile. The entries of an isolated bucket die with its last state.")},
    {Py_tp_new, as_slot<state_new>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(state_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(state_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(state_clear)},
    {Py_tp_members, state_members},
    {0, nullptr},
};
PyType_Spec state_spec = {"dynacompile_native.RegionState", sizeof(RegionState), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC, state_slots};

// --- Region ---

// The state of the sub-bucket that the user's dispatch chooses for this call (a new reference). It runs with the hook off.
PyRef chosen_state(PyThreadState* ts, Region* region, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    RegionScope off(ts, nullptr, nullptr);
    PyRef key = PyRef::take(checked(call_object(region->choose, args, PyVectorcall_NARGS(nargsf), kwnames)));
    PyRef states = PyRef::share(region->states);
    PyRef state = PyRef::share(PyDict_GetItemWithError(states.get(), key.get()));
    if (state || PyErr_Occurred()) return state;
    state = PyRef::take(checked(PyObject_CallOneArg(region->new_state, key.get())));
    if (!PyObject_TypeCheck(state.get(), state_type)) {
        PyErr_Format(PyExc_TypeError, "Region: new_state must give a RegionState, not %.200s", Py_TYPE(state.get())->tp_name);
        return PyRef();
    }
    return PyRef::share(PyDict_SetDefault(states.get(), key.get(), state.get()));  // another thread may have met the key meanwhile
}

// Has the hook in for a C++ scope, or until it leaves.
class HookScope {
  public:
    HookScope() {
        if (!hook_enter(before_)) throw PythonErrorSet();
    }
    ~HookScope() {
        if (is_in_) hook_leave(before_);
    }
    HookScope(const HookScope&) = delete;
    bool leave() {
        is_in_ = false;
        return hook_leave(before_);
    }

  private:
    Before before_;
    bool is_in_ = true;
};

// `result` of a call in which no frame was compiled, nor refused: the owner says so, or raises.
PyObject* said_once(RegionState* state, PyObject* result) {
    state->met = 1;
    if (state->owner == Py_None) return result;
    PyObject* said = PyObject_CallMethod(state->owner, "nothing_met", nullptr);
    if (said) {
        Py_DECREF(said);
        return result;
    }
    state->met = 0;
    Py_DECREF(result);
    return nullptr;
}

PyObject* call_in_scope(Thread& thread, PyThreadState* ts, Region* region, RegionState* state, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    HookScope hook;
    RegionState* above;
    PyObject* result;
    {
        RegionScope scope(thread, ts, state, region->on_miss);
        above = scope.above();
        scope.target(region->target);
        result = call_object(region->function, args, nargsf, kwnames);
    }
    if (!hook.leave()) Py_CLEAR(result);
    if (state->met && above) above->met = 1;
    return result && !state->met ? said_once(state, result) : result;
}

// The object that the method `caller` runs for, where another one is given: the attribute goes along where the `__dict__` of an object is copied, as replicas of
// modules have it, with the object that it was bound to. Null where that is the one.
PyObject* called_instead(PyThreadState* ts, const Region* region, PyObject* const* args, size_t nargsf) {
    Frame* frame = current_frame(ts);
    if (!frame || frame_code(frame) != region->caller || PyVectorcall_NARGS(nargsf) == 0) return nullptr;
    PyObject* object = frame_slots(frame)[0];
    return object == args[0] ? nullptr : object;
}

PyObject* region_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    Region* region = reinterpret_cast<Region*>(self);
    PyThreadState* ts = PyThreadState_Get();
    std::vector<PyObject*> given;
    if (PyObject* object = region->caller ? called_instead(ts, region, args, nargsf) : nullptr) {
        given.assign(args, args + PyVectorcall_NARGS(nargsf) + (kwnames ? PyTuple_GET_SIZE(kwnames) : 0));
        given[0] = object;
        args = given.data();
        nargsf = size_t(PyVectorcall_NARGS(nargsf));
    }
    Thread& thread = this_thread(ts);
    if (thread.now.compiling || is_finalizing() || is_traced(thread.keys)) return call_object(region->function, args, nargsf, kwnames);
    if (!ts->datastack_chunk && !need_stack(ts)) return nullptr;
    const PyRef kept = PyRef::share(self);  // the call may drop the last reference to its own region
    if (region->choose) {
        const PyRef state = chosen_state(ts, region, args, nargsf, kwnames);
        return state ? call_in_scope(this_thread(ts), ts, region, reinterpret_cast<RegionState*>(state.get()), args, nargsf, kwnames) : nullptr;
    }
    if (region->on_miss) return call_in_scope(thread, ts, region, region->state, args, nargsf, kwnames);
    RegionScope off(ts, nullptr, nullptr);
    return call_object(region->function, args, nargsf, kwnames);
}

// What users have set on a function is found on its region, too, as on whatever functools.wraps makes.
bool copy_attributes(Region* region) {
    if (!PyFunction_Check(region->function)) return true;
    PyObject* attributes = reinterpret_cast<PyFunctionObject*>(region->function)->func_dict;
    if (!attributes || PyDict_GET_SIZE(attributes) == 0) return true;
    region->dict = PyDict_Copy(attributes);
    return region->dict && (!PyDict_GetItemString(region->dict, "__wrapped__") || PyDict_DelItemString(region->dict, "__wrapped__") == 0);
}

PyObject* region_new(PyTypeObject* type, PyObject* args, PyObject* kwargs) {
    static const char* names[] = {"function", "compile_frame", "state", "choose", "new_state", "target", "caller", nullptr};
    PyObject *function, *on_miss = Py_None, *state = Py_None, *choose = Py_None, *new_state = Py_None, *target = nullptr, *caller = nullptr;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|OOOOO!O!:Region", const_cast<char**>(names), &function, &on_miss, &state, &choose, &new_state, &PyCode_Type,
                                     &target, &PyCode_Type, &caller))
        return nullptr;
    if (choose != Py_None && (!PyCallable_Check(choose) || !PyCallable_Check(new_state) || on_miss == Py_None)) {
        PyErr_SetString(PyExc_TypeError, "Region: choose takes the call's arguments and gives a key, new_state takes a key and gives a RegionState");
        return nullptr;
    }
    if (!PyCallable_Check(function) || (on_miss != Py_None && (!PyCallable_Check(on_miss) || !PyObject_TypeCheck(state, state_type)))) {
        PyErr_SetString(PyExc_TypeError, "Region(function, compile_frame, state): two callables and a RegionState; or a callable alone, to run it with the hook off");
        return nullptr;
    }
    Region* region = reinterpret_cast<Region*>(type->tp_alloc(type, 0));
    if (!region) return nullptr;
    region->call = boundary<region_call>;
    region->function = Py_NewRef(function);
    region->target = reinterpret_cast<PyCodeObject*>(Py_XNewRef(target));
    region->caller = reinterpret_cast<PyCodeObject*>(Py_XNewRef(caller));
    if (!copy_attributes(region)) {
        Py_DECREF(reinterpret_cast<PyObject*>(region));
        return nullptr;
    }
    if (on_miss != Py_None) {
        region->on_miss = Py_NewRef(on_miss);
        region->state = reinterpret_cast<RegionState*>(Py_NewRef(state));
    }
    if (choose != Py_None) {
        region->choose = Py_NewRef(choose);
        region->new_state = Py_NewRef(new_state);
        region->states = PyDict_New();
        if (!region->states) {
            Py_DECREF(reinterpret_cast<PyObject*>(region));
            return nullptr;
        }
    }
    return reinterpret_cast<PyObject*>(region);
}

int region_traverse(PyObject* self, visitproc visit, void* arg) noexcept {
    Region* region = reinterpret_cast<Region*>(self);
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(region->function);
    Py_VISIT(region->on_miss);
    Py_VISIT(region->state);
    Py_VISIT(region->choose);
    Py_VISIT(region->new_state);
    Py_VISIT(region->states);
    Py_VISIT(region->target);
    Py_VISIT(region->caller);
    Py_VISIT(region->dict);
    return 0;
}

int region_clear(PyObject* self) noexcept {
    Region* region = reinterpret_cast<Region*>(self);
    PyObject* function = region->function;
    region->function = Py_NewRef(Py_None);  // stays callable while a cycle is taken apart
    Py_XDECREF(function);
    Py_CLEAR(region->on_miss);
    Py_CLEAR(region->state);
    Py_CLEAR(region->choose);
    Py_CLEAR(region->new_state);
    Py_CLEAR(region->states);
    Py_CLEAR(region->dict);
    return 0;
}

void region_dealloc(PyObject* self) noexcept {
    Region* region = reinterpret_cast<Region*>(self);
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    if (region->weakrefs) PyObject_ClearWeakRefs(self);
    Py_XDECREF(region->function);
    Py_XDECREF(region->on_miss);
    Py_XDECREF(region->state);
    Py_XDECREF(region->choose);
    Py_XDECREF(region->new_state);
    Py_XDECREF(region->states);
    Py_XDECREF(region->target);
    Py_XDECREF(region->caller);
    Py_XDECREF(region->dict);
    type->tp_free(self);
    Py_DECREF(type);
}

PyObject* region_bind(PyObject* self, PyObject* object, PyObject*) {
    return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self);
}

// Attributes of the function that its calls read: a region has none of its own.
constexpr const char* of_the_call[] = {"__code__", "__defaults__", "__kwdefaults__"};

bool is_of_the_call(PyObject* name) {
    for (const char* one : of_the_call)
        if (PyUnicode_CompareWithASCIIString(name, one) == 0) return true;
    return false;
}

// Attributes that the region's type has and that are to be the function's.
bool is_hidden_by_type(PyObject* name) { return PyUnicode_CompareWithASCIIString(name, "__doc__") == 0 || PyUnicode_CompareWithASCIIString(name, "__module__") == 0; }

// Its own attribute first; what the region lacks is the function's, and `__wrapped__` the function itself.
PyObject* region_getattro(PyObject* self, PyObject* name) {
    Region* region = reinterpret_cast<Region*>(self);
    if (is_hidden_by_type(name) && !(region->dict && PyDict_Contains(region->dict, name) == 1)) return PyObject_GetAttr(region->function, name);
    PyObject* found = PyObject_GenericGetAttr(self, name);
    if (found || !PyErr_ExceptionMatches(PyExc_AttributeError)) return found;
    PyErr_Clear();
    const PyRef function = PyRef::share(reinterpret_cast<Region*>(self)->function);  // the collector may clear the region meanwhile
    if (PyUnicode_CompareWithASCIIString(name, "__wrapped__") == 0) return Py_NewRef(function.get());
    return PyObject_GetAttr(function.get(), name);
}

int region_setattro(PyObject* self, PyObject* name, PyObject* value) {
    return is_of_the_call(name) ? PyObject_SetAttr(reinterpret_cast<Region*>(self)->function, name, value) : PyObject_GenericSetAttr(self, name, value);
}

PyObject* region_dir(PyObject* self, PyObject*) {
    PyObject* own = PyObject_CallMethod(reinterpret_cast<PyObject*>(&PyBaseObject_Type), "__dir__", "O", self);
    PyObject* functions = own ? PyObject_Dir(reinterpret_cast<Region*>(self)->function) : nullptr;
    PyObject* all = functions ? PySequence_InPlaceConcat(own, functions) : nullptr;
    Py_XDECREF(own);
    Py_XDECREF(functions);
    return all;
}

// Views of its buckets, made by the owner of its state.
PyObject* get_buckets(PyObject* self, void*) {
    Region* region = reinterpret_cast<Region*>(self);
    if (region->state) {
        const PyRef owner = PyRef::share(region->state->owner);
        return PyObject_CallMethod(owner.get(), "views", "O", self);
    }
    PyErr_SetString(PyExc_AttributeError, "buckets");
    return nullptr;
}

PyObject* region_repr(PyObject* self) { return PyUnicode_FromFormat("<compiled %R>", reinterpret_cast<Region*>(self)->function); }

// Pickles as the function does, by its qualified name, under which a decorator put this region; the owner of its state says otherwise where that name is another
// object's.
PyObject* region_reduce(PyObject* self, PyObject*) {
    Region* region = reinterpret_cast<Region*>(self);
    if (!region->state || region->state->owner == Py_None) return PyObject_GetAttrString(self, "__qualname__");
    const PyRef owner = PyRef::share(region->state->owner);
    return PyObject_CallMethod(owner.get(), "reduced", "O", self);
}

// A copy of a function is the function.
PyObject* region_copy(PyObject* self, PyObject*) { return Py_NewRef(self); }

PyMethodDef region_methods[] = {
    {"__reduce__", boundary<region_reduce>, METH_NOARGS, nullptr},
    {"__copy__", boundary<region_copy>, METH_NOARGS, nullptr},
    {"__deepcopy__", boundary<region_copy>, METH_O, nullptr},
    {"__dir__", boundary<region_dir>, METH_NOARGS, nullptr},
    {nullptr},
};

PyMemberDef region_members[] = {
    {"_region_function", T_OBJECT, offsetof(Region, function), READONLY, "the function that the region runs"},
    {"_region_state", T_OBJECT, offsetof(Region, state), READONLY, "its RegionState, or None where the hook is off"},
    {"_region_states", T_OBJECT, offsetof(Region, states), READONLY, "the RegionState of each key that `choose` gave; None without one"},
    {"__dictoffset__", T_PYSSIZET, offsetof(Region, dict), READONLY},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Region, weakrefs), READONLY},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(Region, call), READONLY},
    {nullptr},
};

PyGetSetDef region_fields[] = {
    {"buckets", boundary<get_buckets>, nullptr, "its buckets of entries, one for each key of its dispatch"},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict},
    {nullptr},
};

PyType_Slot region_slots[] = {
    {Py_tp_new, as_slot<region_new>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(region_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(region_traverse)},
    {Py_tp_clear, reinterpret_cast<void*>(region_clear)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_descr_get, as_slot<region_bind>()},
    {Py_tp_getattro, as_slot<region_getattro>()},
    {Py_tp_setattro, as_slot<region_setattro>()},
    {Py_tp_repr, as_slot<region_repr>()},
    {Py_tp_methods, region_methods},
    {Py_tp_members, region_members},
    {Py_tp_getset, region_fields},
    {0, nullptr},
};
PyType_Spec region_spec = {"dynacompile_native.Region", sizeof(Region), 0,
                           Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, region_slots};

PyObject* current_region(PyObject*, PyObject*) {
    RegionState* state = this_thread(PyThreadState_Get()).now.state;
    return Py_NewRef(state ? reinterpret_cast<PyObject*>(state) : Py_None);
}

PyObject* is_compiling(PyObject*, PyObject*) { return PyBool_FromLong(this_thread(PyThreadState_Get()).now.compiling); }

PyMethodDef region_functions[] = {
    {"current_region", boundary<current_region>, METH_NOARGS, "The RegionState that this thread, or its current greenlet, is in, or None."},
    {"is_compiling_frame", boundary<is_compiling>, METH_NOARGS, "Whether this thread is inside a region's compile_frame."},
    {nullptr},
};

}  // namespace

bool init_region(PyObject* module) {
    states_of_bucket = new std::unordered_map<long, int>();
    state_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&state_spec));
    region_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&region_spec));
    return state_type && region_type && PyModule_AddFunctions(module, region_functions) == 0 &&
           PyModule_AddObjectRef(module, "RegionState", reinterpret_cast<PyObject*>(state_type)) == 0 &&
           PyModule_AddObjectRef(module, "Region", reinterpret_cast<PyObject*>(region_type)) == 0;
}

}  // namespace dynacompile
