// How a thread that compiles in the background shares the interpreter's lock with the program.
#pragma once

#include <cstdint>

namespace dynacompile {

bool takes_turns();  // whether this thread does
void take_turn();    // by such a thread, which holds the lock, between two Python frames: waits, without the lock, while the program wants it

// While it lives, this thread takes turns.
class Turns {
  public:
    Turns();
    ~Turns();
    Turns(const Turns&) = delete;
};

void lower_priority();  // of this thread, and of the threads and processes that it starts, for ever
// Rests for less than a second, without the lock. Compiles in the background, for whose end the thread waits, take no turns meanwhile.
void rest_in_hurry(int64_t microseconds);
void forget_hurry();  // in a forked process

}  // namespace dynacompile
