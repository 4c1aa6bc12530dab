// A call of an op through torch's dispatcher, its constant arguments converted once.
#pragma once

#include "runtime/program.h"

namespace dynacompile::runtime {

class ExternCall {
public:
    virtual ~ExternCall() = default;
    virtual void call(Frame& frame) const = 0;
    virtual std::vector<int32_t> operands() const = 0;  // buffers that it takes as tensors
};

// name, overload: the op. args: one per schema argument: a buffer number (or tuple of them) where the schema wants tensors, Ellipsis for the
// schema's default, else the value. outputs: a buffer per returned tensor, -1 where unused. in_place: the op writes into planned buffers (an out= overload).
std::unique_ptr<ExternCall> make_extern(const std::string& name, const std::string& overload, PyObject* args, std::vector<int64_t> outputs, bool in_place);

}  // namespace dynacompile::runtime
