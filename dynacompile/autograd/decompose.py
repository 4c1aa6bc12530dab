"""Which ops are decomposed during tracing: the table of `ops.decompositions`, and refusals of what would go wrong silently."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from dynacompile.errors import Unsupported
from dynacompile.ops.decompositions import DECOMPOSITIONS
from dynacompile.ops.norms import batch_norm_inference, batch_norm_no_stats
from dynacompile.ops.randomness import COMPARED, coins_are_comparisons
from dynacompile.private import of_torch

aten = torch.ops.aten


def undeclared_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
    """`native_batch_norm` writes to its running statistics without saying so; only who calls it by name gets here."""
    if training and running_mean is not None:
        reason = "native_batch_norm updates the running statistics without saying so"
        raise Unsupported("hidden-mutation", reason, "call torch.nn.functional.batch_norm or instance_norm")
    if training:
        return batch_norm_no_stats(x, weight, bias, True, momentum, eps)
    return batch_norm_inference(x, weight, bias, running_mean, running_var, momentum, eps)


def undeclared_cudnn_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps):
    if training and running_mean is not None:
        undeclared_batch_norm(x, weight, bias, running_mean, running_var, training, momentum, eps)
    return NotImplemented


def recurrent_layer(*args, **kwargs):
    """The CPU's fused layer keeps what its backward needs only while autograd records, which it does not in a compiled forward. Torch's rule for symbolic sizes
    takes it for bfloat16 on CPUs without instructions for that, too, on which it does not run and eager computes step by step."""
    if torch.is_grad_enabled() and args[15]:
        return recurrent_layer_backward()
    if args[0].dtype is torch.bfloat16 and not of_torch.is_mkldnn_bf16_supported():
        return lstm_layer(*args[:8], has_biases=args[12])
    return NotImplemented


def lstm_layer(x, w_input, w_hidden, b_input, b_hidden, h, c, reverse, has_biases):
    """(steps, h, c, an empty workspace), with the operations of eager's."""
    linear = torch.nn.functional.linear
    given = linear(x, w_input, b_input if has_biases else None).unbind(0)
    h, c, steps = h[0], c[0], []
    for gates in reversed(given) if reverse else given:
        i, f, g, o = (linear(h, w_hidden, b_hidden if has_biases else None) + gates).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        steps.append(h)
    return torch.stack(steps[::-1] if reverse else steps), h[None], c[None], x.new_empty(0)


def recurrent_layer_backward(*args, **kwargs):
    raise Unsupported("recurrent-layer", "the CPU's fused LSTM can't be trained inside a graph", "leave the LSTM outside of the compiled function")


def padded(x, pad, mode="constant", value=None):
    """DTensor's dispatch calls it on parts of unequal sizes, below where torch takes it apart."""
    return aten.constant_pad_nd.default(x, pad, 0 if value is None else value) if mode == "constant" else NotImplemented


def decomposition_table() -> Mapping[of_torch.OpOverload, Callable]:
    """Rules by overload; the recorder runs them instead of recording the op."""
    return {
        **DECOMPOSITIONS,
        **(COMPARED if coins_are_comparisons() else {}),
        aten.native_batch_norm.default: undeclared_batch_norm,
        aten.cudnn_batch_norm.default: undeclared_cudnn_batch_norm,
        aten.pad.default: padded,
        aten.mkldnn_rnn_layer.default: recurrent_layer,
        aten.mkldnn_rnn_layer_backward.default: recurrent_layer_backward,
    }
