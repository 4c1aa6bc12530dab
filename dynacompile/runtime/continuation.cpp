#include "runtime/continuation.h"

#include "runtime/wrapped.h"

#include <ATen/ops/clone_ops.h>

#include <torch/csrc/autograd/function_hook.h>

namespace dynacompile::runtime {

using torch::autograd::Edge;
using torch::autograd::edge_list;
using torch::autograd::Node;
using torch::autograd::variable_list;

namespace {

void delete_rest(void* rest) { delete static_cast<Rest*>(rest); }

// A tensor of no elements.
at::Tensor empty_token(c10::DataPtr memory) {
    const c10::Device device = memory.device();
    auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), 0, std::move(memory), nullptr, false);
    const c10::DispatchKeySet keys(device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU);
    return at::detail::make_tensor<c10::TensorImpl>(c10::Storage(std::move(storage)), keys, caffe2::TypeMeta::Make<float>());
}

Rest& rest_of(const at::Tensor& token) {
    if (!token.defined() || !token.has_storage() || token.storage().data_ptr().get_deleter() != &delete_rest)
        fail("a node that goes on with the backward of a compiled region is run by the node before it alone");
    return *static_cast<Rest*>(token.storage().data_ptr().get_context());
}

}  // namespace

void own_memory(variable_list& grads, const Partial& node) {
    for (size_t i = 0; i < grads.size(); ++i) {
        if (!grads[i].defined()) continue;
        if (!accumulation(node.way(i).function.get())) continue;
        if (grads[i].use_count() == 1 && grads[i].storage().use_count() > 1) grads[i] = at::_ops::clone::call(grads[i], std::nullopt);
    }
}

at::Tensor make_token(std::unique_ptr<Rest> rest, c10::Device device) { return empty_token({nullptr, rest.release(), &delete_rest, device}); }

variable_list Continuation::apply(variable_list&& tokens) {
    if (tokens.empty()) fail("a node that goes on with the backward of a compiled region has no token");
    at::Tensor token = std::move(tokens[0]);
    Rest& rest = rest_of(token);
    const bool runs = bool(rest.run);
    if (runs) rest.head->go_on(rest, stop_);
    variable_list grads(num_outputs());
    for (size_t i = 0; i < ways_.size(); ++i) grads[i] = std::move(rest.grads[ways_[i]]);
    if (runs) {
        BelowAutograd below;
        own_memory(grads, *this);
    }
    if (grads.size() > ways_.size() && task_should_compute_output(ways_.size())) grads.back() = std::move(token);
    return grads;
}

bool has_listener(const edge_list& edges) {
    for (const Edge& edge : edges) {
        Node* node = accumulation(edge.function.get());
        if (node && (!node->post_hooks().empty() || node->tensor_post_acc_grad_hooks())) return true;
    }
    return false;
}

Chain make_chain(Head& head, const std::vector<std::vector<int64_t>>& gives, c10::Device device) {
    Chain chain;
    const size_t count = head.num_outputs(), last = gives.size();
    std::vector<size_t> stops(count, last);
    for (size_t stop = 0; stop < last; ++stop)
        for (int64_t way : gives[stop]) stops[size_t(way)] = stop;
    std::vector<std::vector<size_t>> ways(last + 1);
    for (size_t way = 0; way < count; ++way)
        if (head.next_edge(way).is_valid()) ways[stops[way]].push_back(way);
    std::vector<size_t> used;
    for (size_t stop = 0; stop <= last; ++stop)
        if (!ways[stop].empty()) used.push_back(stop);
    chain.places.resize(count, {0, 0});
    for (uint32_t way = 0; way < count; ++way) chain.places[way].place = way;
    chain.first_stop = used.empty() ? last : used[0];
    if (used.size() < 2) return chain;
    chain.nodes.resize(used.size() - 1);
    const at::Tensor like = empty_token({nullptr, device});
    Edge next;
    for (size_t k = used.size() - 1; k > 0; --k) {
        const std::vector<size_t>& own = ways[used[k]];
        edge_list edges;
        edges.reserve(own.size() + 1);
        for (size_t way : own) {
            chain.places[way] = {uint32_t(k), uint32_t(edges.size())};
            edges.push_back(std::move(head.next_edges()[way]));
            head.next_edges()[way] = Edge();
        }
        if (next.is_valid()) edges.push_back(std::move(next));
        auto node = make_node<Continuation>(used[k], own, std::move(edges));
        node->add_input_metadata(like);
        chain.nodes[k - 1] = node.get();
        next = Edge(std::move(node), 0);
    }
    head.add_next_edge(std::move(next));
    return chain;
}

}  // namespace dynacompile::runtime
