// Shared nouns of the frame stage: entries, what a code object remembers, regions, and the thread's state.
#pragma once
#include "frame_compat.h"

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

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
    std::unordered_set<uint64_t>* full;  // serials of the code objects that this region runs eagerly, its bucket being at the limit
};

enum class Mark : uint8_t { eligible, skip, skip_recursive };

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
};

constexpr long default_bucket = -1;

// The region that this thread is in; on_miss is null where frames run plainly.
struct Thread {
    RegionState* state;
    PyObject* on_miss;
    bool compiling;
};
Thread& this_thread();

// Sets the thread's region for a C++ scope and restores it.
class RegionScope {
  public:
    RegionScope(RegionState* state, PyObject* on_miss) : thread_(this_thread()), saved_(thread_) {
        thread_.state = state;
        thread_.on_miss = on_miss;
    }
    ~RegionScope() { thread_ = saved_; }
    void compiling() { thread_.compiling = true; }

  private:
    Thread& thread_;
    Thread saved_;
};

// dispatch.cpp
Extra* find_extra(PyCodeObject* code);
Extra* need_extra(PyCodeObject* code);  // makes and classifies it; null with an error set
Entry* lookup(Extra* extra, long bucket, long kind, Frame* frame);  // borrowed
bool add_entry(PyCodeObject* original, const RegionState& state, Entry* entry);
Py_ssize_t count_entries(const Extra& extra, const RegionState& state);  // in its bucket, of its kind
Py_ssize_t count_entries(const Extra& extra);
PyObject* bucket_entries(const Extra& extra, long bucket);  // new tuple
void drop_bucket(long bucket);
void mark_used(Entry* entry);
extern PyTypeObject* entry_type;
bool has_skip_rule(PyCodeObject* code);  // of torch, the standard library, the compiler: no code of the program
bool init_dispatch(PyObject* module);

// index.cpp
std::unique_ptr<IndexNode> build_index(const std::vector<Entry*>& entries);
void find_candidates(const IndexNode& index, const Roots& roots, Candidates& into);  // most recently used first

// hook.cpp
void hook_enter(_PyFrameEvalFunction* previous);
void hook_leave(_PyFrameEvalFunction previous);

// proxy.cpp
PyObject* new_proxy(Frame* frame, Extra* extra, const RegionState* state);
void end_proxy(PyObject* proxy);
bool proxy_frame(PyObject* object, Frame** frame);  // false: not a proxy, or one that is over
const char* limit_reached(const Extra& extra, const RegionState& state);
extern PyObject *answer_null, *answer_skip, *answer_skip_recursive, *answer_run_once, *answer_run_plainly;
bool init_proxy(PyObject* module);

// region.cpp
bool init_region(PyObject* module);

}  // namespace dynacompile
