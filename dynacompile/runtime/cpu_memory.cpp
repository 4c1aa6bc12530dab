#include "runtime/cpu_memory.h"

#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <pthread.h>
#include <time.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <new>
#include <utility>

namespace dynacompile::runtime {

namespace {

int64_t seconds_now() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC_COARSE, &now);
    return now.tv_sec;
}

// The C library's malloc takes the size of the largest mapped block that was freed (up to 32 MiB) as the size above which it maps, and gives
// back twice that at the heap's end: tensors of ops below that size then come without new pages too. Programs that free large tensors get
// there by themselves; one whose large tensors are all ours would not.
void widen_heap() {
    void* volatile large = std::malloc(31u << 20);
    std::free(large);
}

// Sizes come in classes, eight for each doubling, so that a block serves programs whose sizes differ a little. All blocks of a class are of its size.
constexpr int steps = 8, step_bits = 3, least_bits = 16;
constexpr int classes = (64 - least_bits + 1) * steps;
constexpr size_t most_bytes = size_t(1) << 60;

struct SizeClass {
    int index;
    size_t bytes;
};

SizeClass class_of(size_t bytes) {
    const size_t wanted = std::max(bytes, least_block) - 1;
    const int bits = std::bit_width(wanted) - 1;  // of the leading one: least_bits - 1 at least
    const int step = int((wanted >> (bits - step_bits)) & (steps - 1));
    return {(bits - least_bits + 1) * steps + step, (size_t(steps + step + 1)) << (bits - step_bits)};
}

struct Block {
    void* memory;
    size_t bytes;
    int index;      // of its class
    int64_t since;  // when it was given back
    Block *older, *newer;  // of all that are kept
    Block *below, *above;  // of its class; the one given back last is on top
};

class Blocks {
public:
    Blocks() {
        widen_heap();
        pthread_atfork([] { all().mutex_.lock(); }, [] { all().mutex_.unlock(); }, [] { all().mutex_.unlock(); });
    }

    static Blocks& all() {
        static Blocks* blocks = new Blocks;  // tensors may outlive every static object
        return *blocks;
    }

    Block* take(size_t bytes) {
        const SizeClass size = class_of(std::min(bytes, most_bytes));  // more is refused by the allocator
        if (Block* kept = take_kept(size)) return kept;
        std::unique_ptr<Block> made(new Block{nullptr, size.bytes, size.index, 0, nullptr, nullptr, nullptr, nullptr});
        try {
            made->memory = c10::alloc_cpu(size.bytes);
        } catch (const std::exception&) {  // bad_alloc, or torch's error
            if (!release()) throw;
            made->memory = c10::alloc_cpu(size.bytes);
        }
        count(size.bytes);
        return made.release();
    }

    void give_back(Block* block) noexcept {
        std::lock_guard<std::mutex> lock(mutex_);
        if (kept_bytes_ == 0) watch_torch();
        in_use_ -= block->bytes;
        kept_bytes_ += block->bytes;
        block->since = seconds_now();
        block->newer = nullptr;
        block->older = std::exchange(newest_, block);
        (block->older ? block->older->newer : oldest_) = block;
        block->above = nullptr;
        block->below = std::exchange(top_[block->index], block);
        if (block->below) block->below->above = block;
        shrink(block->since);
    }

    bool release() noexcept {
        std::lock_guard<std::mutex> lock(mutex_);
        const bool any = oldest_;
        while (oldest_) free(oldest_);
        most_ = most_before_ = in_use_;
        return any;
    }

    void release_idle(int64_t seconds) noexcept {
        if (!kept_bytes_.load(std::memory_order_relaxed)) return;
        std::lock_guard<std::mutex> lock(mutex_);
        free_idle(seconds_now(), seconds);
    }

    // Frees what is idle, now and then: to be called often.
    void look() noexcept {
        if (!kept_bytes_.load(std::memory_order_relaxed) || seconds_now() < looked_.load(std::memory_order_relaxed) + longest_idle) return;
        release_idle(longest_idle);
    }

    BlockBytes bytes() noexcept {
        std::lock_guard<std::mutex> lock(mutex_);
        return {kept_bytes_, in_use_};
    }

private:
    Block* take_kept(const SizeClass& size) noexcept {
        std::lock_guard<std::mutex> lock(mutex_);
        Block* block = top_[size.index];
        if (!block && size.index + 1 < classes) block = top_[size.index + 1];
        if (!block) {
            shrink(seconds_now());
            return nullptr;
        }
        remove(block);
        in_use_ += block->bytes;
        most_ = std::max(most_, in_use_);
        return block;
    }

    void count(size_t bytes) noexcept {
        std::lock_guard<std::mutex> lock(mutex_);
        in_use_ += bytes;
        most_ = std::max(most_, in_use_);
        shrink(seconds_now());
    }

    void remove(Block* block) noexcept {
        (block->newer ? block->newer->older : newest_) = block->older;
        (block->older ? block->older->newer : oldest_) = block->newer;
        (block->above ? block->above->below : top_[block->index]) = block->below;
        if (block->below) block->below->above = block->above;
        kept_bytes_ -= block->bytes;
    }

    void free(Block* block) noexcept {
        remove(block);
        c10::free_cpu(block->memory);
        delete block;
    }

    // Frees the blocks that have been kept longest, until kept and used ones together are no more than were used at once in this period and the last.
    void shrink(int64_t now) noexcept {
        if (now >= looked_ + longest_idle) free_idle(now, longest_idle);
        while (oldest_ && kept_bytes_ + in_use_ > std::max(most_, most_before_)) free(oldest_);
    }

    // Begins a period.
    void free_idle(int64_t now, int64_t seconds) noexcept {
        while (oldest_ && oldest_->since + seconds <= now) free(oldest_);
        most_before_ = std::exchange(most_, in_use_);
        looked_ = now;
    }

    static void watch_torch() noexcept;

    std::mutex mutex_;
    Block *oldest_ = nullptr, *newest_ = nullptr;
    Block* top_[classes] = {};
    std::atomic<size_t> kept_bytes_ = 0;
    size_t in_use_ = 0, most_ = 0, most_before_ = 0;
    std::atomic<int64_t> looked_ = 0;
};

// Torch's allocator for the CPU, which has what we keep where it finds no memory, and looks after what is idle once no program runs.
class PatientAllocator final : public c10::Allocator {
public:
    explicit PatientAllocator(c10::Allocator* inner) : inner_(inner) {}

    c10::DataPtr allocate(size_t bytes) override {
        Blocks::all().look();
        try {
            return inner_->allocate(bytes);
        } catch (const std::exception&) {
            if (!release_blocks()) throw;
        }
        return inner_->allocate(bytes);
    }
    bool is_simple_data_ptr(const c10::DataPtr& pointer) const override { return inner_->is_simple_data_ptr(pointer); }
    c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }
    void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

private:
    c10::Allocator* inner_;
};

void Blocks::watch_torch() noexcept {
    static bool done = false;
    if (std::exchange(done, true)) return;
    c10::Allocator* inner = c10::GetCPUAllocator();
    if (auto* patient = new (std::nothrow) PatientAllocator(inner)) c10::SetCPUAllocator(patient, 0);
}

}  // namespace

static void give_back(void* block) { Blocks::all().give_back(static_cast<Block*>(block)); }

c10::DataPtr take_block(size_t bytes) {
    Block* block = Blocks::all().take(bytes);
    return {block->memory, block, give_back, c10::Device(c10::DeviceType::CPU)};
}

bool is_block(const c10::DataPtr& memory) noexcept { return memory.get_deleter() == give_back; }

bool release_blocks() noexcept { return Blocks::all().release(); }
void release_idle_blocks(int64_t seconds) noexcept { Blocks::all().release_idle(seconds); }
BlockBytes block_bytes() noexcept { return Blocks::all().bytes(); }

}  // namespace dynacompile::runtime
