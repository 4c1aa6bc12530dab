#include "runtime/program.h"

#include "runtime/cpu_memory.h"
#include "runtime/externs.h"
#include "runtime/step_clock.h"

#include <ATen/ops/copy_ops.h>
#include <c10/core/Allocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>

#include <algorithm>
#include <cstring>

namespace dynacompile::runtime {

namespace {

constexpr uintptr_t launch_alignment = 16;  // what Triton assumes of pointers

using Words = c10::SmallVector<uint64_t, 64>;  // what is written to memory of a device with a launch

bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % launch_alignment == 0; }

c10::DispatchKeySet keys_of(c10::Device device) {
    c10::DispatchKey key = device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
    return c10::DispatchKeySet(key);
}

// Whether it is memory of our blocks or of torch's allocator, which nobody can see who holds no storage over it.
bool is_allocated(const c10::DataPtr& memory) {
    if (memory.device().is_cpu() && is_block(memory)) return true;
    const c10::DeleterFnPtr own = c10::GetAllocator(memory.device().type())->raw_deleter();
    return own && memory.get_deleter() == own;
}

}  // namespace

c10::Storage make_storage(size_t bytes, c10::Device device, bool resizable) {
    c10::Allocator* allocator = c10::GetAllocator(device.type());
    if (device.is_cpu() && bytes >= least_block)
        return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, take_block(bytes), allocator, resizable));
    return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, allocator, resizable));
}

TensorPtr make_tensor(const Buffer& buffer, const Geometry& geometry, c10::Storage storage, int64_t offset) {
    auto impl = c10::make_intrusive<c10::TensorImpl>(std::move(storage), keys_of(buffer.device), buffer.meta);
    if (offset) impl->set_storage_offset(offset);
    impl->set_sizes_and_strides(geometry.size, geometry.stride);
    return TensorPtr(std::move(impl));
}

TensorPtr make_tensor(const Buffer& buffer, c10::Storage storage, int64_t offset) {
    return make_tensor(buffer, Geometry{buffer.size, buffer.stride, buffer.offset, buffer.numel, buffer.extent}, std::move(storage), offset);
}

TensorPtr make_alias(c10::TensorImpl* base, c10::IntArrayRef size, c10::IntArrayRef stride, int64_t offset, caffe2::TypeMeta meta) {
    auto impl = c10::make_intrusive<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(base->storage()), base->key_set(), meta);
    if (!base->is_inference()) impl->set_version_counter(base->version_counter());
    int64_t from = base->storage_offset();
    if (base->dtype() != meta) {
        int64_t bytes = from * int64_t(base->itemsize());
        if (bytes % int64_t(meta.itemsize())) fail("a tensor at an offset of ", bytes, " bytes can't be viewed as ", meta.name());
        from = bytes / int64_t(meta.itemsize());
    }
    impl->set_storage_offset(from + offset);
    impl->set_sizes_and_strides(size, stride);
    return TensorPtr(std::move(impl));
}

bool same_geometry(const c10::TensorImpl& tensor, c10::IntArrayRef size, c10::IntArrayRef stride) {
    if (tensor.sizes() != size) return false;
    if (tensor.numel() == 0) return true;
    c10::IntArrayRef have = tensor.strides();
    for (size_t i = 0; i < size.size(); ++i)
        if (have[i] != stride[i] && size[i] != 1) return false;
    return true;
}

at::Tensor copy_to_geometry(const Buffer& buffer, const Geometry& geometry, const at::Tensor& source) {
    at::Tensor fresh{make_tensor(buffer, geometry, make_storage(geometry.extent, buffer.device, true), geometry.offset)};
    at::_ops::copy_::call(fresh, source, false);
    return fresh;
}

Geometry Program::geometry(int32_t slot, const CallSizes& call) const {
    const Buffer& b = buffers[slot];
    if (b.place < 0) return {b.size, b.stride, b.offset, b.numel, b.extent};
    const int64_t* at = call.geometry.data() + b.place;
    size_t rank = b.size.size();
    return {c10::IntArrayRef(at, rank), c10::IntArrayRef(at + rank, rank), at[2 * rank], at[2 * rank + 1], size_t(at[2 * rank + 2])};
}

CallSizes Program::measure(c10::TensorImpl* const* given, const int64_t* integers) const {
    CallSizes call;
    if (!varies()) return call;
    sizes.measure(given, integers, call);
    const Extent* next = extents.data();
    for (int32_t slot : symbolic) {
        const Buffer& b = buffers[slot];
        size_t rank = b.size.size();
        size_t start = call.geometry.size();
        for (size_t i = 0; i < 2 * rank + 1; ++i) call.geometry.push_back((next++)->value(call.numbers.data()));
        int64_t numel = 1, last = call.geometry[start + 2 * rank];
        for (size_t i = 0; i < rank; ++i) {
            if (call.geometry[start + i] < 0) fail("the buffer ", b.name, " would have a negative size");
            numel *= call.geometry[start + i];
            last += (call.geometry[start + i] - 1) * call.geometry[start + rank + i];
        }
        call.geometry.push_back(numel);
        call.largest = std::max(call.largest, numel);
        call.geometry.push_back(numel == 0 ? 0 : (last + 1) * int64_t(b.meta.itemsize()));
    }
    return call;
}

Geometry Frame::geometry(int32_t slot) const { return program.geometry(slot, sizes); }

Frame::Frame(const Program& p, c10::TensorImpl* const* inputs, const CallSizes& call, Holder* holder)
    : program(p), sizes(call), inputs_(inputs), holder_(holder), pointers_(p.buffers.size(), nullptr), tensors_(p.buffers.size()) {
    for (const auto& [slot, constant] : p.constants) {
        tensors_[slot] = constant;
        pointers_[slot] = const_cast<void*>(constant->data());
    }
}

void Frame::prepare_inputs() {
    const bool cuda = program.on_cuda();
    for (size_t i = 0; i < program.inputs.size(); ++i) {
        int32_t slot = program.inputs[i];
        if (slot < 0) continue;
        const Buffer& b = program.buffers[slot];
        if (!inputs_[i]) fail("input ", i, " (", b.name, ") of a compiled program must be a tensor");
        const Geometry g = geometry(slot);
        if (b.place >= 0 && !same_geometry(*inputs_[i], g.size, g.stride))
            fail("input ", i, " (", b.name, ") of a compiled program must be of sizes ", g.size, " and strides ", g.stride, ", not ", inputs_[i]->sizes(),
                 " and ", inputs_[i]->strides());
        void* data = b.written ? inputs_[i]->mutable_data() : const_cast<void*>(inputs_[i]->data());
        if (!data && g.numel) fail("input ", i, " (", b.name, ") of a compiled program has no memory");
        pointers_[slot] = data;
        if (cuda && inputs_[i]->is_cuda() && !aligned(data)) align_input(slot);
    }
}

void Frame::share_inputs() {
    for (int32_t slot : program.shared_inputs)
        if (c10::TensorImpl* input = inputs_[program.input_of[slot]]) tensors_[slot] = TensorPtr::reclaim_copy(input);
}

void Frame::align_input(int32_t slot) {
    const Buffer& b = program.buffers[slot];
    at::Tensor copy = copy_to_geometry(b, geometry(slot), tensor_of(inputs_[program.input_of[slot]]));
    pointers_[slot] = copy.unsafeGetTensorImpl()->mutable_data();
    tensors_[slot] = copy.getIntrusivePtr();
    substituted_.push_back(slot);
}

void Frame::restore_inputs() {
    for (int32_t slot : substituted_) {
        at::Tensor real = tensor_of(inputs_[program.input_of[slot]]);
        if (program.buffers[slot].written) at::_ops::copy_::call(real, at::Tensor(tensors_[slot]), false);
        for (size_t view = 0; view < program.buffers.size(); ++view)
            if (program.buffers[view].root == slot) tensors_[view].reset();
        tensors_[slot] = real.getIntrusivePtr();
    }
}

void Frame::prepare_arena() {
    if (!program.places.empty()) {
        arena_ = make_storage(program.arena, program.device, false);
        char* start = static_cast<char*>(arena_.mutable_data());
        for (const auto& [slot, at] : program.places) pointers_[slot] = start + at;
    }
    if (!program.host_places.empty()) {
        host_arena_ = make_storage(program.host_arena, c10::Device(c10::DeviceType::CPU), false);
        char* start = static_cast<char*>(host_arena_.mutable_data());
        for (const auto& [slot, at] : program.host_places) pointers_[slot] = start + at;
    }
}

void* Frame::scratch(size_t bytes) {
    scratch_.push_back(c10::GetAllocator(program.device.type())->allocate(bytes));
    return scratch_.back().get();
}

void Frame::allocate(int32_t slot) {
    const Buffer& b = program.buffers[slot];
    const Geometry g = geometry(slot);
    c10::Storage storage = make_storage(g.extent, b.device, true);
    pointers_[slot] = storage.mutable_data();
    tensors_[slot] = make_tensor(b, g, std::move(storage), g.offset);
}

bool Frame::is_substituted(int32_t slot) const { return std::find(substituted_.begin(), substituted_.end(), slot) != substituted_.end(); }

void Frame::let_go(const int32_t* slots, int32_t count) {
    for (int32_t i = 0; i < count; ++i) drop(slots[i]);
    substituted_.erase(std::remove(substituted_.begin(), substituted_.end(), slots[0]), substituted_.end());
    if (holder_) holder_->let_go(size_t(program.input_of[slots[0]]));
}

// The memory is given up by all that we know of, and then nobody else has it. Until the next step has read it, the donor keeps it where it can't be taken.
c10::Storage Frame::memory_of(const int32_t* donors, int32_t count, c10::Device device, size_t bytes) {
    const int32_t donor = donors[0];
    const int32_t input = program.input_of[donor];
    if (input >= 0 && (!holder_ || is_substituted(donor))) return {};
    c10::TensorImpl* impl = input >= 0 ? inputs_[input] : tensors_[donor].get();
    if (!impl || impl->storage_offset()) return {};
    c10::Storage storage = impl->storage();
    const Geometry g = geometry(donor);
    if (input >= 0)
        let_go(donors, count);
    else
        for (int32_t i = 0; i < count; ++i) drop(donors[i]);
    if (storage.use_count() == 1 && storage.nbytes() >= bytes && storage.nbytes() <= bytes + bytes / 8 && is_allocated(storage.data_ptr())) {
        c10::DataPtr memory = storage.set_data_ptr(c10::DataPtr(nullptr, device));
        return c10::Storage(c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), bytes, std::move(memory), c10::GetAllocator(device.type()), true));
    }
    tensors_[donor] = make_tensor(program.buffers[donor], g, std::move(storage), g.offset);
    return {};
}

void Frame::reuse(int32_t slot, const int32_t* donors, int32_t count) {
    const Buffer& b = program.buffers[slot];
    const Geometry g = geometry(slot);
    c10::Storage storage = memory_of(donors, count, b.device, g.extent);
    if (storage && !program.references.empty()) {  // an interpreted kernel reads tensors, others read pointers
        const Geometry donated = geometry(donors[0]);
        tensors_[donors[0]] = make_tensor(program.buffers[donors[0]], donated, storage, donated.offset);
    }
    if (!storage) storage = make_storage(g.extent, b.device, true);
    pointers_[slot] = storage.mutable_data();
    tensors_[slot] = make_tensor(b, g, std::move(storage), g.offset);
}

const TensorPtr& Frame::tensor(int32_t slot) {
    TensorPtr& made = tensors_[slot];
    if (made) return made;
    const Buffer& b = program.buffers[slot];
    switch (b.memory) {
        case Memory::input:
            made = TensorPtr::reclaim_copy(inputs_[program.input_of[slot]]);
            break;
        case Memory::arena: {
            c10::Storage& arena = b.device.type() == program.device.type() ? arena_ : host_arena_;
            int64_t bytes = static_cast<char*>(pointers_[slot]) - static_cast<char*>(arena.mutable_data());
            made = make_tensor(b, arena, bytes / int64_t(b.meta.itemsize()) + b.offset);
            break;
        }
        case Memory::view: {
            c10::TensorImpl* base = tensor(b.root).get();
            // A root's own offset is part of its tensor; a view's counts from the root's element 0.
            const Geometry g = geometry(slot);
            int64_t before = geometry(b.root).offset * int64_t(program.buffers[b.root].meta.itemsize()) / int64_t(b.meta.itemsize());
            made = make_alias(base, g.size, g.stride, g.offset - before, b.meta);
            break;
        }
        case Memory::external:
            fail("an op returned no tensor for ", b.name, ", which another operation takes");
        default:
            fail("the schedule uses ", b.name, " where it has no memory");
    }
    return made;
}

void Frame::adopt(int32_t slot, at::Tensor result) {
    const Buffer& b = program.buffers[slot];
    const Geometry g = geometry(slot);
    if (!result.defined()) return;  // an output that the op leaves out for these arguments: there is nothing that could be read
    c10::TensorImpl* impl = result.unsafeGetTensorImpl();
    const bool here = impl->device().type() == b.device.type();
    if (impl->dtype() != b.meta || impl->sizes() != g.size || !(here || !b.launched))
        fail("an op returned ", impl->dtype().name(), impl->sizes(), " on ", impl->device(), " for ", b.name, ", compiled for ", b.meta.name(),
             g.size, " on ", b.device);
    bool plain = same_geometry(*impl, g.size, g.stride) && !result.is_conj() && !result.is_neg() && !result._is_zerotensor();
    if (plain && b.device.is_cuda()) plain = aligned(impl->data());
    if (!plain && here) {
        result = copy_to_geometry(b, g, result);
        impl = result.unsafeGetTensorImpl();
    }
    pointers_[slot] = const_cast<void*>(impl->data());
    tensors_[slot] = result.getIntrusivePtr();
}

void Program::settle() {
    std::vector<bool> seen(buffers.size(), false);
    for (const auto& call : externs)
        for (int32_t slot : call->operands()) {
            const int32_t root = buffers[slot].root;
            if (buffers[root].memory != Memory::input || input_of[root] < 0 || seen[root]) continue;
            seen[root] = true;
            shared_inputs.push_back(root);
        }
    constexpr size_t many_launches = 16;  // of some microseconds each
    waits = on_cuda() && steps.size() >= many_launches;
}

Program::Program() = default;
Program::~Program() = default;

void Program::run(c10::TensorImpl* const* given, at::Tensor* results, const CallSizes& call, Holder* holder) const {
    c10::OptionalDeviceGuard guard;
    if (on_cuda()) guard.reset_device(device);
    Frame frame(*this, given, call, holder);
    if (!shared_inputs.empty()) frame.share_inputs();
    run_released<false>(frame, 0);
    for (size_t i = 0; i < outputs.size(); ++i)
        if (outputs[i] >= 0) results[i] = frame.result(outputs[i]);
}

size_t Program::run_part(Frame& frame, size_t from) const {
    c10::OptionalDeviceGuard guard;
    if (on_cuda()) guard.reset_device(device);
    if (from == 0 && !shared_inputs.empty()) frame.share_inputs();
    return run_released<true>(frame, from);
}

template <bool in_parts>
size_t Program::run_released(Frame& frame, size_t from) const {
    const WithoutGil released(is_long(frame.sizes));
    if (is_timing()) [[unlikely]] {
        BelowAutograd below;
        StepClock clock(*this, frame.sizes, from == 0);
        const size_t to = run_steps<in_parts>(frame, from, clock);
        clock.finish();
        return to;
    }
    NoClock clock;
    if (!dispatches && !on_cuda()) return run_steps<in_parts>(frame, from, clock);
    BelowAutograd below;
    return run_steps<in_parts>(frame, from, clock);
}

template <bool in_parts, typename Clock>
size_t Program::run_steps(Frame& frame, size_t from, Clock& clock) const {
    void* stream = on_cuda() ? cuda::enter(device) : nullptr;
    if (from == 0) {
        frame.prepare_inputs();
        frame.prepare_arena();
    }
    c10::SmallVector<void*, 32> pointers;
    for (size_t at = from; at < steps.size(); ++at) {
        const Step& step = steps[at];
        const int32_t* slots = operands.data() + step.first;
        clock.begin(at);
        switch (step.act) {
            case Act::allocate:
                frame.allocate(step.which);
                break;
            case Act::reuse:
                frame.reuse(step.which, slots, step.count);
                break;
            case Act::let_go:
                frame.let_go(slots, step.count);
                break;
            case Act::cpu:
            case Act::cuda:
                pointers.clear();
                for (int32_t i = 0; i < step.count; ++i) pointers.push_back(frame.pointer(slots[i]));
                if (step.given) give_numbers(frame, step, stream, pointers.data());
                for (int32_t i = 0; i < step.numbers; ++i)
                    pointers.push_back(reinterpret_cast<void*>(frame.sizes.numbers[slots[step.count + i]]));  // in a pointer's place
                if (step.act == Act::cpu)
                    cpu_kernels[step.which](pointers.data());
                else
                    launch(frame, step, stream, pointers.data());
                break;
            case Act::cpu_list:
                pointers.clear();
                pointers.push_back(reinterpret_cast<void*>(lists[step.list].members));  // in a pointer's place
                pointers.push_back(const_cast<int64_t*>(lists[step.list].numbers.data()));
                for (int32_t i = 0; i < step.numbers; ++i) pointers.push_back(reinterpret_cast<void*>(frame.sizes.numbers[slots[step.count + i]]));
                for (int32_t i = 0; i < step.count; ++i) pointers.push_back(frame.pointer(slots[i]));
                cpu_kernels[step.which](pointers.data());
                break;
            case Act::cuda_list:
                launch_list(frame, step, stream);
                break;
            case Act::reference:
                call_reference(frame, step);
                break;
            case Act::external:
                externs[step.which]->call(frame);
                break;
            case Act::free:
                for (int32_t i = 0; i < step.count; ++i) frame.drop(slots[i]);
                break;
            case Act::give:
                if (in_parts) return at;
                break;
        }
        clock.end(at);
    }
    frame.restore_inputs();
    return steps.size();
}

void Program::launch(const Frame& frame, const Step& step, void* stream, void* const* pointers) const {
    const auto& numbers = frame.sizes.numbers;
    const int64_t form = step.form < 0 ? 0 : numbers[step.form];
    const cuda::Kernel& kernel = cuda_kernels[step.which + form]->get(device);
    if (step.grid < 0) return kernel.launch(stream, pointers, step.count + step.numbers);
    int64_t grid[3];
    for (int i = 0; i < 3; ++i) grid[i] = grids[step.grid][i].value(numbers.data());
    kernel.launch(stream, pointers, step.count + step.numbers, grid);
}

// Numbers of the CPU that a launch reads: each as a value in memory of the device, far enough from the next to be aligned as other memory is.
class Given {
public:
    Given(Words& words, uint64_t* table) : words_(words), table_(table) {}

    // The address of a number's value there.
    uint64_t add(const void* from, size_t bytes) {
        if (words_.size() % words_apart) words_.push_back(0);
        const uint64_t address = reinterpret_cast<uint64_t>(table_ + words_.size());
        uint64_t value = 0;
        std::memcpy(&value, from, bytes);
        words_.push_back(value);
        return address;
    }

    static constexpr size_t words_apart = launch_alignment / sizeof(uint64_t);

private:
    Words& words_;
    uint64_t* table_;
};

// Kernels write the values to memory of the device, and take them as arguments, so nothing is waited for.
void Program::give_numbers(Frame& frame, const Step& step, void* stream, void** pointers) const {
    const int32_t* slots = operands.data() + step.first;
    Words words;
    auto* table = static_cast<uint64_t*>(frame.scratch(size_t(step.given) * launch_alignment));
    Given given(words, table);
    for (int32_t i = 0; i < step.count; ++i)
        if (const Buffer& b = buffers[slots[i]]; b.device.is_cpu()) pointers[i] = reinterpret_cast<void*>(given.add(pointers[i], b.meta.itemsize()));
    pointer_writer->write(stream, table, words.data(), words.size());
}

// The members' pointers are written to memory of the device by kernels that take them as arguments, so that a graph of launches has them, too. Behind them
// are the numbers of the CPU that members read.
void Program::launch_list(Frame& frame, const Step& step, void* stream) const {
    const List& list = lists[step.list];
    const int32_t* slots = operands.data() + step.first;
    const size_t room = size_t(step.count) + 1 + size_t(step.given) * Given::words_apart;
    auto* table = static_cast<uint64_t*>(frame.scratch(room * sizeof(uint64_t)));
    Words words;
    words.reserve(room);
    for (int32_t i = 0; i < step.count; ++i) words.push_back(reinterpret_cast<uint64_t>(frame.pointer(slots[i])));
    if (step.given) {
        Given given(words, table);
        for (int32_t i = 0; i < step.count; ++i)
            if (const Buffer& b = buffers[slots[i]]; b.device.is_cpu()) words[i] = given.add(frame.pointer(slots[i]), b.meta.itemsize());
    }
    pointer_writer->write(stream, table, words.data(), words.size());
    c10::SmallVector<void*, 8> pointers{const_cast<void*>(list.blocks->data()), const_cast<void*>(list.device_numbers->data()), table};
    for (int32_t i = 0; i < step.numbers; ++i) pointers.push_back(reinterpret_cast<void*>(frame.sizes.numbers[slots[step.count + i]]));
    const int64_t grid[3] = {list.programs, 1, 1};
    cuda_kernels[step.which]->get(device).launch(stream, pointers.data(), int32_t(pointers.size()), grid);
}

const cuda::Kernel& CudaKernel::make(c10::Device device) {
    WithGil gil;
    try {
        PyRef row = PyRef::take(checked(stay([&] { return PyObject_CallNoArgs(make_.get()); })));
        if (!made_) {  // else another thread did, while Python ran
            made_ = std::make_unique<cuda::Kernel>(read_kernel(row.get(), device));
            ready_.store(made_.get(), std::memory_order_release);
        }
        return *made_;
    } catch (const PythonErrorSet&) {
        throw_python_error();
    }
}

// The kernel reads and writes 1-D tensors over its buffers' memory.
void Program::call_reference(Frame& frame, const Step& step) const {
    const ReferenceCall& call = references[step.which];
    std::vector<at::Tensor> flat;
    const int64_t one = 1;
    for (int32_t i = 0; i < step.count; ++i) {
        c10::TensorImpl* root = frame.tensor(operands[step.first + i]).get();
        flat.emplace_back(make_alias(root, std::max(INT64_C(0), call.elements[i].value(frame.sizes.numbers.data())), one, 0, call.dtypes[i]));
    }
    WithGil gil;
    try {
        PyRef list = PyRef::take(checked(PyList_New(step.count)));
        for (int32_t i = 0; i < step.count; ++i) PyList_SET_ITEM(list.get(), i, wrap(flat[i]));
        PyRef numbers = PyRef::take(checked(PyList_New(step.numbers)));
        for (int32_t i = 0; i < step.numbers; ++i)
            PyList_SET_ITEM(numbers.get(), i, checked(PyLong_FromLongLong(frame.sizes.numbers[operands[step.first + step.count + i]])));
        PyObject* args[] = {call.kernel.get(), list.get(), numbers.get()};
        PyRef result = PyRef::take(checked(call_object(reference.get(), args, step.numbers ? 3 : 2, nullptr)));
    } catch (const PythonErrorSet&) {
        throw_python_error();
    }
}

}  // namespace dynacompile::runtime
