#include "runtime/asked.h"

#include <torch/csrc/autograd/graph_task.h>

#include <algorithm>
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

}  // namespace dynacompile::runtime
