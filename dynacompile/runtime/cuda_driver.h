// Kernels of a CUDA device through the driver API, which is loaded at run time: no CUDA toolkit is needed to build.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <optional>
#include <string>

namespace dynacompile::runtime::cuda {

struct Geometry {
    uint32_t grid[3] = {1, 1, 1};
    uint32_t threads = 32;
    uint32_t shared = 0;  // bytes of dynamic shared memory
    int32_t extra = 0;    // null pointers behind the buffers
};

// A function of a loaded image, bound to one device. The module is unloaded with the kernel.
class Kernel {
public:
    Kernel(const std::string& image, const std::string& symbol, const Geometry& geometry, c10::Device device);
    Kernel(Kernel&& other) noexcept;
    Kernel(const Kernel&) = delete;
    ~Kernel();

    // Launches on `stream`; the device's context is current. pointers: device addresses, and 64-bit numbers. grid: where it is not the geometry's.
    void launch(void* stream, void* const* pointers, int32_t count, const int64_t* grid = nullptr) const;

    // params: addresses of the values that the function takes, which may be of any size.
    void launch_with(void* stream, void** params) const;

private:
    void* module_ = nullptr;
    void* function_ = nullptr;
    void* context_ = nullptr;
    Geometry geometry_;
    std::string symbol_;
};

// Kernels (uint64_t* to, uint32_t count, uint64_t given[N]) that write the first `count` of what they are given to memory of the device.
class PointerWriter {
public:
    explicit PointerWriter(c10::Device device);
    // Writes as many launches as it takes; the device's context is current. given: read before it returns.
    void write(void* stream, uint64_t* to, const uint64_t* given, size_t count) const;

private:
    Kernel few_;
    std::optional<Kernel> many_;  // where the driver takes launches with so many arguments
};

// A kernel (uint64_t* to, seed, offset, uint64_t added, uint32_t captured) that writes a seed, and an offset + added. captured: they are given by address.
const Kernel& state_writer(c10::Device device);

// A moment in a stream.
class Event {
public:
    Event();
    ~Event();
    Event(const Event&) = delete;

    void record(void* stream);
    void wait() const;
    // Once both have been reached.
    int64_t nanoseconds_since(const Event& before) const;

private:
    void* event_ = nullptr;
};

// The stream does nothing for about so long.
void wait_on_device(c10::Device device, void* stream, int64_t nanoseconds);

// Makes the device's context current on this thread and returns its current stream as a CUstream.
void* enter(c10::Device device);

}  // namespace dynacompile::runtime::cuda
