// A linked schedule: a flat list of steps over numbered buffers, run without Python.
#pragma once

#include "runtime/cuda_driver.h"
#include "runtime/objects.h"
#include "runtime/sizes.h"

#include <c10/core/GradMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/SmallVector.h>

#include <array>
#include <atomic>
#include <memory>

namespace dynacompile::runtime {

using TensorPtr = c10::intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;

enum class Memory : uint8_t { input, arena, owned, external, constant, view };

// A buffer's geometry; sizes, strides and offset in elements. root: the buffer whose memory it is (itself unless a view).
struct Buffer {
    std::string name;
    c10::ScalarType dtype;
    caffe2::TypeMeta meta;
    c10::Device device{c10::DeviceType::CPU};
    std::vector<int64_t> size, stride;
    int64_t offset = 0;
    Memory memory = Memory::owned;
    int32_t root = 0;
    bool written = false;   // an input that some step writes to
    bool launched = false;  // a kernel touches its memory
    int64_t numel = 0;
    size_t extent = 0;  // bytes from element 0 of the root's memory to behind the last element of this geometry
    int32_t place = -1;  // where a call's geometry starts in CallSizes::geometry: sizes, strides, offset, numel, extent; -1: the one above
};

using CpuFunction = void (*)(void* const* params);

enum class Act : uint8_t { allocate, reuse, cpu, cuda, reference, external, free, let_go, cpu_list, cuda_list, give };

// `first` and `count` give a range of Program::operands; `which` the kernel, the extern call, or the buffer that gets memory. let_go: an input and its views.
// reuse: a donor, which may be an input, and its views. give: outputs of which no later step touches the memory, with their views; `which` in Program::gives.
struct Step {
    Act act;
    int32_t first = 0;
    int32_t count = 0;
    int32_t which = 0;
    int32_t numbers = 0;  // how many of the operands behind the first `count` are places of numbers that the kernel takes
    int32_t grid = -1;    // in Program::grids, where the call's sizes decide it
    int32_t form = -1;    // place of the number of a kernel's form, which is added to `which`
    int32_t list = -1;    // in Program::lists, of a kernel over a list
    int32_t given = 0;    // of a kernel of a device: how many of its operands are numbers of the CPU, read at the launch
    int32_t row = 0;      // among the rows that link.py wrote
};

// The members of a list that one launch runs over: their buffers are the step's operands, one member after the other.
struct List {
    int64_t members = 0;
    std::vector<int64_t> numbers;  // what each member has for the kernel's own symbols, one member after the other
    int64_t programs = 0;          // of a device: how many programs run for all members
    TensorPtr blocks, device_numbers;  // in its memory: for each program its member and its number among the member's; and `numbers`
};

class Program;
class ExternCall;

// Who holds the inputs of a run, and can do without those that the program has read for the last time.
class Holder {
public:
    virtual void let_go(size_t input) = 0;

protected:
    ~Holder() = default;
};

// The state of one run. holder: null where all inputs stay.
class Frame {
public:
    Frame(const Program& program, c10::TensorImpl* const* inputs, const CallSizes& sizes, Holder* holder);
    Frame(const Frame&) = delete;

    // The tensor of a buffer, made on first use.
    const TensorPtr& tensor(int32_t slot);
    // Has the inputs that ops take as tensors: while the GIL is held, since a tensor's second owner takes a reference to its Python object, too.
    void share_inputs();
    // Takes over what an extern call returned for `slot`, brought to the geometry that the schedule relies on.
    void adopt(int32_t slot, at::Tensor result);
    void prepare_inputs();
    void prepare_arena();
    void allocate(int32_t slot);
    void drop(int32_t slot) { tensors_[slot].reset(); }
    // Memory for `slot`: that of `donors`, a buffer and its views, where nobody else has it; else fresh.
    void reuse(int32_t slot, const int32_t* donors, int32_t count);
    // Gives up an input, the first of `slots`, whose views are the others.
    void let_go(const int32_t* slots, int32_t count);
    // What the program returns of a slot: nothing (None to Python) where an extern call gave no tensor.
    inline at::Tensor result(int32_t slot);
    void restore_inputs();
    void* pointer(int32_t root) const { return pointers_[root]; }
    Geometry geometry(int32_t slot) const;
    // Memory of the device for the rest of the run.
    void* scratch(size_t bytes);

    const Program& program;
    const CallSizes& sizes;

private:
    void align_input(int32_t slot);
    bool is_substituted(int32_t slot) const;
    c10::Storage memory_of(const int32_t* donors, int32_t count, c10::Device device, size_t bytes);

    c10::TensorImpl* const* inputs_;
    Holder* holder_;
    c10::SmallVector<void*, 48> pointers_;
    c10::SmallVector<TensorPtr, 48> tensors_;
    c10::SmallVector<int32_t, 2> substituted_;
    c10::Storage arena_, host_arena_;
    c10::SmallVector<c10::DataPtr, 2> scratch_;
};

struct ReferenceCall {
    PyRef kernel;
    std::vector<Extent> elements;  // of the 1-D tensors that it gets
    std::vector<caffe2::TypeMeta> dtypes;
};

// A kernel of a CUDA program; one that Python makes when a call first needs it, or that is there.
class CudaKernel {
public:
    explicit CudaKernel(cuda::Kernel kernel) : made_(std::make_unique<cuda::Kernel>(std::move(kernel))), ready_(made_.get()) {}
    explicit CudaKernel(PyRef make) : make_(std::move(make)) {}
    CudaKernel(const CudaKernel&) = delete;

    // Runs without the GIL, on any thread. Throws what `make` raised.
    const cuda::Kernel& get(c10::Device device) {
        const cuda::Kernel* kernel = ready_.load(std::memory_order_acquire);
        return kernel ? *kernel : make(device);
    }
    PyObject* maker() const { return make_.get(); }

private:
    const cuda::Kernel& make(c10::Device device);

    PyRef make_;  // callable that gives a row of link.py
    std::unique_ptr<cuda::Kernel> made_;
    std::atomic<const cuda::Kernel*> ready_{nullptr};
};

class Program {
public:
    Program();
    ~Program();
    Program(const Program&) = delete;

    // Runs below autograd. inputs: one TensorImpl per program input, borrowed; ignored where no buffer takes it. outputs: as many
    // undefined tensors as the program has outputs. An output that is an input or constant is that very tensor. Needs no GIL, and lets go of it where
    // the run is a long one; the caller keeps the inputs alive, those that the program frees until the holder is asked to let go of them, with or without the
    // GIL. Threads may run one program at a time: each run has memory of its own.
    void run(c10::TensorImpl* const* inputs, at::Tensor* outputs, const CallSizes& call, Holder* holder = nullptr) const;
    // Goes on with a run at a step, 0 at first, up to the next step that gives outputs, or to the end. Returns that step, or the number of steps.
    size_t run_part(Frame& frame, size_t from) const;
    // Whether calls have sizes of their own: symbols that inputs give, or buffers whose sizes are expressions.
    bool varies() const { return sizes.any() || !symbolic.empty(); }
    // The sizes of a call; integers: by input, where inputs are numbers.
    CallSizes measure(c10::TensorImpl* const* inputs, const int64_t* integers) const;
    // Raises a Python error unless `tensor` has the geometry of input `index`.
    void check_input(size_t index, PyObject* tensor, const CallSizes& call) const;
    Geometry geometry(int32_t slot, const CallSizes& call) const;
    bool on_cuda() const { return device.is_cuda(); }

    PyObject* self = nullptr;  // the Python object that owns this
    std::vector<Buffer> buffers;
    std::vector<int32_t> inputs, outputs;  // buffers; -1: no tensor
    std::vector<Step> steps;
    std::vector<int32_t> operands;
    std::vector<std::pair<int32_t, size_t>> places;  // arena buffer, offset in bytes
    std::vector<std::pair<int32_t, size_t>> host_places;  // of a device program, those of its arena on the CPU
    std::vector<std::pair<int32_t, TensorPtr>> constants;
    Sizes sizes;
    std::vector<Extent> extents;  // sizes, strides and offset of the buffers whose geometry differs, one after the other
    std::vector<int32_t> symbolic;  // one buffer of each of these geometries
    std::vector<std::array<Extent, 3>> grids;
    std::vector<List> lists;
    std::vector<std::vector<int32_t>> gives;  // places in `outputs`, of each step that gives some
    std::vector<int32_t> input_of;  // buffer -> program input, -1 for others
    std::vector<CpuFunction> cpu_kernels;
    std::vector<std::unique_ptr<CudaKernel>> cuda_kernels;
    std::unique_ptr<cuda::PointerWriter> pointer_writer;  // of a device program that has lists, or numbers of the CPU
    std::vector<std::unique_ptr<ExternCall>> externs;
    std::vector<ReferenceCall> references;
    PyRef reference;  // callable (kernel, tensors)
    size_t arena = 0, host_arena = 0;
    c10::Device device{c10::DeviceType::CPU};
    bool dispatches = false;  // some step calls an op or Python
    std::vector<int32_t> shared_inputs;  // buffers of inputs that ops take
    int64_t work = 0, symbolic_work = 0;  // operations on elements, as work_of of link.py counts them: of fixed sizes; per element of the call's largest buffer, of the others
    bool waits = false;  // many launches on a device: other threads are not to wait for them

    void settle();  // once all is read

private:
    bool is_long(const CallSizes& call) const { return waits || work + symbolic_work * call.largest >= long_work; }
    static constexpr int64_t long_work = 1 << 16;  // some ten microseconds of one core

    [[noreturn]] void refuse_input(size_t index, PyObject* tensor, const Geometry& wanted) const;
    template <bool in_parts, typename Clock>
    size_t run_steps(Frame& frame, size_t from, Clock& clock) const;
    template <bool in_parts>
    size_t run_released(Frame& frame, size_t from) const;
    void call_reference(Frame& frame, const Step& step) const;
    void launch(const Frame& frame, const Step& step, void* stream, void* const* pointers) const;
    void launch_list(Frame& frame, const Step& step, void* stream) const;
    void give_numbers(Frame& frame, const Step& step, void* stream, void** pointers) const;
};

inline at::Tensor Frame::result(int32_t slot) {
    if (program.buffers[slot].memory == Memory::external && !tensors_[slot]) return {};
    return at::Tensor(tensor(slot));
}

// A tensor over `bytes` of fresh memory of the device's allocator.
TensorPtr make_tensor(const Buffer& buffer, c10::Storage storage, int64_t offset);
TensorPtr make_tensor(const Buffer& buffer, const Geometry& geometry, c10::Storage storage, int64_t offset);
c10::Storage make_storage(size_t bytes, c10::Device device, bool resizable);
// A tensor that shares `base`'s storage and version counter, from `base`'s element 0 on.
TensorPtr make_alias(c10::TensorImpl* base, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset, caffe2::TypeMeta meta);
// A copy of `source` in fresh memory with the geometry's strides.
at::Tensor copy_to_geometry(const Buffer& buffer, const Geometry& geometry, const at::Tensor& source);
bool same_geometry(const c10::TensorImpl& tensor, c10::IntArrayRef size, c10::IntArrayRef stride);

// Keeps autograd and autocast out of ops called in its scope.
struct BelowAutograd {
    c10::impl::ExcludeDispatchKeyGuard exclude{c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset};
    c10::AutoGradMode grad{false};
};

Extent read_extent(PyObject* object);
// row: (image, symbol, grid, threads, shared bytes, extra), as link.py makes it.
cuda::Kernel read_kernel(PyObject* row, c10::Device device);
// row: (sources, codes, checks, ...): (input, dimension, stride, low, high, name) of symbols; codes of numbers; (input, extent). inputs: their number.
Sizes read_numbers(PyObject* row, size_t inputs);

// The Python type, in program_type.cpp.
bool init_program(PyObject* module);
Program* program_of(PyObject* object);  // null for other objects

}  // namespace dynacompile::runtime
