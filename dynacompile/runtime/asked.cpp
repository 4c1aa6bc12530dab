#include "runtime/asked.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

namespace dynacompile::runtime {
namespace {

using torch::autograd::Edge;
using torch::autograd::GraphTask;
using torch::autograd::Node;

using Infos = std::unordered_map<Node*, GraphTask::ExecInfo>;

// Whether gradients are returned, as by torch.autograd.grad, and not accumulated, as by backward(inputs=...).
bool gives_gradients(const Infos& infos) {
    return std::any_of(infos.begin(), infos.end(), [](const auto& row) { return bool(row.second.captures_); });
}

// Whether the pass is asked for the gradient that comes to a node, which it comes through. A tensor with a history whose gradient is to be accumulated is
// known by what retains it.
bool is_end(Node& node, uint32_t tangent, const GraphTask::ExecInfo& info, bool gives) {
    if (node.num_outputs() == 0) return true;
    if (!gives) return node.retains_grad_hooks().count(tangent) != 0;
    return info.captures_ && std::any_of(info.captures_->begin(), info.captures_->end(), [&](const auto& c) { return c.input_idx_ == int(tangent); });
}

}  // namespace

bool is_asked(const Partial& node, size_t way) {
    if (!node.is_wanted(way)) return false;
    const auto* infos = torch::autograd::get_current_graph_task_exec_info();
    if (!infos || infos->empty()) return true;  // all gradients are
    const bool gives = gives_gradients(*infos);
    std::set<std::pair<const Node*, uint32_t>> seen;
    std::vector<Edge> pending{node.way(way)};
    while (!pending.empty()) {
        const Edge at = std::move(pending.back());
        pending.pop_back();
        if (!at.is_valid() || !seen.emplace(at.function.get(), at.input_nr).second) continue;
        const auto found = infos->find(at.function.get());
        if (found == infos->end() || !found->second.should_execute()) continue;
        if (is_end(*at.function, at.input_nr, found->second, gives)) return true;
        const auto* partial = dynamic_cast<const Partial*>(at.function.get());
        for (size_t i = 0; i < (partial ? partial->ways() : at.function->num_outputs()); ++i) {
            if (!partial)
                pending.push_back(at.function->next_edge(i));
            else if (partial->flows(at.input_nr, i))
                pending.push_back(partial->way(i));
        }
    }
    return false;
}

bool is_end(Partial& node, const std::vector<int64_t>& tangents) {
    const auto* infos = torch::autograd::get_current_graph_task_exec_info();
    const auto found = infos ? infos->find(&node) : Infos::const_iterator();
    if (!infos || found == infos->end()) return false;
    const bool gives = gives_gradients(*infos);
    return std::any_of(tangents.begin(), tangents.end(), [&](int64_t tangent) { return is_end(node, uint32_t(tangent), found->second, gives); });
}

namespace {

using torch::autograd::FunctionPreHook;
using torch::autograd::variable_list;

// What retains the gradient of a tensor. torch moves it to another node where the tensor is written: there it retains what comes.
struct Retaining final : public FunctionPreHook {
    Retaining(FunctionPreHook* hook, uint32_t tangent) : hook(hook), tangent(tangent) {}
    variable_list operator()(const variable_list& grads) override {
        const auto node = torch::autograd::get_current_node();
        const auto* partial = dynamic_cast<const Partial*>(node.get());
        return partial && !partial->is_made_by_pass(tangent) ? grads : (*hook)(grads);
    }
    void compiled_args(torch::dynamo::autograd::CompiledNodeArgs& args) const override { hook->compiled_args(args); }

    std::unique_ptr<FunctionPreHook> hook;
    uint32_t tangent;
};

// torch calls the hooks of tensors, of which this is the first, and then what retains gradients, which it knows by the tangent.
struct RetainingFirst final : public FunctionPreHook {
    explicit RetainingFirst(Partial& node) : node(node) {}
    variable_list operator()(const variable_list& grads) override {
        std::lock_guard<std::mutex> lock(mutex);  // of two passes
        for (auto& [tangent, hook] : node.retains_grad_hooks()) {
            if (auto* known = dynamic_cast<Retaining*>(hook.get())) known->tangent = uint32_t(tangent);
            if (!hook || dynamic_cast<Retaining*>(hook.get())) continue;
            std::unique_ptr<FunctionPreHook> made = std::make_unique<Retaining>(hook.get(), uint32_t(tangent));
            hook.swap(made);  // another pass may read it
            made.release();
        }
        return grads;
    }

    Partial& node;  // which owns this
    std::mutex mutex;
};

}  // namespace

void retain_as_made(Partial& node) { node.add_tensor_pre_hook(std::make_unique<RetainingFirst>(node)); }

}  // namespace dynacompile::runtime
