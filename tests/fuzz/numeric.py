"""Statements that compute: element by element, reductions, scans, norms."""

from __future__ import annotations

from tests.fuzz.builder import Builder

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
