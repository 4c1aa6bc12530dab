// Shared nouns of the frame stage: entries, what a code object remembers, regions, and the thread's state.
#pragma once
#include "cpython/frames.h"

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "frame/boundary.h"
#include "frame/watchers.h"
#include "guards/machine.h"

namespace dynacompile {

// One compiled version of a code object. guards: a GuardProgram.
struct Entry {
    PyObject_HEAD
    PyCodeObject* code;
    PyObject* guards;
    PyObject* info;
    Py_ssize_t hits;
    uint64_t used;      // grows with every use of any entry: the latest is the largest
    double last_used;   // seconds since the epoch, to some milliseconds; 0: not yet
    long kind;   // of the region that made it
    char whole;  // no user Python runs after its graph: the hook is off while it runs
    char restarts;  // where its code raises Restart, the call runs as Python from its start
    Entry* next;  // of those that are dropped together
};

// Options of one compile, shared by the calls of its region and met by every frame below.
struct RegionState {
    PyObject_HEAD
    long bucket;
    long kind;      // what sort of code this compile makes (backend, options): entries of another kind don't serve it
    char fallback;  // look into the default bucket too
    long limit;
    long accumulated_limit;
    PyObject* name;
    PyObject* owner;
    std::unordered_set<uint64_t>* full;  // serials of the code objects that this region runs eagerly: its bucket is at the limit, or they are compiled meanwhile
    char met;  // a frame below it was compiled, or the compiler was asked about one
    uint64_t refused;  // one more than the serial of its target's code, where capture has refused that for this region
    PyObject* weakrefs;
};

// elsewhere: in a folder that is left to Python, where only a region's own target is compiled.
enum class Mark : uint8_t { eligible, elsewhere, skip, skip_recursive };

// A node of a bucket's index. See index.cpp.
struct IndexNode {
    struct Slot {
        uint64_t number;
        std::unique_ptr<IndexNode> below;  // null: the slot is free
    };
    PyObject* program = nullptr;  // borrowed from an entry; null: a leaf
    size_t feature = 0;
    std::vector<Slot> by;         // a hash table; its size is a power of two
    std::unique_ptr<IndexNode> others;
    std::vector<Entry*> entries;
};

// The entries that a call may belong to, borrowed.
struct Candidates {
    static constexpr size_t room = 16;
    Entry* few[room];
    std::vector<Entry*> many;  // all of them, once there is no room
    size_t count = 0;
    Entry** begin() { return count > room ? many.data() : few; }
    void add(Entry* entry) {
        if (count == room) many.assign(few, few + room);
        if (count >= room) many.push_back(entry);
        if (count < room) few[count] = entry;
        count++;
    }
};

struct Bucket {
    long id;
    std::vector<Entry*> entries;
    std::unique_ptr<IndexNode> index;  // where there are several
};

// What a code object remembers, in its co_extra.
struct Extra {
    uint64_t serial;
    uint64_t changes = 0;  // counts additions and removals, so that a lookup notices them
    Mark mark;
    bool resumes;  // it goes on after a graph break, called by residual code alone
    std::vector<Bucket> buckets;  // sorted by id
    Extra *before, *after;        // the list of all extras
    bool wanted = false;          // it is compiled though its folder is left to Python
    bool refused = false;         // the mark is that of a capture: a region whose target this is asks for itself, as its options and calls are its own
};

constexpr long default_bucket = -1;

// What holds for the frames of one Python stack; on_miss is null where frames run plainly.
struct Scope {
    RegionState* state;
    PyObject* on_miss;
    bool compiling;
    const _PyStackChunk* stack;  // a chunk of the stack that lives as long as the scope; of no scope: the stack's first chunk, or null
    uint64_t id;                 // 0: no scope
    PyCodeObject* target;        // the region's own function, borrowed
    Watchers watchers;           // when the stack's outermost scope began
};

// The scopes of a thread. A thread has several stacks where greenlets run on it, and a switch from one to another tells nobody: `now` belongs to the
// stack that was met last. The innermost scopes of the others are set aside until a frame of theirs is met. Nothing here points into a C stack,
// since greenlets move those.
struct Thread {
    Scope now;
    Scope* others;    // set aside: one of each stack at most
    uint32_t parked;  // how many
    uint32_t stacks;  // stacks with a scope: so many fit into `others`
    uint32_t room;
    uint64_t last;    // id given last
    const void* keys;  // torch's dispatch keys of this thread; null before it was met

    // Whether `now` belongs to the running stack. Chunks of a stack are linked, and belong to no other.
    bool is_current(const PyThreadState* ts) const {
        for (const _PyStackChunk* chunk = ts->datastack_chunk; chunk; chunk = chunk->previous) {
            if (chunk == now.stack) return true;
        }
        return false;
    }
    void follow(const PyThreadState* ts) {
        if ((now.id || parked) && now.stack != ts->datastack_chunk && !is_current(ts)) meet_stack(ts);
    }
    void meet_stack(const PyThreadState* ts);  // sets `now` aside, and finds the running stack's
    void forget(uint64_t id);                  // of the running stack, while `now` is another's
    void make_room();                          // throws std::bad_alloc
};
Thread& this_thread(const PyThreadState* ts);  // with `now` of the running stack

// Sets what holds for the frames of the running stack, for a C++ scope, and restores it.
class RegionScope {
  public:
    RegionScope(PyThreadState* ts, RegionState* state, PyObject* on_miss) : RegionScope(this_thread(ts), ts, state, on_miss) {}
    // thread: this_thread, found before.
    RegionScope(Thread& thread, PyThreadState* ts, RegionState* state, PyObject* on_miss) : thread_(followed(thread, ts)), saved_(thread.now) {
        if (!saved_.id) {
            if (thread_.stacks >= thread_.room) thread_.make_room();
            thread_.stacks++;
            saved_.stack = nullptr;
        }
        thread_.now = {state, on_miss, saved_.compiling, saved_.id ? saved_.stack : ts->datastack_chunk, ++thread_.last, saved_.target,
                       saved_.id ? saved_.watchers : watchers_of(ts)};
        id_ = thread_.last;
    }
    ~RegionScope() {
        if (thread_.now.id != id_) thread_.forget(id_);
        if (!saved_.id) thread_.stacks--;
        thread_.now = saved_;
    }
    RegionScope(const RegionScope&) = delete;
    void compiling() { thread_.now.compiling = true; }
    void target(PyCodeObject* code) { thread_.now.target = code; }
    RegionState* above() const { return saved_.state; }  // of the scope around this one; null: there is none, or the hook is off in it

  private:
    static Thread& followed(Thread& thread, const PyThreadState* ts) {
        thread.follow(ts);
        return thread;
    }
    Thread& thread_;
    Scope saved_;
    uint64_t id_;
};

// Has the frames of the running stack run plainly, for a C++ scope inside of a RegionScope.
class HookOff {
  public:
    // thread: this_thread, found before.
    HookOff(Thread& thread, const PyThreadState* ts) : thread_(thread), ts_(ts), id_(thread.now.id), state_(thread.now.state), on_miss_(thread.now.on_miss) { set(nullptr, nullptr); }
    ~HookOff() {
        if (thread_.now.id != id_) thread_.meet_stack(ts_);
        set(state_, on_miss_);
    }
    HookOff(const HookOff&) = delete;

  private:
    void set(RegionState* state, PyObject* on_miss) {
        thread_.now.state = state;
        thread_.now.on_miss = on_miss;
    }
    Thread& thread_;
    const PyThreadState* ts_;
    uint64_t id_;
    RegionState* state_;
    PyObject* on_miss_;
};

// dispatch.cpp
Extra* find_extra(PyCodeObject* code);
Extra* need_extra(PyCodeObject* code) noexcept;  // makes and classifies it; null with an error set
Entry* lookup(Extra* extra, long bucket, long kind, Frame* frame);  // borrowed; may throw
bool add_entry(PyCodeObject* original, const RegionState& state, Entry* entry);
Py_ssize_t count_entries(const Extra& extra, const RegionState& state);  // in its bucket, of its kind
Py_ssize_t count_entries(const Extra& extra);
PyObject* bucket_entries(const Extra& extra, long bucket);  // new tuple
void drop_bucket(long bucket) noexcept;
void mark_used(Entry* entry);
extern PyTypeObject* entry_type;
bool has_skip_rule(PyCodeObject* code);  // of torch, the standard library, the compiler: no code of the program
bool init_dispatch(PyObject* module);

// index.cpp
std::unique_ptr<IndexNode> build_index(const std::vector<Entry*>& entries);
void find_candidates(const IndexNode& index, const Roots& roots, Candidates& into);  // most recently used first

// hook.cpp
bool need_stack(const PyThreadState* ts);  // has the running stack own a chunk; false with an error set
// What was there when a region was entered. callback: of torch.compile's hook, which is off inside of the region; null where it was not on.
struct Before {
    _PyFrameEvalFunction evaluator = nullptr;
    PyObject* callback = nullptr;
};
bool hook_enter(Before& before);  // false with an error set
bool hook_leave(Before& before);  // likewise; keeps an error that is set

// proxy.cpp
PyObject* new_proxy(Frame* frame, Extra* extra, const RegionState* state);
void end_proxy(PyObject* proxy);
bool proxy_frame(PyObject* object, Frame** frame);  // false: not a proxy, or one that is over
const char* limit_reached(const Extra& extra, const RegionState& state);
extern PyObject *answer_null, *answer_skip, *answer_skip_recursive, *answer_run_once, *answer_run_plainly;
bool init_proxy(PyObject* module);

// What a frame is to run as.
enum class Way : uint8_t { python, plainly, error };  // within the region; with the hook off; not at all: an error is set
// What an answer about frames of `code`, which is no entry, makes of this one. is_target: the code is the region's own function.
Way follow_answer(PyCodeObject* code, RegionState* state, PyObject* answer, bool at_limit, bool is_target);
bool rival_is_in();  // the hook that is installed is torch.compile's
void hook_forget(int regions);  // in a forked process: those were other threads'

// background.cpp
void forget_background();  // in a forked process
bool init_background(PyObject* module);

// region.cpp
extern PyTypeObject* state_type;
bool init_region(PyObject* module);

}  // namespace dynacompile
