"""Functions of torch that the first use of Dynamo in a process, also the one by an eager torch.cond, replaces for everybody.

What they do for Dynamo is nothing to capture, which goes on with the functions that they stand for.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import Any

from dynacompile.ir.fakes import WRAPPER
from dynacompile.ir.source import Attr, ClosureCell, Source

ORIGINAL = "_torchdynamo_orig_callable"  # attribute of a disabled function
MADE_BY = "_dynamo.eval_frame"  # the module in which torch.compile makes its functions
TAGS = "_dynamo.mutation_guard"  # whose nn.Module.__init__ and __setstate__ note when a module was made
TAGGED = ("init", "setstate")


def compiled_by_torch(function: FunctionType) -> Callable[..., Any] | None:
    """What a function that torch.compile has made compiles; None for all others."""
    made = str(function.__globals__.get("__name__")).endswith(MADE_BY) and function.__code__.co_qualname.startswith("_TorchDynamoContext.__call__.")
    return function.__dict__.get(ORIGINAL) if made else None


def replaced_by_dynamo(function: FunctionType, source: Source) -> tuple[Callable[..., Any], Source] | None:
    """The function that one of Dynamo's stands for, and where it is; None for all others, disabled ones of users among them."""
    original = function.__dict__.get(ORIGINAL)
    if (compiled := compiled_by_torch(function)) is not None:
        return compiled, Attr(source, ORIGINAL)
    if isinstance(original, FunctionType):
        return (original, Attr(source, ORIGINAL)) if is_part_of_an_optimizer(original) and not is_around_such_a_part(function) else None
    if not str(function.__globals__.get("__name__")).endswith(TAGS):
        return None
    for index, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or ())):
        if name in TAGGED:
            return cell.cell_contents, ClosureCell(source, name, index)
    return None


def hidden_from_dynamo(function: Any) -> Any:
    """The function in whose place torch has one that keeps Dynamo from looking into it; None for all others."""
    table = getattr(function, "__globals__", {})
    return function.__dict__.get("__wrapped__") if table.get("__name__") == "torch._compile" else None


def is_around_such_a_part(function: FunctionType) -> bool:
    """Whether it wraps a part of an optimizer that Dynamo has disabled, as a scheduler's does: functools.wraps has copied the marks, which are not its own."""
    original = function.__dict__.get(ORIGINAL)
    return isinstance(original, FunctionType) and is_part_of_an_optimizer(original) and function.__dict__.get("__wrapped__") is not original


def is_part_of_an_optimizer(function: FunctionType) -> bool:
    """Whether it is one that Dynamo disables in torch.optim; nobody else has a reason to."""
    name = function.__qualname__
    if not function.__module__.startswith("torch.optim."):
        return False
    return name.startswith("_fused_") or name.endswith("._init_group") or name in ("LBFGS.step", "SparseAdam.step")


def kept_in_python(function: FunctionType) -> FunctionType | None:
    """The part of torch.optim that a function runs in Python; None for all others. Torch calls such a function where an optimizer's step counts lie
    on a GPU, for the sake of the foreach form, whose operations do not take them there."""
    original = function.__dict__.get("__wrapped__")
    if function.__code__ is WRAPPER and isinstance(original, FunctionType) and original.__module__.startswith("torch.optim."):
        return original
    return None
