// Who watches the frames of a thread: its trace function, its profile function, and the tools of sys.monitoring.
#pragma once
#include <cstdint>

namespace dynacompile {

struct Watchers {
    PyObject* tracer;    // borrowed, and compared alone
    PyObject* profiler;  // likewise
    uint8_t tools;       // of sys.monitoring, as bits
};

extern const uint8_t* tools_of_events;  // the interpreter's own: the tools of each event

inline uint8_t monitoring_tools() {
    uint8_t tools = 0;
    for (int i = 0; i < monitored_events; i++) tools |= tools_of_events[i];
    return tools & 0x3f;  // the last two are sys.setprofile's and sys.settrace's, of whatever thread
}

inline Watchers watchers_of(const PyThreadState* ts) { return {ts->c_traceobj, ts->c_profileobj, monitoring_tools()}; }

// Whether somebody watches the thread who did not `then`.
inline bool is_watched_since(const Watchers& then, const PyThreadState* ts) {
    return (ts->c_traceobj && ts->c_traceobj != then.tracer) || (ts->c_profileobj && ts->c_profileobj != then.profiler) || (monitoring_tools() & ~then.tools);
}

void init_watchers(PyInterpreterState* interpreter);

}  // namespace dynacompile
