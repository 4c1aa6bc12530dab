"""Runs a random program eagerly and compiled, and compares values, strides, gradients and the random state."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke
from tests.fuzz.builder import Program
from tests.scenarios import strides


@dataclass
class Run:
    outputs: list[torch.Tensor]
    grads: list[torch.Tensor | None]
    rng: torch.Tensor


CREATING = frozenset(("arange", "linspace", "eye", "tensor", "rand", "randn", "ones", "zeros", "full"))
"""Functions of torch that make tensors on the device that is named."""


def on_device(program: Program, device: str) -> Program:
    """The program whose own tensors are made on the device."""
    if device == "cpu":
        return program
    tree = ast.parse(program.source)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and ast.unparse(call.func.value) == "torch" and call.func.attr in CREATING:
            call.keywords.append(ast.keyword("device", ast.Constant(device)))
    return replace(program, source=ast.unparse(tree) + "\n")


def inputs_in(program: Program, dtype: torch.dtype, grad: bool, device: str = "cpu") -> list[torch.Tensor]:
    made = []
    for tensor in program.inputs:
        if tensor.is_floating_point():
            same = torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=device).copy_(tensor)
            made.append(same.requires_grad_(grad))
        else:
            made.append(tensor.to(device, copy=True))
    return made


def run(function: Callable[..., Any], program: Program, dtype: torch.dtype, grad: bool, device: str = "cpu") -> Run:
    inputs = inputs_in(program, dtype, grad, device)
    torch.manual_seed(program.seed)
    outputs = list(function(*inputs))
    rng = torch.get_rng_state() if device == "cpu" else torch.cuda.get_rng_state()
    roots = [o for o in outputs if o.requires_grad]
    if roots:
        torch.autograd.backward(roots, [weights(o).to(o.device) for o in roots])
    return Run(outputs, [t.grad for t in inputs], rng)


def weights(out: torch.Tensor) -> torch.Tensor:
    return torch.linspace(-1, 1.5, max(out.numel(), 1), dtype=torch.float64)[: out.numel()].to(out.dtype).reshape(out.shape)


def difference(program: Program, dtype: torch.dtype, grad: bool, device: str = "cpu", **options: Any) -> str | None:
    """What differs between eager and compiled, None if nothing does. float32 is measured against eager's float64; up to 20 times eager's error is right."""
    dynacompile.reset()
    function = on_device(program, device).function()
    options = {"isolate_recompiles": True, **options}
    options["options"] = {"fallback": "none", "verify": True, **options.get("options", {})}
    compiled = dynacompile.compile(function, **options)
    try:
        want = run(function, program, dtype, grad, device)
    except RuntimeError as error:
        if any(
            reason in str(error)
            for reason in ("modified by an inplace operation", "leaf Variable", "not implemented for", "expected dtype", "view size is not compatible")
        ):
            return None  # eager refuses the program
        raise
    events: list[object] = []
    end = dynacompile.subscribe(events.append)
    try:
        got = run(compiled, program, dtype, grad, device)
    finally:
        end()
    left = [e.reason for e in events if isinstance(e, (FrameSkipped, GraphBroke)) and "<program" in e.site]
    if left:
        return f"not compiled: {left[0]}"
    seen: list[torch.Tensor] = []
    exact = run(function, program, torch.float64, grad, device) if dtype != torch.float64 else want
    for i, (a, b, e) in enumerate(zip(got.outputs, want.outputs, exact.outputs, strict=True)):
        if a.requires_grad != b.requires_grad or a.dtype != b.dtype or a.shape != b.shape:
            return f"output {i}: {a.dtype} {tuple(a.shape)} requires_grad={a.requires_grad}, eager's {b.dtype} {tuple(b.shape)} {b.requires_grad}"
        if strides(a) != strides(b) and (seen := seen or faked(function, program, dtype, grad, device)) and strides(seen[i]) == strides(b):
            return f"output {i}: strides {a.stride()}, eager's {b.stride()} of {tuple(b.shape)}"
        told = apart(a.detach(), b.detach(), e.detach())
        if told:
            return f"output {i}: {told}"
    for i, (a, b, e) in enumerate(zip(got.grads, want.grads, exact.grads, strict=True)):
        if (a is None) != (b is None):
            return f"gradient {i}: {a}, eager's {b}"
        if a is not None:
            told = apart(a, b, e)  # type: ignore[arg-type]
            if told:
                return f"gradient {i}: {told}"
    return None if torch.equal(got.rng, want.rng) else "the random state"


def faked(function: Callable[..., Any], program: Program, dtype: torch.dtype, grad: bool, device: str) -> list[torch.Tensor]:
    """The outputs on fake tensors, whose strides may differ from real ones: a compiled program has those."""
    mode = torch._subclasses.FakeTensorMode(allow_non_fake_inputs=True)
    inputs = [mode.from_tensor(t) for t in inputs_in(program, dtype, grad, device)]
    with mode:
        return list(function(*inputs))


def apart(got: torch.Tensor, want: torch.Tensor, exact: torch.Tensor) -> str | None:
    if not got.numel():
        return None
    if not got.is_floating_point():
        return None if torch.equal(got, want) else f"{got.flatten()[:6].tolist()}, eager's {want.flatten()[:6].tolist()}"
    g, w, e = got.double(), want.double(), exact.double()
    if not torch.equal(g.isnan(), w.isnan()):
        return f"NaN in {int(g.isnan().sum())} places, eager in {int(w.isnan().sum())}"
    scale = w.nan_to_num().abs().amax().clamp(min=1.0)
    error, own = (g - w).nan_to_num().abs().amax(), (w - e).nan_to_num().abs().amax()
    small = 1e-9 if got.dtype == torch.float64 else 2e-5
    if error > small * scale + 20 * own:
        at = int((g - w).nan_to_num().abs().flatten().argmax())
        return f"off by {float(error):.3g} (eager by {float(own):.3g}): {float(g.flatten()[at]):.9g} at {at}, eager's {float(w.flatten()[at]):.9g}"
    return None


STAGES = (
    ("capture", {"backend": "eager"}),
    ("autograd", {"backend": "aot_eager"}),
    ("lower", {"options": {"reference": True, "fuse": False}}),
    ("schedule", {"options": {"reference": True}}),
    ("codegen, unfused", {"options": {"fuse": False}}),
    ("codegen", {}),
)


def blame(program: Program, dtype: torch.dtype, grad: bool, device: str = "cpu") -> str:
    """Per stage, whether the program is right when the stages after it are left out."""
    lines = []
    for stage, options in STAGES:
        try:
            told = difference(program, dtype, grad, device, **options)
        except Exception as error:  # noqa: BLE001 - to be shown
            told = f"{type(error).__name__}: {str(error)[:200]}"
        lines.append(f"{stage}: {told or 'right'}")
    return "\n".join(lines)
