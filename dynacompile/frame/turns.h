// How a thread that compiles in the background shares the interpreter's lock with the program.
#pragma once

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

void lower_priority();    // of this thread, and of the threads and processes that it starts, for ever
void hurry(int change);   // one thread more, or less, waits for compiles in the background, which then take no turns
void forget_hurry();      // in a forked process

}  // namespace dynacompile
