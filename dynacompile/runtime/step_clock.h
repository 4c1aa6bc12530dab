// How long each step of a program takes, while somebody asks: of a CPU's steps by its clock, of a device's by events around each launch.
#pragma once

#include "runtime/program.h"

#include <chrono>
#include <memory>

namespace dynacompile::runtime {

// Whether runs are timed now. Every run asks this once.
bool is_timing();

// The clock of a run that is not timed: nothing.
struct NoClock {
    void begin(size_t) {}
    void end(size_t) {}
};

// The clock of one run, or of one part of a run. What it measured is the program's once the run has ended; a run that throws leaves nothing.
class StepClock {
public:
    StepClock(const Program& program, const CallSizes& sizes, bool from_start);
    ~StepClock();
    StepClock(const StepClock&) = delete;

    void begin(size_t step);
    void end(size_t step);
    // Waits for the device where there is one, and adds the times to those of the program.
    void finish();

private:
    bool is_on_device(size_t step) const;

    struct Lap {
        size_t step;
        int64_t nanoseconds;
        std::unique_ptr<cuda::Event> from, to;  // of a step on a device
    };

    const Program& program_;
    const CallSizes& sizes_;
    void* stream_ = nullptr;
    bool from_start_;
    std::chrono::steady_clock::time_point began_;
    std::vector<Lap> laps_;
};

// Before a program ends: it is timed no more.
void forget_times(const Program& program);

bool init_step_clock(PyObject* module);

}  // namespace dynacompile::runtime
