// Everything of a live CPython frame that differs between versions, and nothing else. Include first.
#pragma once
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE
#endif
#include <Python.h>
#include <opcode.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030D0000
#error "the native core supports CPython 3.11 and 3.12"
#endif

extern "C" {
#if PY_VERSION_HEX >= 0x030C0000
#undef _PyGC_FINALIZED
#endif
#include "internal/pycore_code.h"
#include "internal/pycore_frame.h"
}
#undef Py_BUILD_CORE

namespace dynacompile {

using Frame = _PyInterpreterFrame;

inline PyCodeObject* frame_code(Frame* f) { return f->f_code; }

inline PyFunctionObject* frame_function(Frame* f) {
#if PY_VERSION_HEX >= 0x030C0000
    return reinterpret_cast<PyFunctionObject*>(f->f_funcobj);
#else
    return f->f_func;
#endif
}

inline PyObject* frame_globals(Frame* f) { return f->f_globals; }
inline PyObject* frame_builtins(Frame* f) { return f->f_builtins; }
inline PyObject** frame_slots(Frame* f) { return f->localsplus; }

// An ordinary call's frame on the thread's data stack of which no instruction has run yet.
inline bool is_fresh(Frame* f) { return f->owner == FRAME_OWNED_BY_THREAD && f->prev_instr == _PyCode_CODE(f->f_code) - 1; }

// The frame that the thread is running: the caller of one that the hook meets.
inline Frame* current_frame(PyThreadState* ts) { return ts->cframe->current_frame; }

// A frame of Python code, rather than one that the evaluator puts between C and Python.
inline bool is_python_call(Frame* f) { return f->owner == FRAME_OWNED_BY_THREAD; }

// Whether the instruction that a frame is at is CALL_FUNCTION_EX.
inline bool calls_with_tuple(Frame* f) { return _Py_OPCODE(*f->prev_instr) == CALL_FUNCTION_EX; }

// Words that a frame of `code` takes on the data stack.
inline Py_ssize_t frame_words(PyCodeObject* code) {
#if PY_VERSION_HEX >= 0x030C0000
    return code->co_framesize;
#else
    return code->co_nlocalsplus + code->co_stacksize + static_cast<Py_ssize_t>(FRAME_SPECIALS_SIZE);
#endif
}

// Puts `code` (a new reference is taken) into a fresh frame that has room for it.
inline void replace_code(Frame* f, PyCodeObject* code) {
    PyCodeObject* old = f->f_code;
    for (int i = old->co_nlocalsplus; i < code->co_nlocalsplus; i++) f->localsplus[i] = nullptr;
    Py_INCREF(code);
    f->f_code = code;
    f->prev_instr = _PyCode_CODE(code) - 1;
    f->stacktop = code->co_nlocalsplus;
    Py_DECREF(old);
}

// Whether the evaluator, rather than its caller, clears the frame of a call.
constexpr bool evaluator_clears = PY_VERSION_HEX >= 0x030C0000;

inline Py_ssize_t request_extra_index(freefunc release) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Eval_RequestCodeExtraIndex(release);
#else
    return _PyEval_RequestCodeExtraIndex(release);
#endif
}

inline int get_extra(PyObject* code, Py_ssize_t index, void** extra) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Code_GetExtra(code, index, extra);
#else
    return _PyCode_GetExtra(code, index, extra);
#endif
}

inline int set_extra(PyObject* code, Py_ssize_t index, void* extra) {
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Code_SetExtra(code, index, extra);
#else
    return _PyCode_SetExtra(code, index, extra);
#endif
}

inline bool is_finalizing() { return _Py_IsFinalizing(); }

}  // namespace dynacompile
