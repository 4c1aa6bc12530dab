// Live frames of the CPython that runs. Include first.
#pragma once
#ifndef Py_BUILD_CORE
#define Py_BUILD_CORE
#endif
#define DYNACOMPILE_FRAMES
#include <Python.h>
#include <opcode.h>

#include "cpython/cpython.h"
#undef Py_BUILD_CORE
