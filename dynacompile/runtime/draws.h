// Random numbers of a GPU's default generator, for kernels that draw them.
#pragma once

#include "runtime/externs.h"

namespace dynacompile::runtime {

inline constexpr const char* draw_name = "dynacompile::draw";

// args: (by how much the generator moves on, ...). output: the buffer that gets its seed and its offset, -1 where nothing reads them.
std::unique_ptr<ExternCall> make_draw(PyObject* args, int64_t output, c10::Device device);

}  // namespace dynacompile::runtime
