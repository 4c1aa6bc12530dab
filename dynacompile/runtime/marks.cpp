// What the runtime does so that autograd finds the state that eager would have left: inference tensors, and flags for gradients that have not come.
#include "runtime/region.h"

#include <ATen/ops/full_ops.h>
#include <c10/core/InferenceMode.h>

namespace dynacompile::runtime {

at::Tensor inference_alias(const at::Tensor& tensor) {
    c10::InferenceMode mode;
    at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
    alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return alias;
}

at::Tensor Region::flag(bool value, c10::Device device) {
    std::lock_guard<std::mutex> lock(remembering_);
    at::Tensor& known = flags_[value];
    if (!known.defined() || known.device() != device) known = at::_ops::full::call({}, value, at::kBool, std::nullopt, device, std::nullopt);
    return known;
}

Marks read_marks(PyObject* row) {
    Marks marks;
    marks.inference = to_ints(item(row, 0));
    for (Py_ssize_t i = 0; i < PyTuple_Size(item(row, 1)); ++i) {
        PyObject* told = item(item(row, 1), i);
        Watch watch{PyObject_IsTrue(item(told, 0)) == 1, int32_t(to_int(item(told, 1))), {}};
        for (Py_ssize_t j = 0; j < PyTuple_Size(item(told, 2)); ++j) {
            PyObject* part = item(item(told, 2), j);
            watch.parts.emplace_back(to_ints(item(part, 0)), to_ints(item(part, 1)));
        }
        marks.watches.push_back(std::move(watch));
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(item(row, 2)); ++i) marks.flags.push_back(to_ints(item(item(row, 2), i)));
    marks.loose = to_ints(item(row, 3));
    return marks;
}

}  // namespace dynacompile::runtime
