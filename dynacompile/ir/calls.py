"""Kernels that are templates: what a call of an operator does, over views of the kernel's params."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from dynacompile.ir.index import Index, Symbol, evaluated
from dynacompile.ir.loops import Buffer, Extern, Ref
from dynacompile.ir.sizes import real_of, symbols_in


@dataclass(frozen=True)
class Call:
    """step: the call, whose Refs and outputs name `views`. views: geometries over the memory of the kernel's params, which they name as `base`; offsets count
    from element 0 of that memory, in elements of the view's dtype. What the call gives is written into the views that are its outputs."""

    step: Extern
    views: tuple[Buffer, ...]

    @property
    def template(self) -> str:
        """What a code generator has text for."""
        assert self.step.template is not None
        return self.step.template

    def view(self, name: str) -> Buffer:
        return next(v for v in self.views if v.name == name)

    def argument(self, name: str) -> Any:
        """An argument of the call by its name, with its default where the call names none; of a tensor the view, of several a list of them."""
        for place, parameter in enumerate(self.step.op._schema.arguments):
            if parameter.name == name:
                given = self.step.args[place] if place < len(self.step.args) else self.step.kwargs.get(name, parameter.default_value)
                return self.shown(given, self.view)
        raise KeyError(name)

    def shown(self, arg: Any, view: Callable[[str], Any]) -> Any:
        """An argument with what stands for its tensors."""
        if isinstance(arg, Ref):
            return view(arg.buffer)
        return [self.shown(a, view) for a in arg] if isinstance(arg, (tuple, list)) else arg

    def outputs(self) -> list[Buffer]:
        return [self.view(name) for name in self.step.outputs if name is not None]

    def symbols(self) -> set[Symbol]:
        return set(symbols_in([(v.size, v.stride, v.offset) for v in self.views])) | self.step.symbols()

    def text(self) -> str:
        views = [f"  {v.name}: {str(v.dtype).removeprefix('torch.')}{list(v.size)} stride {list(v.stride)} of {v.base}+{v.offset}" for v in self.views]
        return "\n".join([f"  {self.template}: {self.step.text()}", *views])

    def run(self, memory: Mapping[str, torch.Tensor], sizes: Mapping[Symbol, int]) -> None:
        """Calls the operator itself. memory: flat tensors by the params' names; sizes: the symbols' values."""

        def tensor(view: Buffer) -> torch.Tensor:
            of = memory[str(view.base)]
            size, stride = ([evaluated(n, sizes) for n in numbers] for numbers in (view.size, view.stride))
            return of.as_strided(size, stride, of.storage_offset() + evaluated(view.offset, sizes))

        shown = {v.name: tensor(v) for v in self.views}

        def filled(arg: object) -> object:
            if isinstance(arg, (Index, Symbol)):
                return evaluated(arg, sizes) if isinstance(arg, Index) else real_of(sizes[arg]) if arg.real else sizes[arg]
            return [filled(a) for a in arg] if isinstance(arg, (tuple, list)) else shown[arg.buffer] if isinstance(arg, Ref) else arg

        results = self.step.op(*map(filled, self.step.args), **{k: filled(v) for k, v in self.step.kwargs.items()})
        for name, value in zip(self.step.outputs, results if isinstance(results, (tuple, list)) else (results,), strict=True):
            if name is not None:
                shown[name].copy_(value)


def named(step: Extern, buffers: Mapping[str, Buffer], root_of: Callable[[str], str]) -> tuple[Call, dict[str, str]]:
    """The call of a step that has a template, free of its buffers' names, and the param of each buffer whose memory it touches, in order."""
    params: dict[str, str] = {}
    views: dict[str, Buffer] = {}

    def view(name: str) -> str:
        if name not in views:
            b = buffers[name]
            param = params.setdefault(root_of(name), f"p{len(params)}")
            views[name] = replace(b, name=f"v{len(views)}", base=param, kind="temp")
        return views[name].name

    plain = replace(step, name="call", origins=(), after=(), mutates=())
    return Call(plain.with_names(view, lambda owner: params.setdefault(owner, f"p{len(params)}")), tuple(views.values())), params
