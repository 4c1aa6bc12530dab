// The frame hook (PEP 523): meets every Python frame of a region, runs a known one by swapping its code in place, and asks for a new entry else.
#include "hook.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>

#include "frame/outside.h"
#include "frame/restarts.h"
#include "frame/turns.h"

namespace dynacompile {
namespace {

thread_local Thread current_thread{};
int regions_open = 0;  // in this process, under the GIL
_PyFrameEvalFunction before_us = nullptr;
PyObject* set_rival = nullptr;  // torch's function that sets the callback of torch.compile's hook in this thread, and gives the one before

PyObject* evaluate(PyThreadState* ts, Frame* frame, int throwflag);

PyInterpreterState* interpreter = nullptr;  // the main one: the core works in no other

PyObject* run_plainly(PyThreadState* ts, Frame* frame) {
    RegionScope off(ts, nullptr, nullptr);
    return _PyEval_EvalFrameDefault(ts, frame, 0);
}

// Ends a frame that has not started, with the current error: the evaluator unwinds it as if its first instruction had raised.
PyObject* unwind(PyThreadState* ts, Frame* frame) {
    RegionScope off(ts, nullptr, nullptr);
    return _PyEval_EvalFrameDefault(ts, frame, 1);
}

bool swap_in_place(PyThreadState* ts, Frame* frame, PyCodeObject* code) {
    PyObject** base = reinterpret_cast<PyObject**>(frame);
    Py_ssize_t words = frame_words(code);
    if (ts->datastack_top != base + frame_words(frame_code(frame)) || words >= ts->datastack_limit - base) return false;
    ts->datastack_top = base + words;
    replace_code(frame, code);
    return true;
}

// Ends a frame that has not started, in whose place a call of its own gave `result`.
PyObject* end_with(PyThreadState* ts, Frame* frame, PyObject* result) {
    if (!result) return unwind(ts, frame);
    if (evaluator_clears) {
        PyErr_SetNone(PyExc_StopIteration);
        unwind(ts, frame);
        PyErr_Clear();
    }
    return result;
}

// The rare way to run `code`, where the data stack's chunk has no room to grow the frame: as a call of its own.
PyObject* run_as_call(PyThreadState* ts, Frame* frame, PyCodeObject* code) {
    PyObject* result = nullptr;
    without_throwing([&] { result = GivenCall(frame).call(code); });
    return end_with(ts, frame, result);
}

PyObject* run_code(PyThreadState* ts, Frame* frame, PyCodeObject* code) {
    if (swap_in_place(ts, frame, code)) return _PyEval_EvalFrameDefault(ts, frame, 0);
    Py_INCREF(code);
    PyObject* result = run_as_call(ts, frame, code);
    Py_DECREF(code);
    return result;
}

PyObject* run_entry_code(Thread& thread, PyThreadState* ts, Frame* frame, Entry* entry) {
    if (!entry->whole) return run_code(ts, frame, entry->code);
    const HookOff off(thread, ts);
    return run_code(ts, frame, entry->code);
}

// Runs an entry: where that raises Restart, nothing has changed, and the call is made again as Python. The frame is gone by then.
PyObject* run_or_restart(Thread& thread, PyThreadState* ts, Frame* frame, Entry* entry) {
    std::unique_ptr<KeptCall> kept;
    if (!without_throwing([&] { kept = std::make_unique<KeptCall>(frame); })) return unwind(ts, frame);
    PyObject* result = run_entry_code(thread, ts, frame, entry);
    if (result || !is_restart_set()) return result;
    PyErr_Clear();
    const HookOff off(thread, ts);
    without_throwing([&] { result = kept->again(); });
    return result;
}

PyObject* run_entry(Thread& thread, PyThreadState* ts, Frame* frame, Entry* entry) {
    mark_used(entry);
    return entry->restarts ? run_or_restart(thread, ts, frame, entry) : run_entry_code(thread, ts, frame, entry);
}

// Lets calls of a compile nest as deeply as in a program that has just begun, however deep the frame lies that is compiled: eager needs no room for it.
class RoomToCompile {
  public:
    explicit RoomToCompile(PyThreadState* ts) : ts_(ts), more_(std::max(0, room - calls_left(ts))) { calls_left(ts_) += more_; }
    ~RoomToCompile() { calls_left(ts_) -= more_; }
    RoomToCompile(const RoomToCompile&) = delete;

  private:
    static constexpr int room = 1000;  // CPython's own limit, where the program sets none
    PyThreadState* ts_;
    int more_;
};

// The answer of the region's callback about the frame that `proxy` stands for, or null with an error set.
PyObject* ask_about(PyThreadState* ts, PyObject* proxy, RegionState* state, PyObject* on_miss) {
    Outside outside;
    RegionScope off(ts, nullptr, nullptr);
    off.compiling();
    const RoomToCompile room(ts);
    PyObject* arguments[] = {proxy, reinterpret_cast<PyObject*>(state)};
    PyObject* answer = call_object(on_miss, arguments, 2, nullptr);
    end_proxy(proxy);
    if (!answer) outside.restore();
    return answer;
}

// The answer of the region's callback, or null with an error set. The callback runs with the hook off, and a compile that raises leaves torch's state
// as it was.
PyObject* ask(PyThreadState* ts, Frame* frame, Extra* extra, RegionState* state, PyObject* on_miss) {
    PyObject* proxy = new_proxy(frame, extra, state);
    PyObject* answer = nullptr;
    if (!proxy || !without_throwing([&] { answer = ask_about(ts, proxy, state, on_miss); })) answer = nullptr;
    if (proxy) end_proxy(proxy);
    Py_XDECREF(proxy);
    return answer;
}

PyObject* run(PyThreadState* ts, Frame* frame, Way way) {
    if (way == Way::error) return unwind(ts, frame);
    return way == Way::plainly ? run_plainly(ts, frame) : _PyEval_EvalFrameDefault(ts, frame, 0);
}

PyObject* meet_unknown(PyThreadState* ts, Frame* frame, const Scope& scope, Extra* extra) {
    RegionState* state = scope.state;
    PyObject* on_miss = scope.on_miss;
    if (ts->tracing || state->full->count(extra->serial)) return run_plainly(ts, frame);  // tracing: code of audit hooks, tracers and profilers
    bool interrupts = false;
    if (!without_throwing([&] { interrupts = interrupts_program(frame_code(frame)); })) return unwind(ts, frame);
    if (interrupts) return run_plainly(ts, frame);
    const bool is_target = frame_code(frame) == scope.target;  // the scope is this thread's, and may be another's stack after the callback
    const bool at_limit = limit_reached(*extra, *state) != nullptr;
    PyObject* answer = ask(ts, frame, extra, state, on_miss);
    if (!answer) return unwind(ts, frame);
    PyObject* result;
    if (Py_IS_TYPE(answer, entry_type)) {
        Entry* entry = reinterpret_cast<Entry*>(answer);
        bool added = false;
        without_throwing([&] { added = add_entry(frame_code(frame), *state, entry); });
        result = added ? run_entry(this_thread(ts), ts, frame, entry) : unwind(ts, frame);
    } else {
        Way way = Way::error;
        without_throwing([&] { way = follow_answer(frame_code(frame), state, answer, at_limit, is_target); });
        result = run(ts, frame, way);
    }
    Py_DECREF(answer);
    return result;
}

// Takes the arguments of a resume function from its caller, whose CALL or CALL_FUNCTION_EX keeps them on its stack until the call ends: they are
// to end as they would in the frame before the break. Residual code makes that call with nothing else on its stack.
void take_arguments(PyThreadState* ts, Frame* frame) {
    Frame* caller = current_frame(ts);
    const int count = frame_code(frame)->co_argcount;
    if (!caller || !is_python_call(caller) || frame_code(caller)->co_stacksize < 3 || count == 0) return;
    PyObject** operands = frame_slots(caller) + frame_code(caller)->co_nlocalsplus;  // NULL and the function, its arguments or a tuple of them
    if (operands[null_operand] || operands[function_operand] != reinterpret_cast<PyObject*>(frame_function(frame))) return;
    PyObject** given = operands + 2;
    if (calls_with_tuple(caller)) {
        if (!PyTuple_CheckExact(*given) || Py_REFCNT(*given) != 1 || PyTuple_GET_SIZE(*given) != count) return;
        given = &PyTuple_GET_ITEM(*given, 0);
    } else if (frame_code(caller)->co_stacksize < count + 2) {
        return;
    }
    if (!std::equal(given, given + count, frame_slots(frame))) return;
    for (int i = 0; i < count; i++) Py_SETREF(given[i], Py_NewRef(Py_None));
}

// The entry that serves the frame, borrowed, or null. False with an error set, as of a signal handler while guards were checked.
bool find_entry(Frame* frame, Extra* extra, const RegionState& state, Entry** found) {
    const bool looked = without_throwing([&] {
        *found = lookup(extra, state.bucket, state.kind, frame);
        if (!*found && state.fallback && state.bucket != default_bucket && !PyErr_Occurred()) *found = lookup(extra, default_bucket, state.kind, frame);
    });
    return looked && (*found || !PyErr_Occurred());
}

// A frame on a thread that is in no region, as all are that compile. What the interpreter calls between two bytecodes of a compile, as it does handlers of
// signals, has torch's state as it is outside of it.
PyObject* evaluate_plainly(PyThreadState* ts, Frame* frame, int throwflag) {
    Outside* outside = compile_of_thread();
    if (outside && takes_turns()) stay(take_turn);
    if (!outside || !outside->is_interrupted_by(frame_code(frame))) return _PyEval_EvalFrameDefault(ts, frame, throwflag);
    std::optional<Outside::Visit> visit;
    const bool visits = without_throwing([&] { visit.emplace(outside); });
    return _PyEval_EvalFrameDefault(ts, frame, visits ? throwflag : 1);
}

// Whether a frame of that code runs as Python, with no question to the compiler. What another region's compile has refused is no answer for the
// region that is about this code: it asks once, so that its user is told, too.
bool is_left(const Scope& scope, const Extra* extra, const PyCodeObject* code) {
    if (extra->mark == Mark::elsewhere) return code != scope.target;
    if (extra->mark != Mark::skip) return false;
    return !extra->refused || code != scope.target || scope.state->refused == extra->serial + 1;
}

// Whether a frame that runs plainly with all below it is a wrapper by which Dynamo has left a step of torch.optim alone, for everybody: what the step calls,
// as a closure, is the program's, which has disabled nothing.
bool is_step_left_by_dynamo(Frame* frame) {
    PyObject* marks = frame_function(frame)->func_dict;
    PyObject* original = marks ? PyDict_GetItemString(marks, "_torchdynamo_orig_callable") : nullptr;
    if (!original || !PyFunction_Check(original)) return false;
    PyFunctionObject* function = reinterpret_cast<PyFunctionObject*>(original);
    if (!function->func_module || !PyUnicode_Check(function->func_module)) return false;
    const char* module = PyUnicode_AsUTF8(function->func_module);
    if (!module) PyErr_Clear();
    if (!module || std::strncmp(module, "torch.optim.", 12) != 0) return false;
    PyObject* name = function->func_qualname;
    return PyUnicode_CompareWithASCIIString(name, "LBFGS.step") == 0 || PyUnicode_CompareWithASCIIString(name, "SparseAdam.step") == 0;
}

// Nothing in here throws once the frame runs: what may is caught where it can be unwound.
PyObject* evaluate(PyThreadState* ts, Frame* frame, int throwflag) {
    Thread& thread = *found_once(&current_thread);
    if (!thread.now.on_miss && !thread.parked) return evaluate_plainly(ts, frame, throwflag);
    if (throwflag || !is_fresh(frame)) return _PyEval_EvalFrameDefault(ts, frame, throwflag);
    thread.follow(ts);
    const Scope& scope = thread.now;
    if (!scope.on_miss) return evaluate_plainly(ts, frame, 0);
    Extra* extra = need_extra(frame_code(frame));
    if (!extra) return unwind(ts, frame);
    if (extra->resumes) take_arguments(ts, frame);
    if (is_watched_since(scope.watchers, ts)) return _PyEval_EvalFrameDefault(ts, frame, 0);
    const bool left = is_left(scope, extra, frame_code(frame));
    if (left && extra->buckets.empty()) return _PyEval_EvalFrameDefault(ts, frame, 0);
    if (extra->mark == Mark::skip_recursive) return is_step_left_by_dynamo(frame) ? _PyEval_EvalFrameDefault(ts, frame, 0) : run_plainly(ts, frame);
    Entry* entry = nullptr;
    if (!find_entry(frame, extra, *scope.state, &entry)) return unwind(ts, frame);
    if (!entry && left) return _PyEval_EvalFrameDefault(ts, frame, 0);
    scope.state->met = 1;
    return entry ? run_entry(thread, ts, frame, entry) : meet_unknown(ts, frame, scope, extra);
}

// Whether this is torch.compile's hook, which is off in a thread until its region ends: it would compile the compiler's own frames.
bool is_rival(_PyFrameEvalFunction installed) { return set_rival && installed != evaluate && installed != _PyEval_EvalFrameDefault; }

PyObject* watch_rival(PyObject*, PyObject* function) {
    Py_XSETREF(set_rival, Py_NewRef(function));
    Py_RETURN_NONE;
}

PyMethodDef hook_functions[] = {
    {"watch_rival", boundary<watch_rival>, METH_O, "watch_rival(set_callback): how regions turn torch.compile's frame hook off, and on again."},
    {nullptr},
};

}  // namespace

Way follow_answer(PyCodeObject* code, RegionState* state, PyObject* answer, bool at_limit, bool is_target) {
    Extra* extra = need_extra(code);  // found again: the callback may have reset it
    if (!extra) return Way::error;
    if (answer == answer_run_once) {
        if (!at_limit) return Way::python;
        state->full->insert(extra->serial);
        return Way::plainly;
    }
    if (answer == answer_run_plainly) return Way::plainly;
    if (answer == answer_skip || answer == answer_skip_recursive) {
        extra->mark = answer == answer_skip ? Mark::skip : Mark::skip_recursive;
        extra->refused = true;
        if (is_target) state->refused = extra->serial + 1;
        return answer == answer_skip ? Way::python : Way::plainly;
    }
    PyErr_Format(PyExc_TypeError, "a region's compile_frame must return an Entry, SKIP, SKIP_RECURSIVE, RUN_ONCE or RUN_PLAINLY, not %.200s", Py_TYPE(answer)->tp_name);
    return Way::error;
}

bool rival_is_in() { return is_rival(_PyInterpreterState_GetEvalFrameFunc(interpreter)); }

void hook_forget(int regions) {
    regions_open -= regions;
    if (regions && regions_open == 0 && _PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluate) _PyInterpreterState_SetEvalFrameFunc(interpreter, before_us);
}

Thread& this_thread(const PyThreadState* ts) {
    Thread& thread = *found_once(&current_thread);
    if (!thread.keys) thread.keys = dispatch_keys();
    thread.follow(ts);
    return thread;
}

void Thread::meet_stack(const PyThreadState* ts) {
    if (now.id) others[parked++] = now;
    now = Scope{};
    for (const _PyStackChunk* chunk = ts->datastack_chunk; chunk; chunk = chunk->previous) {
        now.stack = chunk;
        for (uint32_t i = 0; i < parked; i++) {
            if (others[i].stack != chunk) continue;
            now = others[i];
            others[i] = others[--parked];
            return;
        }
    }
}

void Thread::forget(uint64_t id) {
    if (now.id) others[parked++] = now;
    for (uint32_t i = 0; i < parked; i++) {
        if (others[i].id == id) others[i] = others[--parked];
    }
}

void Thread::make_room() {
    static thread_local std::unique_ptr<Scope[]> owner;  // freed when the thread ends
    const uint32_t more = std::max(4u, 2 * room);
    std::unique_ptr<Scope[]> larger(new Scope[more]);
    std::copy_n(others, parked, larger.get());
    owner = std::move(larger);
    others = owner.get();
    room = more;
}

// A greenlet or thread that has run no Python function has no chunk yet. The first one stays until it ends.
bool need_stack(const PyThreadState* ts) {
    if (ts->datastack_chunk) return true;
    PyRef globals = PyRef::take(PyDict_New());
    PyRef lambda = globals ? PyRef::take(PyRun_String("lambda: None", Py_eval_input, globals.get(), globals.get())) : PyRef();
    return lambda && PyRef::take(PyObject_CallNoArgs(lambda.get()));
}

// Installs the hook for one region, in the place of the one that was there: ours inside another region, or a foreign one.
bool hook_enter(Before& before) {
    before.evaluator = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    if (is_rival(before.evaluator)) {
        before.callback = PyObject_CallOneArg(set_rival, Py_None);
        if (!before.callback) return false;
        before.evaluator = _PyInterpreterState_GetEvalFrameFunc(interpreter);
    }
    if (before.evaluator != evaluate) {
        if (regions_open == 0) before_us = before.evaluator;
        _PyInterpreterState_SetEvalFrameFunc(interpreter, evaluate);
    }
    regions_open++;
    return true;
}

// Undoes hook_enter: the last region of the process takes the hook out; one opened below a foreign hook gives that hook its place back.
bool hook_leave(Before& before) {
    regions_open--;
    if (_PyInterpreterState_GetEvalFrameFunc(interpreter) == evaluate) {
        if (regions_open == 0) {
            _PyInterpreterState_SetEvalFrameFunc(interpreter, before_us);
        } else if (before.evaluator != evaluate && before.evaluator != before_us) {
            _PyInterpreterState_SetEvalFrameFunc(interpreter, before.evaluator);
        }
    }
    if (!before.callback) return true;
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyObject* ours = PyObject_CallOneArg(set_rival, before.callback);
    Py_CLEAR(before.callback);
    if (ours && type) PyErr_Restore(type, value, trace);
    if (!ours) Py_XDECREF(type), Py_XDECREF(value), Py_XDECREF(trace);
    Py_XDECREF(ours);
    return ours != nullptr;
}

}  // namespace dynacompile

bool init_frame(PyObject* module) {
    using namespace dynacompile;
    interpreter = PyInterpreterState_Main();
    init_watchers(interpreter);
    return init_restarts(module) && init_dispatch(module) && init_proxy(module) && init_region(module) && init_outside(module) && init_background(module) && PyModule_AddFunctions(module, hook_functions) == 0;
}
