// The torch-function modes of a thread, which act on what the program asks of torch in Python, and not on what the compiler asks.
#pragma once
#include <c10/core/SafePyObject.h>

#include <memory>
#include <vector>

namespace dynacompile {

using ModeStack = std::vector<std::shared_ptr<c10::SafePyObject>>;  // outermost first

// While it lives, no torch-function mode is on this thread.
class FunctionModesOff {
  public:
    FunctionModesOff();
    ~FunctionModesOff();
    FunctionModesOff(const FunctionModesOff&) = delete;
    const ModeStack& modes() const { return modes_; }

  private:
    ModeStack modes_;
};

// While it lives, guards on this thread look at these modes, those of the call that is compiled; null: at those that are on.
class GuardedModes {
  public:
    explicit GuardedModes(const ModeStack* modes);
    ~GuardedModes();
    GuardedModes(const GuardedModes&) = delete;

  private:
    const ModeStack* before_;
};

// While it lives, the modes that guards look at are on.
class GuardedModesOn {
  public:
    GuardedModesOn();
    ~GuardedModesOn();
    GuardedModesOn(const GuardedModesOn&) = delete;

  private:
    ModeStack before_;
};

}  // namespace dynacompile
