// The interpreter's lock (GIL) of the CPython that runs, to be looked at. Include first.
#pragma once
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE
#endif
#define DYNACOMPILE_LOCK
#include "cpython/cpython.h"
#undef Py_BUILD_CORE
