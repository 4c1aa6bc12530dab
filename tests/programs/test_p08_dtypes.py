"""Number formats and their corners: complex, low precision, integers, booleans, NaN and infinity, empty and 0-dim tensors, layouts."""

import pytest
import torch
import torch.nn.functional as F

import dynacompile
from tests.checking import check
from tests.scenarios import attempt, check_same

NAN, INF = float("nan"), float("inf")


def without_nan(x):
    """For functions whose gradient at NaN is 1 in some of eager's loops and NaN in others."""
    return torch.where(x.isnan(), torch.zeros_like(x), x)


def values(n, dtype=torch.float32, seed=0):
    made = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return made.to(dtype)


def check_each(fns, *inputs, grad=True, **options):
    """Every function on every input, as one compiled function each; gradients where there are any."""

    def story(wrap):
        for fn in fns:
            run = wrap(lambda x, fn=fn: fn(x))
            for make in inputs:
                x = make()
                if grad and (x.is_floating_point() or x.is_complex()):
                    x.requires_grad_()
                out = attempt(run, x)
                yield out
                parts = [o for o in (out if isinstance(out, tuple) else (out,)) if isinstance(o, torch.Tensor) and o.requires_grad]
                if parts:
                    weights = [values(max(p.numel(), 1), seed=3).to(p.dtype).reshape(p.shape) if p.numel() else torch.zeros_like(p) for p in parts]
                    torch.autograd.backward(parts, weights)
                    yield x.grad

    return check_same(story, **options)


COMPLEX = {
    "mul": lambda x: x * x,
    "scale": lambda x: x * 2.5 + 1j,
    "div": lambda x: x / (x + 2),
    "exp": torch.exp,
    "abs": torch.abs,
    "angle": torch.angle,
    "real": lambda x: x.real * 2 + x.imag,
    "view_as_real": lambda x: torch.view_as_real(x) * 2,
    "conj": lambda x: x.conj() * x,
    "conj returned": lambda x: x.conj(),
    "conj of imag": lambda x: x.conj().imag + 1,
    "conj_physical": lambda x: torch.conj_physical(x) * 1j,
    "adjoint": lambda x: x.reshape(2, -1).mH @ x.reshape(2, -1),
    "matmul": lambda x: x.reshape(2, -1) @ x.reshape(-1, 2),
    "sum": lambda x: (x.sum(), x.mean(), x.prod()),
    "var": lambda x: (x.var(), x.std()),
    "pow": lambda x: (x**2, x**0.5, x**x),
    "fft": lambda x: torch.fft.fft(x),
    "rfft": lambda x: torch.fft.rfft(x.real),
    "ifft": lambda x: torch.fft.ifft(x * 2).real,
    "polar": lambda x: torch.polar(x.abs(), x.angle()),
    "complex": lambda x: torch.complex(x.real, x.imag * 2),
    "where": lambda x: torch.where(x.real > 0, x, -x),
    "cat": lambda x: torch.cat([x, x * 1j]),
    "stack and index": lambda x: torch.stack([x, x * 1j])[1, ::2],
    "sqrt": torch.sqrt,
    "reciprocal": torch.reciprocal,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "sgn": torch.sgn,
    "norm": lambda x: torch.linalg.vector_norm(x),
    "outer": lambda x: torch.outer(x, x),
    "vdot": lambda x: torch.vdot(x, x * 1j),
    "eq": lambda x: (x == x, x != x * 2, x.isnan()),
    "rotary": lambda x: torch.view_as_real(torch.view_as_complex(torch.view_as_real(x)) * torch.polar(torch.ones(4), torch.arange(4.0))).flatten(),
    "zeros": lambda x: torch.zeros_like(x) + torch.ones(4, dtype=torch.complex64) * 1j,
    "to real": lambda x: x.real.to(torch.complex64) * x,
    "in place": lambda x: x.clone().mul_(1j).add_(x),
}


@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name):
    check_each([COMPLEX[name]], lambda: torch.complex(values(4), values(4, seed=1)), least=None, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["mul", "div", "abs", "matmul", "fft", "sum"])
def test_complex_double(name):
    check_each([COMPLEX[name]], lambda: torch.complex(values(4, torch.float64), values(4, torch.float64, seed=1)), least=None)


LOW = [
    lambda x: x * 2 + x.sin(),
    lambda x: x.softmax(-1),
    lambda x: x.log_softmax(0),
    lambda x: (x.sum(), x.mean(-1), x.amax(0), x.sum(0, dtype=torch.float32)),
    lambda x: (x.float() * 3).to(x.dtype) * x,
    lambda x: F.layer_norm(x, (8,)),
    lambda x: F.gelu(x) + F.silu(x),
    lambda x: (x @ x.t()).relu(),
    lambda x: x.var(-1),
    lambda x: x.cumsum(0),
    lambda x: F.mse_loss(x, x * 0.5),
    lambda x: F.cross_entropy(x, torch.arange(4)),
    lambda x: x * 1e-3 + 1.0 / 3.0,
    lambda x: torch.where(x > 0, x, 0.1),
    lambda x: x.exp().clamp(max=2),
]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=["bf16", "fp16"])
@pytest.mark.parametrize("index", range(len(LOW)))
def test_low_precision(dtype, index):
    check_each([LOW[index]], lambda: values(32, dtype).reshape(4, 8), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("index", range(len(LOW)))
def test_double(index):
    check_each([LOW[index]], lambda: values(32, torch.float64).reshape(4, 8), rtol=1e-12, atol=1e-12)


INTEGER = [
    lambda x: (x + 1, x - 3, x * 7, -x, abs(x)),
    lambda x: (x // 3, x // -3, 7 // (x + 100), x % 3, x % -3),
    lambda x: (torch.div(x, 3, rounding_mode="trunc"), torch.div(x, -3, rounding_mode="floor"), torch.fmod(x, 3), torch.remainder(x, -3)),
    lambda x: (x / 2, x / 3.0, x * 0.5, x**2),
    lambda x: (x & 6, x | 9, x ^ 5, ~x),
    lambda x: (x << 1, x >> 1),
    lambda x: (x > 2, x == 3, (x > 0) & (x < 5), (x > 0) | (x < -3)),
    lambda x: (x.sum(), x.prod(), x.amax(), x.amin(), x.argmax(), x.max(0), x.cumsum(0)),
    lambda x: (x.float().mean(), x.to(torch.int8) + 100, x.to(torch.uint8) - 1, x.bool()),
    lambda x: (torch.minimum(x, x.flip(0)), torch.maximum(x, x * 2), x.clamp(-2, 2), x.sign()),
    lambda x: (torch.where(x > 0, x, 0), torch.where(x > 0, 1, x), torch.where(x > 0, x, 0.5)),
    lambda x: (x.sort().values, x.sort(descending=True).indices, x.unique() if False else x.topk(2).values),
    lambda x: (torch.arange(5, dtype=x.dtype) * x[:5], x.new_ones(3) + 1, torch.full_like(x, 3), torch.zeros_like(x)),
    lambda x: (x.any(), x.all(), x.sum(dtype=torch.float64), x.eq(0).sum()),
    lambda x: x.view(2, -1).to(torch.float32) @ torch.ones(x.numel() // 2, 2),
    lambda x: (torch.bitwise_and(x, 3), torch.bitwise_left_shift(x, 2), torch.gcd(x, x + 4)),
]
INTEGERS = [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64]


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
@pytest.mark.parametrize("index", range(len(INTEGER)))
def test_integers(dtype, index):
    check_each([INTEGER[index]], lambda: torch.tensor([-100, -7, -3, -1, 0, 1, 5, 117]).to(dtype), least=None)


def test_booleans():
    fns = [
        lambda x: (x & True, x | x.flip(0), x ^ x.flip(0), ~x),
        lambda x: (x + 1, x * 2.5, x + x, x * x, x.sum(), x.float().mean(), x.any(), x.all()),
        lambda x: (x.to(torch.int8), x == 1, x < 1, torch.where(x, 1.0, 2.0), x.cumsum(0), x.long().prod()),
        lambda x: (x.logical_not(), x.logical_and(x.flip(0)), x.logical_xor(True), x.max(), x.argmax(), x.nonzero() if False else x),
        lambda x: (torch.zeros(3)[x[:3].long()], x.masked_fill(x, False), torch.where(x, x, False)),
    ]
    check_each(fns, lambda: torch.tensor([True, False, True, True]), least=None)


SPECIAL = {
    "max": lambda x, y: (torch.maximum(x, y), torch.minimum(x, y), torch.fmax(x, y), torch.fmin(x, y)),
    "reduce": lambda x, y: (x.amax(), x.amin(), x.max(), x.min(), x.max(0), x.min(0), x.argmax(), x.argmin()),
    "sums": lambda x, y: (x.sum(), x.mean(), x.prod(), x.nansum(), x.var(), x.norm()),
    "clamp": lambda x, y: (x.clamp(-1, 1), x.clamp(min=0), x.clamp(max=0), torch.clamp(x, y, y + 1), torch.clamp(x, max=y)),
    "hardtanh": lambda x, y: (F.relu(x), F.leaky_relu(x), F.elu(without_nan(x)), F.hardswish(without_nan(x)), F.hardsigmoid(x)),
    "softmax": lambda x, y: (x.softmax(0), x.log_softmax(0), torch.logsumexp(x, 0), torch.full_like(x, -INF).softmax(0)),
    "compare": lambda x, y: (x == y, x != y, x < y, x >= y, x.isnan(), x.isinf(), x.isfinite(), torch.isclose(x, y)),
    "where": lambda x, y: (torch.where(x > 0, x, y), torch.where(x == x, x, 0.0), x.nan_to_num(), x.nan_to_num(1.0, 2.0, 3.0)),
    "round": lambda x, y: (x.round(), x.floor(), x.ceil(), x.trunc(), x.frac(), x.sign(), x.abs(), x.sgn()),
    "transcendental": lambda x, y: (x.exp(), x.log(), x.sqrt(), x.rsqrt(), x.sigmoid(), x.tanh(), x.sin(), x.atan(), x.erf(), x.expm1(), x.log1p()),
    "pow": lambda x, y: (x**2, x**0, x**-1, x**0.5, x**3, 2.0**x, x**y, torch.pow(y, 0.0)),
    "divide": lambda x, y: (x / y, (x // y).detach(), x % y, torch.fmod(x, y), torch.div(x, y, rounding_mode="trunc"), 1 / x, x.reciprocal()),
    "arctan2": lambda x, y: (torch.atan2(x, y), torch.hypot(x, y), torch.copysign(x, y), torch.signbit(x), torch.nextafter(x.detach(), y.detach())),
    "cumulative": lambda x, y: (x.cumsum(0), x.cumprod(0), x.cummax(0), x.logcumsumexp(0)),
    "softplus": lambda x, y: (F.softplus(x), F.silu(x), F.mish(x), F.logsigmoid(x), F.softsign(x)),
    "sort": lambda x, y: (x.sort().values, x.topk(3).values, x.median() if False else x, x.argsort()),
    "any": lambda x, y: (x.any(), x.all(), x.bool(), x.to(torch.float16).to(torch.float32), x.logical_not()),
    "lerp": lambda x, y: (torch.lerp(x, y, 0.3), torch.lerp(x, y, 0.8), torch.addcmul(x, x, y), torch.addcdiv(x, x, y), torch.logaddexp(x, y)),
    "xlogy": lambda x, y: (torch.xlogy(x, y), torch.special.xlog1py(x, y), torch.logit(x.sigmoid()), torch.heaviside(x, y).detach()),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=["fp32", "fp64", "bf16"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", SPECIAL)
def test_special_values(name, grad, dtype):
    def story(wrap):
        run = wrap(SPECIAL[name])
        x = torch.tensor([NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 2.75, 1e30, -1e-30], dtype=dtype)
        for y in (x.flip(0), x.roll(3), torch.zeros_like(x), -torch.zeros_like(x)):
            a, b = x.clone().requires_grad_(grad), y.clone().requires_grad_(grad)
            out = run(a, b)
            yield out
            if name in ("round", "divide", "arctan2"):
                yield [torch.signbit(o) & ~o.isnan() for o in out]
            if grad:
                parts = [o for o in torch.utils._pytree.tree_leaves(out) if o.requires_grad]
                if parts:
                    torch.autograd.backward(parts, [torch.ones_like(p) for p in parts])
                    yield a.grad, b.grad

    loose = dtype is torch.bfloat16
    check_same(story, least=None, rtol=2e-2 if loose else None, atol=2e-2 if loose else None)


EMPTY = {
    "pointwise": lambda x: x * 2 + 1,
    "sum": lambda x: (x.sum(), x.sum(0), x.sum(-1), x.mean(), x.mean(0)),
    "prod": lambda x: (x.prod(), x.any(), x.all(), x.sum(-1, keepdim=True)),
    "amax": lambda x: x.amax(),
    "argmax": lambda x: x.argmax(),
    "amax of a dim": lambda x: x.amax(0),
    "cat": lambda x: (torch.cat([x, x]), torch.cat([x, torch.ones_like(x)], -1), torch.stack([x, x])),
    "softmax": lambda x: (x.softmax(-1), x.log_softmax(0)),
    "views": lambda x: (x.reshape(-1), x.t(), x[:0], x[..., None], x.flatten(), x.transpose(0, 1).contiguous()),
    "matmul": lambda x: (x @ x.t(), x.t() @ x),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]) if x.shape[-1] else x * 2,
    "cumsum": lambda x: x.cumsum(0),
    "index": lambda x: (x[torch.tensor([], dtype=torch.long)], x[:, torch.tensor([], dtype=torch.long)]),
    "pad": lambda x: F.pad(x, (1, 1)),
    "where": lambda x: torch.where(x > 0, x, 0.0),
    "var": lambda x: (x.var(), x.std(-1)),
    "write": lambda x: x.clone().add_(1).mul_(2),
    "chunks": lambda x: torch.cat([c * 2 for c in x.chunk(2, -1)], -1),
    "linear": lambda x: F.linear(x, torch.ones(3, x.shape[-1]), torch.ones(3)),
    "expand": lambda x: x.sum(0).expand(3, x.shape[1]) + 1,
    "sort": lambda x: (x.sort(-1).values, x.flip(0), x.roll(1, 0)),
}


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", EMPTY)
def test_empty(name, shape, grad):
    check_each([EMPTY[name]], lambda: torch.zeros(shape), least=None, grad=grad)


SCALARS = [
    lambda x: (x * 2, x + 1, x.sin(), x**2),
    lambda x: (x.sum(), x.mean(), x.amax(), x.argmax(), x.prod(), x.sum(0), x.softmax(0)),
    lambda x: (x[None], x.reshape(1, 1), x.expand(3), x.unsqueeze(-1) * 2, x.view(-1)),
    lambda x: (torch.stack([x, x * 2]), torch.cat([x[None], x[None] + 1])),
    lambda x: (x + torch.ones(3), torch.ones(2, 2) * x, torch.ones(3, dtype=torch.float64) * x, x * torch.ones(3, dtype=torch.int64)),
    lambda x: (torch.where(x > 0, x, -x), x.clamp(0, 1), x.item if False else x.abs()),
    lambda x: (x.cumsum(0), x.t(), x.flip(0) if False else x, x.contiguous(), x.squeeze()),
    lambda x: x.clone().add_(1).mul_(torch.tensor(3.0)),
    lambda x: (x.to(torch.float16), x.double() + x, x * torch.tensor(2, dtype=torch.int64)),
]


@pytest.mark.parametrize("index", range(len(SCALARS)))
def test_zero_dim(index):
    check_each(
        [SCALARS[index]],
        lambda: torch.tensor(1.5),
        lambda: torch.tensor(-0.5, dtype=torch.float64),
        lambda: torch.tensor(2.0, dtype=torch.bfloat16),
        least=None,
    )


ONES = [
    lambda x: (x.sum(0), x.sum(1), x.sum(-1), x.mean((0, 2)), x.squeeze(), x.squeeze(1)),
    lambda x: (x.softmax(0), x.softmax(1), x.var(-1), x.amax(1), x.argmax(1)),
    lambda x: (x.transpose(0, 1) + 1, x.permute(2, 1, 0) * 2, x.expand(3, 4, 5) + 1 if x.shape[1] == 1 else x, x.flatten()),
    lambda x: (torch.cat([x, x], 1), torch.cat([x, x], 0).sum(0), x.repeat(2, 1, 3), x.unsqueeze(0).squeeze()),
    lambda x: (x + x.transpose(0, 2), x * x.sum((0, 1), keepdim=True), x @ x.transpose(1, 2)),
    lambda x: (F.layer_norm(x, (x.shape[-1],)), F.normalize(x, dim=-1)),
]


@pytest.mark.parametrize("shape", [(1, 1, 5), (3, 1, 5), (1, 4, 1), (1, 1, 1), (3, 1, 1)], ids=str)
@pytest.mark.parametrize("index", range(len(ONES)))
def test_sizes_of_one(index, shape):
    check_each([ONES[index]], lambda: values(torch.Size(shape).numel()).reshape(shape), least=None)


LAYOUT = {
    "pointwise": lambda x: x * 2 + 1,
    "two layouts": lambda x: x + torch.ones(x.shape),
    "two layouts, the other first": lambda x: torch.ones(x.shape) + x,
    "broadcast": lambda x: x * torch.ones(x.shape[-1]),
    "to": lambda x: (x.double(), x.to(torch.float32), x.clone(), x.contiguous(), x.clone(memory_format=torch.contiguous_format)),
    "like": lambda x: (torch.zeros_like(x), torch.ones_like(x) + x, torch.empty_like(x).fill_(2), torch.full_like(x, 3.0), x.new_zeros(x.shape)),
    "reduce": lambda x: (x.sum(1), x.sum(-1, keepdim=True), x.mean((2, 3)), x.amax(1), x.softmax(1), x.cumsum(2)),
    "cat": lambda x: (torch.cat([x, x], 1), torch.cat([x, torch.ones(x.shape)], 1), torch.stack([x, x])),
    "where": lambda x: (torch.where(x > 0, x, 0), torch.where(x > 0, x, torch.zeros(x.shape)), x.clamp(0, 1), x > 0),
    "views": lambda x: (x.permute(0, 2, 3, 1), x.flatten(2), x.transpose(1, 2) * 2, x[:, 1:], x[:, :, ::2] + 1, x.reshape(x.shape[0], -1)),
    "pool": lambda x: (F.max_pool2d(x, 2), F.avg_pool2d(x, 2), F.adaptive_avg_pool2d(x, 1), F.interpolate(x, scale_factor=2)),
    "conv": lambda x: F.conv2d(x, torch.ones(2, x.shape[1], 3, 3), padding=1),
    "norm": lambda x: F.group_norm(x, 1),
    "pad and flip": lambda x: (F.pad(x, (1, 1)), x.flip(1), x.tril()),
    "dropout": lambda x: F.dropout(x, 0.5),
    "random": lambda x: (torch.rand_like(x), torch.randn_like(x) + x),
    "index": lambda x: (x[:, torch.tensor([0, -1])], x[torch.tensor([0, 1])], x.index_select(2, torch.tensor([1, 0])), x.masked_fill(x > 0, 0)),
    "unary": lambda x: (x.abs(), F.relu(x), F.gelu(x), x.sigmoid(), -x, x.exp(), x.to(torch.bfloat16)),
    "reduce all": lambda x: (x.sum(), x.argmax(), x.std(), x.view(-1).sum() if x.is_contiguous() else x.reshape(-1).sum()),
    "write": lambda x: x.clone().add_(1),
    "mm": lambda x: (x @ x.transpose(-1, -2), torch.einsum("nchw,ndhw->ncd", x, x)),
}
LAYOUTS = {
    "contiguous": lambda: values(2 * 4 * 4 * 6).reshape(2, 4, 4, 6),
    "channels_last": lambda: values(2 * 4 * 4 * 6).reshape(2, 4, 4, 6).to(memory_format=torch.channels_last),
    "permuted": lambda: values(2 * 4 * 4 * 6).reshape(6, 4, 4, 2).permute(3, 1, 2, 0),
    "sliced": lambda: values(2 * 4 * 4 * 12).reshape(2, 4, 4, 12)[..., ::2],
    "cut": lambda: values(2 * 5 * 4 * 6).reshape(2, 5, 4, 6)[:, 1:],
    "expanded": lambda: values(4 * 6).reshape(1, 1, 4, 6).expand(2, 4, 4, 6),
    "one channel, channels_last": lambda: values(2 * 4 * 6).reshape(2, 1, 4, 6).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", LAYOUT)
def test_layouts(name, grad):
    check_each([LAYOUT[name]], *(lambda make=make: make().detach() for make in LAYOUTS.values()), grad=grad, least=None, rtol=1e-4, atol=1e-5)


PAIRS = {
    "two": lambda x, y: (x + y, y + x, x / y, torch.maximum(x, y), torch.atan2(x, y), x < y, x.sub(y, alpha=2)),
    "three": lambda x, y: (torch.addcmul(x, x, y), torch.where(x > 0, x, y)),
    "views of the result": lambda x, y: ((x + y).transpose(1, 2).reshape(2, 7, -1), (x + y).float() @ y.mT.float()),
    "written": lambda x, y: (y.clone().add_(x), y.clone().clamp_(min=x)) if y.is_floating_point() else x.clone().add_(y),
}


KINDS = [(torch.float16, torch.float16), (torch.bfloat16, torch.float32), (torch.bfloat16, torch.int64), (torch.float32, torch.float32)]


@pytest.mark.parametrize("dtypes", KINDS, ids=str)
@pytest.mark.parametrize("name", PAIRS)
def test_an_expanded_operand_leaves_the_layout_to_the_other(name, dtypes):
    def story(wrap):
        first = values(2 * 7 * 6).reshape(2, 1, 7, 6).to(dtypes[0]).expand(2, 3, 7, 6)
        second = values(2 * 3 * 7 * 6, seed=1).reshape(2, 7, 3, 6).transpose(1, 2).to(dtypes[1])
        yield wrap(PAIRS[name])(first, second)

    for backend in ("default", "aot_eager"):
        check_same(story, backend=backend, rtol=1e-2, atol=1e-2)


def test_sparse_inputs():
    def story(wrap):
        run = wrap(lambda s, x: (s @ x) * 2 + 1)
        dense = values(12).reshape(3, 4)
        for s in (dense.to_sparse(), dense, dense.to_sparse_csr(), dense):
            yield attempt(run, s, values(8).reshape(4, 2))

    check_same(story, least=None)


def test_sparse_gradients():
    def story(wrap):
        table = torch.nn.Embedding(5, 3, sparse=True)
        run = wrap(lambda i: table(i).sum() * 2)
        out = run(torch.tensor([1, 2, 1]))
        out.backward()
        yield out, table.weight.grad.is_sparse, table.weight.grad.to_dense()

    check_same(story, least=None)


@pytest.mark.parametrize("dense", [lambda t: t.weight.sum(), lambda t: (t.weight @ t.weight.T).sum(), lambda t: 0], ids=["sum", "product", "none"])
@pytest.mark.parametrize("backend", ["aot_eager", "default"])
def test_sparse_gradients_beside_dense_ones_of_the_same_weight(backend, dense):
    def story(wrap):
        table = torch.nn.Embedding(5, 3, sparse=True)
        run = wrap(lambda i: table(i).sum() * 2 + dense(table))
        for _ in range(2):
            run(torch.tensor([1, 2, 1])).backward()
            yield table.weight.grad.layout, table.weight.grad.to_dense()
        run = wrap(lambda i: torch.autograd.grad(table(i).sum() + dense(table), table.weight)[0].to_dense() * 2)
        yield run(torch.tensor([1, 2, 1]))

    check_same(story, least=None, backend=backend)


@pytest.mark.parametrize("size", [1000, 65536, 1_000_003])
def test_large_sums_are_accurate(size):
    x = values(size, torch.float32) + 1
    exact = x.double()
    run = dynacompile.compile(lambda x: (x.sum(), x.mean(), x.var(), (x * x).sum(), x.view(-1).cumsum(0)[-1], torch.logsumexp(x, 0)), isolate_recompiles=True)
    want = (exact.sum(), exact.mean(), exact.var(), (exact * exact).sum(), exact.sum(), torch.logsumexp(exact, 0))
    for a, b in zip(run(x), want, strict=True):
        assert abs(a.double() - b) <= 2e-6 * abs(b), (a, b)


def test_low_precision_sums_accumulate_in_float():
    x = torch.full((4096, 64), 0.1, dtype=torch.bfloat16)
    run = dynacompile.compile(lambda x: (x.sum(), x.sum(0), x.mean(1)), isolate_recompiles=True)
    for a, b in zip(run(x), (x.sum(), x.sum(0), x.mean(1)), strict=True):
        torch.testing.assert_close(a, b)


@pytest.mark.parametrize("op", [torch.floor_divide, torch.remainder, torch.fmod, lambda a, b: torch.div(a, b, rounding_mode="trunc")])
def test_integer_division_by_zero(op):
    def story(wrap):
        fn = wrap(lambda a, b: op(a, b) + 1)
        for divisor in (2, 0, 3):
            yield attempt(fn, torch.arange(5), torch.full((5,), divisor))

    check_same(story)


@pytest.mark.parametrize("target", [[1, 3, 0], [1, 9, 0], [1, -1, 0], [1, -100, 2]])
def test_classes_out_of_range(target):
    def story(wrap):
        fn = wrap(lambda x, t: F.cross_entropy(x, t))
        yield attempt(fn, values(12).reshape(3, 4), torch.tensor(target))

    check_same(story)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("reference", [True, False])
def test_explicit_conversions_see_rounded_numbers(dtype, reference):
    def fn(x, y):
        return (x.to(dtype) + y.to(dtype)).float() * 3, x.to(dtype).double()

    x, y = values(1000), values(1000, seed=1)
    got = dynacompile.compile(fn, isolate_recompiles=True, options={"reference": reference})(x, y)
    assert all(torch.equal(a, b) for a, b in zip(got, fn(x, y), strict=True))


WIDENED = {
    "product": lambda h, g: h * h + g,
    "branch": lambda h, g: torch.where(h > 0, h.exp(), g),
    "filled": lambda h, g: g / torch.full((), 3.3, dtype=h.dtype),
    "filled like": lambda h, g: torch.full_like(g, 3.3, dtype=h.dtype) + g,
    "too large": lambda h, g: g + torch.full((), 70000.0, dtype=torch.float16).clamp(max=65504) * h.new_ones(()),
    "converted": lambda h, g: g * torch.full((), 3.3).to(h.dtype),
    "scores": lambda h, g: (g / torch.full((), 3.3, dtype=h.dtype)).softmax(-1) @ g.mT,
}


@pytest.mark.parametrize("reference", [True, False], ids=["interpreted", "built"])
@pytest.mark.parametrize("name", WIDENED)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_what_meets_a_wider_type_is_rounded_before(dtype, name, reference):
    """Numbers that fill a tensor of half precision, and results of one operation in half precision."""
    h, g = values(24, dtype).view(4, 6), values(24, torch.float64, 1).view(4, 6)
    fn = WIDENED[name]
    torch.testing.assert_close(dynacompile.compile(fn, options={"reference": reference})(h, g), fn(h, g), rtol=1e-12, atol=0)


def test_python_types_as_dtypes():
    def fn(x):
        return torch.tensor([-1], dtype=int), x.to(float), torch.zeros(2, dtype=bool), x.sum(dtype=float), torch.full((2,), 1, dtype=complex), x.to(int)

    check(fn, values(3).requires_grad_(), options={"backend": "eager"})
    check(fn, values(3).requires_grad_())


@pytest.mark.parametrize(
    "fn",
    [
        lambda x, mask: x - mask,
        lambda x, mask: 1 - mask,
        lambda x, mask: mask - mask,
        lambda x, mask: x.sub_(mask),
        lambda x, mask: torch.rsub(x, True),
        lambda x, mask: torch.sub(x, x, alpha=True),
        lambda x, mask: x & mask,
        lambda x, mask: ~x,
    ],
)
@pytest.mark.parametrize("options", [{"backend": "eager"}, {}])
def test_what_eager_refuses_for_its_types(fn, options):
    check(fn, values(4), values(4) > 0, graphs=0, breaks=None, options=options)


def test_operations_on_numbers_alone():
    """torch.mul(3, 2) takes no tensor, and gives one."""

    def numbers(x):
        return torch.mul(3, 2), torch.true_divide(3, 2) * x, torch.add(x.shape[0], 2.5), torch.sub(5, 1), x + 1

    check(numbers, torch.ones(3, requires_grad=True))
    check(numbers, torch.ones(3), options={"backend": "aot_eager"})


def test_extremes_of_no_bools():
    """There is none, as of other types."""

    def story(wrap):
        for fn in (torch.max, torch.min, lambda x: x.bool().max()):
            run = wrap(lambda x, fn=fn: fn(x))
            for x in (torch.ones(3, dtype=torch.bool), torch.zeros(4, dtype=torch.bool), torch.ones(0, dtype=torch.bool), torch.ones(0)):
                yield attempt(run, x)

    check_same(story, backend="default")
