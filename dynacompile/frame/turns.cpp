// Has a thread that compiles in the background hold the interpreter's lock (GIL) only while no thread of the program wants it, but for a small share of the time.
//
// CPython grants the lock after 5 ms to whoever waits for it, to a compile as to the program, and an operation of torch releases it each time. So the
// thread that compiles releases it after each slice, looks whether anybody takes it, and then waits until it has been free for a while: an operation is long, a
// backward pass runs, the program sleeps. Whatever happens, it takes a slice at last: a compile ends also beside a program that never lets go.
#include "cpython/lock.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "frame/boundary.h"
#include "frame/turns.h"

namespace dynacompile {
namespace {

constexpr int64_t us = 1000;
constexpr int64_t slice = 100 * us;      // for which the lock is held; calls of C functions make it longer
constexpr int64_t look = 20 * us;        // between two looks at the lock
constexpr int64_t quiet = 1500 * us;     // for which the lock has to be free after a thread of the program has had it
constexpr int64_t forced_share = 25;     // of the time, one part in so many is taken at the least
constexpr int64_t longest_rest = 50'000 * us;
constexpr int niceness = 14;  // a weight of 4 % beside a thread of the program, by which the kernel of Linux shares a processor

thread_local int64_t slice_began = 0;  // 0: this thread takes no turns
std::atomic<int> hurried{0};           // threads that rest until background compiles have ended

int64_t now() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

void rest(int64_t duration) {
    const timespec t{0, static_cast<long>(duration)};
    nanosleep(&t, nullptr);
}

// The lock, which may be read without holding it: whether a thread has it, and which had it last.
struct Lock {
    bool held;
    uintptr_t holder;
};

Lock look_at_lock(PyInterpreterState* interpreter) {
    return {lock_is_held(interpreter), lock_holder(interpreter)};
}

// Returns when it is this thread's turn again; it does not hold the lock meanwhile.
void wait_for_turn(PyInterpreterState* interpreter, uintptr_t mine, int64_t held_for) {
    const int64_t released = now();
    const int64_t most = std::min(longest_rest, std::max(held_for, slice) * forced_share);
    int64_t free_since = released;
    for (;;) {
        rest(look);
        const Lock lock = look_at_lock(interpreter);
        const int64_t at = now();
        if (!lock.held && lock.holder == mine) return;  // nobody has wanted it
        if (hurried.load(std::memory_order_relaxed) > 0) return;
        if (lock.held) free_since = at;
        if (at - free_since >= quiet || at - released >= most) return;
    }
}

}  // namespace

bool takes_turns() { return slice_began != 0; }

void take_turn() {
    const int64_t at = now();
    if (at - slice_began < slice) return;
    PyThreadState* ts = PyEval_SaveThread();
    wait_for_turn(ts->interp, reinterpret_cast<uintptr_t>(ts), at - slice_began);
    PyEval_RestoreThread(ts);
    slice_began = now();
}

Turns::Turns() { slice_began = now(); }

Turns::~Turns() { slice_began = 0; }

void lower_priority() {
    const id_t thread = static_cast<id_t>(syscall(SYS_gettid));
    if (getpriority(PRIO_PROCESS, thread) < niceness) setpriority(PRIO_PROCESS, thread, niceness);
    prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
}

void rest_in_hurry(int64_t microseconds) {
    hurried.fetch_add(1, std::memory_order_relaxed);
    rest(microseconds * us);
    hurried.fetch_sub(1, std::memory_order_relaxed);
}

void forget_hurry() { hurried.store(0); }

}  // namespace dynacompile
