// Which gradients a backward pass asks for, beyond the nodes that it comes through.
#pragma once

#include "runtime/torch_autograd.h"

#include <cstddef>
#include <cstdint>
#include <vector>

namespace dynacompile::runtime {

// A node of which a gradient may come from some of its tangents alone.
class Partial : public torch::autograd::Node {
public:
    using Node::Node;
    virtual bool flows(uint32_t tangent, size_t gradient) const = 0;

    // Where its gradients go, wherever in a chain of nodes they leave it: as next_edges, of a node that is no chain.
    virtual size_t ways() const { return num_outputs(); }
    virtual const torch::autograd::Edge& way(size_t gradient) const { return next_edge(gradient); }
    // As task_should_compute_output, of a way.
    virtual bool is_wanted(size_t gradient) const { return task_should_compute_output(gradient); }

    // Whether the node of eager's that made the tangent's tensor is run by the backward pass that runs.
    virtual bool is_made_by_pass(uint32_t) const { return true; }
};

// Whether what the node gives on this way leads to a gradient that the backward pass which runs is asked for. torch's task_should_compute_output tells
// whether it leads to a node with such a gradient, which need not come from it. Searches the history below where that says so.
bool is_asked(const Partial& node, size_t way);

// Whether the backward pass that runs is asked for the gradient that comes to one of these tangents of a node.
bool is_end(Partial& node, const std::vector<int64_t>& tangents);

// From now on, a tensor of the node's tangents retains its gradient in those passes alone that run the node of eager's which made it.
void retain_as_made(Partial& node);

}  // namespace dynacompile::runtime
