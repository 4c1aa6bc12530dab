// What an autograd node keeps of a call so that its backward can be differentiated again.
#pragma once

#include "runtime/region.h"
#include "runtime/torch_autograd.h"

#include <algorithm>
#include <utility>

namespace dynacompile::runtime {

class Primals {
public:
    void remember(const Again& again, const Inputs& inputs, Generators generators);
    void keep(const at::Tensor& output) { kept_.push_back({torch::autograd::SavedVariable(output, false), -1}); }
    void release() { kept_.clear(); }

    // (values of Again::kept and Again::outputs, where a leaf is kept by its AccumulateGrad its version alone; numbers; (sizes, strides) of Again::measured; states of the
    // generators). outputs: how many of the last are left out. Holds the GIL.
    template <typename NodePtr>
    PyRef unpack(const NodePtr& node, size_t outputs = 0) const {
        const size_t count = kept_.size() - std::min(outputs, kept_.size());
        PyRef values = PyRef::take(checked(PyTuple_New(Py_ssize_t(count))));
        for (size_t i = 0; i < count; ++i) {
            const Kept& kept = kept_[i];
            PyTuple_SET_ITEM(values.get(), Py_ssize_t(i), kept.version < 0 ? wrap(kept.saved.unpack(node)) : checked(PyLong_FromLongLong(kept.version)));
        }
        return with_rest(std::move(values));
    }

private:
    struct Kept {
        torch::autograd::SavedVariable saved;
        int64_t version = -1;  // of a leaf
    };
    using Numbers = std::vector<int64_t>;
    PyRef with_rest(PyRef values) const;

    std::vector<Kept> kept_;
    Numbers numbers_;
    std::vector<std::pair<Numbers, Numbers>> shapes_;
    Generators generators_;
};

}  // namespace dynacompile::runtime
