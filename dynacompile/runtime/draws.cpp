#include "runtime/draws.h"

#include <ATen/Context.h>
#include <ATen/core/Generator.h>
#include <ATen/cuda/PhiloxCudaState.h>

#include <dlfcn.h>

#include <mutex>

namespace dynacompile::runtime {
namespace {

// CUDAGeneratorImpl::philox_cuda_state, by which ATen's kernels draw. Only torch's library for CUDA has it, which we do not link; a member function is called
// as a function whose first argument is the object.
using TakeState = at::PhiloxCudaState (*)(void* generator, uint64_t count);

TakeState take_state() {
    static const auto found = [] {
        void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
        return library ? reinterpret_cast<TakeState>(dlsym(library, "_ZN2at17CUDAGeneratorImpl17philox_cuda_stateEm")) : nullptr;
    }();
    return found;
}

at::PhiloxCudaState drawn(c10::Device device, uint64_t count) {
    at::Generator generator = at::globalContext().defaultGenerator(device);
    const std::lock_guard<std::mutex> lock(generator.mutex());
    return take_state()(generator.unsafeGetGeneratorImpl(), count);
}

// A kernel writes the state to memory of the device. While a graph is captured the generator gives addresses, where each replay finds its own state.
class DrawCall final : public ExternCall {
public:
    DrawCall(PyObject* args, int64_t output, c10::Device device) : count_(uint64_t(to_int(item(args, 0)))), output_(int32_t(output)), writer_(cuda::state_writer(device)) {
        if (!take_state()) fail("this build of torch does not show the state of its generators on GPUs");
    }

    void call(Frame& frame) const override {
        const c10::Device device = frame.program.device;
        const at::PhiloxCudaState state = drawn(device, count_);
        if (output_ < 0) return;
        const Buffer& b = frame.program.buffers[output_];
        at::Tensor made(make_tensor(b, make_storage(b.extent, device, true), 0));
        uint64_t to = reinterpret_cast<uint64_t>(made.unsafeGetTensorImpl()->mutable_data()), added = state.offset_intragraph_;
        uint64_t seed = state.seed_.val, offset = state.offset_.val;
        uint32_t captured = state.captured_;
        void* params[] = {&to, &seed, &offset, &added, &captured};
        writer_.launch_with(cuda::enter(device), params);
        frame.adopt(output_, std::move(made));
    }

    std::vector<int32_t> operands() const override { return {}; }

private:
    const uint64_t count_;
    const int32_t output_;
    const cuda::Kernel& writer_;
};

PyObject* draws(PyObject*, PyObject*) { return PyBool_FromLong(take_state() != nullptr); }

PyMethodDef functions[] = {
    {"draws", boundary<draws>, METH_NOARGS, "draws() -> bool: whether programs can draw from the generators of GPUs."},
    {nullptr},
};

}  // namespace

std::unique_ptr<ExternCall> make_draw(PyObject* args, int64_t output, c10::Device device) { return std::make_unique<DrawCall>(args, output, device); }

}  // namespace dynacompile::runtime

bool init_draws(PyObject* module) { return PyModule_AddFunctions(module, dynacompile::runtime::functions) == 0; }
