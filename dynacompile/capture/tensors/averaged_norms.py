"""Batch norm whose momentum is no constant: it varies from call to call, or is read from a tensor, as that of a module without one, which averages over all
batches. The number stays in the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch.nn import functional as F

from dynacompile.capture.tensors.read_numbers import ReadNumber
from dynacompile.capture.tensors.tensor import TensorValue
from dynacompile.capture.tensors.torch_functions import TorchFunction, is_replaced, rely_on_names
from dynacompile.capture.values.base import Value, bind_arguments
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.symbolic import SymbolicFloat
from dynacompile.ops.batch_norm import averaged_batch_norm

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

PARAMETERS = ["input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps"]
NONE = ConstantValue(None)
DEFAULTS: dict[str, Value | None] = {
    "weight": NONE,
    "bias": NONE,
    "training": ConstantValue(False),
    "momentum": ConstantValue(0.1),
    "eps": ConstantValue(1e-5),
}


@handles(F.batch_norm)
def batch_norm(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if (
        not any(isinstance(value, (ReadNumber, SymbolicFloat)) for value in (*args, *kwargs.values()))
        or cx.overrides.is_watched()
        or is_replaced(cx, F.batch_norm)
    ):
        return TorchFunction(F.batch_norm).call(cx, args, kwargs)
    x, mean, var, weight, bias, training, momentum, eps = bound = bind_arguments("batch_norm", PARAMETERS, args, kwargs, DEFAULTS)
    is_training = isinstance(training, ConstantValue) and training.value is True
    number = momentum_of(momentum)
    if not is_training or number is None or not all(isinstance(value, TensorValue) for value in (x, mean, var)):
        return TorchFunction(F.batch_norm).call(cx, list(bound), {})
    rely_on_names(cx, F.batch_norm)  # type: ignore[arg-type]
    return cx.op("call_function", averaged_batch_norm, [x, mean, var, weight, bias, number, eps], {})


def momentum_of(momentum: Value) -> Value | None:
    """As the graph computes with it; None where it is a constant."""
    if isinstance(momentum, SymbolicFloat):
        return momentum
    return momentum.tensor if isinstance(momentum, ReadNumber) and momentum.cls is float else None
