#include "runtime/again.h"
#include "runtime/asked.h"

#include <ATen/Context.h>
#include <ATen/LegacyBatchedTensorImpl.h>

#include <algorithm>
#include <mutex>
#include <unordered_set>

namespace torch::autograd {
DYNACOMPILE_IMPORTED PyObject* functionToPyObject(const decltype(Edge::function)& node);
}  // namespace torch::autograd

namespace dynacompile::runtime {
namespace {

using NodePtr = decltype(torch::autograd::Edge::function);  // shared_ptr up to torch 2.11, intrusive_ptr later

PyRef tuple_of(const std::vector<int64_t>& numbers) {
    PyRef found = PyRef::take(checked(PyTuple_New(Py_ssize_t(numbers.size()))));
    for (size_t i = 0; i < numbers.size(); ++i) PyTuple_SET_ITEM(found.get(), Py_ssize_t(i), checked(PyLong_FromLongLong(numbers[i])));
    return found;
}

const torch::autograd::Edge& way_of_running(int64_t gradient) {
    const auto* node = dynamic_cast<const Partial*>(torch::autograd::get_current_node().get());
    if (!node || gradient < 0 || size_t(gradient) >= node->ways()) raise(PyExc_RuntimeError, "no autograd node of a region runs that gives this gradient");
    return node->way(size_t(gradient));
}

}  // namespace

Generators Again::generators() const {
    Generators found;
    for (const c10::Device& device : draws) {
        at::Generator generator = at::globalContext().defaultGenerator(device);
        std::lock_guard<std::mutex> lock(generator.mutex());
        found.push_back(generator.clone());
    }
    return found;
}

void Primals::remember(const Again& again, const Inputs& inputs, Generators generators) {
    kept_.reserve(again.kept.size() + again.outputs.size());
    for (int64_t input : again.kept) {
        c10::TensorImpl* impl = inputs.impls[input];
        if (!impl) fail("input ", input, " is kept for double backward and is no tensor");
        at::Tensor tensor = tensor_of(impl);
        const bool is_accumulated = tensor.requires_grad() && tensor.is_leaf() &&
                                    std::find(again.accumulated.begin(), again.accumulated.end(), input) != again.accumulated.end();
        if (is_accumulated)
            kept_.push_back({{}, int64_t(tensor._version())});
        else
            kept_.push_back({torch::autograd::SavedVariable(tensor.is_inference() ? plain_alias(tensor) : tensor, false), -1});
    }
    if (again.has_numbers) numbers_.assign(inputs.numbers.begin(), inputs.numbers.end());
    for (int64_t input : again.measured)
        if (const c10::TensorImpl* impl = inputs.impls[input]) shapes_.emplace_back(impl->sizes().vec(), impl->strides().vec());
    generators_ = std::move(generators);
}

PyRef Primals::with_rest(PyRef values) const {
    PyRef shapes = PyRef::take(checked(PyTuple_New(Py_ssize_t(shapes_.size()))));
    for (size_t i = 0; i < shapes_.size(); ++i) {
        PyRef size = tuple_of(shapes_[i].first), stride = tuple_of(shapes_[i].second);
        PyTuple_SET_ITEM(shapes.get(), Py_ssize_t(i), checked(PyTuple_Pack(2, size.get(), stride.get())));
    }
    PyRef states = PyRef::take(checked(PyTuple_New(Py_ssize_t(generators_.size()))));
    for (size_t i = 0; i < generators_.size(); ++i) PyTuple_SET_ITEM(states.get(), Py_ssize_t(i), wrap(generators_[i].get_state()));
    PyRef numbers = tuple_of(numbers_);
    return PyRef::take(checked(PyTuple_Pack(4, values.get(), numbers.get(), shapes.get(), states.get())));
}

// set_again(differentiable, call, kept, measured, accumulated, copies, outputs, has_numbers, draws)
PyObject* set_again(PyObject*, PyObject* args) {
    PyObject *differentiable, *call, *kept, *measured, *accumulated, *copies, *outputs, *draws;
    int has_numbers;
    if (!PyArg_ParseTuple(args, "OOOOOO!OpO!", &differentiable, &call, &kept, &measured, &accumulated, &PyTuple_Type, &copies, &outputs, &has_numbers,
                          &PyTuple_Type, &draws))
        return nullptr;
    try {
        auto made = std::make_unique<Again>();
        made->call = PyRef::share(call);
        made->kept = to_ints(kept);
        made->measured = to_ints(measured);
        made->accumulated = to_ints(accumulated);
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(copies); ++i) {
            PyObject* row = PyTuple_GET_ITEM(copies, i);
            made->copies.emplace_back(to_int(item(row, 0)), to_int(item(row, 1)));
        }
        made->outputs = to_ints(outputs);
        made->has_numbers = has_numbers != 0;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(draws); ++i) made->draws.emplace_back(to_string(PyTuple_GET_ITEM(draws, i)));
        region_of(differentiable)->again = std::move(made);
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// unbatched(tensor) -> (the tensor without the innermost batch that torch.autograd's own vmap gave it, the dimension of that batch, its level), or None
PyObject* unbatched(PyObject*, PyObject* tensor) {
    try {
        if (!is_tensor(tensor)) raise(PyExc_TypeError, "unbatched takes a tensor");
        const at::Tensor given = tensor_of(impl_of(tensor));
        const at::BatchedTensorImpl* batched = at::maybeGetBatchedImpl(given);
        if (!batched) Py_RETURN_NONE;
        at::BatchDims rest(batched->bdims().begin(), batched->bdims().end());
        const at::BatchDim last = rest.pop_back_val();
        int64_t dim = last.dim();
        for (const at::BatchDim& other : rest) dim -= other.dim() < last.dim();
        PyRef value = PyRef::take(wrap(rest.empty() ? batched->value() : at::makeBatched(batched->value(), rest)));
        return Py_BuildValue("OLL", value.get(), static_cast<long long>(dim), static_cast<long long>(last.level()));
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// stand_above_node(tensors): their nodes, which are new, count as lying above the node that runs, by which torch prunes its ways. Nodes that are made of
// them later may have edges to it.
PyObject* stand_above_node(PyObject*, PyObject* tensors) {
    try {
        const NodePtr node = torch::autograd::get_current_node();
        for (Py_ssize_t i = 0; i < PyTuple_Size(tensors); ++i)
            if (const NodePtr above = tensor_of(impl_of(item(tensors, i))).grad_fn()) above->update_topological_nr({node, 0});
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// node_behind(gradient): the node to which the region's node that runs gives this gradient.
PyObject* node_behind(PyObject*, PyObject* gradient) {
    try {
        return checked(torch::autograd::functionToPyObject(way_of_running(to_int(gradient)).function));
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// lead(tensor, to): from now on gradients of the tensor go where those of the tensor `to` go.
PyObject* lead(PyObject*, PyObject* args) {
    PyObject *tensor, *to;
    if (!PyArg_ParseTuple(args, "OO", &tensor, &to)) return nullptr;
    try {
        torch::autograd::impl::set_gradient_edge(tensor_of(impl_of(tensor)), torch::autograd::impl::gradient_edge(tensor_of(impl_of(to))));
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// lead_to_node(gradients, ((result, tangent), ...), ((leaf, gradient), ...), ends): wherever the history of the gradients comes to a result of the replay,
// it goes on at the node that runs, at its tangent of this number, as in eager it does at the result of the call. Where it comes to one of the leaves, it
// goes on where this node gives the gradient of this number. Nothing is changed beyond the nodes of ends.
PyObject* lead_to_node(PyObject*, PyObject* args) {
    PyObject *gradients, *results, *leaves, *ends;
    if (!PyArg_ParseTuple(args, "O!O!O!O!", &PyTuple_Type, &gradients, &PyTuple_Type, &results, &PyTuple_Type, &leaves, &PyTuple_Type, &ends)) return nullptr;
    try {
        const NodePtr node = torch::autograd::get_current_node();
        if (!node) raise(PyExc_RuntimeError, "no autograd node runs");
        auto node_of = [](PyObject* tensor) { return tensor_of(impl_of(tensor)).grad_fn(); };
        std::vector<std::pair<torch::autograd::Edge, torch::autograd::Edge>> known;
        auto know = [&](PyObject* row, torch::autograd::Edge further) {
            known.emplace_back(torch::autograd::impl::gradient_edge(tensor_of(impl_of(item(row, 0)))), std::move(further));
        };
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
            PyObject* row = PyTuple_GET_ITEM(results, i);
            know(row, {node, uint32_t(to_int(item(row, 1)))});
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leaves); ++i) {
            PyObject* row = PyTuple_GET_ITEM(leaves, i);
            know(row, way_of_running(to_int(item(row, 1))));
        }
        std::unordered_set<torch::autograd::Node*> seen{node.get(), nullptr};
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ends); ++i) seen.insert(node_of(PyTuple_GET_ITEM(ends, i)).get());
        std::vector<torch::autograd::Node*> pending;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(gradients); ++i) {
            const NodePtr start = node_of(PyTuple_GET_ITEM(gradients, i));
            if (seen.insert(start.get()).second) pending.push_back(start.get());
        }
        while (!pending.empty()) {
            torch::autograd::Node* at = pending.back();
            pending.pop_back();
            for (torch::autograd::Edge& edge : at->next_edges()) {
                auto found = std::find_if(known.begin(), known.end(), [&](const auto& row) { return row.first == edge; });
                if (found != known.end())
                    edge = found->second;
                else if (seen.insert(edge.function.get()).second)
                    pending.push_back(edge.function.get());
            }
        }
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

}  // namespace dynacompile::runtime
