// What differs between CPython's versions: one header for each, chosen here. `frames.h` and `lock.h` include more of it, with Python's
// internal headers, which take long to read.
#include <Python.h>

#if PY_VERSION_HEX >= 0x030E0000
#error "the native core knows CPython 3.11 to 3.13: a later one needs a header of its own beside this one"
#elif PY_VERSION_HEX >= 0x030D0000
#include "cpython/v313.h"
#elif PY_VERSION_HEX >= 0x030C0000
#include "cpython/v312.h"
#elif PY_VERSION_HEX >= 0x030B0000
#include "cpython/v311.h"
#else
#error "the native core knows CPython 3.11 to 3.13"
#endif
