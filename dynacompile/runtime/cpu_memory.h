// Memory of CPU programs: blocks of the sizes that a program asks for at every call, kept from call to call.
#pragma once

#include <c10/core/Allocator.h>

namespace dynacompile::runtime {

// A block of `bytes`, which returns here when its last owner lets it go. Blocks kept and in use together never exceed the most that was in use
// at once. The C library gives large blocks back to the system instead, and every call would pay for zeroed pages again.
c10::DataPtr take_block(size_t bytes);

constexpr size_t least_block = 1 << 16;  // smaller ones the C library keeps itself

// Frees the blocks that are not in use.
void release_blocks();

}  // namespace dynacompile::runtime
