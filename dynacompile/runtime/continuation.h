// Nodes behind a region's autograd node: gradients leave the backward program as they become final.
//
// The engine runs hooks and AccumulateGrad, and with them reductions between processes, when a node returns. So a backward program that stops where
// gradients are final has one node for each stop. They are a chain: each gives its gradients, and a token, which makes the next one run. The token owns what is left of the
// pass, so that the pass ends with it, wherever that is. AccumulateGrad comes first in the engine's queue, the next node of the chain before older ones.
#pragma once

#include "runtime/asked.h"
#include "runtime/paused.h"

#include <memory>
#include <type_traits>
#include <vector>

namespace torch::autograd {
DYNACOMPILE_IMPORTED void deleteNode(Node* node);  // up to torch 2.11
}

namespace dynacompile::runtime {

using NodePtr = decltype(torch::autograd::Edge::function);  // shared_ptr up to torch 2.11, intrusive_ptr later

template <typename Made, typename... Args>
auto make_node(Args&&... args) {
    if constexpr (std::is_same_v<NodePtr, std::shared_ptr<torch::autograd::Node>>) {
        return std::shared_ptr<Made>(new Made(std::forward<Args>(args)...), torch::autograd::deleteNode);
    } else {
        return c10::make_intrusive<Made>(std::forward<Args>(args)...);
    }
}

// AccumulateGrad keeps a gradient that nobody else refers to and later adds into it in place; one that shares memory with another tensor must not reach it.
// Called below autograd. node: whose ways the gradients take.
void own_memory(torch::autograd::variable_list& grads, const Partial& node);

struct Rest;

// The first node of a chain.
class Head : public Partial {
public:
    using Partial::Partial;
    // Goes on with the rest's run until the stop of this number.
    virtual void go_on(Rest& rest, size_t stop) = 0;
};

// What is left of a backward pass.
struct Rest {
    NodePtr node;  // the head, which the run refers to
    Head* head = nullptr;
    std::vector<bool> arrived, wanted;      // as those of the pass
    torch::autograd::variable_list grads;   // by way of the head: those that are made and not given
    std::unique_ptr<PausedRun> run;         // null where all are made
};

// Where the ways of a chain go. after: 0 of what the head gives itself; else of the node of this number behind it, at `place`.
struct Place {
    uint32_t after, place;
};

// A node behind the head. stop: the last one until which it runs; ways: those of the head that its edges are, in order.
class Continuation final : public Partial {
public:
    Continuation(size_t stop, std::vector<size_t> ways, torch::autograd::edge_list&& edges) : Partial(std::move(edges)), stop_(stop), ways_(std::move(ways)) {}

    std::string name() const override { return "DynacompileBackwardGoingOn"; }
    bool flows(uint32_t, size_t) const override { return true; }
    torch::autograd::variable_list apply(torch::autograd::variable_list&& tokens) override;

private:
    const size_t stop_;
    const std::vector<size_t> ways_;
};

at::Tensor make_token(std::unique_ptr<Rest> rest, c10::Device device);

// Whether something listens to the accumulation of a gradient, as reductions between processes do.
bool has_listener(const torch::autograd::edge_list& edges);

// Moves the edges that are final at later stops to nodes behind the head. gives: the ways of each stop. Returns the nodes, and where each way is.
struct Chain {
    std::vector<Continuation*> nodes;  // owned by the head's last edge
    std::vector<Place> places;
    size_t first_stop = 0;  // until which the head runs
};
Chain make_chain(Head& head, const std::vector<std::vector<int64_t>>& gives, c10::Device device);

}  // namespace dynacompile::runtime
