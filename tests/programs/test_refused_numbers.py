"""Numbers that eager's kernels refuse raise at the operation, within the `except` clauses around it: a graph would raise when it runs, or not at all."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from dynacompile.capture.refused_numbers import HELD, REFUSED, holds
from dynacompile.events import GraphBroke
from tests.scenarios import attempt, check_same

HALF, INT8, INT32 = torch.float16, torch.int8, torch.int32
SCOPE = {"torch": torch, "F": F, "HALF": HALF, "INT8": INT8, "INT32": INT32}
TAKES_MORE = torch.torch_version.TorchVersion(torch.__version__) >= (2, 15)
NOT_HELD = """
torch.full((2,), 1e38, dtype=HALF); torch.full((2,), float("nan"), dtype=INT32); torch.full((2,), 1 + 2j, dtype=HALF); torch.full((2,), 1e300)
torch.full_like(i, 300); h.new_full((2,), fill_value=1e38); i.clone().fill_(300); i.to(INT32).fill_(float("inf")); torch.fill(i, value=300)
h.masked_fill(h > 0, 1e38); i.clone().masked_fill_(i > 0, -300); torch.where(i > 0, i, 300); torch.where(h > 0, 1e300, h.float())
h.clamp(max=1e38); i.clamp(-300); i.clamp_min(-300); i.clone().clamp_max_(300); h.clip(-1e38, 0.0); i ** 300; h.pow(1e38)
torch.add(i, i, alpha=300); torch.sub(h, h, alpha=1e38); torch.rsub(i, i, alpha=300); torch.addcmul(i, i, i, value=300)
torch.addmm(m, m, m, beta=1e300); torch.addmv(m[0], m, m[0], alpha=1e300); torch.baddbmm(m[None], m[None], m[None], beta=1e300)
torch.linspace(0, 1e38, 3, dtype=HALF); torch.randint(0, 300, (2,), dtype=INT8); torch.randperm(300, dtype=INT8); torch.scalar_tensor(300, dtype=INT8)
F.pad(i, (1, 1), value=300); F.threshold(h, 0, 1e38); F.hardtanh(i, -300, 300); F.hardshrink(h, 1e38); i.expand(3, 3).clone().fill_diagonal_(300)
torch.full((2,), -0.5, dtype=torch.uint8); F.pad(i.to(torch.uint8), (1, 1), value=-1)
torch.lerp(m, m, 1j); torch._foreach_clamp_max([i], 300); torch._foreach_maximum([i, i], [1, 300])
"""
OTHERS = """
i ** -1; torch.pow(i, -2); torch._foreach_pow([i], -1); F.celu(m, 0.0); F.smooth_l1_loss(m, m, beta=-1.0); torch.mvlgamma(m, 0); F.softmax(h, 3)
torch.empty_strided((2,), (-1,)); torch.searchsorted(m, m, side="bad"); F.conv1d(m[None], m[None], dilation=0); h[:0].max(); torch.gcd(i, h)
h[:0].max(0); m[:0].min(dim=0); m[:, :0].median(1); h[:0].mode(); torch.nanmedian(m[:0], 0, True); torch.max(input=i[:0], dim=0); torch.bucketize(m, m)
torch._foreach_clamp_max([h], 1j)
torch.heaviside(h, i); m.cfloat() < 2; h <= 1j; m.cfloat().clamp_(max=1); F.hardtanh(m.cfloat()); torch.bitwise_and(h, 1); torch.polar(h, h)
"""
TAKEN = """
torch.full((2,), -1, dtype=torch.uint8); torch.full((2,), float("inf"), dtype=HALF); torch.full((2,), 65504.0, dtype=HALF); h + 1e38; i * 300; i.fill(1.5)
i.clamp(2.5, 3.5)
m[:0].max(1); m[:, :0].min(0).values.sum(); torch.max(m[:0], m[:0]);
torch.where(h > 0, h, 1e38); m.cfloat() == 1j; 2 ** i; h ** -1; m.clamp(max=float("inf")); F.pad(h, (300, 0)); i.expand(300, 3).sum(); F.softmax(h, -1)
"""
SINCE_2_15 = (
    *("i.clamp(-300)", "i.clamp_min(-300)", "i.clone().clamp_max_(300)", "F.hardtanh(i, -300, 300)", "torch._foreach_clamp_max([i], 300)"),
    "torch.polar(h, h)",
)
"""Taken by eager since torch 2.15: bounds that no number of the type can pass, and complex numbers of half precision."""
FITTING = """
m[:0].median(); m[:, :0].nanmedian()
torch.full((2,), 60000.0, dtype=HALF); h.clamp(-1e4, 1e4); i ** 2; i.clamp(-128, 127); F.pad(m, (1, 1), value=1e30); m.max()
torch.where(i > 0, i, float("inf")); torch.where(h > 0, h, -1e9); torch.where(h > 0, 1e300, h.double()); i.clamp(max=1e30)
i.clamp(min=-float("inf"), max=300.5)
i.pow(300.0); h.lerp(h, 1e6); h.addcmul(h, h, value=1e6); torch.full((2,), -1, dtype=torch.uint8); torch.where(i > 0, i.to(torch.uint8), -1)
h.masked_fill(h > 0, -1e4); torch.full((2,), 2, dtype=torch.bool); torch.full_like(h, -float("inf"))
"""


def forms(texts):
    """(the expression as a function, in a clause that takes what it raises)"""
    for text in " ; ".join(texts.strip().splitlines()).split(";"):
        scope = dict(SCOPE)
        exec(f"def plain(h, i, m): return m + 1, {text}", scope)
        exec(f"def caught(h, i, m):\n try: return {text}\n except Exception as error: return type(error).__name__, str(error), m + 1", scope)
        scope["plain"].__doc__ = scope["caught"].__doc__ = text.strip()
        yield scope["plain"], scope["caught"]


@pytest.mark.parametrize("texts", [NOT_HELD, OTHERS, TAKEN], ids=["not held", "others", "taken"])
def test_numbers_raise_where_they_are_given(texts):
    def story(wrap):
        for form in (form for pair in forms(texts) for form in pair):
            torch.manual_seed(0)
            result = attempt(wrap(form), torch.tensor([0.5, -1.0, 2.0], dtype=HALF), torch.tensor([1, 2, 3], dtype=INT8), torch.eye(3) + 0.1)
            refused = texts is TAKEN or isinstance(result, Exception) or isinstance(result[0], str)
            assert refused or (TAKES_MORE and form.__doc__ in SINCE_2_15), f"eager takes {form.__doc__}"
            yield result if texts is not OTHERS or not isinstance(result, Exception) else type(result).__name__

    check_same(story, least=None, backend="eager")


def test_numbers_that_fit_break_no_graph():
    told, h, i = [], torch.ones(3, dtype=HALF), torch.ones(3, dtype=INT8)
    end = dynacompile.subscribe(lambda event: told.append(event) if isinstance(event, GraphBroke) else None)
    try:
        for name in ("full", "clamp", "pow"):
            assert name in HELD
        for plain, _ in forms(FITTING):
            compiled = dynacompile.compile(plain, backend="eager", fullgraph=True, isolate_recompiles=True)
            assert str(compiled(h, i, torch.eye(3))) == str(plain(h, i, torch.eye(3)))
    finally:
        end()
    assert not told and "max" in REFUSED


@pytest.mark.parametrize("dtype", [torch.uint8, INT8, torch.int64, HALF, torch.bfloat16, torch.float32, torch.float64, torch.complex64, torch.bool], ids=str)
def test_what_is_said_to_be_held_eager_takes(dtype):
    taken = 0
    for number in (0, -1, 127, 128, 255, 256, 2**31, 2**63 - 1, 65504.0, 65519.0, 65520.0, 3.5e38, 1e308, float("inf"), float("nan"), 1.5, 1j, 3 + 1e39j):
        result = attempt(torch.full, (2,), number, dtype=dtype)
        taken += isinstance(result, torch.Tensor)
        assert not holds(dtype, number) or isinstance(result, torch.Tensor), number
    assert taken


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_numbers_that_vary_raise_once_they_do_not_fit(backend):
    """A number that fitted in every call so far becomes a symbol, and the entry is for those that fit."""
    forms = {
        "fill": lambda x, n: x.fill_(n),
        "assigned": lambda x, n: (x.__setitem__(0, n), x)[1],
        "threshold": lambda x, n: F.threshold(x, 1, n),
        "padded": lambda x, n: F.pad(x, (1, 1), value=n),
        "power": lambda x, n: x**n if n < 9 else x.new_full((2,), n),
    }

    def story(wrap):
        for form in forms.values():
            run = wrap(form)
            for n in (2, 3, 4, 300, 5, -1, 2.5, 3.5, 4.5, 1e10, 5.5, float("inf")):
                yield attempt(run, torch.tensor([1, 2, 3], dtype=torch.uint8), n)

    check_same(story, least=None, backend=backend)


def test_numbers_that_vary_and_fit_have_one_entry():
    run = dynacompile.compile(lambda x, n: torch.add(x, x, alpha=n).addcmul(x, x, value=n), backend="eager", fullgraph=True, isolate_recompiles=True)
    for n in (0.5, 0.25, 3e38, 1e-3, -7.0):
        torch.testing.assert_close(run(torch.ones(3), n), torch.add(torch.ones(3), torch.ones(3), alpha=n) + n)
    (bucket,) = run.buckets
    assert len(bucket.entries) == 2


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_numbers_that_vary_raise_once_eager_refuses_them(backend):
    forms = (
        (lambda x, n: F.rrelu(x, 0.1, n, training=False), (0.5, 0.25, 0.75, 0.05, 0.5)),
        (lambda x, n: F.batch_norm(x, None, None, training=True, eps=n), (1.0, 0.5, 0.25, 0.0, -1.0, 0.5)),
        (lambda x, n: F.interpolate(x, scale_factor=n), (1.0, 2.0, 3.0, 0.01, 2.0)),
    )

    def story(wrap):
        for form, numbers in forms:
            run = wrap(form)
            for n in numbers:
                yield attempt(run, torch.arange(24.0).view(2, 3, 4).sin(), n)

    check_same(story, least=None, backend=backend)


@pytest.mark.parametrize("fullgraph", [False, True])
def test_ints_read_from_tensors_raise_where_a_tensor_of_few_bits_is_made(fullgraph):
    run = dynacompile.compile(lambda t: torch.tensor(t.item(), dtype=INT8), backend="eager", fullgraph=fullgraph, isolate_recompiles=True)
    assert run(torch.tensor(7)).tolist() == 7
    with pytest.raises(RuntimeError, match="without overflow"):
        run(torch.tensor(300))
