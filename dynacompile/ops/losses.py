"""Decompositions of losses and their gradients. reduction: 0 none, 1 mean, 2 sum."""

from __future__ import annotations

import torch

from dynacompile.ops.activations import log_sigmoid
from dynacompile.ops.checks import require_all
from dynacompile.ops.rules import Table, add, aten, cast, div, mul, one_minus, row, scalar, sub, where, wide

LOSSES: Table = {}
MEAN, SUM = 1, 2


def reduce(values: torch.Tensor, reduction: int, dtype: torch.dtype) -> torch.Tensor:
    if reduction == MEAN:
        values = aten.mean.default(values)
    elif reduction == SUM:
        values = aten.sum.default(values)
    return cast(values, dtype)


def share(grad: torch.Tensor, x: torch.Tensor, reduction: int) -> torch.Tensor:
    """The gradient that each element of a reduced loss gets."""
    g = wide(grad)
    return mul(g, 1 / max(x.numel(), 1)) if reduction == MEAN else g


@row(LOSSES, aten.mse_loss.default)
def mse_loss(x, target, reduction=MEAN):
    d = sub(wide(x), wide(target))
    return reduce(mul(d, d), reduction, torch.result_type(x, target))


@row(LOSSES, aten.mse_loss_backward.default)
def mse_loss_backward(grad, x, target, reduction):
    return cast(mul(mul(sub(wide(x), wide(target)), 2.0), share(grad, x, reduction)), x.dtype)


@row(LOSSES, aten.smooth_l1_loss.default)
def smooth_l1_loss(x, target, reduction=MEAN, beta=1.0):
    d = aten.abs.default(sub(wide(x), wide(target)))
    dtype = torch.result_type(x, target)
    if beta == 0:
        return reduce(d, reduction, dtype)
    return reduce(where(aten.lt.Scalar(d, beta), mul(mul(d, d), 0.5 / beta), sub(d, 0.5 * beta)), reduction, dtype)


@row(LOSSES, aten.smooth_l1_loss_backward.default)
def smooth_l1_loss_backward(grad, x, target, reduction, beta):
    d = sub(wide(x), wide(target))
    inside = mul(d, 1 / beta) if beta != 0 else d
    slope = where(aten.le.Scalar(d, -beta), -1.0, where(aten.ge.Scalar(d, beta), 1.0, inside))
    return cast(mul(slope, share(grad, x, reduction)), x.dtype)


@row(LOSSES, aten.huber_loss.default)
def huber_loss(x, target, reduction=MEAN, delta=1.0):
    d = aten.abs.default(sub(wide(x), wide(target)))
    return reduce(where(aten.le.Scalar(d, delta), mul(mul(d, d), 0.5), mul(sub(d, 0.5 * delta), delta)), reduction, x.dtype)


@row(LOSSES, aten.huber_loss_backward.default)
def huber_loss_backward(grad, x, target, reduction, delta):
    d = sub(wide(x), wide(target))
    slope = where(aten.lt.Scalar(aten.abs.default(d), delta), d, mul(aten.sign.default(d), delta))
    return cast(mul(slope, share(grad, x, reduction)), x.dtype)


def checks_targets() -> bool:
    """Whether this version of torch refuses targets of binary_cross_entropy beyond [0, 1]."""
    try:
        aten.binary_cross_entropy.default(torch.zeros(1, device="cpu"), torch.full((1,), 2.0, device="cpu"))  # on a GPU the process could do no more with it
    except RuntimeError:
        return True
    return False


CHECKS_TARGETS = checks_targets()


@row(LOSSES, aten.binary_cross_entropy.default)
def binary_cross_entropy(x, target, weight=None, reduction=MEAN):
    p, t = wide(x), wide(target)
    require_all(aten.logical_and.default(aten.ge.Scalar(x, 0), aten.le.Scalar(x, 1)), "all elements of input should be between 0 and 1")
    if CHECKS_TARGETS:
        require_all(aten.logical_and.default(aten.ge.Scalar(target, 0), aten.le.Scalar(target, 1)), "all elements of target should be between 0 and 1")
    log_p = aten.clamp_min.default(aten.log.default(p), -100.0)
    log_q = aten.clamp_min.default(aten.log1p.default(aten.neg.default(p)), -100.0)
    loss = sub(mul(sub(t, 1), log_q), mul(t, log_p))
    return reduce(loss if weight is None else mul(loss, weight), reduction, x.dtype)


@row(LOSSES, aten.binary_cross_entropy_backward.default)
def binary_cross_entropy_backward(grad, x, target, weight=None, reduction=MEAN):
    p = wide(x)
    g = div(mul(share(grad, x, reduction), sub(p, wide(target))), aten.clamp_min.default(mul(one_minus(p), p), 1e-12))
    return cast(g if weight is None else mul(g, weight), x.dtype)


@row(LOSSES, aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(x, target, weight=None, pos_weight=None, reduction=MEAN):
    v, t = wide(x), wide(target)
    log_p = log_sigmoid(v)
    if pos_weight is not None:
        log_p = mul(log_p, add(mul(sub(wide(pos_weight), 1), t), 1))
    loss = sub(mul(one_minus(t), v), log_p)
    return reduce(loss if weight is None else mul(loss, weight), reduction, torch.promote_types(x.dtype, target.dtype))


def class_axis(x: torch.Tensor) -> int:
    return 1 if x.dim() > 1 else 0


def safe_targets(target: torch.Tensor, ignore_index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """(which targets count, targets with 0 in the place of those that don't)."""
    counts = aten.ne.Scalar(target, ignore_index)
    return counts, where(counts, target, 0)


CHECKS = torch.library.Library("dynacompile", "FRAGMENT")
CHECKS.define("check_classes(Tensor target, int classes, int ignore_index) -> ()")


def check_classes(target: torch.Tensor, classes: int, ignore_index: int) -> None:
    """Raises eager's IndexError where a target is neither a class nor ignored."""
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        raise IndexError(f"Target {target[wrong][0].item()} is out of bounds.")


CHECKS.impl("check_classes", check_classes, "CPU")
CHECKS.impl("check_classes", lambda target, classes, ignore_index: None, "Meta")


def require_classes(target: torch.Tensor, classes: int, ignore_index: int) -> None:
    """The check of the targets as part of the graph. On GPUs it is a device assertion, as in eager."""
    if target.device.type == "cpu":
        torch.ops.dynacompile.check_classes.default(target, classes, ignore_index)
        return
    wrong = aten.logical_or.default(aten.lt.Scalar(target, 0), aten.ge.Scalar(target, classes))
    wrong = aten.logical_and.default(wrong, aten.ne.Scalar(target, ignore_index))
    aten._assert_async.msg(aten.logical_not.default(aten.any.default(wrong)), "a target is out of bounds")


def is_class(x: torch.Tensor, target: torch.Tensor, axis: int) -> torch.Tensor:
    """Of x's shape: true where the position along `axis` is the target class."""
    classes = aten.arange.start_step(0, x.shape[axis], 1, dtype=target.dtype, device=x.device)
    shape = [1] * x.dim()
    shape[axis] = x.shape[axis]
    return aten.eq.Tensor(aten.unsqueeze.default(target, axis), aten.view.default(classes, shape))


@row(LOSSES, aten.nll_loss_forward.default, aten.nll_loss2d_forward.default)
def nll_loss(x, target, weight, reduction, ignore_index):
    axis = class_axis(x)
    require_classes(target, x.shape[axis], ignore_index)
    counts, safe = safe_targets(target, ignore_index)
    picked = aten.sum.dim_IntList(where(is_class(x, safe, axis), wide(x), 0.0), [axis])  # one load: the scheduler removes the loop
    weights = None if weight is None else class_weights(wide(weight), safe)
    losses = aten.neg.default(picked if weights is None else mul(picked, weights))
    losses = where(counts, losses, 0.0)
    if reduction not in (MEAN, SUM):
        return cast(losses, x.dtype), scalar(0.0, x)
    counted = cast(counts, losses.dtype) if weights is None else where(counts, weights, 0.0)
    count = aten.sum.default(counted)
    loss = aten.sum.default(losses)
    return cast(div(loss, count) if reduction == MEAN else loss, x.dtype), cast(count, x.dtype) if weight is not None else count


def class_weights(weight: torch.Tensor, safe: torch.Tensor) -> torch.Tensor:
    flat = aten.index_select.default(weight, 0, aten.reshape.default(safe, [safe.numel()]))
    return aten.view.default(flat, list(safe.shape))


@row(LOSSES, aten.nll_loss_backward.default, aten.nll_loss2d_backward.default)
def nll_loss_backward(grad, x, target, weight, reduction, ignore_index, total_weight):
    axis = class_axis(x)
    counts, safe = safe_targets(target, ignore_index)
    g = wide(grad)
    if reduction == MEAN:
        g = div(g, wide(total_weight))
    g = aten.neg.default(g)
    if weight is not None:
        g = mul(g, class_weights(wide(weight), safe))
    if g.dim() == target.dim() and g.dim() > 0:
        g = aten.unsqueeze.default(g, axis)
    hit = aten.logical_and.default(is_class(x, safe, axis), aten.unsqueeze.default(counts, axis))
    return cast(where(hit, g, 0.0), x.dtype)
