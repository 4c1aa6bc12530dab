#include "runtime/paused.h"

namespace dynacompile::runtime {

Inputs backward_inputs(const Program& program, const std::vector<int64_t>& numbers, const Tensors& tensors) {
    const size_t given = numbers.size() + tensors.size();
    if (program.inputs.size() != given) fail("the backward program takes ", program.inputs.size(), " inputs, not ", given);
    Inputs inputs;
    inputs.impls.assign(numbers.size(), nullptr);
    inputs.numbers.assign(numbers.begin(), numbers.end());
    inputs.numbers.resize(given, 0);
    for (const at::Tensor& tensor : tensors) inputs.impls.push_back(tensor.unsafeGetTensorImpl());
    return inputs;
}

PausedRun::PausedRun(const Program& program, const std::vector<int64_t>& numbers, Tensors tensors, LetGo let_go)
    : program_(program),
      tensors_(std::move(tensors)),
      numbers_(numbers.size()),
      let_go_(std::move(let_go)),
      inputs_(backward_inputs(program, numbers, tensors_)),
      sizes_(program.measure(inputs_.impls.data(), inputs_.numbers.data())),
      frame_(program, inputs_.impls.data(), sizes_, let_go_ ? this : nullptr),
      given_(program.outputs.size()) {}

void PausedRun::let_go(size_t input) {
    let_go_(input - numbers_);
    tensors_[input - numbers_].reset();
}

void PausedRun::take(const std::vector<int32_t>& positions, at::Tensor* results) {
    for (int32_t position : positions) {
        results[position] = frame_.result(program_.outputs[position]);
        given_[position] = true;
    }
}

void PausedRun::go_on(size_t stop, at::Tensor* results) {
    for (; stop_ <= stop && stop_ <= program_.gives.size(); ++stop_) {
        step_ = program_.run_part(frame_, step_);
        if (step_ == program_.steps.size()) {
            for (size_t i = 0; i < given_.size(); ++i)
                if (!given_[i] && program_.outputs[i] >= 0) results[i] = frame_.result(program_.outputs[i]);
            continue;
        }
        const Step& give = program_.steps[step_++];
        take(program_.gives[give.which], results);
        for (int32_t i = 0; i < give.count; ++i) frame_.drop(program_.operands[give.first + i]);
    }
}

}  // namespace dynacompile::runtime
