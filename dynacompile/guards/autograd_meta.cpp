// Where torch keeps what decides whether a tensor requires gradients. A file of its own, since its header takes seconds to compile.
#include <torch/csrc/autograd/variable.h>

#include "guards/tensor_words.h"

namespace dynacompile {

AutogradPlaces autograd_places() {
    torch::autograd::AutogradMeta meta;
    const auto place = [&](const void* member) { return static_cast<size_t>(static_cast<const char*>(member) - reinterpret_cast<const char*>(static_cast<c10::AutogradMetaInterface*>(&meta))); };
    return {place(&meta.requires_grad_), place(&meta.is_view_), place(&meta.grad_fn_)};
}

}  // namespace dynacompile
