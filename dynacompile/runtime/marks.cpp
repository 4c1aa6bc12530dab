// What the runtime does so that autograd finds the state that eager would have left: inference tensors, and flags for gradients that have not come.
#include "runtime/region.h"

#include <ATen/ops/full_ops.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>

namespace dynacompile::runtime {

at::Tensor plain_alias(const at::Tensor& tensor) {
    at::Tensor alias = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(tensor.storage()), tensor.key_set(), tensor.dtype());
    alias.unsafeGetTensorImpl()->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
    return alias;
}

at::Tensor inference_alias(const at::Tensor& tensor) {
    c10::InferenceMode mode;
    return plain_alias(tensor);
}

namespace {

void set_version(c10::TensorImpl* impl, uint32_t version) {
    if (impl->is_inference()) return;
    c10::VariableVersion counter = impl->version_counter();
    counter.set_version(version);
}

}  // namespace

Versions::Versions(const Contract& contract, const Inputs& inputs) : contract(contract) {
    for (auto [input, writes] : contract.marks.input_writes) {
        c10::TensorImpl* impl = inputs.impls[input];
        before.push_back(impl && !impl->is_inference() ? impl->version_counter().current_version() : 0);
    }
}

void Versions::count(const Inputs& inputs) const {
    for (size_t i = 0; i < before.size(); ++i) count_input(inputs, i);
}

void Versions::count_in_graph(const Inputs& inputs) const {
    const std::vector<int64_t>& in_graph = contract.mutated_in_graph;
    for (size_t i = 0; i < before.size(); ++i)
        if (std::find(in_graph.begin(), in_graph.end(), contract.marks.input_writes[i].first) != in_graph.end()) count_input(inputs, i);
}

void Versions::count_input(const Inputs& inputs, size_t i) const {
    auto [input, writes] = contract.marks.input_writes[i];
    if (inputs.impls[input]) set_version(inputs.impls[input], before[i] + uint32_t(writes));
}

void count_writes(const Contract& contract, const Tensors& outputs) {
    for (auto [position, writes] : contract.marks.output_writes) set_version(outputs[position].unsafeGetTensorImpl(), uint32_t(writes));
}

at::Tensor Region::flag(bool value, c10::Device device) {
    std::lock_guard<std::mutex> lock(remembering_);
    at::Tensor& known = flags_[value];
    if (!known.defined() || known.device() != device) known = at::_ops::full::call({}, value, at::kBool, std::nullopt, device, std::nullopt);
    return known;
}

namespace {

std::vector<Part> read_parts(PyObject* rows) {
    std::vector<Part> parts;
    for (Py_ssize_t i = 0; i < PyTuple_Size(rows); ++i) parts.emplace_back(to_ints(item(item(rows, i), 0)), to_ints(item(item(rows, i), 1)));
    return parts;
}

}  // namespace

Marks read_marks(PyObject* row) {
    Marks marks;
    marks.inference = to_ints(item(row, 0));
    for (Py_ssize_t i = 0; i < PyTuple_Size(item(row, 1)); ++i) {
        PyObject* told = item(item(row, 1), i);
        marks.watches.push_back({PyObject_IsTrue(item(told, 0)) == 1, int32_t(to_int(item(told, 1))), read_parts(item(told, 2)), read_parts(item(told, 3))});
    }
    for (Py_ssize_t i = 0; i < PyTuple_Size(item(row, 2)); ++i) marks.flags.push_back(to_ints(item(item(row, 2), i)));
    marks.parts = read_parts(item(row, 5));
    for (Py_ssize_t i = 0; i < PyTuple_Size(item(row, 6)); ++i) marks.needs.push_back(read_parts(item(item(row, 6), i)));
    for (Py_ssize_t i = 0; i < PyTuple_Size(item(row, 7)); ++i) marks.keeps.push_back(read_parts(item(item(row, 7), i)));
    for (int64_t saved : to_ints(item(row, 8))) {
        if (size_t(saved) >= marks.aliased.size()) marks.aliased.resize(saved + 1);
        marks.aliased[saved] = true;
    }
    marks.makers = read_parts(item(row, 9));
    marks.views = read_parts(item(row, 10));
    for (auto [index, writes] : {std::pair(3, &marks.input_writes), std::pair(4, &marks.output_writes)}) {
        PyObject* rows = item(row, index);
        for (Py_ssize_t i = 0; i < PyTuple_Size(rows); ++i) writes->emplace_back(int32_t(to_int(item(item(rows, i), 0))), int32_t(to_int(item(item(rows, i), 1))));
    }
    return marks;
}

}  // namespace dynacompile::runtime
