"""Questions about torch's own state and mode of running that libraries ask: answered as in eager, without a break, and again when the answer changes."""

from __future__ import annotations

import pytest
import torch

import dynacompile
from tests.scenarios import check_same

CAPTURE = {"backend": "eager", "fullgraph": True}

NAMES = sorted(name for name in dir(torch) if name.startswith("is_") and not name.startswith(("is_tensor", "is_storage", "is_vulkan")))


def answered(name: str) -> bool:
    """Whether the question takes no argument."""
    try:
        getattr(torch, name)()
    except TypeError:
        return False
    return True


@pytest.mark.parametrize("name", filter(answered, NAMES))
def test_predicates_without_arguments(name):
    question = getattr(torch, name)

    def story(wrap):
        yield wrap(lambda x: (x + 1, question()))(torch.ones(2))

    check_same(story, **CAPTURE)


@pytest.mark.parametrize("name", ["is_gloo_available", "is_nccl_available", "is_mpi_available"])
def test_predicates_of_distributed(name):
    question = getattr(torch.distributed, name)

    def story(wrap):
        yield wrap(lambda x: (x + 1, question()))(torch.ones(2))

    check_same(story, **CAPTURE)


def test_whether_autocast_caches_weights_is_asked_anew():
    def story(wrap):
        fn = wrap(lambda x: (x + 1, torch.is_autocast_cache_enabled()))
        for enabled in (True, False, True):
            before = torch.is_autocast_cache_enabled()
            torch.set_autocast_cache_enabled(enabled)
            try:
                yield fn(torch.ones(2))
            finally:
                torch.set_autocast_cache_enabled(before)

    check_same(story, **CAPTURE)


def test_anomaly_detection_is_asked_anew():
    def story(wrap):
        fn = wrap(lambda x: x * (2 if torch.is_anomaly_enabled() else 3))
        yield fn(torch.ones(2))
        with torch.autograd.set_detect_anomaly(True, check_nan=False):
            yield fn(torch.ones(2))
        yield fn(torch.ones(2))

    check_same(story, **CAPTURE)


@torch.jit.script_if_tracing
def scripted_if_tracing(x, scale: int):
    return x * scale


def test_what_torchscript_passes_on():
    def fn(x):
        sizes = torch.jit.annotate(list[int], [2, 3])
        return scripted_if_tracing(x, sizes[1]) if not torch.jit.is_scripting() else x

    def story(wrap):
        yield wrap(fn)(torch.ones(2))

    check_same(story, **CAPTURE)


def test_what_exports_ask():
    def story(wrap):
        yield wrap(lambda x: x * (2 if torch.onnx.is_in_onnx_export() else 3))(torch.ones(2))

    check_same(story, **CAPTURE)
    assert dynacompile.compile(lambda x: (torch._C._log_api_usage_once("a.library"), x + 1)[1], **CAPTURE)(torch.ones(2)).tolist() == [2, 2]
