// torch's own headers for autograd nodes, which moved after torch 2.11.
#pragma once

#if __has_include(<torch/csrc/autograd/node.h>)  // later than torch 2.11; function.h would add more than a second of build time
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

namespace dynacompile::runtime {
// Whether the last reference to a node is gone, as while it is destroyed: then there is no pointer to it any more.
inline bool is_dying(const torch::autograd::Node& node) { return c10::raw::intrusive_ptr::use_count(const_cast<torch::autograd::Node*>(&node)) == 0; }
}  // namespace dynacompile::runtime
#else
#include <torch/csrc/autograd/function.h>

namespace dynacompile::runtime {
inline bool is_dying(const torch::autograd::Node& node) { return node.weak_from_this().expired(); }
}  // namespace dynacompile::runtime
#endif
