"""Calls that eager refuses by the values or shapes of what it is given: indices outside, negative sizes, no elements, matrices without a factor, divisions
by zero, shapes that do not go together, writes to what can't be written.

The kind of the error is compared, and what is left behind: what was written, the random state, attributes.

`python -m tests.fuzz.wrong_values FIRST LAST [--backend NAME]`: most programs call first with valid values, then with wrong ones, in turn.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree as pytree

import dynacompile
from tests.fuzz.command import main

CALLS = """
x[i]; x[:, i]; x[i, i]; x[i].sum(); x.index_select(0, i); x.gather(0, i[None].expand(1, 3)); x.take(i); torch.take_along_dim(x, i[None].expand(1, 3), 0)
x.scatter(0, i[None].expand(1, 3), 1.0); x.scatter_add(0, i[None].expand(1, 3), x); x.scatter_reduce(0, i[None].expand(1, 3), x, "amax")
x.index_add(0, i[:2], x[:2]); x.index_copy(0, i[:2], x[:2]); x.index_fill(0, i, 2.0); x.index_put((i,), x[0]); x.put(i, x[0, :3])
x.index_reduce(0, i[:2], x[:2], "mean"); x.clone().index_put_((i,), x[0], accumulate=True); x.clone().scatter_(0, i[None].expand(1, 3), 1.0)
x.index_add_(0, i[:2], x[:2]); x.index_fill_(0, i, 2.0); F.embedding(i, x); F.embedding(i, x, padding_idx=0); F.embedding(i, x, max_norm=1.0)
F.embedding_bag(i[None], x); F.one_hot(i); F.one_hot(i, 3); F.one_hot(i, 3).sum() * 0; F.nll_loss(x, i); F.cross_entropy(x, i)
F.cross_entropy(x, i, reduction="none"); F.cross_entropy(x, i, label_smoothing=0.1); F.cross_entropy(x, i, ignore_index=2); F.nll_loss(x[None].mT, i[None])
F.multi_margin_loss(x, i); F.multilabel_margin_loss(x, i[None].expand(3, 3)); F.cross_entropy(x, i, weight=x[0]); F.nll_loss(x, i, weight=x[0].abs())
F.binary_cross_entropy(x, x); F.binary_cross_entropy(p, x); F.binary_cross_entropy(x, p); torch.bernoulli(x); torch.multinomial(x, 1)
torch.multinomial(x[0], n); torch.poisson(x); torch.multinomial(x, n, replacement=True); torch.normal(x, x); torch.binomial(p * 4, x); torch.bincount(i)
torch.bincount(i, minlength=5); torch.bincount(i, x[0]); torch.histc(x, n); torch.histc(x, 4, 0.0, z); torch.linalg.cholesky(m); torch.linalg.inv(m)
torch.linalg.solve(m, x); torch.inverse(m); torch.cholesky_inverse(m); torch.linalg.eigh(m).eigenvalues; torch.linalg.lu_factor(m)[0]
torch.linalg.matrix_power(m, -1); torch.linalg.svdvals(m / z); torch.linalg.tensorinv(m, 1); torch.linalg.ldl_factor(m)[0]; torch.linalg.slogdet(m); j // k
j % k; torch.div(j, k, rounding_mode="trunc"); torch.fmod(j, k); torch.remainder(j, k); j.floor_divide(k); j.clone().floor_divide_(k); j // n0; j % n0
torch.fmod(j, n0); 7 // j; 7 % k; j.clone().remainder_(k); torch.gcd(j, k); j ** k; j ** n; j.pow_(n); 2 ** (j - k); j << k; torch.bitwise_left_shift(j, k)
j / k; x.repeat_interleave(i, 0); torch.repeat_interleave(i); x.repeat(n, 2); x.expand(n, 3, 3); x.new_zeros(n); torch.zeros(n); torch.ones(2, n)
torch.full((n,), 1.0); torch.rand(n); torch.arange(n); torch.arange(0, n, -1); torch.arange(5, n); torch.linspace(0, 1, n); torch.eye(n); torch.randperm(n)
torch.randint(0, n, (2,)); torch.randint(n, 3, (2,)); torch.tril_indices(n, n); x.view(n, 3); x.reshape(n, 3); x.view(-1, n); x.reshape(n, -1)
x.t().view(9); x.t().view(-1); x.unflatten(0, (n, -1)); x.flatten(n - 3); x.split(n); x.split([n, 1]); x.chunk(n); x.tensor_split(n); x.unfold(0, n, 1)
x.unfold(0, 2, n); x.narrow(0, n, 1); x.narrow(0, 1, n); x.select(0, n); x[n]; x[:, n]; x[n:]; x[::n]; x.transpose(0, n); x.sum(n); x.max(n)[0]
x.squeeze(n); x.unsqueeze(n); x.softmax(n); x.cumsum(n); x.sort(n)[0]; x.topk(n)[0]; x.kthvalue(n)[0]; x.roll(n, 0); x.flip(n); x.rot90(n); x.diagonal(n)
x.permute(n, 0); x.movedim(n, 0); e.max(); e.min(); e.argmax(); e.max(0)[0]; e.amax(); e.amax(0); e.aminmax(); e.median(); e.mode(); e.mean(); e.std()
e.prod(); e.logsumexp(0); e.argmin(0); e.sum(); e.kthvalue(1)[0]; e.quantile(0.5); e.nanmedian(); e.topk(1)[0]; e.cummax(0)[0]; e.norm()
torch.linalg.vector_norm(e, float("inf")); e.item(); e.var(); e.softmax(0); torch.cat([e, x]); torch.stack([e, x]); x.quantile(z + 1.5)
x.quantile(p[0] * 9); torch.nanquantile(x, p[0] - 1); torch.quantile(x, z); x + y; x * y; x @ y; torch.mm(x, y); torch.bmm(x[None], y[None])
torch.addmm(x, x, y); torch.mv(x, y[0]); torch.dot(x[0], y[0]); torch.cat([x, y]); torch.stack([x, y]); torch.where(x > 0, x, y); F.linear(x, y)
F.mse_loss(x, y); F.l1_loss(x, y); F.kl_div(x, y); x.copy_(y); x.add_(y); y.add_(x); x.expand_as(y); x.view_as(y); torch.broadcast_tensors(x, y)[0]
torch.einsum("ij,jk->ik", x, y); x.masked_fill(y > 0, 1.0); x.masked_fill_(y > 0, 1.0); x.masked_select(y > 0); x[y > 0]; x.masked_scatter(x > 0, y[0, :2])
x.lerp(y, 0.5); torch.cdist(x, y); torch.outer(x, y); torch.cross(x, y, 1); F.conv1d(x[None], y[None]); F.conv1d(x[None], x[None], stride=n)
F.conv1d(x[None], x[None], padding=n); F.conv1d(x[None], x[None], groups=2); F.max_pool1d(x[None], n); F.avg_pool1d(x[None], n)
F.max_pool2d(x[None], n, padding=2); F.pad(x, (n, 0)); F.pad(x[None], (n, 0), mode="reflect"); F.pad(x[None], (n, 0), mode="circular")
F.interpolate(x[None], n); F.adaptive_avg_pool1d(x[None], n); F.layer_norm(x, (n,)); F.group_norm(x, n); F.batch_norm(x, y[0], y[0])
F.batch_norm(x[:1], None, None, training=True); F.instance_norm(x[None, :, :1]); F.dropout(x, z + 2.0); F.dropout(x, n * 1.0)
F.pixel_shuffle(x[None, None], 2); F.glu(x); F.fold(x[None], 4, 2); F.ctc_loss(x[:, None].log_softmax(2), i[None], i[:1], i[:1])
F.gumbel_softmax(x, dim=n); F.unfold(x[None, None], n); v.add_(1); v.mul_(x[0]); v.copy_(x); v[0] = 1; v.zero_(); l.add_(1); l.mul_(2); l[0].add_(1)
l.view(-1).zero_(); l.detach().add_(1); l.copy_(x); l[:, i]; (l * 1).add_(1); l.t_(); l.fill_(2); j.add_(1.5); j.mul_(x); j.div_(2); j.copy_(x); j += 1.5
j.sub_(x); (j > 0).add_(1); j.sqrt_(); j.bernoulli_(p); j.clamp_(0.5); j.exp_(); j.pow_(0.5); j.lerp_(j, 0.5); j.addcdiv_(j, j); j.sigmoid_(); int(x)
bool(x); float(i); x.item(); len(x[0, 0]); x.tolist()[n]; iter(x[0, 0]); torch.tensor([x[0, 0], n]); x.squeeze().item(); torch.tensor([[1], [1, 2]])
torch.as_tensor(n) / 0; torch.searchsorted(x, y); torch.bucketize(x, y); torch.combinations(x[0], n); torch.tril(x[0]); torch.trace(y)
torch.diag_embed(x, n); torch.vander(x); torch.block_diag(x[None]); torch.kron(x, y); torch.complex(x, y); torch.polar(x, y); torch.view_as_complex(x)
torch.view_as_real(x); x.view(torch.float64); x.view(torch.int16)[i]; x.as_strided((n, 3), (3, 1)); torch.fft.fft(x, n); torch.fft.ifft(x[:, :0])
torch.stft(x[0], 8); torch.hann_window(n); torch.logspace(0, 1, n); torch.renorm(x, 2, 0, z - 1); x.bernoulli_(z + 2); x.normal_(0, z - 1)
x.uniform_(1, 0); x.exponential_(z * 0); x.geometric_(z * 0); x.random_(5, 2)
"""
NAMES = tuple(call.strip() for line in CALLS.strip().splitlines() for call in line.split(";"))
BEFORE = (
    "pass",
    "w.add_(1)",
    "w[0] = 5",
    "S.append(x.shape)",
    "w.mul_(x[0, 0]); S.append(1)",
    "r = torch.rand(2)",
    "w.copy_(torch.rand(3))",
    "N.count += 1",
    "w.data.add_(1)",
)
AFTER = ("pass", "w.add_(1)", "w.sub_(w * 2)", "S.append(2)", "r = torch.rand(3)", "N.count = 7")
USES = ("r", "None", "(r * 1 if isinstance(r, torch.Tensor) else r)", "(r.sum() if isinstance(r, torch.Tensor) else r)")
CLAUSES = ("", "", "", "Exception", "RuntimeError", "IndexError", "(ValueError, IndexError, TypeError)")
INTS = {"good": (1, 2, 3), "bad": (-1, -2, 0, 4, 5, -4, 7)}
PLACES = {"good": ((0, 1, 2), (2, 1, 0), (0, 0, 1)), "bad": ((0, 1, 3), (-1, 0, 1), (-4, 1, 0), (0, 100, 2), (5, 6, 7))}


@dataclass(frozen=True)
class Program:
    """source: a function of tensors and an int, and what it is given."""

    seed: int

    @functools.cached_property
    def parts(self) -> tuple[str, list[tuple[bool, int]]]:
        draw = random.Random(self.seed)
        lines = [draw.choice(BEFORE), *self.tried(draw), draw.choice(AFTER)]
        first = draw.random() < 0.6
        calls = [(False, draw.randrange(1000))] * first + [(True, draw.randrange(1000)), (False, draw.randrange(1000)), (True, draw.randrange(1000))]
        body = "\n  ".join(lines)
        return f"def call(x, y, p, i, j, k, m, e, v, l, w, z, n, n0):\n  {body}\n  return {draw.choice(USES)}\n", calls

    def tried(self, draw: random.Random) -> list[str]:
        call, clause = draw.choice(NAMES), draw.choice(CLAUSES)
        is_statement = any(f" {sign} " in call for sign in ("=", "+="))
        line = f"{call}; r = 1" if is_statement else f"r = {call}"
        return ["try:", f"  {line}", f"except {clause} as error: r = type(error).__name__"] if clause else [line]

    @property
    def source(self) -> str:
        return f"{self.parts[0]}{self.parts[1]}\n"


def given(is_bad: bool, number: int) -> tuple:
    draw = random.Random(number)
    of = "bad" if is_bad else "good"
    torch.manual_seed(number)
    x = torch.rand(3, 3) * 0.5 + 0.25
    y = torch.rand(3, 3)
    if is_bad:
        x = draw.choice((x, x - 0.6, x * 0, x * 9, x.clone().fill_(float("nan"))))
        y = torch.rand(draw.choice(((4, 3), (3, 4), (2, 2), (3, 3))))
    j, k = torch.tensor([[4, -3, 2]]), torch.tensor([[2, 0, 1]] if is_bad else [[2, -1, 1]])
    m = torch.zeros(3, 3) if is_bad else torch.eye(3) * 2
    e = torch.rand(0 if is_bad else 3)
    v = torch.rand(3)[None].expand(3, 3) if is_bad else torch.rand(3, 3)
    leaf = torch.rand(3, 3, requires_grad=is_bad)
    i = torch.tensor(draw.choice(PLACES[of]))
    return x, y, torch.full((3, 3), 0.5), i, j, k, m, e, v, leaf, torch.zeros(3), 0.5, draw.choice(INTS[of]), 0 if is_bad else 2


def run(source: str, calls: list[tuple[bool, int]], how: dict[str, Any] | None) -> list[Any]:
    """By call: what it gave or raised, what it wrote, and the random state behind it."""
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional, "S": [], "N": type("N", (), {"count": 0})}
    exec(source, scope)
    function = scope["call"] if how is None else dynacompile.compile(scope["call"], isolate_recompiles=True, **how)
    found = []
    for is_bad, number in calls:
        args = given(is_bad, number)
        try:
            result = pytree.tree_map(shown, function(*args))
        except Exception as error:  # noqa: BLE001  (it is compared)
            result = Raised(type(error).__name__)
        found.append((result, [shown(a) for a in args], list(scope["S"]), scope["N"].count, torch.rand(1).item()))
        if isinstance(result, Raised):
            scope["S"].clear()
            scope["N"].count = 0
    return found


class Raised(str):
    """The kind of an error that came out of a call."""


def shown(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return value.dtype, tuple(value.shape), value.requires_grad, torch.nan_to_num(value.detach().to(torch.complex128), 7, 8, 9)
    return type(value).__name__ if type(value).__name__.endswith("iterator") else value


def is_same(have: Any, want: Any) -> bool:
    if isinstance(want, torch.Tensor):
        return isinstance(have, torch.Tensor) and have.shape == want.shape and torch.allclose(have, want, 1e-4, 1e-4)
    if isinstance(want, Raised) or isinstance(have, Raised):
        return type(have) is type(want) and have == want
    if isinstance(want, (list, tuple)):
        return isinstance(have, (list, tuple)) and len(have) == len(want) and all(map(is_same, have, want))
    return bool(have == want)


def check(program: Program, counts: Counter, backend: str = "default") -> None:
    source, calls = program.parts
    want = run(source, calls, None)
    dynacompile.reset()
    have = run(source, calls, {} if backend == "default" else {"options": {"reference": True}} if backend == "reference" else {"backend": backend})
    for number, (mine, eager) in enumerate(zip(have, want)):
        counts[str(eager[0]) if isinstance(eager[0], str) else "results"] += 1
        assert is_same(mine[0], eager[0]), f"call {number + 1}: {mine[0]}, eager: {eager[0]}"[:700]
        counts["behind an error"] += isinstance(eager[0], Raised)
        for what, a, b in zip(("operands", "list", "count", "random state"), mine[1:], eager[1:]):
            assert is_same(a, b), f"call {number + 1}, {what}: {a}, eager: {b}"[:700]


if __name__ == "__main__":
    raise SystemExit(main("wrong_values", "Compare calls with wrong values with eager.", Program, check, backend="default"))
