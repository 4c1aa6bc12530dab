"""torch.nn modules that the frame makes: those without parameters, made from constants, such as `nn.Softmax(dim=-1)(scores)`.

Making one has no effect that anybody could see, so capture makes it for itself; where it outlives the graph, the residual code makes it anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.nn.modules import activation, channelshuffle, distance, dropout, flatten, fold, loss, padding, pixelshuffle, pooling, upsampling

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.tensors.modules import ModuleValue
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.rows import handles
from dynacompile.ir.source import Constant

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context
    from dynacompile.capture.values.writing import Writer

FILES = (activation, channelshuffle, distance, dropout, flatten, fold, loss, padding, pixelshuffle, pooling, upsampling)
WITH_PARAMETERS = (activation.MultiheadAttention, activation.PReLU)
PLAIN = [
    cls
    for file in FILES
    for cls in vars(file).values()
    if isinstance(cls, type) and issubclass(cls, torch.nn.Module) and cls.__module__ == file.__name__ and cls not in WITH_PARAMETERS
]


class MadeModule(ModuleValue):
    """real: a twin of the module that the frame makes."""

    is_made = True

    def __init__(self, cls: type, real: torch.nn.Module, args: list[Value], kwargs: dict[str, Value]):
        super().__init__(real, Constant(real, f"{cls.__name__}(...)"))
        self.args, self.kwargs = args, kwargs

    def describe(self) -> str:
        return f"a {self.cls.__name__} made by the frame"

    def wrap_own(self, cx: Context, name: str) -> Value:
        return cx.of(self.real.__dict__[name])

    def set_attr(self, cx: Context, name: str, value: Value) -> None:
        raise unsupported("setattr", f"{self.describe()}: {name}")

    def children(self) -> list[Value]:
        return [*self.args, *self.kwargs.values()]

    def rebuild(self, out: Writer) -> None:
        out.call_function(self.cls, self.children(), tuple(self.kwargs))


def makes(cls: type[torch.nn.Module]) -> None:
    @handles(cls)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            real_args, real_kwargs = [a.constant() for a in args], {k: v.constant() for k, v in kwargs.items()}
        except NotConstant as reason:
            raise unsupported("unknown-function", f"making a {cls.__name__} with {reason}") from reason
        try:
            real = cls(*real_args, **real_kwargs)
        except (TypeError, ValueError, AssertionError) as reason:
            raise unsupported("would-raise", f"{cls.__name__}(): {reason}") from reason
        return MadeModule(cls, real, args, kwargs)


for _cls in (*PLAIN, torch.nn.Identity):
    makes(_cls)
