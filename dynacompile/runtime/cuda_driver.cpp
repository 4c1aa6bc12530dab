#include "runtime/cuda_driver.h"

#include "runtime/messages.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/SmallVector.h>

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>

namespace dynacompile::runtime::cuda {
namespace {

using Result = int;                    // CUresult
constexpr int max_dynamic_shared = 8;  // CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
constexpr uint32_t shared_without_asking = 48 * 1024;

struct Driver {
    Result (*context_current)(void** context);
    Result (*context_set)(void* context);
    Result (*device_get)(int* device, int ordinal);
    Result (*primary_retain)(void** context, int device);
    Result (*module_load)(void** module, const void* image);
    Result (*module_unload)(void* module);
    Result (*module_function)(void** function, void* module, const char* name);
    Result (*function_attribute)(void* function, int attribute, int value);
    Result (*launch)(void* function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned shared, void* stream, void** params, void** extra);
    Result (*error_string)(Result error, const char** text);
    Result (*version)(int* version);
    Result (*device_attribute)(int* value, int attribute, int device);
    Result (*event_create)(void** event, unsigned flags);
    Result (*event_record)(void* event, void* stream);
    Result (*event_wait)(void* event);
    Result (*event_elapsed)(float* milliseconds, void* from, void* to);
    Result (*event_destroy)(void* event);
};

template <typename Function>
void resolve(void* library, const char* name, Function*& into) {
    into = reinterpret_cast<Function*>(dlsym(library, name));
    if (!into) fail("libcuda.so.1 has no ", name, ": the CUDA driver is too old");
}

Driver open_driver() {
    void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) fail("the CUDA driver library libcuda.so.1 can't be loaded: ", dlerror());
    Driver d{};
    resolve(library, "cuCtxGetCurrent", d.context_current);
    resolve(library, "cuCtxSetCurrent", d.context_set);
    resolve(library, "cuDeviceGet", d.device_get);
    resolve(library, "cuDevicePrimaryCtxRetain", d.primary_retain);
    resolve(library, "cuModuleLoadData", d.module_load);
    resolve(library, "cuModuleUnload", d.module_unload);
    resolve(library, "cuModuleGetFunction", d.module_function);
    resolve(library, "cuFuncSetAttribute", d.function_attribute);
    resolve(library, "cuLaunchKernel", d.launch);
    resolve(library, "cuGetErrorString", d.error_string);
    resolve(library, "cuDriverGetVersion", d.version);
    resolve(library, "cuDeviceGetAttribute", d.device_attribute);
    resolve(library, "cuEventCreate", d.event_create);
    resolve(library, "cuEventRecord", d.event_record);
    resolve(library, "cuEventSynchronize", d.event_wait);
    resolve(library, "cuEventElapsedTime", d.event_elapsed);
    resolve(library, "cuEventDestroy_v2", d.event_destroy);
    return d;
}

const Driver& driver() {
    static const Driver loaded = open_driver();
    return loaded;
}

void check(Result result, const char* doing, const std::string& what) {
    if (result == 0) return;
    const char* text = nullptr;
    driver().error_string(result, &text);
    fail(doing, " ", what, " failed: CUDA driver error ", result, " (", text ? text : "unknown", ")");
}

constexpr int max_devices = 64;

// The primary context of a device, retained once for the life of the process, as torch's runtime does.
void* primary_context(c10::Device device) {
    static std::atomic<void*> contexts[max_devices];
    if (!device.has_index() || device.index() >= max_devices) fail(device, " is not a CUDA device with an index below ", max_devices);
    std::atomic<void*>& slot = contexts[device.index()];
    if (void* known = slot.load(std::memory_order_acquire)) return known;
    int ordinal = 0;
    void* context = nullptr;
    check(driver().device_get(&ordinal, device.index()), "opening", device.str());
    check(driver().primary_retain(&context, ordinal), "retaining the context of", device.str());
    slot.store(context, std::memory_order_release);
    return context;
}

void make_current(c10::Device device) {
    void* current = nullptr;
    void* wanted = primary_context(device);
    driver().context_current(&current);
    if (current != wanted) check(driver().context_set(wanted), "entering the context of", device.str());
}

// A device's context in force for a while, and then the one before: to CUDA's runtime, the context in force is the current device.
class Inside {
public:
    explicit Inside(c10::Device device) {
        driver().context_current(&before_);
        make_current(device);
        driver().context_current(&now_);
    }
    ~Inside() {
        if (now_ != before_) driver().context_set(before_);
    }
    Inside(const Inside&) = delete;
    Inside& operator=(const Inside&) = delete;

private:
    void *before_ = nullptr, *now_ = nullptr;
};

}  // namespace

Kernel::Kernel(const std::string& image, const std::string& symbol, const Geometry& geometry, c10::Device device) : geometry_(geometry), symbol_(symbol) {
    const Inside inside(device);
    context_ = primary_context(device);
    check(driver().module_load(&module_, image.data()), "loading", symbol);
    Result found = driver().module_function(&function_, module_, symbol.c_str());
    if (found == 0 && geometry.shared > shared_without_asking) found = driver().function_attribute(function_, max_dynamic_shared, int(geometry.shared));
    if (found != 0) {
        driver().module_unload(std::exchange(module_, nullptr));
        check(found, "preparing", symbol);
    }
}

Kernel::Kernel(Kernel&& other) noexcept
    : module_(std::exchange(other.module_, nullptr)),
      function_(other.function_),
      context_(other.context_),
      geometry_(other.geometry_),
      symbol_(std::move(other.symbol_)) {}

Kernel::~Kernel() {
    if (!module_) return;
    void* current = nullptr;
    if (driver().context_current(&current) != 0) return;  // the driver is shutting down, and the module with it
    if (current != context_ && driver().context_set(context_) != 0) return;
    driver().module_unload(module_);
    if (current != context_) driver().context_set(current);
}

void Kernel::launch(void* stream, void* const* pointers, int32_t count, const int64_t* grid) const {
    Geometry g = geometry_;
    for (int i = 0; grid && i < 3; ++i) {
        if (grid[i] > (i == 0 ? INT64_C(0x7fffffff) : INT64_C(65535))) fail("the kernel ", symbol_, " would run ", grid[i], " programs, more than a launch takes");
        g.grid[i] = uint32_t(grid[i] > 0 ? grid[i] : 0);
    }
    if (g.grid[0] == 0 || g.grid[1] == 0 || g.grid[2] == 0) return;
    void* none = nullptr;
    c10::SmallVector<void*, 48> params;
    for (int32_t i = 0; i < count; ++i) params.push_back(const_cast<void**>(pointers + i));
    for (int32_t i = 0; i < g.extra; ++i) params.push_back(&none);
    check(driver().launch(function_, g.grid[0], g.grid[1], g.grid[2], g.threads, 1, 1, g.shared, stream, params.data(), nullptr), "launching", symbol_);
}

void Kernel::launch_with(void* stream, void** params) const {
    const Geometry& g = geometry_;
    check(driver().launch(function_, g.grid[0], g.grid[1], g.grid[2], g.threads, 1, 1, g.shared, stream, params, nullptr), "launching", symbol_);
}

namespace {

constexpr size_t few_words = 496;    // the arguments of a launch have 4,096 bytes,
constexpr size_t many_words = 4080;  // or 32,764 where the driver and the device are new enough
constexpr int driver_with_many = 12010, capability_with_many = 7;
constexpr int compute_capability_major = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
constexpr uint32_t writing_threads = 512;

// One thread for each word.
std::string writer_text(const char* version, const char* target, size_t words) {
    return std::string(".version ") + version + "\n.target " + target + "\n.address_size 64\n" +
           ".visible .entry write_pointers(.param .u64 to, .param .u32 count, .param .align 8 .b8 given[" + std::to_string(words * sizeof(uint64_t)) + "])\n" + R"({
    .reg .pred %p;
    .reg .b32 %r<5>;
    .reg .b64 %rd<8>;
    mov.u32 %r1, %tid.x;
    mov.u32 %r3, %ctaid.x;
    mov.u32 %r4, %ntid.x;
    mad.lo.u32 %r1, %r3, %r4, %r1;
    ld.param.u32 %r2, [count];
    setp.ge.u32 %p, %r1, %r2;
    @%p bra done;
    ld.param.u64 %rd1, [to];
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r1, 8;
    mov.u64 %rd4, given;
    add.s64 %rd5, %rd4, %rd3;
    ld.param.u64 %rd6, [%rd5];
    add.s64 %rd7, %rd2, %rd3;
    st.global.u64 [%rd7], %rd6;
done:
    ret;
}
)";
}

Kernel writer(const char* version, const char* target, size_t words, c10::Device device) {
    Geometry geometry;
    geometry.threads = writing_threads;
    geometry.grid[0] = uint32_t((words + writing_threads - 1) / writing_threads);
    return Kernel(writer_text(version, target, words), "write_pointers", geometry, device);
}

bool takes_many(c10::Device device) {
    int version = 0, ordinal = 0, major = 0;
    check(driver().version(&version), "asking for the version of", "the CUDA driver");
    check(driver().device_get(&ordinal, device.index()), "opening", device.str());
    check(driver().device_attribute(&major, compute_capability_major, ordinal), "asking for the compute capability of", device.str());
    return version >= driver_with_many && major >= capability_with_many;
}

}  // namespace

PointerWriter::PointerWriter(c10::Device device) : few_(writer("6.0", "sm_60", few_words, device)) {
    if (takes_many(device)) many_.emplace(writer("8.1", "sm_70", many_words, device));
}

void PointerWriter::write(void* stream, uint64_t* to, const uint64_t* given, size_t count) const {
    uint64_t words[many_words];  // a launch reads all of its arguments
    while (count) {
        const bool large = many_ && count > few_words;
        uint32_t now = uint32_t(std::min(count, large ? many_words : few_words));
        std::copy(given, given + now, words);
        std::fill(words + now, words + (large ? many_words : few_words), 0);
        void* params[] = {&to, &now, words};
        (large ? *many_ : few_).launch_with(stream, params);
        to += now, given += now, count -= now;
    }
}

Event::Event() { check(driver().event_create(&event_, 0), "making", "an event"); }

Event::~Event() {
    if (event_) driver().event_destroy(event_);
}

void Event::record(void* stream) { check(driver().event_record(event_, stream), "recording", "an event"); }

void Event::wait() const { check(driver().event_wait(event_), "waiting for", "an event"); }

int64_t Event::nanoseconds_since(const Event& before) const {
    float milliseconds = 0;
    check(driver().event_elapsed(&milliseconds, before.event_, event_), "reading", "an event");
    return int64_t(double(milliseconds) * 1e6);
}

namespace {

constexpr const char* waiter_text = R"(.version 6.0
.target sm_60
.address_size 64
.visible .entry wait_ns(.param .u64 ns)
{
    .reg .pred %p;
    .reg .b64 %rd<5>;
    ld.param.u64 %rd1, [ns];
    mov.u64 %rd2, %globaltimer;
again:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p, %rd4, %rd1;
    @%p bra again;
    ret;
}
)";

// One thread. captured: seed and offset are addresses of them.
constexpr const char* state_text = R"(.version 6.0
.target sm_60
.address_size 64
.visible .entry write_state(.param .u64 to, .param .u64 seed, .param .u64 offset, .param .u64 added, .param .u32 captured)
{
    .reg .pred %p;
    .reg .b32 %r;
    .reg .b64 %rd<7>;
    ld.param.u64 %rd1, [to];
    ld.param.u64 %rd2, [seed];
    ld.param.u64 %rd3, [offset];
    ld.param.u64 %rd4, [added];
    ld.param.u32 %r, [captured];
    setp.eq.u32 %p, %r, 0;
    @%p bra known;
    cvta.to.global.u64 %rd5, %rd2;
    cvta.to.global.u64 %rd6, %rd3;
    ld.global.u64 %rd2, [%rd5];
    ld.global.u64 %rd3, [%rd6];
known:
    add.s64 %rd3, %rd3, %rd4;
    cvta.to.global.u64 %rd1, %rd1;
    st.global.u64 [%rd1], %rd2;
    st.global.u64 [%rd1+8], %rd3;
    ret;
}
)";

// A kernel of one thread for each device, for the life of the process.
const Kernel& single(const char* text, const char* name, c10::Device device) {
    static std::mutex guard;
    static auto& made = *new std::unordered_map<int, std::unordered_map<const char*, std::unique_ptr<Kernel>>>;
    const std::lock_guard<std::mutex> locked(guard);
    std::unique_ptr<Kernel>& own = made[device.index()][text];
    Geometry geometry;
    geometry.threads = 1;
    if (!own) own = std::make_unique<Kernel>(text, name, geometry, device);
    return *own;
}

}  // namespace

const Kernel& state_writer(c10::Device device) { return single(state_text, "write_state", device); }

void wait_on_device(c10::Device device, void* stream, int64_t nanoseconds) {
    void* params[] = {&nanoseconds};
    single(waiter_text, "wait_ns", device).launch_with(stream, params);
}

void* enter(c10::Device device) {
    make_current(device);
    c10::impl::VirtualGuardImpl guard(c10::DeviceType::CUDA);
    c10::Stream current = guard.getStream(device);
    // A stream's handle never changes, so one look suffices while a thread stays on its stream.
    thread_local c10::Stream last(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CPU), -1);
    thread_local void* handle = nullptr;
    if (last != current) {
        handle = guard.getStreamNativeHandle(current);
        last = current;
    }
    return handle;
}

}  // namespace dynacompile::runtime::cuda
