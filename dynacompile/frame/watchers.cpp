// Where the interpreter says which tools of sys.monitoring are told of what.
#include "cpython/lock.h"

#include "frame/watchers.h"

namespace dynacompile {

const uint8_t* tools_of_events = nullptr;

void init_watchers(PyInterpreterState* interpreter) { tools_of_events = monitoring_tools(interpreter); }

}  // namespace dynacompile
