"""Custom autograd functions, each with a part of the contract that autograd has with them."""

import torch


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


class DirtyOther(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        x.add_(y)
        ctx.mark_dirty(x)
        return x, y * 3

    @staticmethod
    def backward(ctx, g, h):
        return g, g + h * 3


class MaybeNone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, a, b):
        return None if a is None else a * 2, torch.full((2, 3), 7.0) if b is None else b * 3


class Zeros(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y, x + y

    @staticmethod
    def backward(ctx, a, b):
        x, y = ctx.saved_tensors
        return a * y + b.cos(), a * x + b


class Marked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        sign = x.sign()
        ctx.mark_non_differentiable(sign)
        ctx.save_for_backward(sign)
        return x * sign, sign

    @staticmethod
    def backward(ctx, g, unused):
        (sign,) = ctx.saved_tensors
        return g * sign, None


class Same(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 5


class Keeps(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        result = (x * y).exp()
        ctx.save_for_backward(result, y)
        ctx.other = x.detach().clone()
        return result, None, 3

    @staticmethod
    def backward(ctx, g, *rest):
        result, y = ctx.saved_tensors
        return (g * result * y if ctx.needs_input_grad[0] else None), (g * result * ctx.other if ctx.needs_input_grad[1] else None)


class Split(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x * y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx, g):
        x, y, out = ctx.saved_tensors
        return g * y + out, g * x
