#include "runtime/again.h"
#include "runtime/asked.h"

#include <ATen/Context.h>
#include <ATen/LegacyBatchedTensorImpl.h>
#include <torch/csrc/autograd/functions/tensor.h>

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

using Edge = torch::autograd::Edge;
using Rows = std::vector<std::pair<Edge, Edge>>;

Edge edge_of(PyObject* tensor) { return torch::autograd::impl::gradient_edge(tensor_of(impl_of(tensor))); }

// The number by which torch prunes its ways: that of each node is above those of the nodes to which it has edges. torch has no setter for it.
struct Numbered : torch::autograd::Node {
    static constexpr auto member() { return &Numbered::topological_nr_; }
};

// Has the edges of the nodes from these on go where the rows tell, but for what lies beyond the nodes in seen. visit: is called with each node.
template <typename Visit>
void lead_edges(std::vector<torch::autograd::Node*> pending, std::unordered_set<torch::autograd::Node*>& seen, const Rows& rows, Visit visit) {
    auto lead = [&](torch::autograd::Node* at, bool go_on) {
        for (Edge& edge : at->next_edges()) {
            auto found = std::find_if(rows.begin(), rows.end(), [&](const auto& row) { return row.first == edge; });
            if (found != rows.end())
                edge = found->second;
            else if (go_on && seen.insert(edge.function.get()).second)
                pending.push_back(edge.function.get());
        }
    };
    while (!pending.empty()) {
        torch::autograd::Node* at = pending.back();
        pending.pop_back();
        lead(at, true);
        if (const auto* write = dynamic_cast<const torch::autograd::CopySlices*>(at); write && write->fn) lead(write->fn.get(), false);
        visit(at);
    }
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
        const auto* node = dynamic_cast<const Partial*>(torch::autograd::get_current_node().get());
        const int64_t way = to_int(gradient);
        if (!node || way < 0 || size_t(way) >= node->ways()) raise(PyExc_RuntimeError, "no autograd node of a region runs that gives this gradient");
        return checked(torch::autograd::functionToPyObject(node->way(size_t(way)).function));
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// lead_to_ends(results, ((leaf, end), ...), ends): wherever the history of the results comes to one of the leaves, it goes on at this end, a view of it.
// The nodes up to the ends count as above the node that runs, as those do that are made of tensors that were given to stand_above_node.
PyObject* lead_to_ends(PyObject*, PyObject* args) {
    PyObject *results, *leaves, *ends;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &results, &PyTuple_Type, &leaves, &PyTuple_Type, &ends)) return nullptr;
    try {
        const NodePtr node = torch::autograd::get_current_node();
        if (!node) raise(PyExc_RuntimeError, "no autograd node runs");
        Rows rows;
        std::unordered_set<torch::autograd::Node*> seen{node.get(), nullptr};
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(leaves); ++i) {
            PyObject* row = PyTuple_GET_ITEM(leaves, i);
            rows.emplace_back(edge_of(item(row, 0)), edge_of(item(row, 1)));
        }
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ends); ++i) seen.insert(edge_of(PyTuple_GET_ITEM(ends, i)).function.get());
        std::vector<torch::autograd::Node*> starts;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
            const NodePtr start = tensor_of(impl_of(PyTuple_GET_ITEM(results, i))).grad_fn();
            if (seen.insert(start.get()).second) starts.push_back(start.get());
        }
        const uint64_t above = node->topological_nr() + 2;  // of the ends
        lead_edges(std::move(starts), seen, rows, [&](torch::autograd::Node* at) {
            if (at->num_outputs()) at->*Numbered::member() += above;
        });
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

// lead_to_node(gradients, ((result, tangent), ...), ends): wherever the history of the gradients comes to a result of the replay, it goes on at the node
// that runs, at its tangent of this number, as in eager it does at the result of the call. Nothing is changed beyond the nodes of ends.
PyObject* lead_to_node(PyObject*, PyObject* args) {
    PyObject *gradients, *results, *ends;
    if (!PyArg_ParseTuple(args, "O!O!O!", &PyTuple_Type, &gradients, &PyTuple_Type, &results, &PyTuple_Type, &ends)) return nullptr;
    try {
        const NodePtr node = torch::autograd::get_current_node();
        if (!node) raise(PyExc_RuntimeError, "no autograd node runs");
        auto node_of = [](PyObject* tensor) { return tensor_of(impl_of(tensor)).grad_fn(); };
        Rows rows;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(results); ++i) {
            PyObject* row = PyTuple_GET_ITEM(results, i);
            rows.emplace_back(edge_of(item(row, 0)), Edge(node, uint32_t(to_int(item(row, 1)))));
        }
        std::unordered_set<torch::autograd::Node*> seen{node.get(), nullptr};
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(ends); ++i) seen.insert(node_of(PyTuple_GET_ITEM(ends, i)).get());
        std::vector<torch::autograd::Node*> starts;
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(gradients); ++i) {
            const NodePtr start = node_of(PyTuple_GET_ITEM(gradients, i));
            if (seen.insert(start.get()).second) starts.push_back(start.get());
        }
        lead_edges(std::move(starts), seen, rows, [](torch::autograd::Node*) {});
        Py_RETURN_NONE;
    } catch (...) {
        set_python_error();
        return nullptr;
    }
}

}  // namespace dynacompile::runtime
