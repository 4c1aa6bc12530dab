"""torch.distributions as training steps use them, with validation and without it; what is not valid raises what eager raises."""

from __future__ import annotations

import pytest
import torch
import torch.distributions as D
from torch.distributions import Bernoulli, Categorical, Independent, Normal, TanhTransform, TransformedDistribution, kl_divergence

import dynacompile
from tests.checking import check
from tests.scenarios import check_same

EAGER = {"backend": "eager"}
STANDARD = Normal(torch.zeros(4), torch.ones(4))
LOG: list = []


@pytest.fixture(autouse=True)
def validation():
    """As eager has it by default; the first torch.compile of a process turns it off."""
    before = D.Distribution._validate_args
    D.Distribution.set_default_validate_args(True)
    yield
    D.Distribution.set_default_validate_args(before)


def normal(m, s, validates):
    d = Normal(m, s.exp(), validate_args=validates)
    z = d.rsample()
    return z, d.log_prob(z), d.entropy(), d.mean, d.variance


def normal_divergence(m, s, validates):
    d = Normal(m, s.exp(), validate_args=validates)
    return kl_divergence(d, Normal(torch.zeros_like(m), torch.ones_like(s), validate_args=validates)).sum(-1)


def standard_normal(m, s, validates):
    return Normal(0.0, 1.0, validate_args=validates).log_prob(m) + s


def independent(m, s, validates):
    d = Independent(Normal(m, s.exp(), validate_args=validates), 1, validate_args=validates)
    z = d.rsample()
    return z, d.log_prob(z), d.entropy()


def squashed(m, s, validates):
    d = TransformedDistribution(Normal(m, s.exp(), validate_args=validates), [TanhTransform(cache_size=1)], validate_args=validates)
    action = d.rsample()
    return action, d.log_prob(action).sum(-1)


def autoencoder(m, s, validates):
    q = Normal(m, (0.5 * s).exp(), validate_args=validates)
    z = q.rsample()
    p = Normal(torch.zeros_like(z), torch.ones_like(z), validate_args=validates)
    return torch.nn.functional.mse_loss(z.sigmoid(), m) + kl_divergence(q, p).mean(), q.log_prob(z).sum()


def uniform(m, s, validates):
    d = D.Uniform(m, m + s.exp(), validate_args=validates)
    z = d.rsample()
    return z, d.log_prob(z), d.entropy()


def laplace(m, s, validates):
    d = D.Laplace(m, s.exp(), validate_args=validates)
    z = d.rsample()
    return z, d.log_prob(z), d.entropy()


def mixture(m, s, validates):
    d = D.MixtureSameFamily(
        Categorical(logits=torch.zeros(3, 4), validate_args=validates), Normal(m, s.exp(), validate_args=validates), validate_args=validates
    )
    return d.log_prob(torch.zeros(3)), d.mean


def several_sizes(m, s, validates):
    d = Normal(m, s.exp(), validate_args=validates).expand((2, 3, 4))
    return d.log_prob(m), d.batch_shape, d.event_shape


def categorical_divergence(m, s, validates):
    p, q = (Categorical(logits=logits, validate_args=validates) for logits in (m, s))
    return kl_divergence(p, q), p.entropy()


def bernoulli_divergence(m, s, validates):
    p, q = (Bernoulli(logits=logits, validate_args=validates) for logits in (m, s))
    return kl_divergence(p, q), p.log_prob((s > 0).float()), p.mean


def curvature(m, s, validates):
    """A product with the Hessian of a divergence, as natural gradients take it."""
    old = Categorical(logits=m.detach() * 0.5, validate_args=validates)
    divergence = kl_divergence(old, Categorical(logits=m * 2, validate_args=validates)).mean()
    (slope,) = torch.autograd.grad(divergence, m, create_graph=True)
    (product,) = torch.autograd.grad((slope * s.detach()).sum(), m)
    return product.detach() + 0.1 * s


ALWAYS_WHOLE = (
    curvature,
    normal,
    normal_divergence,
    standard_normal,
    independent,
    squashed,
    autoencoder,
    uniform,
    laplace,
    mixture,
    several_sizes,
    categorical_divergence,
    bernoulli_divergence,
)


def categorical(m, s, validates):
    d = Categorical(logits=m, validate_args=validates)
    a = d.sample()
    return a, d.log_prob(a), d.entropy(), d.probs


def categorical_of_probabilities(m, s, validates):
    d = Categorical(probs=m.softmax(-1), validate_args=validates)
    a = d.sample()
    return a, d.log_prob(a), d.entropy(), d.mode


def policy(m, s, validates):
    d = Categorical(logits=m, validate_args=validates)
    a = torch.zeros(3, dtype=torch.long)
    ratio = (d.log_prob(a) - s[:, 0]).exp()
    return torch.min(ratio, ratio.clamp(0.8, 1.2)).mean() - 0.01 * d.entropy().mean()


def bernoulli(m, s, validates):
    d = Bernoulli(logits=m, validate_args=validates)
    a = d.sample()
    return a, d.log_prob(a), d.entropy(), kl_divergence(d, Bernoulli(logits=s, validate_args=validates))


MINDS_VALUES = (categorical, categorical_of_probabilities, policy, bernoulli)  # operations that raise by their values


def arguments():
    return torch.linspace(-1, 1, 12).reshape(3, 4).requires_grad_(), torch.linspace(-0.5, 0.5, 12).reshape(3, 4).requires_grad_()


@pytest.mark.parametrize("fn", [*ALWAYS_WHOLE, *MINDS_VALUES], ids=lambda fn: fn.__name__)
def test_without_validation(fn):
    check(fn, *arguments(), False, options=EAGER)


@pytest.mark.parametrize("fn", ALWAYS_WHOLE, ids=lambda fn: fn.__name__)
def test_with_validation(fn):
    check(fn, *arguments(), None, options=EAGER)


@pytest.mark.parametrize("fn", MINDS_VALUES, ids=lambda fn: fn.__name__)
def test_with_validation_before_operations_that_mind_values(fn):
    """On CPUs, where a call starts again as Python when one of them raises."""
    check(fn, *arguments(), None, options=EAGER)


def test_with_kernels():
    check(autoencoder, *arguments(), None, rtol=1e-4, atol=1e-5)


def negative_scale(x):
    return Normal(x, x).log_prob(x * 2)


def negative_scale_of_the_frame(x):
    y = x * 2
    return Normal(y, y - 5).rsample() + y


def not_a_category(x):
    return Categorical(logits=x).log_prob(x[:, 0] * 0 + 9)


def no_probability(x):
    return Bernoulli(probs=x * 3).log_prob(x * 0)


def not_a_number(x):
    return Normal(x / 0 * 0, 1.0).log_prob(x)


def before_a_masked_store(x):
    return kl_divergence(Categorical(logits=x / 0), Categorical(logits=x))


def second_of_two(x):
    d = Normal(x, x.exp())
    return Normal(d.rsample(), x).log_prob(x)


def of_another_shape(x):
    return Normal(x, x.exp()).log_prob(torch.zeros(5))


def inside_of_another(x):
    return Independent(Normal(x, x), 1).log_prob(x)


def that_was_there_before(x):
    return STANDARD.log_prob(x / 0 * 0)


def without_gradients(x):
    with torch.no_grad():
        d = Normal(x, x)
        y = d.sample()
    return y + x


def before_a_break(x):
    y = Normal(x, x).rsample()
    print(end="")
    return y * 2


def effects_around(x):
    LOG.append("before")
    d = Normal(x, x)
    LOG.append("after")
    return d.mean


def effects_after(x):
    d = Normal(x, x)
    LOG.append("after")
    return d.mean * 2


def caught(x):
    try:
        d = Normal(x, x)
    except ValueError as error:
        LOG.append(str(error))
        return x * 3
    return d.mean


INVALID = (
    negative_scale,
    negative_scale_of_the_frame,
    not_a_category,
    no_probability,
    not_a_number,
    before_a_masked_store,
    second_of_two,
    of_another_shape,
    inside_of_another,
    that_was_there_before,
    without_gradients,
    before_a_break,
    effects_around,
    effects_after,
    caught,
)


@pytest.mark.parametrize("fn", INVALID, ids=lambda fn: fn.__name__)
def test_what_is_not_valid_raises_as_in_eager(fn):
    x = arguments()[0].detach()
    LOG.clear()
    try:
        fn(x)
    except ValueError as error:
        assert "found invalid values" in str(error) or fn is of_another_shape
    else:
        assert fn is caught
    said = list(LOG)
    LOG.clear()
    check(fn, x, graphs=None, breaks=None, options=EAGER)
    assert LOG == said * 4


def test_gradients_behind_what_is_not_valid():
    m, s = (t.detach() for t in arguments())
    m[0, 0] = float("nan")
    compiled = dynacompile.compile(curvature, isolate_recompiles=True, **EAGER)
    for call in (curvature, compiled):
        with pytest.raises(ValueError, match="found invalid values"):
            call(m.clone().requires_grad_(), s, None)


def test_validation_that_is_turned_off_and_on():
    def story(wrap):
        call = wrap(negative_scale)
        for validates in (True, False, True):
            D.Distribution.set_default_validate_args(validates)
            try:
                yield call(arguments()[0].detach())
            except ValueError as error:
                yield error

    check_same(story, backend="eager")


def given(x):
    return STANDARD.log_prob(x), STANDARD.rsample((3,)) + x


class Noisy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)

    def forward(self, x):
        return Normal(self.linear(x), x.exp()).rsample().tanh()


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Noisy() for _ in range(4)))

    def forward(self, x):
        return self.blocks(x)


def test_distributions_of_others_and_in_repeated_modules():
    check(given, arguments()[0], options=EAGER)
    check(Blocks(), arguments()[0], options=EAGER)
    invalid = arguments()[0].detach() / 0
    check(Blocks(), invalid, options=EAGER)
