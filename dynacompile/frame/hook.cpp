// The frame hook (PEP 523): meets every Python frame of a region, runs a known one by swapping its code in place, and asks for a new entry else.
#include "hook.h"

#include <algorithm>

namespace dynacompile {
namespace {

thread_local Thread current_thread{nullptr, nullptr, false, nullptr};
int regions_open = 0;  // in this process, under the GIL
_PyFrameEvalFunction before_us = nullptr;
PyObject* set_rival = nullptr;  // torch's function that sets the callback of torch.compile's hook in this thread, and gives the one before

PyObject* evaluate(PyThreadState* ts, Frame* frame, int throwflag);

PyInterpreterState* interpreter() { return PyThreadState_Get()->interp; }

PyObject* run_plainly(PyThreadState* ts, Frame* frame) {
    RegionScope off(nullptr, nullptr);
    return _PyEval_EvalFrameDefault(ts, frame, 0);
}

// Ends a frame that has not started, with the current error: the evaluator unwinds it as if its first instruction had raised.
PyObject* unwind(PyThreadState* ts, Frame* frame) {
    RegionScope off(nullptr, nullptr);
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

// Pushes the arguments of a fresh frame as those of a vectorcall. Returns the keyword names (new), or null for none or an error.
PyObject* unpack_arguments(Frame* frame, std::vector<PyObject*>& values, Py_ssize_t& positional) {
    PyCodeObject* code = frame_code(frame);
    PyObject** slots = frame_slots(frame);
    int next = code->co_argcount + code->co_kwonlyargcount;
    values.assign(slots, slots + code->co_argcount);
    if (code->co_flags & CO_VARARGS) {
        PyObject* rest = slots[next++];
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rest); i++) values.push_back(PyTuple_GET_ITEM(rest, i));
    }
    positional = static_cast<Py_ssize_t>(values.size());
    PyObject* more = code->co_flags & CO_VARKEYWORDS ? slots[next] : nullptr;
    Py_ssize_t keywords = code->co_kwonlyargcount + (more ? PyDict_GET_SIZE(more) : 0);
    if (keywords == 0) return nullptr;
    PyObject* names = PyTuple_New(keywords);
    if (!names) return nullptr;
    Py_ssize_t at = 0;
    for (int i = code->co_argcount; i < code->co_argcount + code->co_kwonlyargcount; i++) {
        PyTuple_SET_ITEM(names, at++, Py_NewRef(PyTuple_GET_ITEM(code->co_localsplusnames, i)));
        values.push_back(slots[i]);
    }
    PyObject *key, *value;
    for (Py_ssize_t pos = 0; more && PyDict_Next(more, &pos, &key, &value);) {
        PyTuple_SET_ITEM(names, at++, Py_NewRef(key));
        values.push_back(value);
    }
    return names;
}

// The rare way to run `code`, where the data stack's chunk has no room to grow the frame: as a call of its own.
PyObject* run_as_call(PyThreadState* ts, Frame* frame, PyCodeObject* code) {
    PyObject* result = nullptr;
    PyObject* function = PyFunction_New(reinterpret_cast<PyObject*>(code), frame_globals(frame));
    if (function) {
        PyObject* closure = frame_function(frame)->func_closure;
        std::vector<PyObject*> values;
        Py_ssize_t positional = 0;
        if (!closure || PyFunction_SetClosure(function, closure) == 0) {
            PyObject* names = unpack_arguments(frame, values, positional);
            if (!PyErr_Occurred()) result = PyObject_Vectorcall(function, values.data(), positional, names);
            Py_XDECREF(names);
        }
        Py_DECREF(function);
    }
    if (!result) return unwind(ts, frame);
    if (evaluator_clears) {
        PyErr_SetNone(PyExc_StopIteration);
        unwind(ts, frame);
        PyErr_Clear();
    }
    return result;
}

PyObject* run_code(PyThreadState* ts, Frame* frame, PyCodeObject* code) {
    if (swap_in_place(ts, frame, code)) return _PyEval_EvalFrameDefault(ts, frame, 0);
    Py_INCREF(code);
    PyObject* result = run_as_call(ts, frame, code);
    Py_DECREF(code);
    return result;
}

PyObject* run_entry(PyThreadState* ts, Frame* frame, Entry* entry) {
    mark_used(entry);
    if (!entry->whole) return run_code(ts, frame, entry->code);
    RegionScope off(nullptr, nullptr);
    return run_code(ts, frame, entry->code);
}

// The answer of the region's callback, or null with an error set. The callback runs with the hook off.
PyObject* ask(Frame* frame, Extra* extra, RegionState* state, PyObject* on_miss) {
    PyObject* proxy = new_proxy(frame, extra, state);
    if (!proxy) return nullptr;
    RegionScope off(nullptr, nullptr);
    off.compiling();
    PyObject* arguments[] = {proxy, reinterpret_cast<PyObject*>(state)};
    PyObject* answer = PyObject_Vectorcall(on_miss, arguments, 2, nullptr);
    end_proxy(proxy);
    Py_DECREF(proxy);
    return answer;
}

PyObject* run_answer(PyThreadState* ts, Frame* frame, Thread& thread, PyObject* answer, bool at_limit) {
    PyCodeObject* code = frame_code(frame);
    Extra* extra = need_extra(code);  // found again: the callback may have reset it
    if (!extra) return unwind(ts, frame);
    if (Py_IS_TYPE(answer, entry_type)) {
        Entry* entry = reinterpret_cast<Entry*>(answer);
        return add_entry(code, *thread.state, entry) ? run_entry(ts, frame, entry) : unwind(ts, frame);
    }
    if (answer == answer_run_once) {
        if (!at_limit) return _PyEval_EvalFrameDefault(ts, frame, 0);
        thread.state->full->insert(extra->serial);
        return run_plainly(ts, frame);
    }
    if (answer == answer_run_plainly) return run_plainly(ts, frame);
    if (answer == answer_skip || answer == answer_skip_recursive) {
        extra->mark = answer == answer_skip ? Mark::skip : Mark::skip_recursive;
        return answer == answer_skip ? _PyEval_EvalFrameDefault(ts, frame, 0) : run_plainly(ts, frame);
    }
    PyErr_Format(PyExc_TypeError, "a region's compile_frame must return an Entry, SKIP, SKIP_RECURSIVE, RUN_ONCE or RUN_PLAINLY, not %.200s", Py_TYPE(answer)->tp_name);
    return unwind(ts, frame);
}

PyObject* meet_unknown(PyThreadState* ts, Frame* frame, Thread& thread, Extra* extra) {
    RegionState* state = thread.state;
    if (ts->tracing) return run_plainly(ts, frame);  // of what watches the program: audit hooks, tracers and profilers
    if (state->full->count(extra->serial)) return run_plainly(ts, frame);
    bool at_limit = limit_reached(*extra, *state) != nullptr;
    PyObject* answer = ask(frame, extra, state, thread.on_miss);
    if (!answer) return unwind(ts, frame);
    PyObject* result = run_answer(ts, frame, thread, answer, at_limit);
    Py_DECREF(answer);
    return result;
}

// Takes the arguments of a resume function from its caller, whose CALL or CALL_FUNCTION_EX keeps them on its stack until the call ends: they are
// to end as they would in the frame before the break. Residual code makes that call with nothing else on its stack.
void take_arguments(PyThreadState* ts, Frame* frame) {
    Frame* caller = current_frame(ts);
    const int count = frame_code(frame)->co_argcount;
    if (!caller || !is_python_call(caller) || frame_code(caller)->co_stacksize < 3 || count == 0) return;
    PyObject** operands = frame_slots(caller) + frame_code(caller)->co_nlocalsplus;  // NULL, the function, its arguments or a tuple of them
    if (operands[0] || operands[1] != reinterpret_cast<PyObject*>(frame_function(frame))) return;
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

PyObject* evaluate(PyThreadState* ts, Frame* frame, int throwflag) {
    Thread& thread = current_thread;
    if (!thread.on_miss || throwflag || !is_fresh(frame)) return _PyEval_EvalFrameDefault(ts, frame, throwflag);
    Extra* extra = need_extra(frame_code(frame));
    if (!extra) return unwind(ts, frame);
    if (extra->resumes) take_arguments(ts, frame);
    const bool left = extra->mark == Mark::skip || (extra->mark == Mark::elsewhere && frame_code(frame) != thread.target);
    if (left && extra->buckets.empty()) return _PyEval_EvalFrameDefault(ts, frame, 0);
    if (extra->mark == Mark::skip_recursive) return run_plainly(ts, frame);
    RegionState* state = thread.state;
    Entry* entry = lookup(extra, state->bucket, state->kind, frame);
    if (!entry && state->fallback && state->bucket != default_bucket) entry = lookup(extra, default_bucket, state->kind, frame);
    if (!entry && left) return _PyEval_EvalFrameDefault(ts, frame, 0);
    state->met = 1;
    return entry ? run_entry(ts, frame, entry) : meet_unknown(ts, frame, thread, extra);
}

// Off in this thread until a region ends: torch.compile would compile the compiler's own frames. The callback it had (a new reference), or null
// where it was not on, or with an error set.
PyObject* suspend_rival(_PyFrameEvalFunction installed) {
    if (!set_rival || installed == evaluate || installed == _PyEval_EvalFrameDefault) return nullptr;
    return PyObject_CallOneArg(set_rival, Py_None);
}

PyObject* watch_rival(PyObject*, PyObject* function) {
    Py_XSETREF(set_rival, Py_NewRef(function));
    Py_RETURN_NONE;
}

PyMethodDef functions[] = {
    {"watch_rival", watch_rival, METH_O, "watch_rival(set_callback): how regions turn torch.compile's frame hook off, and on again."},
    {nullptr},
};

}  // namespace

Thread& this_thread() { return current_thread; }

// Installs the hook for one region, in the place of the one that was there: ours inside another region, or a foreign one.
bool hook_enter(Before& before) {
    PyInterpreterState* interp = interpreter();
    before.callback = suspend_rival(_PyInterpreterState_GetEvalFrameFunc(interp));
    if (!before.callback && PyErr_Occurred()) return false;
    before.evaluator = _PyInterpreterState_GetEvalFrameFunc(interp);
    if (before.evaluator != evaluate) {
        if (regions_open == 0) before_us = before.evaluator;
        _PyInterpreterState_SetEvalFrameFunc(interp, evaluate);
    }
    regions_open++;
    return true;
}

// Undoes hook_enter: the last region of the process takes the hook out; one opened below a foreign hook gives that hook its place back.
bool hook_leave(Before& before) {
    PyInterpreterState* interp = interpreter();
    regions_open--;
    if (_PyInterpreterState_GetEvalFrameFunc(interp) == evaluate) {
        if (regions_open == 0) {
            _PyInterpreterState_SetEvalFrameFunc(interp, before_us);
        } else if (before.evaluator != evaluate && before.evaluator != before_us) {
            _PyInterpreterState_SetEvalFrameFunc(interp, before.evaluator);
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
    return init_dispatch(module) && init_proxy(module) && init_region(module) && PyModule_AddFunctions(module, functions) == 0;
}
