"""Statements that move, choose, multiply, make and write: views, joins, indices, matrices, whole numbers, writes in place."""

from __future__ import annotations

import torch

from tests.fuzz.builder import BOUND, Builder, fits


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
