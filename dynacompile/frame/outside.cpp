// Keeps a compile's changes of torch's state from the program: after exceptions, in collections of garbage, in signal handlers, in forked processes.
#include "frame/outside.h"

#include <ATen/Context.h>
#include <ATen/ThreadLocalState.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>

#include <structmember.h>

#include <algorithm>
#include <csignal>
#include <cstddef>

#include "frame/torch_autocast.h"
#include "hook.h"

namespace dynacompile {
namespace {

thread_local Outside* innermost = nullptr;
int compiles = 0;  // of this process that have not ended, under the GIL

// A place that compiles change for the whole process. ours: what they put there, where others may put something else meanwhile; null: whatever is there.
struct Place {
    PyObject *dict, *key, *ours;
    PyObject* before;  // while there are compiles; null: the dict has no such key
};

// A setting of torch that is read and set by two functions.
struct Setting {
    PyObject *read, *set;
    PyObject* before;
};

std::vector<Place>* places;
std::vector<Setting>* settings;

int nesting() {
    const int depth = at::autocast::increment_nesting() - 1;
    at::autocast::decrement_nesting();
    return depth;
}

Outside::Deterministic deterministic() {
    const at::Context& context = at::globalContext();
    return {context.deterministicAlgorithms(), context.deterministicAlgorithmsWarnOnly(), context.deterministicFillUninitializedMemory()};
}

void set_deterministic(const Outside::Deterministic& wanted) {
    at::Context& context = at::globalContext();
    context.setDeterministicAlgorithms(wanted.enabled, wanted.warn_only);
    context.setDeterministicFillUninitializedMemory(wanted.fill);
}

// Keeps the current error, if there is one, while C functions run that may set another, which is dropped.
class KeptError {
  public:
    KeptError() { PyErr_Fetch(&type_, &value_, &traceback_); }
    ~KeptError() { PyErr_Restore(type_, value_, traceback_); }

    // The exception, as an object with its traceback; null where there is no error. Borrowed.
    PyObject* exception() {
        if (!type_) return nullptr;
        PyErr_NormalizeException(&type_, &value_, &traceback_);
        if (traceback_) PyException_SetTraceback(value_, traceback_);
        return value_;
    }

  private:
    PyObject *type_, *value_, *traceback_;
};

void save_process() {
    KeptError kept;
    for (Place& place : *places) {
        place.before = Py_XNewRef(PyDict_GetItemWithError(place.dict, place.key));
        PyErr_Clear();
    }
    for (Setting& setting : *settings) {
        setting.before = PyObject_CallNoArgs(setting.read);
        PyErr_Clear();
    }
}

void restore_place(Place& place) {
    PyObject* now = PyDict_GetItemWithError(place.dict, place.key);
    if (now != place.before && (!place.ours || now == place.ours)) {
        if (place.before) {
            PyDict_SetItem(place.dict, place.key, place.before);
        } else {
            PyDict_DelItem(place.dict, place.key);
        }
    }
    PyErr_Clear();
    Py_CLEAR(place.before);
}

void restore_process() {
    KeptError kept;
    for (Place& place : *places) restore_place(place);
    for (Setting& setting : *settings) {
        if (setting.before) Py_XDECREF(PyObject_CallOneArg(setting.set, setting.before));
        PyErr_Clear();
        Py_CLEAR(setting.before);
    }
}

// What warnings.catch_warnings keeps of the module's, by the name there. Its filters and writers are the process's, so no state of a thread has them.
constexpr struct {
    const char *kept, *name;
} caught_by_warnings[] = {{"_filters", "filters"}, {"_showwarning", "showwarning"}, {"_showwarnmsg_impl", "_showwarnmsg_impl"}};

PyObject *warnings_entered, *warnings_left;  // the codes of catch_warnings.__enter__ and __exit__

// Ends what an interrupted warnings.catch_warnings had begun to undo, or to change, as its own last lines would have.
void leave_warnings(PyFrameObject* frame) {
    const PyRef locals = PyRef::take(PyFrame_GetLocals(frame));
    const PyRef manager = PyRef::take(locals ? PyMapping_GetItemString(locals.get(), "self") : nullptr);
    const PyRef module = PyRef::take(manager ? PyObject_GetAttrString(manager.get(), "_module") : nullptr);
    for (const auto& [kept, name] : caught_by_warnings) {
        const PyRef before = PyRef::take(module ? PyObject_GetAttrString(manager.get(), kept) : nullptr);
        if (before) PyObject_SetAttrString(module.get(), name, before.get());
        PyErr_Clear();  // of one that was not kept yet
    }
    if (module) Py_XDECREF(PyObject_CallMethod(module.get(), "_filters_mutated", nullptr));
    PyErr_Clear();
}

bool find_warnings() {
    const PyRef module = module_named("warnings");
    const PyRef manager = PyRef::take(module ? PyObject_GetAttrString(module.get(), "catch_warnings") : nullptr);
    if (!manager) return false;
    const auto code = [&](const char* name) {
        const PyRef function = PyRef::take(PyObject_GetAttrString(manager.get(), name));
        if (!function || !PyFunction_Check(function.get())) PyErr_Clear();  // another library has put its own there
        return function && PyFunction_Check(function.get()) ? Py_NewRef(PyFunction_GET_CODE(function.get())) : nullptr;
    };
    warnings_entered = code("__enter__");
    warnings_left = code("__exit__");
    return true;
}

// Drops what finished frames of torch and of the compiler hold: a manager that was not left would otherwise change the thread's state when the
// program lets go of the traceback. Frames of the program keep their variables.
void let_go(PyObject* exception, int depth) {
    if (!exception || depth > 16) return;
    PyObject* traceback = PyException_GetTraceback(exception);
    for (PyObject* at = traceback; at && PyTraceBack_Check(at); at = reinterpret_cast<PyObject*>(reinterpret_cast<PyTracebackObject*>(at)->tb_next)) {
        PyFrameObject* frame = reinterpret_cast<PyTracebackObject*>(at)->tb_frame;
        PyCodeObject* code = PyFrame_GetCode(frame);
        if (reinterpret_cast<PyObject*>(code) == warnings_entered || reinterpret_cast<PyObject*>(code) == warnings_left) leave_warnings(frame);
        if (has_skip_rule(code)) Py_XDECREF(PyObject_CallMethod(reinterpret_cast<PyObject*>(frame), "clear", nullptr));
        PyErr_Clear();  // of a frame that still runs
        Py_DECREF(code);
    }
    Py_XDECREF(traceback);
    for (PyObject* other : {PyException_GetContext(exception), PyException_GetCause(exception)}) {
        let_go(other, depth + 1);
        Py_XDECREF(other);
    }
}

// The code that a call of `handler` runs, or null: of a function, a method, an object with a __call__. Borrowed.
PyObject* code_of(PyObject* handler, int depth = 0) {
    if (PyFunction_Check(handler)) return PyFunction_GET_CODE(handler);
    if (PyMethod_Check(handler)) return code_of(PyMethod_GET_FUNCTION(handler), depth + 1);
    if (depth > 4 || PyLong_Check(handler) || PyCFunction_Check(handler)) return nullptr;
    static PyObject* const name = PyUnicode_InternFromString("__call__");
    PyObject* call = _PyType_Lookup(Py_TYPE(handler), name);
    return call && PyFunction_Check(call) ? PyFunction_GET_CODE(call) : nullptr;
}

void find_signal_handlers(std::vector<PyRef>& found) {
    const PyRef module = module_named("_signal");
    for (int number = 1; module && number < NSIG; number++) {
        const PyRef handler = PyRef::take(PyObject_CallMethod(module.get(), "getsignal", "i", number));
        PyObject* code = handler ? code_of(handler.get()) : nullptr;
        if (code) found.push_back(PyRef::share(code));
        PyErr_Clear();
    }
}

PyRef collection_callbacks() {
    const PyRef gc = module_named("gc");
    PyRef callbacks = PyRef::take(gc ? PyObject_GetAttrString(gc.get(), "callbacks") : nullptr);
    return callbacks && PyList_CheckExact(callbacks.get()) ? std::move(callbacks) : PyRef();
}

// The codes of what the interpreter calls between any two bytecodes of a program: handlers of signals, on the main thread, callbacks of the collector,
// and what reports the exceptions of finalizers.
std::vector<PyRef> find_interrupters() {
    std::vector<PyRef> found;
    KeptError kept;
    if (_PyOS_IsMainThread()) find_signal_handlers(found);
    const PyRef callbacks = collection_callbacks();
    for (Py_ssize_t i = 0; callbacks && i < PyList_GET_SIZE(callbacks.get()); i++) {
        PyObject* code = code_of(PyList_GET_ITEM(callbacks.get(), i));
        if (code) found.push_back(PyRef::share(code));
    }
    PyObject* reports = PySys_GetObject("unraisablehook");
    PyObject* code = reports ? code_of(reports) : nullptr;
    if (code) found.push_back(PyRef::share(code));
    PyErr_Clear();
    return found;
}

PyObject* collection_callback;
thread_local bool collecting = false;  // from the first of the collector's callbacks to the last

// Of gc.callbacks: finalizers of the program's garbage run as they would outside of the compile that set the collection off, and are no part of the
// region that did.
PyObject* around_collection(PyObject*, PyObject* args) {
    static thread_local std::optional<Outside::Visit> visit;
    const char* phase;
    PyObject* facts;
    if (!PyArg_ParseTuple(args, "sO", &phase, &facts)) return nullptr;
    visit.reset();
    collecting = *phase == 's' && phase[2] == 'a';  // "start", not "stop"
    if (collecting && innermost) visit.emplace(innermost);
    Py_RETURN_NONE;
}

PyObject* changed_by_compiles(PyObject*, PyObject* args) {
    PyObject *dict, *key, *ours = nullptr;
    if (!PyArg_ParseTuple(args, "O!U|O:changed_by_compiles", &PyDict_Type, &dict, &key, &ours)) return nullptr;
    places->reserve(places->size() + 1);
    places->push_back({Py_NewRef(dict), Py_NewRef(key), Py_XNewRef(ours), nullptr});
    Py_RETURN_NONE;
}

PyObject* set_by_compiles(PyObject*, PyObject* args) {
    PyObject *read, *set;
    if (!PyArg_ParseTuple(args, "OO:set_by_compiles", &read, &set)) return nullptr;
    settings->reserve(settings->size() + 1);
    settings->push_back({Py_NewRef(read), Py_NewRef(set), nullptr});
    Py_RETURN_NONE;
}

PyObject* forget_other_compiles(PyObject*, PyObject*) {
    int mine = 0;
    for (Outside* at = innermost; at; at = at->around()) mine++;
    if (compiles && !mine) restore_process();
    compiles = mine;
    forget_background();
    Py_RETURN_NONE;
}

PyObject* set_deterministic_algorithms(PyObject*, PyObject* args) {
    int enabled, warn_only, fill;
    if (!PyArg_ParseTuple(args, "ppp:set_deterministic_algorithms", &enabled, &warn_only, &fill)) return nullptr;
    const Outside::Deterministic wanted{enabled != 0, warn_only != 0, fill != 0};
    if (innermost) {
        innermost->set(wanted);
    } else {
        set_deterministic(wanted);
    }
    Py_RETURN_NONE;
}

PyMethodDef outside_functions[] = {
    {"set_deterministic_algorithms", boundary<set_deterministic_algorithms>, METH_VARARGS,
     "set_deterministic_algorithms(enabled, warn_only, fill): for the compile of this thread, which puts back what was there if it raises, unless others set it."},
    {"changed_by_compiles", boundary<changed_by_compiles>, METH_VARARGS,
     "changed_by_compiles(dict, key, ours=...): what is there when the first of several compiles begins is there again when the last has ended; given `ours`, only where "
     "that is found."},
    {"set_by_compiles", boundary<set_by_compiles>, METH_VARARGS, "set_by_compiles(read, set): as changed_by_compiles, for what `read()` gives and `set(value)` sets."},
    {"forget_other_compiles", boundary<forget_other_compiles>, METH_NOARGS, "In a forked process: the compiles of threads that it does not have are over."},
    {nullptr},
};

PyMethodDef collection_function = {"dynacompile_around_collection", boundary<around_collection>, METH_VARARGS, nullptr};

// A method that takes what it left on the stack of dispatch modes off, where it raised. torch aborts the process where a handler of a mode of its own
// leaves that mode on the stack, as one does that is interrupted.
struct ModeMethod {
    PyObject_HEAD
    vectorcallfunc call;
    PyObject* function;
};

PyObject* mode_method_call(PyObject* self, PyObject* const* args, size_t nargsf, PyObject* kwnames) {
    const c10::impl::TorchDispatchModeTLS before = c10::impl::TorchDispatchModeTLS::get_state();
    PyObject* result = PyObject_Vectorcall(reinterpret_cast<ModeMethod*>(self)->function, args, nargsf, kwnames);
    if (!result) {
        KeptError kept;
        c10::impl::TorchDispatchModeTLS::set_state(before);
    }
    return result;
}

PyObject* mode_method_new(PyTypeObject* type, PyObject* args, PyObject*) {
    PyObject* function;
    if (!PyArg_ParseTuple(args, "O!:ModeMethod", &PyFunction_Type, &function)) return nullptr;
    ModeMethod* self = reinterpret_cast<ModeMethod*>(type->tp_alloc(type, 0));
    if (!self) return nullptr;
    self->call = boundary<mode_method_call>;
    self->function = Py_NewRef(function);
    return reinterpret_cast<PyObject*>(self);
}

PyObject* mode_method_bind(PyObject* self, PyObject* object, PyObject*) { return object && object != Py_None ? PyMethod_New(self, object) : Py_NewRef(self); }

int mode_method_traverse(PyObject* self, visitproc visit, void* arg) noexcept {
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(reinterpret_cast<ModeMethod*>(self)->function);
    return 0;
}

void mode_method_dealloc(PyObject* self) noexcept {
    PyTypeObject* type = Py_TYPE(self);
    PyObject_GC_UnTrack(self);
    Py_DECREF(reinterpret_cast<ModeMethod*>(self)->function);
    type->tp_free(self);
    Py_DECREF(type);
}

PyMemberDef mode_method_members[] = {
    {"__wrapped__", T_OBJECT, offsetof(ModeMethod, function), READONLY, "the function that it calls"},
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(ModeMethod, call), READONLY},
    {nullptr},
};

PyType_Slot mode_method_slots[] = {
    {Py_tp_doc, const_cast<char*>("ModeMethod(function): a method that leaves the stack of dispatch modes as it was, where it raises.")},
    {Py_tp_new, as_slot<mode_method_new>()},
    {Py_tp_dealloc, reinterpret_cast<void*>(mode_method_dealloc)},
    {Py_tp_traverse, reinterpret_cast<void*>(mode_method_traverse)},
    {Py_tp_call, reinterpret_cast<void*>(PyVectorcall_Call)},
    {Py_tp_descr_get, as_slot<mode_method_bind>()},
    {Py_tp_members, mode_method_members},
    {0, nullptr},
};
PyType_Spec mode_method_spec = {"dynacompile_native.ModeMethod", sizeof(ModeMethod), 0,
                                Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_METHOD_DESCRIPTOR, mode_method_slots};

bool watch_collections() {
    const PyRef callbacks = collection_callbacks();
    collection_callback = callbacks ? PyCFunction_New(&collection_function, nullptr) : nullptr;
    return collection_callback && PyList_Append(callbacks.get(), collection_callback) == 0;
}

// False, too, where the program has emptied gc.callbacks meanwhile: nothing says then when the collection ends.
bool runs_a_collection() {
    if (!collecting) return false;
    KeptError kept;
    const PyRef callbacks = collection_callbacks();
    collecting = callbacks && PySequence_Contains(callbacks.get(), collection_callback) == 1;
    PyErr_Clear();
    return collecting;
}

}  // namespace

Outside::Outside()
    : state_(std::make_unique<at::ThreadLocalState>()),
      cache_(at::autocast::is_autocast_cache_enabled()),
      nesting_(nesting()),
      around_(innermost),
      interrupters_(find_interrupters()) {
    if (compiles++ == 0) save_process();
    innermost = this;
}

Outside::~Outside() {
    innermost = around_;
    if (--compiles == 0) restore_process();
}

void Outside::restore() {
    KeptError kept;
    let_go(kept.exception(), 0);
    PyErr_Clear();
    at::ThreadLocalState::setThreadLocalState(*state_);
    at::autocast::set_autocast_cache_enabled(cache_);
    while (nesting() > nesting_) at::autocast::decrement_nesting();
    while (nesting() < nesting_) at::autocast::increment_nesting();
    if (ours_ && deterministic() == *ours_) set_deterministic(*before_);
    ours_.reset();
}

void Outside::set(const Deterministic& wanted) {
    if (!ours_) before_ = deterministic();
    ours_ = wanted;
    set_deterministic(wanted);
}

static bool is_code_of(const std::vector<PyRef>& interrupters, PyCodeObject* code) {
    return std::any_of(interrupters.begin(), interrupters.end(), [&](const PyRef& known) { return known.get() == reinterpret_cast<PyObject*>(code); });
}

bool interrupts_program(PyCodeObject* code) { return runs_a_collection() || is_code_of(find_interrupters(), code); }

bool Outside::is_interrupted_by(PyCodeObject* code) const { return is_code_of(interrupters_, code); }

Outside::Visit::Visit(Outside* outside) : state_(std::make_unique<at::ThreadLocalStateGuard>(*outside->state_)), cache_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_cache_enabled(outside->cache_);
}

Outside::Visit::~Visit() { at::autocast::set_autocast_cache_enabled(cache_); }

Outside* compile_of_thread() { return innermost; }

bool init_outside(PyObject* module) {
    places = new std::vector<Place>();
    settings = new std::vector<Setting>();
    PyObject* method = PyType_FromSpec(&mode_method_spec);
    return method && PyModule_AddObject(module, "ModeMethod", method) == 0 && PyModule_AddFunctions(module, outside_functions) == 0 && find_warnings() && watch_collections();
}

}  // namespace dynacompile
