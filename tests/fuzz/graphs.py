"""Random programs of tensor operations, by seed: the source of a function, and inputs for it.

Each statement is kept only if eager gives a finite, moderate result for it, so that a difference between two ways to run the program is the way's.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

DIMS = (1, 2, 3, 4, 5, 7, 8, 16, 17, 33)
LARGEST = 6000  # elements of a value
BOUND = 50.0  # the largest absolute element of a value


@dataclass
class Value:
    name: str
    tensor: torch.Tensor  # what eager gives in float64

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)


@dataclass
class Program:
    """source: of `def program(...)`. inputs: float64, integer and bool tensors; outputs: how many it returns."""

    seed: int
    source: str
    inputs: list[torch.Tensor]
    outputs: int

    def function(self) -> Callable[..., Any]:
        names = {"torch": torch, "F": torch.nn.functional}
        exec(compile(self.source, f"<program {self.seed}>", "exec"), names)
        return names["program"]  # type: ignore[return-value]


@dataclass
class Builder:
    """A program as it grows."""

    seed: int
    pick: random.Random = field(init=False)
    values: list[Value] = field(default_factory=list)
    inputs: list[torch.Tensor] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.pick = random.Random(self.seed)
        self.scope = {"torch": torch, "F": torch.nn.functional}

    def add_input(self, tensor: torch.Tensor) -> None:
        name = f"x{len(self.inputs)}"
        self.inputs.append(tensor)
        self.values.append(Value(name, tensor))
        self.scope[name] = tensor

    def add(self, expression: str) -> bool:
        """Appends `name = expression` if eager gives something useful for it."""
        name = f"v{len(self.lines)}"
        try:
            result = eval(expression, self.scope)
        except (RuntimeError, IndexError, ValueError, TypeError, ZeroDivisionError):
            return False
        if not isinstance(result, torch.Tensor) or result.numel() > LARGEST or result.dim() > 5:
            return False
        if result.is_floating_point() and result.numel() and not (result.abs().max() < BOUND):
            return False
        self.scope[name] = result
        self.lines.append(f"{name} = {expression}")
        self.values.append(Value(name, result))
        return True

    def any(self, accept: Callable[[torch.Tensor], bool] = lambda t: True) -> Value | None:
        """A value, a late one more likely."""
        found = [v for v in self.values if accept(v.tensor)]
        return found[max(self.pick.randrange(len(found)), self.pick.randrange(len(found)))] if found else None

    def real(self, least_dims: int = 0) -> Value | None:
        return self.any(lambda t: t.is_floating_point() and t.dim() >= least_dims)

    def like(self, value: Value) -> Value:
        """Another real value that broadcasts with this one."""
        found = [v for v in self.values if v.tensor.is_floating_point() and broadcasts(v.shape, value.shape)]
        return self.pick.choice(found) if found else value

    def dims(self, value: Value) -> list[int]:
        count = self.pick.randint(1, max(len(value.shape), 1))
        return sorted(self.pick.sample(range(len(value.shape)), min(count, len(value.shape))))


def broadcasts(a: Sequence[int], b: Sequence[int]) -> bool:
    return all(m == n or 1 in (m, n) for m, n in zip(reversed(a), reversed(b)))


UNARY = (
    "{0}.sin()",
    "{0}.cos()",
    "{0}.tanh()",
    "{0}.sigmoid()",
    "({0} * 0.3).exp()",
    "{0}.relu()",
    "{0}.abs()",
    "-{0}",
    "({0}.abs() + 0.1).sqrt()",
    "({0}.abs() + 0.2).log()",
    "{0}.square()",
    "1 / ({0}.abs() + 0.5)",
    "F.gelu({0})",
    "F.silu({0})",
    "F.softplus({0})",
    "{0}.floor()",
    "{0}.round()",
    "{0}.sign()",
    "{0}.clamp(-0.7, 1.1)",
    "F.leaky_relu({0}, 0.2)",
    "{0}.erf()",
    "{0}.atan()",
    "({0}.abs() + 1).log2()",
    "{0}.clamp(min=0.1).rsqrt()",
    "F.hardswish({0})",
    "{0}.expm1() * 0.1",
    "{0} * 2 - 0.5",
    "{0}.detach()",
    "{0}.clone()",
    "{0}.contiguous()",
    "{0}.float().to({0}.dtype)",
    "F.elu({0})",
    "F.gelu({0}, approximate='tanh')",
    "{0}.trunc()",
    "({0} * 0.2).sinh()",
    "F.logsigmoid({0})",
)
BINARY = (
    "{0} + {1}",
    "{0} - {1}",
    "{0} * {1}",
    "{0} / ({1}.abs() + 0.5)",
    "torch.maximum({0}, {1})",
    "torch.minimum({0}, {1})",
    "torch.where({0} > {1}, {0}, {1} * 0.5)",
    "torch.atan2({0}, {1} + 3)",
    "({0}.abs() + 0.1) ** {1}.clamp(-1, 2)",
    "torch.lerp({0}, {1}, 0.3)",
    "{0} * 0.5 + {1} * {1}",
    "torch.where({0} < 0.2, {1}, 0.0)",
    "torch.hypot({0}, {1} + 2)",
    "torch.logaddexp({0}, {1})",
    "torch.add({0}, {1}, alpha=0.7)",
    "torch.addcmul({0}, {1}, {0}, value=0.3)",
    "torch.remainder({0}, {1}.abs() + 0.6)",
    "torch.copysign({0}, {1})",
)
REDUCTIONS = ("sum", "mean", "amax", "amin", "var", "std", "logsumexp")


def unary(b: Builder) -> str | None:
    v = b.real()
    return v and b.pick.choice(UNARY).format(v.name)


def binary(b: Builder) -> str | None:
    v = b.real()
    return v and b.pick.choice(BINARY).format(v.name, b.like(v).name)


def reduction(b: Builder) -> str | None:
    v = b.real(1)
    if v is None:
        return None
    what, dims, keep = b.pick.choice(REDUCTIONS), b.dims(v), b.pick.random() < 0.5
    if what in ("var", "std") and any(v.shape[d] < 2 for d in dims):
        what = "mean"
    if what == "std" and not (v.tensor.std(dims).numel() and v.tensor.std(dims).min() > 1e-3):  # near zero its gradient is noise
        what = "amax"
    return f"{v.name}.{what}({dims}, keepdim={keep})"


def whole_reduction(b: Builder) -> str | None:
    v = b.real()
    return v and b.pick.choice(
        ("{0}.sum()", "{0}.mean()", "{0}.max()", "{0}.min()", "{0}.norm()", "{0}.var(unbiased=False)", "({0} * 0.1).sum().cos()", "{0}.tanh().prod()")
    ).format(v.name)


def scan(b: Builder) -> str | None:
    v = b.real(1)
    if v is None:
        return None
    dim = b.pick.randrange(-len(v.shape), len(v.shape))
    text = b.pick.choice(
        (
            "F.softmax({0}, {1})",
            "F.log_softmax({0}, {1})",
            "{0}.cumsum({1}) * 0.2",
            "{0}.flip({1})",
            "{0}.roll(1, {1})",
            "{0}.sort({1}).values",
            "F.normalize({0}, dim={1})",
            "{0}.max({1}).values",
            "{0}.argmax({1}, keepdim=True) * 0.1",
            "{0}.diff(dim={1})",
            "{0}.unsqueeze({1})",
            "{0}.tanh().cumprod({1})",
            "F.softmin({0}, {1})",
            "{0}.topk(1, {1}).values",
        )
    )
    return text.format(v.name, dim)


def norm(b: Builder) -> str | None:
    v = b.real(2)
    if v is None:
        return None
    return b.pick.choice(
        (
            "F.layer_norm({0}, {0}.shape[-1:])",
            "F.layer_norm({0}, {0}.shape[-2:])",
            "F.rms_norm({0}, {0}.shape[-1:])",
            "F.group_norm({0}, 1)",
            "F.batch_norm({0}, None, None, training=True)",
            "F.instance_norm({0})",
            "F.local_response_norm({0}, 2)",
        )
    ).format(v.name)


def view(b: Builder) -> str | None:
    v = b.real(1)
    if v is None:
        return None
    n, name, pick = len(v.shape), v.name, b.pick
    order = pick.sample(range(n), n)
    d = pick.randrange(n)
    size = v.shape[d]
    start = pick.randrange(max(size, 1))
    sizes = list(v.shape)
    split = next((k for k in (2, 3, 4) if size % k == 0 and size > k), 1)
    at = ", ".join(":" for _ in range(d))
    at = at + ", " if at else ""
    return pick.choice(
        (
            f"{name}.permute({order})",
            f"{name}.transpose(0, -1)",
            f"{name}.reshape(-1)",
            f"{name}.flatten({d})",
            f"{name}[{at}{start}:]",
            f"{name}[{at}:{start + 1}]",
            f"{name}[{at}::2]",
            f"{name}[{at}{start}]",
            f"{name}.unsqueeze({d})",
            f"{name}.squeeze()",
            f"{name}.reshape({[*sizes[:d], split, size // split, *sizes[d + 1 :]]})",
            f"{name}.unsqueeze(0).expand(3, {', '.join('-1' for _ in sizes)})",
            f"{name}.chunk(2, {d})[-1]",
            f"{name}.movedim(0, -1)",
            f"{name}.unbind({d})[{start}]",
            f"{name}.narrow({d}, {start}, {max(size - start, 0)})",
            f"{name}.unfold({d}, {min(size, 2)}, 1)",
            f"{name}[..., None]",
            f"{name}.reshape({[*sizes[:-1][::-1], sizes[-1]]})",
            f"{name}.swapaxes(0, {d}).contiguous()",
            f"{name}[{at}1:-1]",
            f"{name}.select({d}, -1)",
            f"{name}.split({max(size // 2, 1)}, {d})[0]",
            f"{name}.view(-1)[::3]",
            f"{name}.as_strided({[min(2, s) for s in sizes]}, {[1 + i for i in range(n)]})"
            if v.tensor.numel() > 20 and n < 3 and v.tensor.is_contiguous()
            else f"{name}[None]",
        )
    )


def combine(b: Builder) -> str | None:
    v = b.real(1)
    if v is None:
        return None
    d = b.pick.randrange(len(v.shape))
    fitting = [
        w
        for w in b.values
        if w.tensor.is_floating_point() and len(w.shape) == len(v.shape) and all(i == d or m == n for i, (m, n) in enumerate(zip(w.shape, v.shape)))
    ]
    w = b.pick.choice(fitting)
    same = b.pick.choice([x for x in fitting if x.shape == v.shape])
    return b.pick.choice(
        (
            f"torch.cat([{v.name}, {w.name}], {d})",
            f"torch.cat([{v.name}, {w.name}, {v.name} * 2], {d})",
            f"torch.stack([{v.name}, {same.name}], {d})",
            f"torch.stack([{v.name}, {same.name}], -1)",
            f"F.pad({v.name}, (1, 2))",
            f"F.pad({v.name}, (0, 1), value=0.5)",
            f"{v.name}.repeat({[2] + [1] * (len(v.shape) - 1)})",
            f"{v.name}.repeat_interleave(2, {d})",
            f"torch.cat([{v.name}.sin(), {w.name}.cos()], {d})",
            f"F.pad({v.name}, (-1, 1))",
            f"torch.stack([{v.name}, {same.name}]).sum(0)",
        )
    )


def index(b: Builder) -> str | None:
    v = b.real(1)
    if v is None:
        return None
    d = b.pick.randrange(len(v.shape))
    size = v.shape[d]
    if not size:
        return None
    numbers = [b.pick.randrange(size) for _ in range(b.pick.randint(1, 6))]
    many = f"torch.tensor({numbers})"
    negative = f"torch.tensor({[n - size if b.pick.random() < 0.5 else n for n in numbers]})"
    row = f"torch.tensor({[n % max(v.shape[0], 1) for n in numbers]})"
    at = ", ".join(":" for _ in range(d))
    at = at + ", " if at else ""
    given = b.any(lambda t: t.dtype == torch.int64 and t.dim() == 1 and t.numel() > 0)
    computed = f"({given.name}.abs() % {size})" if given else many
    return b.pick.choice(
        (
            f"{v.name}.index_select({d}, {many})",
            f"{v.name}[{at}{negative}]",
            f"{v.name}[{row}]",
            f"{v.name}[{at}{computed}]",
            f"{v.name}.gather({d}, ({v.name} > 0).long() % {size})",
            f"torch.zeros_like({v.name}).scatter_add({d}, ({v.name} > 0).long() % {size}, {v.name})",
            f"{v.name}.masked_fill({v.name} > 0.3, -0.25)",
            f"torch.where({v.name} > 0, {v.name}, 0.1)",
            f"{v.name}.index_fill({d}, {many}, 0.5)",
            f"{v.name}.index_add(0, {row}, {v.name}[{row}] * 0.5)",
            f"{v.name}.index_put(({row},), torch.ones((), dtype={v.name}.dtype), accumulate=True)",
            f"{v.name}.scatter({d}, ({v.name} > 1).long() % {size}, 0.75)",
            f"F.embedding({many}, {v.name}.reshape({v.shape[0]}, -1)[:, :4].repeat({size}, 1))" if v.tensor.numel() else many,
            f"{v.name}.take_along_dim({v.name}.argsort({d}), {d})",
            f"F.one_hot({many}, {size}).to({v.name}.dtype) * 0.5",
        )
    )


def matrices(b: Builder) -> str | None:
    v = b.real(2)
    if v is None:
        return None
    m, k = v.shape[-2:]
    if k == 0:
        return None
    right = [w for w in b.values if w.tensor.is_floating_point() and len(w.shape) == 2 and w.shape[0] == k]
    w = b.pick.choice(right).name if right else f"{v.name}.transpose(-1, -2)"
    scale = f"{k} ** -0.5"
    return b.pick.choice(
        (
            f"({v.name} @ {w}) * {scale}",
            f"({v.name} @ {v.name}.transpose(-1, -2)) * {scale}",
            f"F.linear({v.name}, {v.name}.reshape(-1, {k})[:5]) * {scale}",
            f"{v.name}.tril()",
            f"{v.name}.triu(1)",
            f"torch.einsum('...ij,...kj->...ik', {v.name}, {v.name}) * {scale}",
            f"{v.name}.diagonal(dim1=-2, dim2=-1)",
            f"F.scaled_dot_product_attention({v.name}[None], {v.name}[None], {v.name}[None])[0]",
            f"({v.name} @ {v.name}.transpose(-1, -2)).softmax(-1)",
            f"torch.addmm({v.name}.sum((-2))[..., :1], {v.name}, {w}) * {scale}" if len(v.shape) == 2 else f"torch.bmm({v.name}, {v.name}.mT) * {scale}",
        )
    )


def create(b: Builder) -> str | None:
    v = b.real(1)
    if v is None:
        return None
    n = v.shape[-1]
    return b.pick.choice(
        (
            f"torch.arange({n}, dtype={v.name}.dtype) * 0.1 + {v.name}",
            f"{v.name} * torch.linspace(0, 1, {n}, dtype={v.name}.dtype)",
            f"torch.ones_like({v.name}) - {v.name}",
            f"torch.full_like({v.name}, 0.3)",
            f"{v.name}.new_zeros({n}) + {v.name}",
            f"torch.eye({max(n, 1)}, dtype={v.name}.dtype) * 0.5",
            f"torch.tensor(0.7, dtype={v.name}.dtype) * {v.name}",
            f"torch.arange({n}) % 3",
            f"({v.name} > 0).to({v.name}.dtype)",
            f"(torch.arange({n}) < 2).to({v.name}.dtype) * {v.name}",
            f"({v.name} * 3).long()",
            f"torch.rand({n}, dtype={v.name}.dtype) * 0.5",
            f"torch.rand_like({v.name})",
            f"F.dropout({v.name}, 0.3)",
            f"torch.randn({n}, dtype={v.name}.dtype).clamp(-2, 2)",
        )
    )


def whole_numbers(b: Builder) -> str | None:
    v = b.any(lambda t: t.dtype in (torch.int64, torch.bool))
    if v is None:
        return None
    if v.tensor.dtype == torch.bool:
        return b.pick.choice(("~{0}", "{0}.sum()", "{0}.any()", "{0} | {0}.flip(0)" if v.tensor.dim() else "{0}", "{0}.long() * 2")).format(v.name)
    return b.pick.choice(
        (
            "{0} + 1",
            "{0} * 2 - 3",
            "{0} // 2",
            "{0} % 3",
            "-{0}",
            "{0}.sum()",
            "{0}.clamp(-3, 3)",
            "{0} * 0.1",
            "{0} > 0",
            "{0} & 3",
            "{0}.abs().sqrt()",
            "{0} // -2",
            "{0}.max()",
            "{0}.to(torch.int32) * 3",
        )
    ).format(v.name)


WRITES = (
    "{0}.add_({1})",
    "{0}.mul_(0.5)",
    "{0}.sub_({1} * 0.1)",
    "{0}.clamp_(-1, 1)",
    "{0}.sigmoid_()",
    "{0}.copy_({1})",
    "{0}.fill_(0.25)",
    "{0}[0] = 0.5",
    "{0}[..., 0] = 0.1",
    "{0}[..., -1:] *= 2",
    "{0}.zero_()",
    "{0}.neg_()",
    "{0}[1:] += 0.3",
    "{0}.masked_fill_({0} > 0.5, 0.2)",
)


def write(b: Builder) -> bool:
    """A clone, perhaps a view of it, and writes into these; the clone is a value of the program."""
    v = b.real(1)
    if v is None or not b.add(f"{v.name}.clone()"):
        return False
    clone = b.values[-1]
    targets = [clone.name]
    for text in ("{0}.transpose(0, -1)", "{0}.flatten()", "{0}[..., ::2]", "{0}[:1]"):
        if b.pick.random() < 0.4 and b.add(text.format(clone.name)):
            if b.values[-1].tensor.untyped_storage().data_ptr() == clone.tensor.untyped_storage().data_ptr():
                targets.append(b.values[-1].name)
    for _ in range(b.pick.randint(1, 3)):
        target = b.pick.choice(targets)
        value = next(x for x in b.values if x.name == target)
        other = b.pick.choice([x for x in b.values if x.tensor.is_floating_point() and x.name not in targets and fits(x.shape, value.shape)] or [None])
        line = b.pick.choice(WRITES).format(target, other.name if other else "0.5")
        before = clone.tensor.clone()
        try:
            exec(line, b.scope)
        except (RuntimeError, IndexError, TypeError):
            clone.tensor.copy_(before)
            continue
        if not (clone.tensor.abs().amax() < BOUND if clone.tensor.numel() else True):
            clone.tensor.copy_(before)
            continue
        b.lines.append(line)
    return True


def fits(shape: Sequence[int], target: Sequence[int]) -> bool:
    return len(shape) <= len(target) and all(m in (1, n) for m, n in zip(reversed(shape), reversed(target)))


KINDS: tuple[tuple[Callable[[Builder], str | None], int], ...] = (
    (unary, 6),
    (binary, 8),
    (reduction, 4),
    (whole_reduction, 1),
    (scan, 3),
    (norm, 1),
    (view, 7),
    (combine, 3),
    (index, 3),
    (matrices, 2),
    (create, 2),
    (whole_numbers, 1),
)


def layout(pick: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    """The same values, perhaps with other strides."""
    way = pick.randrange(6)
    if way == 0 and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    if way == 1:
        wide = torch.zeros(*tensor.shape[:-1], 2 * tensor.shape[-1], dtype=tensor.dtype)
        wide[..., ::2] = tensor
        return wide[..., ::2]
    if way == 2:
        long = torch.zeros(tensor.shape[0] + 2, *tensor.shape[1:], dtype=tensor.dtype)
        long[1:-1] = tensor
        return long[1:-1]
    if way == 3 and tensor.dim() == 4:
        return tensor.to(memory_format=torch.channels_last)
    return tensor


def generate(seed: int, statements: int | None = None) -> Program:
    """The program of a seed: 4 to 30 statements over 2 to 4 inputs."""
    b = Builder(seed)
    pick = b.pick
    generator = torch.Generator().manual_seed(seed)
    pool = [pick.choice(DIMS) for _ in range(3)]
    if pick.random() < 0.05:
        pool[0] = 0
    for _ in range(pick.randint(2, 4)):
        shape = [pick.choice([*pool, 1]) if pick.random() < 0.9 else pick.choice(DIMS) for _ in range(pick.randint(1, 4))]
        while torch.Size(shape).numel() > LARGEST // 3:
            shape.pop()
        b.add_input(layout(pick, torch.randn(shape, generator=generator, dtype=torch.float64)))
    b.add_input(torch.randint(0, 9, (pick.choice((3, 5, 8)),), generator=generator))
    torch.manual_seed(seed)
    kinds, weights = zip(*KINDS, strict=True)
    wanted = statements or pick.randint(4, 30)
    for _ in range(10 * wanted):
        if len(b.lines) >= wanted:
            break
        if pick.random() < 0.06:
            write(b)
            continue
        expression = pick.choices(kinds, weights)[0](b)
        if expression:
            b.add(expression)
    made = [v for v in b.values if not v.name.startswith("x")] or b.values
    outputs = list(dict.fromkeys([made[-1].name, *(pick.choice(made).name for _ in range(pick.randint(0, 3)))]))
    names = ", ".join(f"x{i}" for i in range(len(b.inputs)))
    body = "\n".join(f"    {line}" for line in b.lines)
    return Program(seed, f"def program({names}):\n{body}\n    return {', '.join(outputs)},\n", b.inputs, len(outputs))
