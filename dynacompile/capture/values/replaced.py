"""Functions of torch that the first use of torch._dynamo in a process, also the one by an eager torch.cond, replaces for everybody.

What they do for torch._dynamo is nothing to capture, which goes on with the functions that they stand for.
"""

from __future__ import annotations

from types import FunctionType

from dynacompile.ir.source import Attr, ClosureCell, Source

ORIGINAL = "_torchdynamo_orig_callable"  # attribute of a disabled function
TAGS = "torch._dynamo.mutation_guard"  # whose nn.Module.__init__ and __setstate__ note when a module was made
TAGGED = ("init", "setstate")


def replaced_by_dynamo(function: FunctionType, source: Source) -> tuple[FunctionType, Source] | None:
    """The function that one of torch._dynamo's stands for, and where it is; None for all others, disabled ones of users among them."""
    original = function.__dict__.get(ORIGINAL)
    if isinstance(original, FunctionType):
        return (original, Attr(source, ORIGINAL)) if is_part_of_an_optimizer(original) else None
    if function.__globals__.get("__name__") != TAGS:
        return None
    for index, (name, cell) in enumerate(zip(function.__code__.co_freevars, function.__closure__ or ())):
        if name in TAGGED:
            return cell.cell_contents, ClosureCell(source, name, index)
    return None


def is_part_of_an_optimizer(function: FunctionType) -> bool:
    """Whether it is one that torch._dynamo disables in torch.optim; nobody else has a reason to."""
    name = function.__qualname__
    if not function.__module__.startswith("torch.optim."):
        return False
    return name.startswith("_fused_") or name.endswith("._init_group") or name in ("LBFGS.step", "SparseAdam.step")
