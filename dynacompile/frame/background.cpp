// Compiles on a thread of the compiler's own, for a call that has gone on without waiting: the state of torch that the call had, and the answer about its code.
#include <ATen/ThreadLocalState.h>
#include <ATen/record_function.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "frame/outside.h"
#include "frame/torch_autocast.h"
#include "frame/turns.h"
#include "hook.h"

namespace dynacompile {
namespace {

constexpr c10::DeviceType autocast_devices[] = {c10::DeviceType::CPU, c10::DeviceType::CUDA};
int hooks_in = 0;  // compiles in the background that have the hook in

// What torch knows of a thread.
struct CallerState {
    PyObject_HEAD
    at::ThreadLocalState* state;
    at::ScalarType autocast[2];
    bool autocast_cache;
};

PyTypeObject* caller_type;

PyObject* caller_state(PyObject*, PyObject*) {
    std::unique_ptr<at::ThreadLocalState> state;
    {
        const GuardedModesOn on;
        state = std::make_unique<at::ThreadLocalState>();
    }
    CallerState* made = PyObject_New(CallerState, caller_type);
    if (!made) return nullptr;
    made->state = state.release();
    for (int i = 0; i < 2; i++) made->autocast[i] = at::autocast::get_autocast_dtype(autocast_devices[i]);
    made->autocast_cache = at::autocast::is_autocast_cache_enabled();
    return reinterpret_cast<PyObject*>(made);
}

void caller_dealloc(PyObject* self) noexcept {
    PyTypeObject* type = Py_TYPE(self);
    delete reinterpret_cast<CallerState*>(self)->state;
    PyObject_Free(self);
    Py_DECREF(type);
}

PyType_Slot caller_slots[] = {{Py_tp_dealloc, reinterpret_cast<void*>(caller_dealloc)}, {0, nullptr}};
PyType_Spec caller_spec = {"dynacompile_native.CallerState", sizeof(CallerState), 0, Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, caller_slots};

// Has this thread the caller's state, for a C++ scope.
class AsCaller {
  public:
    explicit AsCaller(const CallerState& caller) : guard_(*caller.state), cache_(at::autocast::is_autocast_cache_enabled()) {
        for (int i = 0; i < 2; i++) {
            before_[i] = at::autocast::get_autocast_dtype(autocast_devices[i]);
            at::autocast::set_autocast_dtype(autocast_devices[i], caller.autocast[i]);
        }
        at::autocast::set_autocast_cache_enabled(caller.autocast_cache);
        c10::ThreadLocalDebugInfo::_forceCurrentDebugInfo(nullptr);  // a profiler of the caller's, which may end before the compile
    }
    ~AsCaller() {
        for (int i = 0; i < 2; i++) at::autocast::set_autocast_dtype(autocast_devices[i], before_[i]);
        at::autocast::set_autocast_cache_enabled(cache_);
    }
    AsCaller(const AsCaller&) = delete;

  private:
    at::ThreadLocalStateGuard guard_;
    at::DisableRecordFunctionGuard unrecorded_;
    at::ScalarType before_[2];
    bool cache_;
};

// Has the hook in, which meets the compile's own frames: between these it gives way. Not where torch.compile's is in, which would be out for all threads.
class HookForTurns {
  public:
    HookForTurns() : is_in_(!rival_is_in()) {
        if (!is_in_) return;
        if (!hook_enter(before_)) throw PythonErrorSet();
        hooks_in++;
    }
    ~HookForTurns() {
        if (!is_in_ || hooks_in == 0) return;
        hooks_in--;
        hook_leave(before_);
    }
    HookForTurns(const HookForTurns&) = delete;

  private:
    Before before_;
    bool is_in_;
};

// compile_apart(caller_state, function, *arguments)
PyObject* compile_apart(PyObject*, PyObject* args) {
    const Py_ssize_t count = PyTuple_GET_SIZE(args);
    if (count < 2 || !Py_IS_TYPE(PyTuple_GET_ITEM(args, 0), caller_type)) {
        PyErr_SetString(PyExc_TypeError, "compile_apart takes a CallerState, a function and its arguments");
        return nullptr;
    }
    PyThreadState* ts = PyThreadState_Get();
    if (!need_stack(ts)) return nullptr;
    const AsCaller as_caller(*reinterpret_cast<CallerState*>(PyTuple_GET_ITEM(args, 0)));
    const HookForTurns hook;
    Outside outside;
    RegionScope off(ts, nullptr, nullptr);
    off.compiling();
    PyObject* const* items = &PyTuple_GET_ITEM(args, 1);
    PyObject* answer;
    {
        const Turns turns;
        answer = call_object(items[0], items + 1, static_cast<size_t>(count - 2), nullptr);
    }
    if (!answer) outside.restore();
    return answer;
}

// settle(code, state, answer, is_target): what a region's compile_frame would have done by returning `answer`.
PyObject* settle(PyObject*, PyObject* args) {
    PyObject *code, *state_object, *answer;
    int is_target;
    if (!PyArg_ParseTuple(args, "O!O!Op:settle", &PyCode_Type, &code, state_type, &state_object, &answer, &is_target)) return nullptr;
    RegionState* state = reinterpret_cast<RegionState*>(state_object);
    if (Py_IS_TYPE(answer, entry_type)) {
        if (!add_entry(reinterpret_cast<PyCodeObject*>(code), *state, reinterpret_cast<Entry*>(answer))) return nullptr;
    } else if (follow_answer(reinterpret_cast<PyCodeObject*>(code), state, answer, false, is_target) == Way::error) {
        return nullptr;
    }
    Py_RETURN_NONE;
}

// run_meanwhile(code, state, on): frames of that code run as Python, without a question to the region, or no longer.
PyObject* run_meanwhile(PyObject*, PyObject* args) {
    PyObject *code, *state_object;
    int on;
    if (!PyArg_ParseTuple(args, "O!O!p:run_meanwhile", &PyCode_Type, &code, state_type, &state_object, &on)) return nullptr;
    Extra* extra = need_extra(reinterpret_cast<PyCodeObject*>(code));
    if (!extra) return nullptr;
    auto& set = *reinterpret_cast<RegionState*>(state_object)->full;
    if (on) {
        set.insert(extra->serial);
    } else {
        set.erase(extra->serial);
    }
    Py_RETURN_NONE;
}

PyObject* lower_priority_of_thread(PyObject*, PyObject*) {
    lower_priority();
    Py_RETURN_NONE;
}

PyObject* rest_in_hurry_for(PyObject*, PyObject* microseconds) {
    const long duration = PyLong_AsLong(microseconds);
    if (duration == -1 && PyErr_Occurred()) return nullptr;
    if (duration < 0 || duration >= 1'000'000) {
        PyErr_SetString(PyExc_ValueError, "rest_in_hurry takes less than a second");
        return nullptr;
    }
    Py_BEGIN_ALLOW_THREADS;
    rest_in_hurry(duration);
    Py_END_ALLOW_THREADS;
    Py_RETURN_NONE;
}

PyMethodDef background_functions[] = {
    {"caller_state", boundary<caller_state>, METH_NOARGS, "caller_state() -> CallerState: what torch knows of this thread (modes, autocast, dispatch keys), for compile_apart."},
    {"compile_apart", boundary<compile_apart>, METH_VARARGS,
     "compile_apart(caller_state, function, *arguments): calls it as a region calls its compile_frame, with the caller's state of torch on this thread, which gives way "
     "to other threads."},
    {"settle", boundary<settle>, METH_VARARGS, "settle(code, state, answer, is_target): has calls of `code` in regions of that RegionState follow an answer of compile_frame."},
    {"run_meanwhile", boundary<run_meanwhile>, METH_VARARGS, "run_meanwhile(code, state, on): whether calls of `code` that no entry serves run as Python, with no question."},
    {"lower_priority", boundary<lower_priority_of_thread>, METH_NOARGS, "Has this thread, and what it starts, run where the program's threads leave a processor idle."},
    {"rest_in_hurry", boundary<rest_in_hurry_for>, METH_O, "rest_in_hurry(microseconds): rests; compiles in the background give way to nobody meanwhile."},
    {nullptr},
};

}  // namespace

void forget_background() {
    hook_forget(hooks_in);
    hooks_in = 0;
    forget_hurry();
}

bool init_background(PyObject* module) {
    caller_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&caller_spec));
    return caller_type && PyModule_AddFunctions(module, background_functions) == 0 && PyModule_AddObjectRef(module, "CallerState", reinterpret_cast<PyObject*>(caller_type)) == 0;
}

}  // namespace dynacompile
