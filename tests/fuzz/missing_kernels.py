"""Operations of torch's own samples, of operands of a type for which CPUs have no kernel, within a clause that takes the error and outside of one.

A seed names an operation, by its number among the samples, and a type: `python -m tests.fuzz.missing_kernels FIRST LAST [--backend NAME]`.
From seed 100000 on, calls are expressions that name a type themselves (`dtype=`, `out=`, conversions), of few elements and of more than are run as they are.
"""

from __future__ import annotations

import functools
import itertools
import random
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import dynacompile
from tests.fuzz.command import main

DTYPES = (torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32, torch.complex64)
ERRORS = (RuntimeError, TypeError, IndexError, ValueError, AssertionError)
SEEDS = len(op_db) * len(DTYPES)
FROM_NAMED = 100_000
NAMED = """
x.sum(dtype={d}); x.prod(dtype={d}); x.mean(dtype={d}); x.nansum(dtype={d}); x.nanmean(dtype={d}); x.sum(-1, dtype={d}); x.prod(-1, dtype={d})
x.mean(-1, dtype={d}); x.nansum(-1, dtype={d}); x.nanmean(-1, dtype={d}); x.cumsum(-1, dtype={d}); x.cumprod(-1, dtype={d}); x.softmax(-1, dtype={d})
x.log_softmax(-1, dtype={d}); F.softmax(x, {n}, dtype={d}); F.log_softmax(x, {n}, dtype={d}); F.softmin(x, {n}, dtype={d})
torch.softmax(x, {n}, dtype={d}); torch.log_softmax(x, {n}, dtype={d}); torch.special.softmax(x, {n}, dtype={d})
torch.special.log_softmax(x, {n}, dtype={d}); torch.cumsum(x, {n}, dtype={d}); torch.cumprod(x, {n}, dtype={d}); torch.logcumsumexp(x, {n})
torch.cummax(x, {n}); torch.cummin(x, {n}); torch.sort(x, {n}); torch.argsort(x, {n}); torch.median(x, {n}); torch.mode(x, {n})
torch.logsumexp(x, {n}); torch.kthvalue(x, {n}); torch.diff(x, {n}); torch.sort(x); torch.unique(x); torch.msort(x); torch.std(x); torch.var_mean(x)
torch.aminmax(x); torch.count_nonzero(x); torch.isin(x); torch.histc(x); torch.bincount(x); torch.trapezoid(x); torch._softmax(x, {n}, False)
torch._log_softmax(x, {n}, False); F.normalize(x, dim={n}); F.gumbel_softmax(x, dim={n}).shape; torch.linalg.vector_norm(x, dtype={d})
torch.linalg.vector_norm(x, 1, {n}, dtype={d}); torch.norm(x, 2, {n}, dtype={d}); torch.linalg.norm(x, dtype={d})
torch.linalg.matrix_norm(x[..., :4, :4], dtype={d}); torch.arange({s}, dtype={d}); torch.arange(0, {s}, 2, dtype={d})
torch.linspace(0, 1, {s}, dtype={d}); torch.logspace(0, 1, {s}, dtype={d}); torch.eye(3, {s}, dtype={d}); torch.full(({s},), 1, dtype={d})
torch.zeros({s}, dtype={d}); torch.ones({s}, dtype={d}); torch.rand({s}, dtype={d}); torch.randn({s}, dtype={d})
torch.randint(0, 2, ({s},), dtype={d}); torch.randperm({s}, dtype={d}); torch.empty({s}).normal_().to({d}); torch.rand_like(x, dtype={d})
torch.randn_like(x, dtype={d}); torch.randint_like(x, 2, dtype={d}); torch.zeros_like(x, dtype={d}); torch.full_like(x, 2, dtype={d})
x.new_full((3,), 1, dtype={d}); x.new_zeros({s}, dtype={d}); torch.tril_indices(5, 5, dtype={d}); torch.hann_window({s}, dtype={d})
torch.kaiser_window({s}, dtype={d}); torch.bartlett_window({s}, dtype={d}); torch.hamming_window({s}, dtype={d})
torch.blackman_window({s}, dtype={d}); torch.signal.windows.cosine({s}, dtype={d}); x.to({d}).uniform_(); x.to({d}).normal_()
x.to({d}).bernoulli_(0.5); x.to({d}).exponential_(); x.to({d}).random_(2); x.to({d}).geometric_(0.5); x.to({d}).cauchy_(); x.to({d}).log_normal_()
torch.bernoulli(x.to({d})); torch.poisson(x.to({d})); torch.normal(x.to({d}), 1.0); x.view({d}); x.type({d}); x.to({d}).abs(); x.to({d}).erf()
x.to({d}).lgamma(); x.to({d}).sort({n})[0]; x.to({d}).floor(); x.to({d}).sign(); x.to({d}) // 2; x.to({d}) % 2; x.to({d}).fmod(2); x.to({d}) ** 2
x.to({d}) @ x.to({d}).mT; x.to({d}) @ x.mT; x.to({d}).tril(); x.to({d}).flip(0); x.to({d}).cumsum({n}); x.to({d}).max({n}); x.to({d}).argmax()
x.to({d}).any(); x.to({d}).all({n}); x.to({d}).topk(1); x.to({d}).logical_xor(x); torch.maximum(x.to({d}), x); torch.where(x > 0, x.to({d}), x)
torch.lerp(x, x.to({d}), 0.5); torch.atan2(x.to({d}), x); torch.hypot(x.to({d}), x); torch.copysign(x.to({d}), x); torch.nextafter(x.to({d}), x)
torch.bitwise_and(x.to({d}), x); torch.gcd(x.to({d}), x); torch.ldexp(x.to({d}), x); torch.xlogy(x.to({d}), x); torch.heaviside(x.to({d}), x)
torch.polar(x.to({d}), x); torch.complex(x.to({d}), x); torch.searchsorted(x.to({d}), x); torch.bucketize(x.to({d}), x.flatten()[:4])
torch.cdist(x.to({d}), x); torch.dist(x.to({d}), x); torch.addcmul(x, x.to({d}), x); torch.addcdiv(x, x.to({d}), x); torch.take(x, x.to({d}))
torch.gather(x, 0, x.to({d})); x.index_select(0, x.to({d}).flatten()[:2]); x.index_add(0, x.to({d}).flatten()[:1] * 0, x[:1])
x.masked_fill(x.to({d}), 0); x.masked_select(x.to({d})); x[x.to({d})].shape; torch.scatter(x, 0, x.to({d}), x)
x.index_put((x.to({d}).flatten()[:1],), x[:1]); torch.stack([x, x.to({d})]); torch.cat([x, x.to({d})])
torch.einsum('...ij,...kj->...ik', x, x.to({d})); F.embedding(x.to({d}), x); F.one_hot(x.to({d}), 3); F.cross_entropy(x, x.to({d}))
F.mse_loss(x, x.to({d})); F.kl_div(x, x.to({d})); F.linear(x, x.to({d})); F.layer_norm(x, x.shape[-1:], x.flatten()[:x.shape[-1]].to({d}))
F.relu6(x.to({d})); F.gelu(x.to({d})); F.softplus(x.to({d})); F.elu(x.to({d})); F.hardtanh(x.to({d})); F.leaky_relu(x.to({d}))
F.dropout(x.to({d}), 0.0); F.logsigmoid(x.to({d})); F.pad(x.to({d}), (1, 1), mode='reflect'); F.pad(x.to({d}), (1, 1), mode='replicate')
F.avg_pool1d(x.to({d}), 2); F.max_pool1d(x.to({d}), 2); F.interpolate(x.to({d}), scale_factor=2); F.conv1d(x.to({d}), x.to({d})[..., :2])
F.unfold(x.to({d})[..., None], (1, 1)); F.grid_sample(x.to({d})[:1, None], x.to({d})[:1, :2, None].mT); torch.fft.fft(x.to({d}))
torch.fft.rfft(x.to({d})); torch.linalg.det(x[..., :3, :3].to({d})); torch.linalg.inv(x[..., :3, :3].to({d}))
torch.linalg.svdvals(x[..., :3, :3].to({d})); torch.add(x, x, out=o); torch.mul(x, 2, out=o); torch.sum(x, {n}, out=o)
torch.cumsum(x, {n}, dtype={d}, out=o); torch.exp(x, out=o); torch.softmax(x, {n}, dtype={d}, out=o); torch.sum(x, {n}, dtype={d}, out=o)
torch.mean(x, {n}, dtype={d}, out=o); torch.div(x, x, out=o); torch.clamp(x, 0, 1, out=o); torch.arange({s}, out=o); torch.cat([x, x], out=o)
torch.abs(x, out=o); torch.argmax(x, {n}, out=o); torch.eq(x, x, out=o); torch.linspace(0, 1, {s}, out=o); torch.sqrt(x, out=o)
torch.sigmoid(x, out=o); torch.any(x, {n}, out=o); torch.tensor([[1.5]] * 3, dtype={d}) + x[..., :1, :1]; x.sum({n}).to({d}).long()
x.copy_(x.to({d})); x.flatten()[:2].to({d}).tolist(); torch.scalar_tensor(1, dtype={d}) * x
"""
"""Expressions of x, of a type's name d, a dimension n, a size s, and an operand o to be written."""
TYPES = (*DTYPES, torch.int8, torch.int16, torch.float64, torch.complex32, torch.complex128, torch.uint16, torch.uint32, torch.float8_e4m3fn)
SHAPES = ((3, 4), (4,), (2, 3, 4), (300, 240), (70_000,), (2, 200, 200))


@dataclass(frozen=True)
class Named:
    """source: a function of x and o. is_caught: whether the call is within a clause that takes the error."""

    seed: int

    @functools.cached_property
    def drawn(self) -> tuple[str, torch.dtype, torch.dtype, tuple[int, ...], bool]:
        draw = random.Random(self.seed)
        shape = draw.choice(SHAPES)
        places = {"d": draw.choice(TYPES), "n": draw.choice((0, -1, 0, -1, len(shape) - 1)), "s": draw.choice((5, 70_000))}
        return (
            draw.choice([call for line in NAMED.strip().splitlines() for call in line.split("; ")]).format(**places),
            draw.choice(TYPES),
            draw.choice(TYPES),
            shape,
            draw.random() < 0.5,
        )

    @property
    def source(self) -> str:
        call, of, out, shape, is_caught = self.drawn
        return f"{call}, x: {of} {shape}, o: {out}, {'caught' if is_caught else 'plain'}"

    def check(self, counts: Counter, how: dict[str, Any]) -> None:
        call, of, out, shape, is_caught = self.drawn
        scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
        line = f"try: r = {call}\n  except Exception as error: return type(error).__name__, x + x" if is_caught else f"r = {call}"
        exec(f"def call(x, o):\n  {line}\n  return r, x, o", scope)

        def operands() -> tuple[tuple, dict]:
            torch.manual_seed(0)
            x = (torch.rand(shape) < 0.5).to(of)
            return (x, torch.empty(0, dtype=out)), {}

        want = outcome(scope["call"], *operands())
        dynacompile.reset()
        have = outcome(dynacompile.compile(scope["call"], isolate_recompiles=True, **how), *operands())
        counts[raised(want) or "results"] += 1
        assert raised(have) == raised(want), f"{have!r}, eager {want!r}"[:600]
        assert raised(want) or looks(have) == looks(want), f"{looks(have)}, eager {looks(want)}"


def raised(found: Any) -> str:
    """The kind of an error, whether it came out of the call or was taken in it; nothing where there was none."""
    return type(found).__name__ if isinstance(found, Exception) else found[0] if isinstance(found[0], str) else ""


def looks(found: Any) -> list[Any]:
    """Types and shapes of results. What numbers they are other fuzzers compare."""
    return [(t.dtype, t.shape) if isinstance(t, torch.Tensor) else type(t) for t in pytree.tree_leaves(found)]


def generate(seed: int) -> Program | Named:
    return Named(seed) if seed >= FROM_NAMED else Program(seed)


@dataclass(frozen=True)
class Program:
    """source: the operation, for who reads of a difference."""

    seed: int

    @property
    def operation(self) -> Any:
        return op_db[self.seed // len(DTYPES)]

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.seed % len(DTYPES)]

    @property
    def source(self) -> str:
        return f"{self.operation.name} {self.operation.variant_test_name} of {self.dtype}: "

    def calls(self) -> Iterator[tuple[tuple, dict]]:
        """Arguments of the operation, of the type that it has no kernel for. Of a type with kernels there are none."""
        own = self.operation.dtypes
        if self.dtype in own or not own:
            return
        of = torch.float32 if torch.float32 in own else min(own, key=str)

        def cast(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or value.dtype != of:
                return value
            value = value.detach()
            return (value.real if value.is_complex() and not self.dtype.is_complex else value).to(self.dtype)

        torch.manual_seed(self.seed)
        for sample in itertools.islice(self.operation.sample_inputs("cpu", of, requires_grad=False), 2):
            yield pytree.tree_map(cast, (sample.input, *sample.args)), sample.kwargs


def check(program: Program | Named, counts: Counter, backend: str = "eager") -> None:
    if isinstance(program, Named):
        program.check(counts, {"options": {"reference": True}} if backend == "reference" else {"backend": backend})
        return
    operation = program.operation.op

    def caught(*args: Any, **kwargs: Any) -> Any:
        try:
            return operation(*args, **kwargs)
        except ERRORS as error:
            return type(error).__name__

    def plain(*args: Any, **kwargs: Any) -> Any:
        return operation(*args, **kwargs)

    for args, kwargs in program.calls():
        want = outcome(caught, args, kwargs)
        if not isinstance(want, str):  # it has a kernel all the same
            continue
        counts[want] += 1
        for function in (caught, plain):
            dynacompile.reset()
            how = {"options": {"reference": True}} if backend == "reference" else {"backend": backend}
            have = outcome(dynacompile.compile(function, isolate_recompiles=True, **how), args, kwargs)
            kind = type(have).__name__ if function is plain else have
            assert kind == want, f"{function.__name__}: {have!r}, eager {want}"


def outcome(function: Any, args: tuple, kwargs: dict) -> Any:
    args = pytree.tree_map(lambda value: value.clone() if isinstance(value, torch.Tensor) else value, args)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs)
        except Exception as error:  # noqa: BLE001 - compared by its kind
            return error


if __name__ == "__main__":
    raise SystemExit(main("missing_kernels", "Compare operations without a kernel with eager.", generate, check, backend="eager"))
