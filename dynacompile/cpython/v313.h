// CPython 3.13, as the native core needs it. Sections: what the C API says, live frames (DYNACOMPILE_FRAMES), the interpreter's lock (DYNACOMPILE_LOCK).
#ifndef DYNACOMPILE_CPYTHON_API
#define DYNACOMPILE_CPYTHON_API

// Exported, and declared in internal headers alone.
extern "C" {
int _PyOS_IsMainThread(void);
int _PySet_NextEntry(PyObject* set, Py_ssize_t* at, PyObject** key, Py_hash_t* hash);
}

namespace dynacompile {

// Whether the cyclic collector may run when a container is made, rather than between instructions only.
constexpr bool collects_when_allocating = false;

inline Py_ssize_t request_extra_index(freefunc release) { return PyUnstable_Eval_RequestCodeExtraIndex(release); }
inline int get_extra(PyObject* code, Py_ssize_t index, void** extra) { return PyUnstable_Code_GetExtra(code, index, extra); }
inline int set_extra(PyObject* code, Py_ssize_t index, void* extra) { return PyUnstable_Code_SetExtra(code, index, extra); }
constexpr int monitored_events = _PY_MONITORING_UNGROUPED_EVENTS;  // of sys.monitoring, each with the tools that are told of it
inline bool is_finalizing() { return Py_IsFinalizing(); }
// C calls of the function come to `call`; calls from Python code may run the function's code.
inline void set_vectorcall(PyObject* function, vectorcallfunc call) { PyFunction_SetVectorcall(reinterpret_cast<PyFunctionObject*>(function), call); }

template <void (*changed)()>
int on_dict_event(PyDict_WatchEvent, PyObject*, PyObject*, PyObject*) {
    changed();
    return 0;
}

// The number of a watcher that calls `changed` with each change of a dict that it watches, or -1 with an error set: CPython has 8 for all extensions.
template <void (*changed)()>
int add_dict_watcher() {
    return PyDict_AddWatcher(on_dict_event<changed>);
}
inline int watch_dict_with(int watcher, PyObject* dict) { return PyDict_Watch(watcher, dict); }

}  // namespace dynacompile
#endif

#if defined(DYNACOMPILE_FRAMES) && !defined(DYNACOMPILE_CPYTHON_FRAMES)
#define DYNACOMPILE_CPYTHON_FRAMES
extern "C" {
#undef _PyGC_FINALIZED
#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"
}

namespace dynacompile {

using Frame = _PyInterpreterFrame;

inline PyCodeObject* frame_code(Frame* f) { return reinterpret_cast<PyCodeObject*>(f->f_executable); }
inline PyFunctionObject* frame_function(Frame* f) { return reinterpret_cast<PyFunctionObject*>(f->f_funcobj); }
inline PyObject* frame_globals(Frame* f) { return f->f_globals; }
inline PyObject* frame_builtins(Frame* f) { return f->f_builtins; }
inline PyObject** frame_slots(Frame* f) { return f->localsplus; }

// An ordinary call's frame on the thread's data stack of which no instruction has run yet.
inline bool is_fresh(Frame* f) { return f->owner == FRAME_OWNED_BY_THREAD && f->instr_ptr == _PyCode_CODE(frame_code(f)); }

// The frame that the thread is running: the caller of one that the hook meets.
inline Frame* current_frame(PyThreadState* ts) { return ts->current_frame; }

// How many more Python calls may nest in the thread before RecursionError.
inline int& calls_left(PyThreadState* ts) { return ts->py_recursion_remaining; }

// A frame of Python code, rather than one that the evaluator puts between C and Python.
inline bool is_python_call(Frame* f) { return f->owner == FRAME_OWNED_BY_THREAD; }

// Whether the instruction that a frame is at is CALL_FUNCTION_EX.
inline bool calls_with_tuple(Frame* f) { return f->instr_ptr->op.code == CALL_FUNCTION_EX; }

// Where a call without a bound argument has its function and the NULL on the stack, from the first operand on.
constexpr int function_operand = 0, null_operand = 1;

// Words that a frame of `code` takes on the data stack.
inline Py_ssize_t frame_words(PyCodeObject* code) { return code->co_framesize; }

// Puts `code` (a new reference is taken) into a fresh frame that has room for it.
inline void replace_code(Frame* f, PyCodeObject* code) {
    PyCodeObject* old = frame_code(f);
    for (int i = old->co_nlocalsplus; i < code->co_nlocalsplus; i++) f->localsplus[i] = nullptr;
    Py_INCREF(code);
    f->f_executable = reinterpret_cast<PyObject*>(code);
    f->instr_ptr = _PyCode_CODE(code);
    f->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
}

// Whether the evaluator, rather than its caller, clears the frame of a call.
constexpr bool evaluator_clears = true;

}  // namespace dynacompile
#endif

#if defined(DYNACOMPILE_LOCK) && !defined(DYNACOMPILE_CPYTHON_LOCK)
#define DYNACOMPILE_CPYTHON_LOCK
extern "C" {
#undef _PyGC_FINALIZED
#include "internal/pycore_interp.h"
#include "internal/pycore_runtime.h"
}

namespace dynacompile {

// The tools of sys.monitoring that are told of each event in all code, as bits.
inline const uint8_t* monitoring_tools(PyInterpreterState* interpreter) { return interpreter->monitors.tools; }

inline bool lock_is_held(PyInterpreterState* interpreter) { return __atomic_load_n(&interpreter->ceval.gil->locked, __ATOMIC_RELAXED) > 0; }

// The thread state that has the lock, or had it last.
inline uintptr_t lock_holder(PyInterpreterState* interpreter) { return reinterpret_cast<uintptr_t>(__atomic_load_n(&interpreter->ceval.gil->last_holder, __ATOMIC_RELAXED)); }

}  // namespace dynacompile
#endif
