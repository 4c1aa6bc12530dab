#include "runtime/cpu_memory.h"

#include <c10/core/impl/alloc_cpu.h>

#include <cstdlib>
#include <list>
#include <mutex>
#include <unordered_map>
#include <vector>

namespace dynacompile::runtime {

namespace {

struct Block {
    void* memory;
    size_t bytes;
};

// The C library's malloc takes the size of the largest mapped block that was freed (up to 32 MiB) as the size above which it maps, and gives
// back twice that at the heap's end: tensors of ops below that size then come without new pages too. Programs that free large tensors get
// there by themselves; one whose large tensors are all ours would not.
void widen_heap() {
    void* volatile large = std::malloc(31u << 20);
    std::free(large);
}

class Blocks {
public:
    Blocks() { widen_heap(); }

    Block* take(size_t bytes) {
        std::lock_guard<std::mutex> lock(mutex_);
        in_use_ += bytes;
        if (in_use_ > most_) most_ = in_use_;
        auto& kept = by_size_[bytes];
        if (kept.empty()) {
            shrink();
            try {
                return new Block{c10::alloc_cpu(bytes), bytes};
            } catch (...) {
                in_use_ -= bytes;
                throw;
            }
        }
        Kept::iterator found = kept.back();
        kept.pop_back();
        Block* block = *found;
        kept_.erase(found);
        kept_bytes_ -= bytes;
        return block;
    }

    void give_back(Block* block) {
        std::lock_guard<std::mutex> lock(mutex_);
        in_use_ -= block->bytes;
        kept_bytes_ += block->bytes;
        by_size_[block->bytes].push_back(kept_.insert(kept_.end(), block));
    }

    void release() {
        std::lock_guard<std::mutex> lock(mutex_);
        most_ = in_use_;
        shrink();
    }

private:
    using Kept = std::list<Block*>;

    // Frees the blocks that have been kept longest, until kept and used ones together are no more than were ever used at once.
    void shrink() {
        while (!kept_.empty() && kept_bytes_ + in_use_ > most_) {
            Block* block = kept_.front();
            auto& same = by_size_[block->bytes];
            for (auto place = same.begin(); place != same.end(); ++place)
                if (*place == kept_.begin()) {
                    same.erase(place);
                    break;
                }
            kept_.pop_front();
            kept_bytes_ -= block->bytes;
            c10::free_cpu(block->memory);
            delete block;
        }
    }

    std::mutex mutex_;
    Kept kept_;  // longest kept first
    std::unordered_map<size_t, std::vector<Kept::iterator>> by_size_;
    size_t in_use_ = 0, kept_bytes_ = 0, most_ = 0;
};

Blocks& blocks() {
    static Blocks* all = new Blocks;  // tensors may outlive every static object
    return *all;
}

}  // namespace

c10::DataPtr take_block(size_t bytes) {
    Block* block = blocks().take(bytes);
    return {block->memory, block, [](void* given) { blocks().give_back(static_cast<Block*>(given)); }, c10::Device(c10::DeviceType::CPU)};
}

void release_blocks() { blocks().release(); }

}  // namespace dynacompile::runtime
