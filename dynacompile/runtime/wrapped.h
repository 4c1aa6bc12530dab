// Autograd nodes between tensors that wrap others and the tensors inside, which a compiled graph takes and gives.
#pragma once

#include "runtime/torch_autograd.h"

namespace dynacompile::runtime {

// The node that gradients of a graph's input come to where they are accumulated: the AccumulateGrad itself, or the one behind a node that wraps them.
// Null where they go elsewhere.
torch::autograd::Node* accumulation(torch::autograd::Node* next);

}  // namespace dynacompile::runtime
