// Memory of CPU programs: blocks of about the sizes that programs ask for at every call, kept from call to call and shared between programs.
#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace dynacompile::runtime {

// A block of `bytes` or somewhat more, which returns here when its last owner lets it go. The C library gives large blocks back to the system instead,
// and every call would pay for zeroed pages again. Blocks kept and in use together never exceed the most that was in use at once of late; a block
// that nobody took for `longest_idle` is freed, as all are where memory is short, for us or for torch.
c10::DataPtr take_block(size_t bytes);
bool is_block(const c10::DataPtr& memory) noexcept;

constexpr size_t least_block = 1 << 16;  // smaller ones the C library keeps itself
constexpr int64_t longest_idle = 10;     // seconds

// Frees the blocks that are not in use. False: there were none.
bool release_blocks() noexcept;
// Frees those that have not been in use for so many seconds.
void release_idle_blocks(int64_t seconds) noexcept;

struct BlockBytes {
    size_t kept, in_use;
};
BlockBytes block_bytes() noexcept;

}  // namespace dynacompile::runtime
