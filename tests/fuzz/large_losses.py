"""python -m tests.fuzz.large_losses FIRST LAST: cross entropies of linear layers, of which few logits may exist at a time, against eager.

A program is its seed: a layer (with a bias or not, as a product, tied to an embedding), what lies between it and the loss (shifts, reshapes, casts, moved
classes; scales, caps and other operations on each logit, by numbers and by tensors without dimensions, around the casts, in place at times), a loss (mean, sum
or rows; ignored targets, all of them at times; label smoothing; weights of classes; as a softmax and its likelihood; beside the logarithms of the rows' sums
of exponentials; or one class of each row, picked of a softmax), autocast or a dtype, which of the operands have gradients, and now and then what keeps the
logits whole: another use, a write between, gradients that end. A result may be as far from float64 as eager's, a few times over, where eager's error is the
largest of this program's and of its neighbours', since one may be small by chance. Some programs are called with other numbers of rows afterwards, so that
those become symbols. Then come a target that is no class, a second backward, and gradients of gradients.
"""

from __future__ import annotations

import argparse
import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

import dynacompile
from dynacompile.events import LossChunked

HALVES = (torch.float16, torch.bfloat16)
LAYERS = ("linear", "linear", "linear with bias", "linear with bias", "product", "product of a matrix", "tied")
PATHS = ("plain", "plain", "float", "shifted", "flattened", "moved", "sliced", "contiguous", "permuted")
SPOILERS = ("returned", "written", "detached", "masked", "hooked", "no grad", "scale written")
POINTS = ("times", "over", "cap", "in place", "cast", "rounded", "less", "from", "negated", "clamped", "sigmoid")
CURVED = ("plus a tensor", "from a tensor")
"""A tensor that is added, or divided by again, has a gradient of zero, but for a curve behind it."""
NEIGHBOURS, NUDGE = 16, 0.02
"""Programs on whose operands eager's rounding is measured where it is small on a program's own, and how far those operands are from its own."""


@dataclass(frozen=True)
class Program:
    seed: int
    rows: tuple[int, ...]
    width: int
    classes: int
    layer: str
    path: str
    loss: dict[str, object]
    is_likelihood: bool
    dtype: torch.dtype
    autocast: torch.dtype | None
    wanted: tuple[bool, ...]
    ignored: float
    factor: float
    spoiler: str
    limit: int
    extra: str
    picked: str
    points: tuple[tuple[str, ...], tuple[str, ...]]
    others: tuple[tuple[int, ...], ...]
    is_rounded: bool = True
    nudge: int = 0

    def text(self) -> str:
        return "\n".join(f"  {name}: {value}" for name, value in vars(self).items())

    def leaves(self, dtype: torch.dtype) -> list[torch.Tensor]:
        generator = torch.Generator().manual_seed(self.seed)
        sizes = (*self.rows, self.width), (self.classes, self.width), (self.classes,)
        made = [torch.randn(s, generator=generator, dtype=torch.float64) for s in sizes]
        if self.nudge:
            generator.manual_seed(self.nudge)
            made = [t * (1 + NUDGE * torch.randn(t.shape, generator=generator, dtype=torch.float64)) for t in made]
        return [t.to(self.dtype).to(dtype).requires_grad_(w) for t, w in zip(made, self.wanted, strict=True)]

    def targets(self) -> torch.Tensor:
        generator = torch.Generator().manual_seed(self.seed + 1)
        targets = torch.randint(0, self.classes, self.rows, generator=generator)
        at = self.loss.get("ignore_index", -100)
        return torch.where(torch.rand(self.rows, generator=generator) < self.ignored, at, targets)

    def __call__(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor) -> object:
        with torch.autocast("cpu", dtype=self.autocast or torch.bfloat16, enabled=self.autocast is not None):
            scale = bias[0].sigmoid() + 0.5
            logits = self.points_of(self.logits(x, weight, bias, targets), self.points[0], scale)
            if self.spoiler == "written":
                with torch.no_grad():
                    weight.mul_(2.0)
            if self.spoiler == "detached":
                logits = logits.detach()
            if self.spoiler == "masked":
                logits = logits * torch.linspace(0.5, 1, self.classes, dtype=logits.dtype)
            if self.spoiler == "hooked" and logits.requires_grad:
                logits.register_hook(lambda g: g * 2)
            if self.spoiler == "scale written":
                shift = scale.detach().clone()
                logits = logits + shift
                shift.add_(1.0)
            through, wanted = self.through(logits, targets)
            through = self.points_of(through, self.points[1], scale)
            with torch.set_grad_enabled(torch.is_grad_enabled() and self.spoiler != "no grad"):
                loss = self.loss_of(through, wanted) * self.factor
            return (loss, logits) if self.spoiler == "returned" else loss

    def logits(self, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        match self.layer:
            case "linear":
                return F.linear(x, weight)
            case "linear with bias":
                return F.linear(x, weight, bias)
            case "product":
                return x @ weight.t()
            case "product of a matrix":
                return torch.matmul(x, weight.t().contiguous())
            case _:
                return F.linear(F.embedding(targets.clamp(0, self.classes - 1), weight) + x, weight, bias)

    def points_of(self, logits: torch.Tensor, points: Sequence[str], scale: torch.Tensor) -> torch.Tensor:
        for point in points:
            logits = self.point_of(logits, point, scale)
        return logits

    def point_of(self, logits: torch.Tensor, point: str, scale: torch.Tensor) -> torch.Tensor:
        """An operation on each logit. What rounds on its way to float64 is no rounding there."""
        match point:
            case "times":
                return 0.7 * logits
            case "over":
                return torch.div(logits, 3) if self.seed % 2 else logits / 1.5
            case "cap":
                return 5.0 * torch.tanh(logits / 5.0)
            case "in place":
                logits *= 0.25
                logits.div_(0.3).add_(0.5)
            case "cast":
                return logits.to(torch.promote_types(logits.dtype, torch.float32))
            case "rounded":
                return logits.bfloat16() if self.dtype != torch.float64 and self.is_rounded else logits
            case "less":
                return logits - 0.25
            case "from":
                return 2 - logits
            case "negated":
                return -logits
            case "clamped":
                return logits.clamp(min=-3) if self.seed % 2 else torch.clamp(logits, -4, 4.5)
            case "sigmoid":
                return 6 * logits.sigmoid()
            case "by a tensor":
                return scale * logits
            case "over a tensor":
                return logits / scale
            case "plus a tensor":
                return 4 * torch.tanh(logits.add(scale) / 4)
            case "from a tensor":
                return 6 * (scale - logits).sigmoid()
        return logits

    def through(self, logits: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        match self.path:
            case "plain":
                return logits.view(-1, self.classes), targets.view(-1)
            case "float":
                return logits.view(-1, logits.size(-1)).to(torch.promote_types(logits.dtype, torch.float32)), targets.reshape(-1)
            case "shifted":
                return logits[..., :-1, :].contiguous().view(-1, self.classes), targets[..., 1:].reshape(-1)
            case "flattened":
                return torch.flatten(logits, 0, -2), targets.flatten()
            case "sliced":
                return logits[..., 1::2, :].reshape(-1, self.classes), targets[..., 1::2].reshape(-1)
            case "contiguous":
                return logits.reshape(-1, self.classes).contiguous(), targets.view(-1)
            case "moved" if logits.dim() == 3:
                return logits.transpose(1, 2), targets
            case "permuted" if logits.dim() == 4:
                return logits.permute(0, 3, 1, 2), targets
        return logits.view(-1, self.classes), targets.view(-1)

    def loss_of(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.picked:
            return self.picked_of(logits, targets)
        more = {}
        if "weights" in self.extra:
            more["weight"] = torch.linspace(0.2, 1.2, self.classes, dtype=torch.float64).to(logits.dtype)
        if self.is_likelihood:
            loss = F.nll_loss(F.log_softmax(logits, 1), targets, **self.loss, **more)
        else:
            loss = F.cross_entropy(logits, targets, **self.loss, **more)
        if "logarithms" in self.extra:
            z = logits.logsumexp(1) if self.seed % 2 else torch.logsumexp(logits.float() if logits.dtype in HALVES else logits, dim=1)
            loss = loss + 0.1 * (z.square() if loss.dim() else z.square().mean())
        return loss

    def picked_of(self, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """What a softmax over the classes, or the logits beside their rows' logarithms, has for one class of each row. Negative places count from the end."""
        flat = logits.transpose(1, -1).reshape(-1, self.classes) if logits.dim() > 2 else logits
        places = targets.reshape(-1).clamp(0, self.classes - 1)
        match self.picked:
            case "gather":
                return F.log_softmax(flat, -1).gather(-1, places[:, None]).squeeze(-1)
            case "take":
                return torch.take_along_dim(flat.log_softmax(1), places[:, None], dim=1)
            case "probability":
                return torch.gather(flat.softmax(-1), -1, places.unsqueeze(-1))
            case "index":
                return torch.log_softmax(flat, dim=-1)[torch.arange(flat.shape[0]), places - self.classes]
            case _:
                return flat.gather(1, places.unsqueeze(1)).squeeze(1) - flat.logsumexp(1)


def generate(seed: int) -> Program:
    draw = random.Random(seed)
    is_likelihood = draw.random() < 0.2
    loss: dict[str, object] = {"reduction": draw.choice(("mean", "mean", "sum", "none"))}
    if draw.random() < 0.4:
        loss["ignore_index"] = draw.choice((-1, 0, 1))
    if draw.random() < 0.3 and not is_likelihood:
        loss["label_smoothing"] = draw.choice((0.1, 0.5, 1.0))
    dtype = draw.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16))
    autocast = draw.choice((None, None, torch.bfloat16, torch.float16)) if dtype == torch.float32 else None
    spoiler = draw.choice(SPOILERS) if draw.random() < 0.2 else ""
    wanted = (False, False, draw.random() < 0.5) if spoiler == "written" else tuple(draw.random() < 0.8 for _ in range(3))  # else eager raises
    pointed = random.Random(f"points {seed}")
    counts = (pointed.randint(0, 3), pointed.choice((0, 0, 1, 2))) if pointed.random() < 0.5 else (0, 0)
    once = pointed.choice((("by a tensor",), ("over a tensor",), CURVED, CURVED[:1]))
    drawn = POINTS + once
    points = tuple(tuple(pointed.choice(drawn) for _ in range(n)) for n in counts)
    resized = random.Random(f"resized {seed}")
    others = tuple(tuple(resized.randint(2, 12) for _ in range(3)) for _ in range(resized.choice((0, 0, 0, 3))))
    return Program(
        seed,
        tuple(draw.randint(2, 9) for _ in range(draw.choice((1, 2, 2, 3)))),
        draw.randint(1, 20),
        draw.randint(2, 60),
        draw.choice(LAYERS),
        draw.choice(PATHS),
        loss,
        is_likelihood,
        dtype,
        autocast,
        wanted,
        draw.choice((0.0, 0.0, 0.3, 0.9, 1.0)),
        draw.choice((1.0, 1.0, 1024.0, -0.5)),
        spoiler,
        draw.choice((1, 300, 1000, 3000)),
        random.Random(-1 - seed).choice(("", "", "", "weights", "logarithms", "weights, logarithms")),
        random.Random(f"picked {seed}").choice(("", "", "", "", "", "gather", "take", "probability", "index", "logit")),
        points,  # type: ignore[arg-type]
        others,
    )


def run(call: Callable, leaves: Sequence[torch.Tensor], targets: torch.Tensor, twice: bool) -> list[torch.Tensor | None]:
    """The loss, and its gradients for a tangent that is not ones; their gradients, too."""
    found = call(*leaves, targets)
    results = list(found) if isinstance(found, tuple) else [found]
    loss = results[0]
    asked = [t for t in leaves if t.requires_grad]
    if not loss.requires_grad or not asked:
        return results
    tangent = torch.linspace(0.5, 2, loss.numel(), dtype=loss.dtype).view(loss.shape)
    grads = torch.autograd.grad(loss, asked, tangent, retain_graph=True, allow_unused=True)
    again = torch.autograd.grad(loss, asked, tangent, create_graph=twice, allow_unused=True)
    results += [*grads, *again]
    if twice and any(g is not None and g.requires_grad for g in again):
        results += torch.autograd.grad(sum((g * g).sum() for g in again if g is not None and g.requires_grad), asked, allow_unused=True)
    return results


def check(program: Program, backend: str) -> list[LossChunked]:
    """Raises AssertionError where the compiled program differs. Gives what was decided of its losses."""
    dynacompile.reset()
    options = {"logits_bytes": program.limit} | ({"reference": True} if backend == "reference" else {})
    chosen = "default" if backend == "reference" else backend
    compiled = dynacompile.compile(lambda *a: program(*a), backend=chosen, isolate_recompiles=True, options={"fallback": "none", **options})
    events: list = []
    end = dynacompile.subscribe(events.append)
    try:
        check_call(program, compiled)
        if program.seed % 5 == 0:
            check_wrong_target(program, compiled)
        for rows in program.others:
            check_call(replace(program, rows=rows[: len(program.rows)]), compiled)
    finally:
        end()
    return [e for e in events if isinstance(e, LossChunked)]


def check_call(program: Program, compiled: Callable) -> None:
    twice = program.dtype == torch.float64 and program.seed % 3 == 0 and program.spoiler != "written"  # of a graph that writes its inputs: refused
    given = run(compiled, program.leaves(program.dtype), program.targets(), twice)
    wanted, exact = eager_and_exact(program, twice)
    assert len(given) == len(wanted), f"{len(given)} results, not {len(wanted)}"
    for i, (have, want, best) in enumerate(zip(given, wanted, exact, strict=True)):
        assert (have is None) == (want is None), f"result {i}: {have} is not {want}"
        if have is not None and want is not None and best is not None:
            check_close(i, have, want, best, program, twice)


def eager_and_exact(program: Program, twice: bool) -> tuple[list[torch.Tensor | None], list[torch.Tensor | None]]:
    """Eager's results, and those in float64, which nothing rounds on the way."""
    exact = replace(program, autocast=None, is_rounded=False)
    return run(program, program.leaves(program.dtype), program.targets(), twice), run(exact, exact.leaves(torch.float64), exact.targets(), twice)


def check_close(i: int, have: torch.Tensor, want: torch.Tensor, best: torch.Tensor, program: Program, twice: bool) -> None:
    """A number may be exact in eager by chance. Where ours is farther from float64 than eager's, eager's error is that of the largest of the same program
    on operands near by, which are rounded otherwise. In float64 the exact result is eager's own, so that what counts is the size of the terms that were
    added. A gradient that float16 can't hold is inf in eager, which rounds the product to it, and may be a number where chunks are added in float32."""
    assert geometry(have) == geometry(want), f"result {i}: another geometry"
    other = have.isfinite() != want.isfinite()
    assert not (other & ~(have.isfinite() & (best.abs() >= least_overflow(i, best, program)))).any(), f"result {i}: other places are not finite"
    if program.autocast and other.any():
        allowed = 16 * torch.finfo(program.autocast).eps * size_of(best[other])
        assert far(have[other], best[other]) <= allowed, f"result {i}: wrong by {far(have[other], best[other]):g} where eager is not finite"
        have, want, best = have[~other], want[~other], best[~other]
    error, by_eager, scale = far(have, best), far(want, best), size_of(best)
    finest = torch.finfo(have.dtype).eps * 8 * scale + 1e-12 * max(1.0, abs(program.factor))
    if error > 3 * by_eager + finest:
        by_eager = max(by_eager, *(error_of_neighbour(replace(program, nudge=n), i, twice) for n in range(1, NEIGHBOURS + 1)))
    assert error <= 3 * by_eager + finest, f"result {i}: wrong by {error:g}, eager by {by_eager:g} of {scale:g}"


def error_of_neighbour(program: Program, i: int, twice: bool) -> float:
    want, best = (results[i] for results in eager_and_exact(program, twice))
    return 0.0 if want is None or best is None else far(want, best)


def far(found: torch.Tensor, best: torch.Tensor) -> float:
    """The largest error, among numbers that are finite."""
    return size_of(found.double() - best.double())


def size_of(t: torch.Tensor) -> float:
    finite = t.isfinite()
    return t[finite].abs().max().item() if finite.any() else 0.0


def least_overflow(i: int, best: torch.Tensor, program: Program) -> torch.Tensor:
    """How large each number is at least where autocast's dtype can't hold what it is computed of. The first number of the bias also makes the scale: the
    gradient of that is rounded to autocast's dtype, and reaches the bias through a sigmoid's slope."""
    least = torch.full_like(best, 0.999 * torch.finfo(program.autocast).max if program.autocast else float("inf"), requires_grad=False)
    if i and best.shape == (program.classes,) and "tensor" in str(program.points):
        first = program.leaves(torch.float64)[2][0].detach().sigmoid()
        least[0] *= first * (1 - first)
    return least


def geometry(t: torch.Tensor) -> tuple:
    """Without the strides along which there is one element."""
    return t.dtype, t.shape, [stride for size, stride in zip(t.shape, t.stride()) if size > 1]


def check_wrong_target(program: Program, compiled: Callable) -> None:
    """A target that is no class is eager's error."""
    leaves, targets = program.leaves(program.dtype), program.targets()
    if program.picked:
        return
    targets.view(-1)[-1] = program.classes
    messages = []
    for call in (program, compiled):
        try:
            call(*leaves, targets)
            messages.append("")
        except IndexError as error:
            messages.append(str(error))
    assert messages[0] == messages[1], f"{messages[1]!r} is not eager's {messages[0]!r}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.large_losses", description="Compare losses of large layers, in chunks, with eager.")
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="aot_eager", choices=("aot_eager", "default", "reference"))
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed, decided = 0, Counter()
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            decided.update((e.chunked, "" if e.chunked else e.reason) for e in check(program, given.backend))
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:600]}\n{program.text()}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ; decided: {dict(decided)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
