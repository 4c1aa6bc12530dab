"""Operations that eager refuses for the types or dimensions of their operands, which fakes don't notice: a kernel would give numbers where eager raises.
What is refused is left to Python, which raises, or doesn't."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch

from dynacompile.capture.breaks import unsupported
from dynacompile.capture.operands import target_name, tensors_in
from dynacompile.capture.wider import may_outgrow
from dynacompile.ops.list_writes import PREFIX

T = TypeVar("T", bound=Callable[..., bool])
Test = Callable[[Sequence[Any], Sequence[torch.Tensor]], bool]
"""(what an operation is given, the tensors among it) -> whether eager refuses it."""

REFUSED: dict[str, tuple[str, Test]] = {}
"""By name: what is refused, in words, and whether it is here."""


def rows_of(table: dict[str, tuple[str, T]]) -> Callable[..., Callable[[T], T]]:
    """A decorator that enters a test into a table: (what is refused, in words; the names of the operations)."""

    def row(said: str, *names: str) -> Callable[[T], T]:
        def add(test: T) -> T:
            for name in names:
                assert name not in table, name
                table[name] = said, test
            return test

        return add

    return row


row = rows_of(REFUSED)


def is_float(tensor: torch.Tensor) -> bool:
    return tensor.dtype.is_floating_point


def is_integral(tensor: torch.Tensor) -> bool:
    return not tensor.dtype.is_floating_point and not tensor.dtype.is_complex


def several_types(operands: Sequence[torch.Tensor]) -> bool:
    """Whether types differ where autocast does not make them one. It leaves float64 as it is."""
    dtypes = {operand.dtype for operand in operands}
    return len(dtypes) > 1 and (torch.float64 in dtypes or not torch.is_autocast_enabled(operands[0].device.type))


PRODUCTS = ("matmul", "linear", "mm", "mv", "addmm", "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d")


@row("operands of several types", *PRODUCTS)
def product(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return several_types(operands)


@row("subtraction of bools, or an alpha of another kind", "sub", "subtract", "rsub", "__sub__", "__rsub__", "l1_loss", "tanhshrink")
def subtraction(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return any(type(value) is bool for value in given) or any(operand.dtype == torch.bool for operand in operands) or has_other_alpha(given, operands)


@row("an alpha of another kind", "add")
def has_other_alpha(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    """Whether a third operand, which the second is multiplied by, is of a kind that the result of the first two can't hold."""
    alpha = {torch.SymInt: 1, torch.SymFloat: 1.0}.get(type(given[2]), given[2]) if len(given) > 2 else None
    if not isinstance(alpha, (int, float, complex)) or not all(isinstance(value, (torch.Tensor, int, float, complex)) for value in given[:2]):
        return False
    dtype = torch.result_type(*given[:2])
    if isinstance(alpha, int):
        return isinstance(alpha, bool) and dtype != torch.bool
    return not torch.can_cast(torch.result_type(alpha, alpha), dtype)


@row("subtraction of bools, or a result that its first operand can't hold", "isub", "sub_", "subtract_", "__isub__")
def written_subtraction(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return subtraction(given, operands) or cannot_hold(given)


@row("a result that its first operand can't hold", "iadd", "imul", "add_", "mul_", "multiply_", "__iadd__", "__imul__")
def written(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return cannot_hold(given) or has_other_alpha(given, operands)


QUOTIENTS = ("div_", "divide_", "true_divide_", "itruediv", "__itruediv__", "__idiv__")


@row("a quotient that its first operand can't hold", *QUOTIENTS)
def written_quotient(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    """The quotient of whole numbers is a float, unless a rounding mode is named. torch 2.11's meta kernel does not ask."""
    is_rounded = any(isinstance(value, str) for value in given)
    return cannot_hold(given) or not is_rounded and isinstance(given[0], torch.Tensor) and is_integral(given[0])


def cannot_hold(given: Sequence[Any]) -> bool:
    """Whether the first two of what is given make a result of a kind that the first can't hold, should it be written there."""
    first, second = given[0], given[1] if len(given) > 1 else 0
    second = {torch.SymInt: 1, torch.SymFloat: 1.0}.get(type(second), second)
    if not isinstance(first, torch.Tensor) or not isinstance(second, (torch.Tensor, int, float, complex)):
        return False
    return not torch.can_cast(torch.result_type(first, second), first.dtype)


def cannot_hold_any(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    """The same of the first and any other tensor."""
    return any(cannot_hold((given[0], operand)) for operand in operands)


@row("a result that its first operand can't hold, which is a float whatever the operands", "logit_", "ldexp_")
def written_float(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return is_integral(operands[0]) or cannot_hold_any(given, operands)


OF_BITS = ("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm")


@row("bits of floats", "and_", "or_", "xor", "iand", "ior", "ixor", "__rand__", "__ror__", "__rxor__", "invert", *OF_BITS, *(f"{name}_" for name in OF_BITS))
def bits(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return not all(map(is_integral, operands))


@row("a value with dimensions", "fill", "fill_")
def has_dimensions(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    """torch 2.11's fakes take it."""
    return any(operand.dim() > 0 for operand in operands[1:])


SOFT = ("gelu", "silu", "silu_", "mish", "mish_", "hardswish", "hardswish_", "hardsigmoid", "hardsigmoid_", "softplus")


@row("integers", *SOFT, "std", "var", "std_mean", "var_mean", "frac", "frac_", "lerp", "lerp_")
def integers(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return is_integral(operands[0])


@row("operands that are no floats", "softmax", "softmin", "log_softmax")
def no_floats_become_floats(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return not is_float(operands[0]) and not any(isinstance(value, torch.dtype) or value is float for value in given)


@row("operands of several types", "heaviside", "heaviside_")
def of_several_types(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return several_types(operands)


@row("parts that are of neither float32 nor float64", "polar")
def halves(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return any(operand.dtype not in (torch.float32, torch.float64) for operand in operands)


DROPOUTS = ("dropout", "dropout_", "feature_dropout", "alpha_dropout")


@row("operands that are no floats", "logsigmoid", "log_sigmoid", "max_pool1d", "glu", "hardshrink", *DROPOUTS)
def no_floats(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return not all(map(is_float, operands))


@row("complex numbers", "group_norm", "layer_norm", "native_layer_norm", "instance_norm")
def complex_numbers(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return any(operand.dtype.is_complex for operand in operands)


@row("complex numbers, or a tensor without a dimension of channels", "batch_norm")
def no_channels(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return operands[0].dim() < 2 or complex_numbers(given, operands)


@row("scores that are integers", "multilabel_soft_margin_loss")
def integral_scores(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return is_integral(operands[0])


@row("a product of bools", "tensordot")
def product_of_bools(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return all(operand.dtype == torch.bool for operand in operands)


@row("a power of bools", "pow", "pow_", "__pow__")
def power(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return all(operand.dtype == torch.bool for operand in operands) and any(type(value) is bool for value in given)


ROUNDING = ("ceil", "ceil_", "floor", "floor_", "round", "round_", "trunc", "trunc_", "fix", "fix_")
CLAMPS = ("clamp", "clamp_", "clip", "clip_", "clamp_min", "clamp_min_", "clamp_max", "clamp_max_")
OF_LISTS = tuple(f"_foreach_{name}{end}" for name in ("clamp_min", "clamp_max", "maximum", "minimum") for end in ("", "_"))


@row(
    "bools",
    *ROUNDING,
    *CLAMPS,
    *OF_LISTS,
    "relu",
    "relu_",
    "abs",
    "abs_",
    "absolute",
    "absolute_",
    "threshold",
    "_threshold",
    "threshold_",
    "argmax",
    "argmin",
    "addcmul",
    "cumsum_",
    "cumprod_",
)
def bools(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return all(operand.dtype == torch.bool for operand in operands)


@row("bools, or a result that its first operand can't hold", "addcmul_")
def written_sum_of_a_product(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return bools(given, operands) or cannot_hold_any(given, operands)


@row("division of integers", "addcdiv")
def division(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return all(map(is_integral, operands[1:]))


@row("division of integers, or a result that its first operand can't hold", "addcdiv_")
def written_sum_of_a_quotient(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return division(given, operands) or cannot_hold_any(given, operands)


@row("operands that are not of one type of floats", "binary_cross_entropy", "huber_loss")
def loss_of_one_type(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return not all(map(is_float, operands)) or several_types(operands)


@row("operands that are no floats, or a target with fewer digits", "binary_cross_entropy_with_logits")
def loss_of_targets_type(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return not all(map(is_float, operands)) or several_types(operands) and torch.result_type(*operands[:2]) != operands[1].dtype


@row("a loss of what is no float", "mse_loss", "smooth_l1_loss")
def loss(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return not is_float(operands[0]) or any(operand.dtype.is_complex or operand.dtype == torch.bool for operand in operands)


LOSSES_OF_CLASSES = ("nll_loss", "nll_loss_nd", "nll_loss2d", "cross_entropy", "cross_entropy_loss")


@row("scores that are no floats, or classes of another type than int64 and uint8", *LOSSES_OF_CLASSES)
def loss_of_classes(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return not is_float(operands[0]) or any(is_integral(operand) and operand.dtype not in (torch.int64, torch.uint8) for operand in operands[1:])


@row("autocast casts a product inside of it, which fakes do not see", "pinverse", "linalg_pinv")
def cast_inside(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    return operands[0].dtype != torch.float64 and torch.is_autocast_enabled(operands[0].device.type)


@row("on GPUs, autocast casts a sum or a power inside of it, which fakes do not see", "trace", "ldexp", "mvlgamma", "special_multigammaln")
def cast_inside_on_gpus(given: Sequence[Any], operands: Sequence[torch.Tensor]) -> bool:
    x = operands[0]
    return x.device.type != "cpu" and x.dtype in (torch.float16, torch.bfloat16) and torch.is_autocast_enabled(x.device.type)


def check_types(target: Any, given: Sequence[Any], operands: Sequence[torch.Tensor]) -> None:
    """Raises Unsupported where eager refuses the operands of an operation of torch's for their types."""
    name = target_name(target)
    found = REFUSED.get(name) if operands else None
    if found is not None and is_of_torch(target) and found[1](given, operands):
        raise unsupported("op-failed", f"{name}: {found[0]}")
    if found is None and name.startswith(PREFIX) and (found := REFUSED.get(name.removeprefix(PREFIX))) is not None:
        for own, _ in of_members(given, {}):
            if found[1](own, tensors_in(own)):
                raise unsupported("op-failed", f"{name}: {found[0]}")


def check_members(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises Unsupported where an operation would write a result of other sizes to a member of its first list."""
    name = target_name(target)
    if name.startswith(PREFIX) and name.endswith("_") and any(may_outgrow(tensors_in(given)) for given in of_members(args, kwargs)):
        raise unsupported("op-failed", f"{name}: a result that a member of its first list has no place for")


def of_members(given: Sequence[Any], named: Mapping[str, Any]) -> Iterator[tuple[list[Any], dict[str, Any]]]:
    """What each member of an operation over lists is computed of: eager's loop gives that to the operation on one tensor, which refuses it or does not."""
    count = len(given[0]) if given and isinstance(given[0], (list, tuple)) else 0
    for k in range(count):
        if all(len(value) == count for value in (*given, *named.values()) if isinstance(value, (list, tuple))):
            yield [only_member(k, value) for value in given], {key: only_member(k, value) for key, value in named.items()}


def only_member(k: int, value: Any) -> Any:
    return value[k] if isinstance(value, (list, tuple)) else value


def check_out_types(target: Any, outs: Sequence[torch.Tensor], results: Sequence[torch.Tensor]) -> None:
    """Raises Unsupported where `out=` has other types than the results have without it: some operations cast to these, others refuse some or all, and
    fakes take what either gives."""
    if [out.dtype for out in outs] != [result.dtype for result in results]:
        raise unsupported("op-failed", f"{target_name(target)}: a result of another type than the operand that it is to be written to")


def is_of_torch(target: Any) -> bool:
    """Not a function of the user's that is kept whole and has such a name."""
    if isinstance(target, str) or getattr(operator, target.__name__, None) is target or target in (abs, round):
        return True
    return str(getattr(target, "__module__", None) or "torch").split(".")[0] in ("torch", "_operator", "builtins")
