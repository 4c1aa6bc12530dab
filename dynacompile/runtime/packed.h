// A product with a weight that is kept in the library's own layout from call to call.
#pragma once

#include "runtime/externs.h"

namespace dynacompile::runtime {

inline constexpr const char* packed_name = "dynacompile::packed_product";

// args: (buffer of x, of the weight, of the bias or None, whether the weight is (k, n)). output: the buffer of the result.
std::unique_ptr<ExternCall> make_packed(PyObject* args, int64_t output);

}  // namespace dynacompile::runtime
