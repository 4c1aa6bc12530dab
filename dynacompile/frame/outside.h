// What a compile must not change for anybody else: the state of torch on its thread, and what it sets for the whole process.
#pragma once
#include <Python.h>

#include <memory>
#include <optional>
#include <vector>

#include "frame/boundary.h"
#include "guards/function_modes.h"

namespace at {  // its header takes seconds to compile
class ThreadLocalState;
class ThreadLocalStateGuard;
}  // namespace at

namespace dynacompile {

// The state of torch around one compile, which capture and autograd change while they run. One lives for the length of a compile, on its thread.
//
// Modes are left by Python code, which an exception of a signal handler may end at any of its bytecodes; so what a compile that raises leaves
// behind is undone here, where no bytecode runs.
//
// Torch-function modes are off while a compile runs: a default device is the program's, and the compiler makes tensors of its own.
class Outside {
  public:
    Outside();
    ~Outside();
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

    // After the compile raised: lets go of the managers that were not left, and sets torch's state of this thread again. The error stays set.
    void restore();

    // Sets torch's settings about deterministic algorithms, which are the process's, for this compile: `restore` puts back what was there before its first
    // change, unless another thread has set something else meanwhile.
    struct Deterministic {
        bool enabled, warn_only, fill;
        bool operator==(const Deterministic&) const = default;
    };
    void set(const Deterministic& wanted);

    // While it lives, this thread has the state from outside of the compile: for the program's code that runs in its midst.
    class Visit {
      public:
        explicit Visit(Outside* outside);
        ~Visit();

      private:
        std::unique_ptr<at::ThreadLocalStateGuard> state_;
        const GuardedModes guarded_{nullptr};
        bool cache_ = false;
    };

    // Whether the interpreter runs this code between any two bytecodes of the compile, as it does handlers of signals and callbacks of the collector.
    bool is_interrupted_by(PyCodeObject* code) const;

    Outside* around() const { return around_; }  // the compile that this one runs in, on its thread

  private:
    std::unique_ptr<at::ThreadLocalState> state_;
    bool cache_;
    std::optional<Deterministic> before_, ours_;  // of the process, where this compile has changed it
    int nesting_;
    Outside* around_;
    std::vector<PyRef> interrupters_;
    const FunctionModesOff off_;
    const GuardedModes guarded_{&off_.modes()};
};

// Whether the interpreter runs this code in the midst of a program that does not call it: a handler of signals, a callback of the collector or a finalizer
// of what that collects. Takes some microseconds.
bool interrupts_program(PyCodeObject* code);

// The innermost compile of this thread, or null.
Outside* compile_of_thread();

bool init_outside(PyObject* module);

}  // namespace dynacompile
