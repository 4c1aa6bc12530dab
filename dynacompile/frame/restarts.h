// Calls that are made again as Python where the graph of an entry has raised before anything changed.
#pragma once
#include "hook.h"

namespace dynacompile {

// What a fresh frame was called with, borrowed from it.
struct GivenCall {
    explicit GivenCall(Frame* frame)
        : code(frame_code(frame)), globals(frame_globals(frame)), closure(frame_function(frame)->func_closure), slots(frame_slots(frame)) {}

    // How many slots hold arguments.
    int count() const {
        return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0) + ((code->co_flags & CO_VARKEYWORDS) != 0);
    }
    PyObject* call(PyCodeObject* other) const;  // of `other`, which has the same parameters; null with an error set

    PyCodeObject* code;
    PyObject* globals;
    PyObject* closure;  // may be null
    PyObject** slots;
};

// Keeps what a frame was called with until the graph of its entry has run. Not on the C stack, which greenlets move: those of a thread are a list, in which
// each graph finds its own. May throw std::bad_alloc.
class KeptCall {
  public:
    explicit KeptCall(Frame* frame);
    ~KeptCall();
    KeptCall(const KeptCall&) = delete;
    PyObject* again() const { return given_.call(given_.code); }  // as Python, where it was not let go

    static KeptCall* claim();  // by a graph that begins: the latest one of the thread that no graph has claimed; null where there is none
    void let_go();

  private:
    static constexpr int few = 12;
    GivenCall given_;
    KeptCall *before_, *after_ = nullptr;
    PyObject* here_[few];
    std::vector<PyObject*> more_;
    int count_;
    bool claimed_ = false;
};

bool is_restart_set();  // the current error is Restart
bool init_restarts(PyObject* module);

}  // namespace dynacompile
