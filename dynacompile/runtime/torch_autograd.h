// torch's own headers for autograd nodes, which moved after torch 2.11.
#pragma once

#if __has_include(<torch/csrc/autograd/node.h>)  // later than torch 2.11; function.h would add more than a second of build time
#include <torch/csrc/autograd/node.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>
#else
#include <torch/csrc/autograd/function.h>
#endif
