// What torch's autograd has of writes to views: nodes that hold the operation's own node, which Python does not show, and histories that lag behind.
#include "runtime/region.h"
#include "runtime/torch_autograd.h"

#include <torch/csrc/autograd/functions/tensor.h>

#include <unordered_set>

namespace torch::autograd {
using HeldNode = decltype(CopySlices::fn);  // shared_ptr up to torch 2.11, intrusive_ptr later
DYNACOMPILE_IMPORTED PyObject* functionToPyObject(const HeldNode& node);
}  // namespace torch::autograd

namespace dynacompile::runtime {

// view_writes(tensors): what their histories have, each as (autograd's node, the operation's).
PyObject* view_writes(PyObject*, PyObject* tensors) {
    using torch::autograd::HeldNode;
    std::vector<HeldNode> pending;
    std::unordered_set<torch::autograd::Node*> entered;
    auto enter = [&](const HeldNode& node) {
        if (node && entered.insert(node.get()).second) pending.push_back(node);
    };
    for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); ++i) enter(tensor_of(impl_of(item(tensors, i))).grad_fn());
    PyRef found = PyRef::take(checked(PyList_New(0)));
    while (!pending.empty()) {
        const HeldNode node = std::move(pending.back());
        pending.pop_back();
        for (const torch::autograd::Edge& edge : node->next_edges()) enter(edge.function);
        const auto* write = dynamic_cast<const torch::autograd::CopySlices*>(node.get());
        if (!write) continue;
        const PyRef outer = PyRef::take(checked(torch::autograd::functionToPyObject(node)));
        const PyRef inner = PyRef::take(checked(torch::autograd::functionToPyObject(write->fn)));
        const PyRef row = PyRef::take(checked(PyTuple_Pack(2, outer.get(), inner.get())));
        if (PyList_Append(found.get(), row.get()) < 0) throw PythonErrorSet();
    }
    return found.release();
}

// A view gets the history of its base, whose last write torch finds by the version: an operation that counts two writes to the same memory before it gives
// either a history, as `torch._foreach_mul_([v, v], 2)`, leaves the view with that of the first one. A write to it goes on from the base, which has both.
void renew_history(const at::Tensor& tensor) {
    auto* view = torch::autograd::impl::get_view_autograd_meta(tensor);
    if (!view || !view->has_bw_view() || !tensor.requires_grad()) return;
    if (view->get_creation_meta() != torch::autograd::CreationMeta::DEFAULT) return;  // autograd refuses the write
    const auto own = tensor.grad_fn(), base = view->get_backward_view().base_.grad_fn();
    const torch::autograd::Node* node = own.get();
    while (node && node != base.get() && node->num_outputs() == 1) node = node->next_edge(0).function.get();
    if (node != base.get()) view->set_attr_version(view->get_attr_version() - 1);
}

}  // namespace dynacompile::runtime
