"""Runs an emitted Triton module on CPU tensors through Triton's own interpreter: how its numbers are tested without a GPU.

Triton reads TRITON_INTERPRET when it is imported, so this runs in a process of its own that sets it first:
`TRITON_INTERPRET=1 python -m dynacompile.codegen.triton.interpret cases.pt results.pt`.
"""

from __future__ import annotations

import importlib
import linecache
import operator
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

LIBDEVICE: dict[str, Callable] = {
    "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1, "log": torch.log, "log2": torch.log2, "log1p": torch.log1p, "rsqrt": torch.rsqrt,
    "sin": torch.sin, "cos": torch.cos, "tanh": torch.tanh, "erf": torch.erf, "pow": torch.pow, "atan2": torch.atan2, "fmod": torch.fmod,
    "trunc": torch.trunc, "rint": torch.round,
}  # fmt: skip


def required(inside: torch.Tensor) -> torch.Tensor:
    if not inside.all():
        raise IndexError("a position is out of range")
    return inside


OURS = {"range": "range", **{name: f"our_{name}" for name in ("associative_scan", "cumsum", "cumprod")}}  # of tl: what we do otherwise
DEVICE_FUNCTIONS: dict[str, Callable] = {  # those that are inline assembly, or that the interpreter does otherwise
    "require": required,
    "nearest_bf16": lambda a: a.bfloat16().float(),
    "reciprocal": torch.reciprocal,
    "power_of_two": torch.exp2,
    "reduce_sine": lambda a: torch.asin(torch.sin(a.double())).to(a.dtype),
    "reduce_cosine": lambda a: torch.asin(torch.cos(a.double())).to(a.dtype),
}


def run(text: str, entry: str, blocks: dict[str, int], grid: tuple[int, int, int], arguments: Sequence[torch.Tensor | list[torch.Tensor] | float]) -> None:
    """Runs function `entry` of module `text`. arguments: whole storages, one per param, written in place; then the symbols' values. A list of tensors
    stands for a table of their addresses."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        raise RuntimeError("TRITON_INTERPRET=1 must be set before Triton is imported")
    name = f"<{entry}>"
    for function, ours in OURS.items():
        text = text.replace(f"tl.{function}(", f"{ours}(")
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    module: dict = {"__name__": entry}
    exec(compile(text, name, "exec"), module)  # our own text
    if "libdevice" in module:
        tl = module["tl"]
        module["libdevice"] = SimpleNamespace(**{n: lift(f, tl) for n, f in LIBDEVICE.items()})
    module["range"] = numbers
    module["our_associative_scan"] = scan = scanning(module["tl"])
    module["our_cumsum"] = lambda x, axis, reverse=False: scan(x, axis, operator.add, reverse)
    module["our_cumprod"] = lambda x, axis, reverse=False: scan(x, axis, operator.mul, reverse)
    for name in DEVICE_FUNCTIONS.keys() & module.keys():
        module[name] = lift(DEVICE_FUNCTIONS[name], module["tl"])
    for name in {
        "add_product",
        "add_product_fast",
        "add_product_whole",
    } & module.keys():  # Triton's interpreter multiplies bits of narrow floats as whole numbers
        tl = module["tl"]
        module[name] = lambda a, b, total, tl=tl: tl.dot(a.to(tl.float32), b.to(tl.float32), total)
    interpreter = importlib.import_module("triton.runtime.interpreter")
    builder = interpreter.InterpreterBuilder
    given = [argument(a, module["tl"]) for a in arguments]
    memory = Memory([*given, *(t for a in arguments if isinstance(a, list) for t in a)])
    changed: dict[str, Any] = {
        "create_masked_load": memory.read(builder.create_masked_load),
        "create_masked_store": memory.written(builder.create_masked_store),
        "create_atomic_rmw": memory.added(builder.create_atomic_rmw),
    }
    with np.errstate(all="ignore"), patch.multiple(builder, **changed), without_waste(interpreter):
        module[entry][grid](*given, **blocks)


@contextmanager
def without_waste(interpreter: Any) -> Iterator[None]:
    """What the interpreter does again and again for one launch, and for nothing, is done once, or not.

    It looks through all of Triton's language at each call of a function of the kernel's module, which it has patched then; makes a table of all types for
    each type that it is asked for; and computes in 64 bits whether ints overflow, for assertions that it makes in debug mode alone."""
    patch_lang, type_of = interpreter._patch_lang, interpreter._get_np_dtype
    patched: set[int] = set()
    types: dict[str, np.dtype] = {}

    def patch_once(function: Any) -> Any:
        module = id(function.__globals__)
        if module in patched:
            return None
        patched.add(module)
        return patch_lang(function)

    def type_by_name(kind: Any) -> np.dtype:
        scalar = kind.scalar
        if scalar.is_ptr():
            return type_of(scalar)
        if scalar.name not in types:
            types[scalar.name] = type_of(scalar)
        return types[scalar.name]

    options = replace(interpreter.interpreter_builder.options, sanitize_overflow=False)
    with patch.multiple(interpreter, _patch_lang=patch_once, _get_np_dtype=type_by_name), patch.object(interpreter.interpreter_builder, "options", options):
        yield


def scanning(tl: Any) -> Callable:
    """A scan in as many calls of the function that combines elements as it has doublings, where the interpreter makes one for each element, and adds floats
    up one after the other, which a GPU does not."""

    def block(array: np.ndarray, like: Any) -> Any:
        kind = tl.block_type(like.type.scalar, [int(n) for n in array.shape])
        return tl.core.tensor(type(like.handle)(array, like.handle.dtype), kind)

    def associative_scan(given: Any, axis: int, combine: Callable, reverse: bool = False) -> Any:
        parts = list(given) if isinstance(given, tuple) or type(given).__name__ == "tuple" else [given]
        arrays = [np.moveaxis(np.array(p.handle.data), axis, 0) for p in parts]
        arrays = [a[::-1].copy() if reverse else a.copy() for a in arrays]
        step = 1
        while step < len(arrays[0]):
            earlier = [np.roll(a, step, 0) for a in arrays]
            result = combine(*(block(a, p) for both in (earlier, arrays) for a, p in zip(both, parts, strict=True)))
            for a, found in zip(arrays, [result] if len(parts) == 1 else list(result), strict=True):
                a[step:] = found.handle.data[step:]
            step *= 2
        whole = [block(np.ascontiguousarray(np.moveaxis(a[::-1] if reverse else a, 0, axis)), p) for a, p in zip(arrays, parts, strict=True)]
        return whole[0] if len(parts) == 1 else tuple(whole)

    return associative_scan


class Memory:
    """The memory of the tensors that a kernel is given. An access outside of it raises: the interpreter reads and writes any address, as a GPU does.

    Masks may be of any type: of truth values without dimensions the interpreter makes whole numbers, which its accesses refuse."""

    def __init__(self, given: Sequence[Any]):
        storages = [t.untyped_storage() for t in given if isinstance(t, torch.Tensor)]
        ranges = sorted((s.data_ptr(), s.data_ptr() + s.nbytes()) for s in storages if s.nbytes())
        self.begins, self.ends = (np.array(side, dtype=np.uint64) for side in (zip(*ranges, strict=True) if ranges else ((), ())))

    def check(self, pointers: Any, mask: Any) -> None:
        """pointers, mask: the interpreter's values; a mask may be an array."""
        places, wanted = np.broadcast_arrays(np.asarray(pointers.data, dtype=np.uint64), np.asarray(mask.data).astype(bool))
        places = places[wanted]
        if not places.size:
            return
        width = max(1, pointers.get_element_ty().primitive_bitwidth // 8)
        at = np.searchsorted(self.begins, places, side="right")
        inside = (at > 0) & (places + np.uint64(width) <= self.ends[np.maximum(at, 1) - 1]) if len(self.begins) else np.zeros(places.shape, dtype=bool)
        if not inside.all():
            raise RuntimeError(f"a kernel accesses {int((~inside).sum())} of {inside.size} elements outside of its tensors")

    def checked(self, pointers: Any, mask: Any) -> Any:
        """The mask, of truth values. That of a descriptor is an array in Triton 3.6, a value of the interpreter later."""
        if isinstance(mask, np.ndarray):
            mask = mask.astype(bool)
        else:
            mask.data = mask.data.astype(bool)
        self.check(pointers, mask)
        return mask

    def read(self, load: Callable) -> Callable:
        def checked(builder: Any, pointers: Any, mask: Any, *more: Any, **options: Any) -> Any:
            mask = self.checked(pointers, mask)
            return load(builder, pointers, mask, *more, **options)

        return checked

    def written(self, store: Callable) -> Callable:
        def checked(builder: Any, pointers: Any, value: Any, mask: Any, *more: Any, **options: Any) -> Any:
            mask = self.checked(pointers, mask)
            return store(builder, pointers, value, mask, *more, **options)

        return checked

    def added(self, atomic: Callable) -> Callable:
        def checked(builder: Any, kind: Any, pointers: Any, value: Any, mask: Any, *more: Any, **options: Any) -> Any:
            mask = self.checked(pointers, mask)
            return atomic(builder, kind, pointers, value, mask, *more, **options)

        return checked


def argument(given: Any, tl: Any) -> Any:
    if isinstance(given, list):
        return torch.tensor([t.data_ptr() for t in given], dtype=torch.int64)
    return given if isinstance(given, torch.Tensor) else scalar(given, tl)


def numbers(*bounds: Any, **hints: object) -> range:
    """range() over the interpreter's values, which may be arrays of one element that newer NumPy takes for no numbers. hints: for a GPU's compiler."""
    return range(*(int(np.asarray(b.handle.data).item()) if hasattr(b, "handle") else int(b) for b in bounds))


def scalar(number: float, tl: Any) -> Any:
    """A number as the interpreter's value. From a Python int it would make an array of one element, which newer NumPy takes for no number."""
    handle = importlib.import_module("triton.runtime.interpreter").TensorHandle
    kind = tl.float64 if isinstance(number, float) else tl.int32 if -(2**31) <= number < 2**31 else tl.int64
    return tl.core.tensor(handle(np.array(number, dtype=kind.name.replace("fp", "float")), kind), kind)


def lift(function: Callable, tl: object) -> Callable:
    """A torch function as one on interpreter tensors."""

    def lifted(*args):
        handle = args[0].handle
        arrays = np.broadcast_arrays(*(np.asarray(a.handle.data) for a in args))
        result = function(*(torch.from_numpy(np.array(a)) for a in arrays)).numpy()
        shape = [int(n) for n in result.shape]
        kind = tl.block_type(args[0].type.scalar, shape) if shape else args[0].type.scalar  # type: ignore[attr-defined]
        return tl.core.tensor(type(handle)(result, handle.dtype), kind)  # type: ignore[attr-defined]

    return lifted


def main(files: Sequence[str]) -> None:
    """Runs every case of a file made by torch.save: (text, entry, blocks, grid, arguments); saves the arguments after, or the error's text."""
    results: list[object] = []
    for text, entry, blocks, grid, arguments in torch.load(files[0], weights_only=True):
        run(text, entry, blocks, tuple(grid), arguments)
        results.append(arguments)
    torch.save(results, files[1])


if __name__ == "__main__":
    main(sys.argv[1:])
