"""python -m tests.fuzz.made_again FIRST LAST: training steps whose backward makes again whatever costs memory traffic alone, against eager.

A program is its seed: a residual stream, to which blocks of products, norms, activations, dropout and attention add their results, under autocast
or not, and what is returned: the loss, or some of the values between as well. The CPU is taken for a device on which nothing costs less than
traffic, a few sums in a row are made again, and all values are large. What is compared: results and gradients, which may be as far from float64's
as three times eager's are; and the bytes that are saved, which must be no more than without.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest.mock import patch

import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.autograd import made_again
from dynacompile.autograd.made_again import DEVICES, Device
from dynacompile.ir.graphs import ForwardBackward
from dynacompile.session import SESSION

WIDTH = 8
NORMS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda t: t,
    "layer": lambda t: F.layer_norm(t, t.shape[-1:]),
    "rms": lambda t: F.rms_norm(t, t.shape[-1:]),
    "batch": lambda t: F.batch_norm(t.flatten(0, -2), None, None, training=True).view(t.shape),
    "softmax": lambda t: t.softmax(-1),
}
ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "none": lambda t: t,
    "gelu": F.gelu,
    "tanh gelu": lambda t: F.gelu(t, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "square": torch.square,
    "dropout": lambda t: F.dropout(t, 0.3),
    "gate": lambda t: t * t.sigmoid() + t.detach().cos(),
}
KINDS = ("linear", "linear", "deep", "attention", "shared", "plain")


@dataclass(frozen=True)
class Block:
    """What is added to the stream. plain: without a product. writes: the stream is added to in place."""

    kind: str
    norm: str
    activation: str
    after: str
    writes: bool


@dataclass(frozen=True)
class Program:
    seed: int
    rows: int
    blocks: tuple[Block, ...]
    autocast: torch.dtype | None
    returned: tuple[int, ...]
    trained: tuple[bool, ...]
    post: bool
    budget: float
    most: int

    def leaves(self, dtype: torch.dtype) -> list[torch.Tensor]:
        draw = torch.Generator().manual_seed(self.seed)
        shapes = [(self.rows, WIDTH), *((2 * WIDTH, WIDTH) for _ in self.blocks), *((WIDTH, 2 * WIDTH) for _ in self.blocks)]
        made = [torch.randn(s, generator=draw, dtype=torch.float64).mul_(0.5).float().to(dtype) for s in shapes]
        return [t.requires_grad_(wanted) for t, wanted in zip(made, self.trained, strict=True)]

    def __call__(self, x: torch.Tensor, *weights: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast("cpu", self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            values = [x]
            count = len(self.blocks)
            for block, up, down in zip(self.blocks, weights[:count], weights[count:], strict=True):
                stream = values[-1]
                more = ACTIVATIONS[block.after](added(block, NORMS[block.norm](stream), up, down))
                if block.writes:
                    stream = stream.clone()
                    stream += more
                else:
                    stream = stream + more
                values.append(NORMS[block.norm](stream) if self.post else stream)
            return tuple(values[i] for i in self.returned), values[-1].float().square().mean()  # type: ignore[return-value]


def added(block: Block, x: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    activation = ACTIVATIONS[block.activation]
    if block.kind == "plain":
        return activation(x) * 0.5
    if block.kind == "linear":
        return F.linear(activation(x), down[:, :WIDTH])
    if block.kind == "shared":
        middle = activation(F.linear(x, up))
        return F.linear(middle, down) + F.linear(middle, up.t())
    if block.kind == "attention":
        q, k = F.linear(x, up).split(WIDTH, -1)
        return (q @ k.t()).softmax(-1) @ activation(x)
    return F.linear(activation(F.linear(x, up)), down)


def generate(seed: int) -> Program:
    draw = random.Random(seed)
    count = draw.randint(1, 6)
    blocks = tuple(
        Block(draw.choice(KINDS), draw.choice(list(NORMS)), draw.choice(list(ACTIVATIONS)), draw.choice(["none", "none", *ACTIVATIONS]), draw.random() < 0.2)
        for _ in range(count)
    )
    returned = tuple(i for i in range(1, count + 1) if draw.random() < 0.2)
    trained = tuple(draw.random() < 0.85 for _ in range(2 * count + 1))
    return Program(
        seed,
        draw.choice((3, 8, 16)),
        blocks,
        draw.choice((None, torch.bfloat16, torch.bfloat16)),
        returned,
        trained,
        draw.random() < 0.3,
        draw.choice((1.0, 1.0, 1.0, 0.5, 0.0)),
        draw.choice((0, 1, 3, 9)),
    )


@contextmanager
def cheap_traffic(program: Program) -> Iterator[None]:
    free = Device(4.0e6, {2: 1.0, 4: 1.0, 8: 1.0}, 1e9, 0)
    with patch.dict(DEVICES, {"cpu": free}), patch.object(made_again, "LARGE", 1), patch.object(made_again, "MOST_SUMS", program.most):
        yield


def answers(call: Callable, leaves: Sequence[torch.Tensor], seed: int) -> list[torch.Tensor | None]:
    """Results and gradients, which come twice from one graph."""
    torch.manual_seed(seed)
    between, loss = call(*leaves)
    results = [*between, loss]
    asked = [t for t in leaves if t.requires_grad]
    ends = [r for r in results if r.requires_grad]
    found: list[torch.Tensor | None] = [r.detach().clone() for r in results]
    if asked and ends:
        tangents = [torch.linspace(0.5, 2, r.numel(), dtype=r.dtype).view(r.shape) for r in ends]
        for retain in (True, False):
            found += torch.autograd.grad(ends, asked, tangents, retain_graph=retain, allow_unused=True)
    return found


def compiled(program: Program, backend: str) -> tuple[Callable, list[int]]:
    """The program's callable, and a list that takes the bytes that its compiles save."""
    options = {"fallback": "none", "memory_budget": program.budget} | ({"reference": True} if backend == "reference" else {})
    chosen = "default" if backend == "reference" else backend
    call = dynacompile.compile(lambda *a: program(*a), backend=chosen, isolate_recompiles=True, options=options)
    kept: list[int] = []

    def observer(stage: str, result: object) -> None:
        if isinstance(result, ForwardBackward):
            kept.append(result.facts.get("saved_bytes", 0))

    def run(*leaves: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with SESSION.bus.observing(observer):
            return call(*leaves)

    return run, kept


def check(program: Program, backend: str = "aot_eager") -> tuple[int, int]:
    """Raises AssertionError where the compiled program differs. Gives the bytes that are saved, and those without what is made again."""
    with cheap_traffic(program):
        run, kept = compiled(program, backend)
        given = answers(run, program.leaves(torch.float32), program.seed)
    plain, more = compiled(program, "aot_eager")
    plain(*program.leaves(torch.float32))
    wanted = answers(program, program.leaves(torch.float32), program.seed)
    exact = answers(replace(program, autocast=None), program.leaves(torch.float64), program.seed)
    drawn = any("dropout" in (b.activation, b.after) for b in program.blocks)
    assert len(given) == len(wanted)
    for i, (have, want, best) in enumerate(zip(given, wanted, exact, strict=True)):
        assert (have is None) == (want is None), f"result {i}: {have} is not {want}"
        if have is not None and want is not None and best is not None:
            check_close(i, have, want, want if drawn else best)
    if program.budget >= 1:
        assert sum(kept) <= sum(more), f"{kept} bytes are saved, without making values again {more}"
    return sum(kept), sum(more)


def check_close(i: int, have: torch.Tensor, want: torch.Tensor, best: torch.Tensor) -> None:
    """best: in float64, or eager's where random numbers depend on the dtype: then half precision may be one part in 20 off, of the largest value."""
    assert (have.dtype, have.shape) == (want.dtype, want.shape), f"result {i}: another geometry"
    assert torch.equal(have.isfinite(), want.isfinite()), f"result {i}: other places are not finite"
    errors = [(t.double() - best.double()).abs().max().item() if t.numel() else 0.0 for t in (have, want)]
    scale = best.abs().max().item() if best.numel() else 0.0
    allowed = 3 * errors[1] + (5e-2 if best is want else 1e-4) * scale + 1e-5
    assert not errors[0] > allowed, f"result {i}: wrong by {errors[0]:g}, eager by {errors[1]:g} of {scale:g}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.made_again", description="Compare backwards that make values again with eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="aot_eager", choices=("aot_eager", "reference", "default"))
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed = less = 0
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            kept, more = check(program, given.backend)
            less += kept < more
        except Exception as error:  # noqa: BLE001 - it is what is looked for
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:300]}\n{program}", flush=True)
        if seed % 50 == 49:
            dynacompile.reset()
    print(f"{given.last - given.first} programs, {less} keep less, {failed} differ")
    raise SystemExit(failed > 0)


if __name__ == "__main__":
    main()
