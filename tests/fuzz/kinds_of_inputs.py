"""One expression of a tensor, called with tensors of a dozen kinds in any order: types, layouts, sizes, views, numbers at the edges, and tensors that refuse
questions. Results and what is left of the argument, or the kind of the error, are compared.

`python -m tests.fuzz.kinds_of_inputs FIRST LAST [--show]`: even seeds as `aot_eager`, odd ones by the reference interpreter.
From seed 500000 on the expressions ask about complex numbers and about views that are conjugated or negated where they are read.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch

import dynacompile
from tests.fuzz.seeds import run_seeds

CALLS = 12  # of each program
EXPRESSIONS = (
    *(
        f"x.{name}()"
        for name in "relu sum mean std norm prod any all argmax amax amin flatten squeeze t clone contiguous detach floor round trunc frac".split()
    ),
    *(f"x.{name}()" for name in "sign abs exp log sqrt rsqrt sin tanh sigmoid erf lgamma reciprocal logical_not isnan isinf isfinite nan_to_num".split()),
    *(
        f"x.{name}()"
        for name in "nonzero count_nonzero trace diagonal conj angle tril bool half double int numel dim stride element_size is_contiguous".split()
    ),
    *(f"x.{name}(-1)" for name in "softmax log_softmax cumsum logsumexp max sort unbind logcumsumexp cummax sum argsort all".split()),
    *(f"F.{name}(x)" for name in "silu elu softplus hardswish mish selu leaky_relu logsigmoid glu normalize dropout one_hot hardtanh".split()),
    *(f"x {sign} {number}" for sign in ("+", "-", "*", "/", "//", "%", "**", "<", "==") for number in ("3", "-2.5", "True", "(1 + 2j)")),
    *(f"{number} {sign} x" for sign in ("+", "-", "*", "/", "**") for number in ("1", "0.5")),
    *("x << 1", "x & 3", "x | 1", "~x", "-x", "x @ x.transpose(-1, -2)", "x[0]", "x[..., 1:3]", "x[[0, -1]]", "x[x > 0]", "x[:, None]", "x.mT", "x.real"),
    *("x.view(-1)", "x.reshape(-1)", "x.view(torch.int32)", "x.view(torch.uint8)", "x.unsqueeze(1)", "x.transpose(0, -1)", "x.flip(0)", "x.roll(1, 0)"),
    *("x.sum(0)", "x.sum(-1, keepdim=True)", "x.float().mean(-1, dtype=torch.float64)", "x.var(0, correction=0)", "torch.aminmax(x)", "x.quantile(0.4)"),
    *("x.topk(1)", "x.split(2)", "x.chunk(3, -1)", "torch.cat([x, x], -1)", "torch.stack([x, x], 1)", "x.repeat(2, 1)", "x.repeat_interleave(2, -1)"),
    *("torch.where(x > 0, x, 0)", "x.clamp(-1, 1)", "x.clamp(min=0.5)", "x.lerp(x * 2, 0.3)", "x.addcmul(x, x, value=2)", "x.masked_fill(x > 0, 9)"),
    *(
        "torch.zeros_like(x)",
        "torch.full_like(x, 2)",
        "x.new_ones(3)",
        "x.new_tensor([1.5, 2])",
        "torch.ones_like(x, dtype=torch.float32)",
        "torch.rand_like(x)",
    ),
    *(
        "x.clone().add_(1).mul_(2)",
        "x.mul_(2)",
        "x.zero_()",
        "x.clone().fill_(3.7)",
        "torch.empty(x.shape).copy_(x)",
        "torch.add(x, 1, out=torch.empty(x.shape))",
    ),
    *(
        "F.linear(x, torch.ones(2, 6))",
        "F.layer_norm(x, x.shape[-1:])",
        "F.pad(x, (1, 2))",
        "F.pad(x, (1, 1), value=2.0)",
        "F.interpolate(x, scale_factor=2, mode='bilinear')",
    ),
    *("F.avg_pool2d(x, 2)", "F.max_pool2d(x, 2)", "F.conv2d(x, torch.ones(2, 3, 2, 2))", "F.group_norm(x, 1)", "F.batch_norm(x, None, None, training=True)"),
    *(
        "F.cross_entropy(x, torch.tensor([0, 1, 2, 3]))",
        "F.mse_loss(x, torch.zeros_like(x))",
        "F.l1_loss(x, torch.ones_like(x))",
        "F.cosine_similarity(x, x + 1)",
    ),
    *("F.nll_loss(x, torch.tensor([0, 1, 2, 3]))", "F.embedding(x, torch.ones(300, 2))", "F.scaled_dot_product_attention(x, x, x)", "torch.cdist(x, x)"),
    *("x.gather(-1, torch.zeros(4, 1, dtype=torch.long))", "x.scatter(-1, torch.zeros(4, 1, dtype=torch.long), 1)", "x.index_select(-1, torch.tensor([0, 2]))"),
    *("x.index_add(0, torch.tensor([0, 0]), x[:2])", "x.take(torch.tensor([0, 3]))", "torch.einsum('ij,kj->ik', x, x)", "torch.outer(x, x)", "x.dot(x)"),
    *(
        "x.diff()",
        "x.unfold(-1, 2, 1)",
        "x.as_strided((2, 2), (1, 2))",
        "torch.view_as_real(x)",
        "torch.hypot(x, x)",
        "torch.atan2(x, x + 1)",
        "torch.gcd(x, x + 2)",
    ),
    *(
        "torch.xlogy(x, x + 2)",
        "torch.heaviside(x, x)",
        "torch.ldexp(x, torch.tensor(2))",
        "torch.bucketize(x, torch.tensor([0.0, 1.0]))",
        "x.item()",
        "len(x)",
    ),
    *(
        "[row.sum() for row in x]",
        "x.flatten()[0].item()",
        "1 if x.sum() > 0 else 2",
        "f'{x.shape} {x.dtype}'",
        "(x.layout, x.dtype, x.device.type, x.requires_grad)",
    ),
    *(
        "(x.is_floating_point(), x.is_complex(), x.is_conj(), x.is_inference())",
        "torch.autograd.grad((x * x).sum(), x)",
        "(x * 2).requires_grad_()",
        "x.shape[0] * 2",
    ),
)
Make = Callable[[torch.Generator], torch.Tensor]
LAZY = 500_000  # the first seed of the expressions below
LAZY_EXPRESSIONS = (
    *(f"x.{name}()" for name in "is_conj is_neg conj resolve_conj resolve_neg conj_physical adjoint positive sgn angle abs isreal contiguous clone".split()),
    *(f"x.conj().{name}()" for name in "is_conj is_neg conj resolve_conj conj_physical contiguous clone sum t view_as_real detach".split()),
    *(f"torch._neg_view(x).{name}()" for name in "is_neg is_conj resolve_neg conj contiguous clone sum t detach".split()),
    *("x.imag.is_neg()", "x.conj().imag", "x.conj().imag.is_neg()", "x.conj().imag + 1", "x.real.is_neg()", "x.mH", "x.conj().mH.is_conj()", "x.conj()[1:]"),
    *("x.conj().reshape(-1)", "x.conj().unbind()", "(x, x.conj(), x.conj()[0])", "x.conj() is x", "x.resolve_conj() is x", "x.resolve_neg() is x", "x @ x.mH"),
    *("x + x.conj()", "x == x.conj()", "x + 1 if x.is_conj() else x - 1", "x + 1 if x.is_neg() else x - 1", "torch.empty_like(x).is_conj()", "x.to(x.dtype)"),
    *("(x.conj().mul_(2), x)", "(x.conj().fill_(1), x)", "(torch._neg_view(x).add_(1), x)", "x.copy_(x.conj())", "x.clone().conj_physical_()", "x * 1j"),
    *("torch.view_as_real(x)", "torch.view_as_real(x.resolve_conj())", "x.to(torch.complex32)", "x.to(torch.complex128)", "x.chalf() + 1", "x.cfloat().conj()"),
    *(
        "torch.full((2,), 1j)",
        "torch.full((2,), 1 + 2j) * x.sum()",
        "torch.linspace(0, x.sum(), 3)",
        "torch.logspace(torch.tensor(0.0), x.sum(), 2)",
        "torch.tensor([1j]) + x",
    ),
    *("torch.complex(x.real, x.real)", "torch.polar(x.abs(), x.abs())", "torch.vdot(x.flatten(), x.flatten())", "torch.autograd.grad(x.conj().abs().sum(), x)"),
)


def plain(*size: int) -> Make:
    return lambda g: torch.randn(size, generator=g)


def whole(dtype: torch.dtype) -> Make:
    return lambda g: torch.randint(0, 100, (4, 6), generator=g).to(dtype)


def in_inference_mode(g: torch.Generator) -> torch.Tensor:
    with torch.inference_mode():
        return torch.randn(4, 6, generator=g) + 0


KINDS: dict[str, Make] = {
    "plain": plain(4, 6),
    "leaf": lambda g: torch.randn(4, 6, generator=g).requires_grad_(),
    "parameter": lambda g: torch.nn.Parameter(torch.randn(4, 6, generator=g)),
    "transposed": lambda g: torch.randn(6, 4, generator=g).t(),
    "computed": lambda g: (torch.randn(6, 4, generator=g).requires_grad_() * 1).t(),
    "every second": lambda g: torch.randn(8, 12, generator=g)[::2, ::2],
    "expanded columns": lambda g: torch.randn(4, 1, generator=g).expand(4, 6),
    "expanded rows": lambda g: torch.randn(6, generator=g).expand(4, 6),
    "at an offset": lambda g: torch.randn(50, generator=g)[5:29].view(4, 6),
    "overlapping": lambda g: torch.randn(9, generator=g).as_strided((4, 6), (1, 1)),
    "permuted": lambda g: torch.randn(2, 4, 6, generator=g).permute(2, 0, 1),
    "float64": lambda g: torch.randn(4, 6, generator=g).double(),
    "float16": lambda g: torch.randn(4, 6, generator=g).half(),
    "bfloat16": lambda g: torch.randn(4, 6, generator=g).bfloat16(),
    "int64": whole(torch.int64),
    "int32": whole(torch.int32),
    "uint8": whole(torch.uint8),
    "int8": whole(torch.int8),
    "bool": lambda g: torch.randn(4, 6, generator=g) > 0,
    "complex": lambda g: torch.randn(4, 6, generator=g, dtype=torch.complex64),
    "conjugate": lambda g: torch.randn(4, 6, generator=g, dtype=torch.complex64).conj(),
    "negative": lambda g: torch.randn(4, 6, generator=g, dtype=torch.complex64).conj().imag,
    "no rows": plain(0, 6),
    "no columns": plain(4, 0),
    "one row": plain(1, 6),
    "one column": plain(4, 1),
    "one element": plain(1, 1),
    "a vector": plain(6),
    "a number": plain(),
    "of three dimensions": plain(2, 4, 6),
    "of four": plain(2, 3, 4, 6),
    "of five": plain(1, 2, 3, 2, 2),
    "channels last": lambda g: torch.randn(2, 3, 4, 6, generator=g).to(memory_format=torch.channels_last),
    "edges": lambda g: torch.tensor([[1.0, float("inf"), -float("inf"), float("nan"), 0.0, -0.0]] * 4),
    "large": lambda g: torch.randn(4, 6, generator=g) * 1e15,
    "inference": in_inference_mode,
    "meta": lambda g: torch.empty(4, 6, device="meta"),
    "sparse": lambda g: torch.randn(4, 6, generator=g).relu().to_sparse(),
    "sparse rows": lambda g: torch.randn(4, 6, generator=g).relu().to_sparse_csr(),
    "nested": lambda g: torch.nested.nested_tensor([torch.ones(2, 6), torch.ones(3, 6)]),
}


def lazy(dtype: torch.dtype, *views: Callable[[torch.Tensor], torch.Tensor]) -> Make:
    """Complex numbers, read through these views."""

    def make(g: torch.Generator) -> torch.Tensor:
        made = torch.randn(4, 6, generator=g, dtype=torch.complex64).to(dtype)
        for view in views:
            made = view(made)
        return made

    return make


CONJ, NEG = torch.conj, torch._neg_view
LAZY_KINDS: dict[str, Make] = {
    **{name: KINDS[name] for name in ("plain", "leaf", "complex", "conjugate", "negative", "inference", "int64")},
    "complex leaf": lazy(torch.complex64, torch.Tensor.requires_grad_),
    "conjugate leaf": lazy(torch.complex64, CONJ, torch.Tensor.requires_grad_),
    "computed conjugate": lazy(torch.complex64, torch.Tensor.requires_grad_, torch.Tensor.clone, CONJ),
    "complex128": lazy(torch.complex128),
    "conjugate of complex128": lazy(torch.complex128, CONJ),
    "complex32": lazy(torch.complex32),
    "conjugate of complex32": lazy(torch.complex32, CONJ),
    "negated": lazy(torch.complex64, NEG),
    "negated conjugate": lazy(torch.complex64, CONJ, NEG),
    "rows of a conjugate": lazy(torch.complex64, CONJ, lambda t: t[1:]),
    "transposed conjugate": lazy(torch.complex64, torch.Tensor.t, CONJ),
    "real part": lazy(torch.complex64, torch.real),
    "imaginary part": lazy(torch.complex64, torch.imag),
}


def program(seed: int) -> tuple[str, list[str]]:
    """The expression of a seed, and the kinds that it is called with."""
    rng = random.Random(seed)
    if seed >= LAZY:
        return rng.choice(LAZY_EXPRESSIONS), rng.sample(sorted(LAZY_KINDS), CALLS)
    return rng.choice(EXPRESSIONS), rng.sample(sorted(KINDS), CALLS)


def make_of(kind: str) -> Make:
    return LAZY_KINDS.get(kind) or KINDS[kind]


@contextlib.contextmanager
def default_type(seed: int) -> Iterator[None]:
    """The type of numbers for which none is named: one of four, from the seeds of lazy views on."""
    before = torch.get_default_dtype()
    if seed >= LAZY:
        torch.set_default_dtype((torch.float32, torch.float16, torch.float64, torch.bfloat16)[seed // 2 % 4])
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def function_of(expression: str) -> Callable[[torch.Tensor], Any]:
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(compile(f"def call(x):\n    return {expression}", "<kinds of inputs>", "exec"), scope)
    return scope["call"]


def told(value: Any) -> Any:
    """What of a result is compared: strides of dimensions of one element may be any."""
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, *map(told, value)]
    if not isinstance(value, torch.Tensor):
        return [type(value).__name__, repr(value)]
    facts = [type(value).__name__, str(value.dtype), str(value.layout), value.device.type, value.is_inference(), value.requires_grad, value.is_nested]
    if value.is_nested:
        return [*facts, [told(part) for part in value.unbind()]]
    strides = [s for s, n in zip(value.stride(), value.shape) if n > 1] if value.layout is torch.strided and value.numel() else []
    return [*facts, tuple(value.shape), strides, value.is_conj(), value.is_neg(), None if value.device.type == "meta" else value.detach()]


def outcome(call: Callable[[torch.Tensor], Any], kind: str, seed: int) -> Any:
    given = make_of(kind)(torch.Generator().manual_seed(seed))
    torch.manual_seed(seed)
    try:
        return [told(call(given)), told(given), torch.rand(1).item()]
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        return type(error).__name__


def numbers(t: torch.Tensor) -> torch.Tensor:
    """As complex128. Nothing resolves views of complex32, which are so read as they lie in memory."""
    if t.dtype is not torch.complex32:
        return t.resolve_conj().resolve_neg().to(torch.complex128)
    bare = t.conj() if t.is_conj() else t
    wide = (torch._neg_view(bare) if t.is_neg() else bare).to(torch.complex128)
    return (wide.conj() if t.is_conj() else wide) * (-1 if t.is_neg() else 1)


def is_same(got: Any, want: Any) -> bool:
    if isinstance(got, (list, tuple)) and isinstance(want, (list, tuple)):
        return len(got) == len(want) and all(map(is_same, got, want))
    if not isinstance(got, torch.Tensor) or not isinstance(want, torch.Tensor):
        return type(got) is type(want) and bool(got == want)
    plain = [numbers(t.to_dense() if t.layout is not torch.strided else t) for t in (got, want)]
    near = {torch.float16: 2e-3, torch.bfloat16: 2e-2}.get(want.dtype, 2e-5)
    return torch.allclose(*plain, rtol=near, atol=near, equal_nan=True)


def difference(seed: int) -> str | None:
    """The first call that is not as in eager."""
    with default_type(seed):
        return first_difference(seed)


def first_difference(seed: int) -> str | None:
    expression, kinds = program(seed)
    function = function_of(expression)
    backend: dict[str, Any] = {"options": {"reference": True}} if seed % 2 else {"backend": "aot_eager"}
    dynacompile.reset()
    compiled = dynacompile.compile(function, recompile_limit=2 * CALLS, **backend)
    for kind in kinds:
        if kind == "meta" and (seed % 2 or "embedding" in expression):
            continue  # the reference interpreter runs programs on CPUs alone; eager's embedding by places of no device reads anything
        want, got = outcome(function, kind, seed), outcome(compiled, kind, seed)
        if not is_same(got, want):
            return f"{expression} of {kind}, after {', '.join(kinds[: kinds.index(kind)])}: {str(got)[:300]}, eager: {str(want)[:300]}"
    return None


def shown(seed: int) -> str:
    expression, kinds = program(seed)
    return f"{expression} of {', '.join(kinds)}"


if __name__ == "__main__":
    sys.exit(run_seeds(__doc__, difference, shown))
