// A run of a backward program that stops where gradients are final, so that they can leave it while the rest is still to come.
#pragma once

#include "runtime/program.h"

#include <functional>

namespace dynacompile::runtime {

using Tensors = c10::SmallVector<at::Tensor, 8>;

// The flat inputs of a call: impls[i] is null where numbers[i] counts.
struct Inputs {
    c10::SmallVector<c10::TensorImpl*, 16> impls;
    c10::SmallVector<int64_t, 16> numbers;
};

// Of a backward program: numbers come first, then tensors.
Inputs backward_inputs(const Program& program, const std::vector<int64_t>& numbers, const Tensors& tensors);

// Is told which of the tensors that a backward program was given it has read for the last time.
using LetGo = std::function<void(size_t)>;

class PausedRun final : private Holder {
public:
    // let_go: empty where all tensors are kept until the end.
    PausedRun(const Program& program, const std::vector<int64_t>& numbers, Tensors tensors, LetGo let_go);
    PausedRun(const PausedRun&) = delete;

    size_t outputs() const { return program_.outputs.size(); }
    // Goes on until the stop of this number, or to the end where there is none. What is final by then, and was not before, is put among the results.
    void go_on(size_t stop, at::Tensor* results);

private:
    void let_go(size_t input) override;
    void take(const std::vector<int32_t>& positions, at::Tensor* results);

    const Program& program_;
    Tensors tensors_;
    const size_t numbers_;
    const LetGo let_go_;
    const Inputs inputs_;
    const CallSizes sizes_;
    Frame frame_;
    std::vector<bool> given_;
    size_t step_ = 0, stop_ = 0;  // the next ones
};

}  // namespace dynacompile::runtime
