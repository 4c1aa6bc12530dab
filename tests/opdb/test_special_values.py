"""NaN, infinities, signed zeros, denormals and the ends of each dtype through ops and their gradients: a slice of scripts/op_values.py."""

import pytest
import torch

from scripts.op_values import DTYPES, attempt, cases, examined

REFERENCE = {"reference": True}
KNOWN = ("sign of zero", "gradient sign of zero")
ACTIVATIONS = "relu6 elu celu selu hardtanh hardswish hardshrink softshrink mish silu softplus leaky_relu logsigmoid".split()
OPS = "maximum fmin fmax div.trunc div.floor floor_divide copysign amax.rows sum.columns all.rows addcdiv pow.half pow.3 nan_to_num max.dim mod.-2".split()


def told(name, gradients):
    """Differences from eager, but for the sign of zero, over the dtypes that the op takes."""
    by_name = {case[0]: case for case in cases(["unary", "binary", "reduction"])}
    if name not in by_name:
        return []
    _, call, make, op = by_name[name]
    given = [make(d) for d in DTYPES if (op is None or d in op.supported_dtypes("cpu")) and (d.is_floating_point or not gradients)]
    given = [g for g in given if not isinstance(attempt(call, *g), Exception)]
    return [d for d in examined(call, given, REFERENCE, gradients) if not d.startswith(KNOWN)]


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_gradients_of_activations(name):
    assert told(f"F.{name}", True) == []


@pytest.mark.parametrize("name", OPS)
def test_values(name):
    assert told(name, False) == []


def test_products_of_small_integers_keep_their_dtype():
    a, b = torch.arange(5, dtype=torch.uint8), torch.full((5,), 100, dtype=torch.uint8)
    assert examined(lambda x, y: torch.dot(x, y), [(a, b)], REFERENCE, False) == []
    assert examined(lambda x, y: x @ y, [(a, b)], REFERENCE, False) == []


def test_running_statistics_of_instance_norm():
    def call(x, mean, var):
        torch.nn.functional.instance_norm(x, mean, var, momentum=0.3)
        return mean * 1, var * 1

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 3, 4, 5, generator=generator)
    assert examined(call, [(x, torch.zeros(3), torch.ones(3))], REFERENCE, False) == []


def test_conjugates_inside_of_ops():
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(8, generator=generator)
    assert examined(lambda t: torch.view_as_real(torch.fft.ifft(t) * 2), [(x,)], REFERENCE, True) == []
    assert examined(lambda t: torch.fft.hfft(t.to(torch.complex64)), [(x,)], REFERENCE, True) == []
