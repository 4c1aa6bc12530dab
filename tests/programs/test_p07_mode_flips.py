"""The modes that a program runs under change between two calls: the compiled function must follow as eager does."""

import pytest
import torch

from tests.programs.test_p07_flips import x3
from tests.scenarios import attempt, check_same


def modes(run, x, *contexts):
    yield attempt(run, x)
    for context in contexts:
        with context():
            yield attempt(run, x)
        yield attempt(run, x)


def both_inferences():
    return torch.inference_mode()


def autocast():
    return torch.autocast("cpu", torch.bfloat16)


def autocast_half():
    return torch.autocast("cpu", torch.float16)


class default_double:
    def __enter__(self):
        torch.set_default_dtype(torch.float64)

    def __exit__(self, *reason):
        torch.set_default_dtype(torch.float32)


class deterministic:
    def __enter__(self):
        torch.use_deterministic_algorithms(True)

    def __exit__(self, *reason):
        torch.use_deterministic_algorithms(False)


class global_hook:
    def __enter__(self):
        self.handle = torch.nn.modules.module.register_module_forward_hook(lambda m, a, out: out * 2)

    def __exit__(self, *reason):
        self.handle.remove()


def autocast_nested_off():
    outer, inner = torch.autocast("cpu", torch.bfloat16), torch.autocast("cpu", enabled=False)

    class Both:
        def __enter__(self):
            outer.__enter__()
            inner.__enter__()

        def __exit__(self, *reason):
            inner.__exit__(*reason)
            outer.__exit__(*reason)

    return Both()


MODES = [torch.no_grad, both_inferences, autocast, autocast_half, default_double, deterministic, global_hook, autocast_nested_off, torch.enable_grad]


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.__name__)
@pytest.mark.parametrize("grad", [False, True])
def test_modes(mode, grad):
    def fn(x):
        return (x @ x.t()).relu() + torch.ones(2, 2), torch.zeros(2) + x.sum(), torch.tensor([1.5, 2.5])

    check_same(lambda wrap: modes(wrap(fn), torch.linspace(-1, 1, 8).reshape(2, 4).requires_grad_(grad), mode, mode), atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("mode", MODES, ids=lambda m: m.__name__)
def test_modes_around_modules(mode):
    def story(wrap):
        torch.manual_seed(1)
        net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.LayerNorm(4), torch.nn.GELU())
        yield from modes(wrap(net), torch.linspace(-1, 1, 8).reshape(2, 4), mode, mode)

    check_same(story, atol=2e-2, rtol=2e-2)


def test_inference_tensor_comes_later():
    def story(wrap):
        run = wrap(lambda x: x * 2 + 1)
        yield run(x3())
        with torch.inference_mode():
            x = x3()
            yield run(x)
        yield run(x)
        y = run(x3())
        yield y.is_inference()

    check_same(story)


def test_weight_of_inference_mode():
    def story(wrap):
        run = wrap(lambda x, w: (x * w).sum())
        with torch.inference_mode():
            x = x3()
        w = x3(requires_grad=True)
        yield attempt(run, x, w)
        yield attempt(run, x3(), w)
        yield attempt(run, x, w)

    check_same(story)
