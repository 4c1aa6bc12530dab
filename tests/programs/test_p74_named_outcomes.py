"""Values and calls that capture leaves to Python: each by a row of the table of breaks, with eager's result."""

from __future__ import annotations

import contextvars
import copy
import io
import json
import random
import threading
import time
import uuid
import warnings
import weakref
from types import SimpleNamespace

import pytest
import torch

import dynacompile
from dynacompile.events import FrameSkipped, GraphBroke

CHOSEN = contextvars.ContextVar("chosen", default=3)
LOCAL = threading.local()
LOCK = threading.Lock()
SHARED = torch.nn.Linear(4, 4)
HELD = SimpleNamespace(size=2)


class Held:
    size = 2


KEPT = Held()
BY_NAME = weakref.WeakValueDictionary(kept=KEPT)
BY_OBJECT = weakref.WeakKeyDictionary({KEPT: 2})
REFERENCE = weakref.ref(KEPT)


def arg():
    return torch.linspace(-2, 3, 12).reshape(3, 4)


def locked(x):
    with LOCK:
        return x * 2


def quiet(x):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x * 2


def weak_values(x):
    return x * BY_NAME["kept"].size


def weak_keys(x):
    return x * BY_OBJECT[KEPT]


def weak_reference(x):
    return x * REFERENCE().size


def weak_proxy(x):
    return x * weakref.proxy(KEPT).size


def copies_tensor(x):
    return copy.deepcopy([x, x[1:]])[0] + 1


def copies_module(x):
    return copy.deepcopy(SHARED)(x)


def rolls(x):
    return x * random.sample(range(1, 2), 1)[0]


def tells_time(x):
    return x * (time.time() > 0)


def names_itself(x):
    return x * bool(uuid.uuid4())


def byte_array(x):
    made = bytearray(b"ab")
    made.append(99)
    return x * made[2]


def reads_json(x):
    return x * json.loads('{"a": 2}')["a"]


def writes_text(x):
    stream = io.StringIO()
    stream.write("abc")
    return x * len(stream.getvalue())


def makes_class(x):
    class Made:
        size = 2

    return x * Made.size


def makes_type(x):
    return x * type("Made", (), {"size": 2}).size


def evaluates(x):
    return x * eval("1 + 1")


def sparse(x):
    return torch.sparse.mm(x.to_sparse(), x.T)


def state(x):
    with SHARED.register_forward_hook(lambda *given: None):
        return x * 2


def resized(x):
    y = x.clone()
    y.resize_(2, 6)
    return y


def own_memory(x):
    y = x.clone()
    y.set_(x * 2)
    return y


def backward(x):
    y = x.clone().requires_grad_()
    (y * y).sum().backward()
    return y.grad


def strided(x):
    return torch.as_strided(x, (2, 2), (1, 2), 1)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    traced = torch.jit.trace(lambda x: x * 2, (torch.ones(3),))


def calls_trace(x):
    return traced(x)


OUTCOMES = {
    locked: "context-manager",
    quiet: "logging",
    weak_values: "unknown-object",
    weak_keys: "unknown-object",
    weak_proxy: "unknown-function",
    copies_tensor: "unknown-function",
    copies_module: "unknown-function",
    rolls: "drawn-number",
    tells_time: "unknown-function",
    names_itself: "unknown-function",
    byte_array: "unknown-function",
    reads_json: "unknown-function",
    writes_text: "unknown-function",
    makes_class: "unknown-operation",
    makes_type: "unknown-function",
    evaluates: "frame-variables",
    sparse: "tensor-attribute",
    state: "setattr",
    resized: "tensor-attribute",
    own_memory: "tensor-attribute",
    backward: "autograd-call",
    strided: "tensor-attribute",
    calls_trace: "unknown-function",
}


@pytest.mark.parametrize("fn", OUTCOMES, ids=lambda fn: getattr(fn, "__name__", "fn"))
def test_first_reason(fn):
    dynacompile.reset()
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        random.seed(0)
        torch.manual_seed(0)
        got = dynacompile.compile(fn, backend="eager", isolate_recompiles=True)(arg())
    finally:
        end()
    random.seed(0)
    torch.manual_seed(0)
    torch.testing.assert_close(got, fn(arg()), rtol=0, atol=0)
    reasons = [f"[{e.code}]" if isinstance(e, GraphBroke) else e.reason for e in events if isinstance(e, (GraphBroke, FrameSkipped))]
    assert reasons and reasons[0].startswith(f"[{OUTCOMES[fn]}]"), reasons


@pytest.mark.parametrize("fn", [fn for fn in OUTCOMES if fn is not evaluates], ids=lambda fn: getattr(fn, "__name__", "fn"))
def test_an_error_in_one_graph(fn):
    with pytest.raises(dynacompile.exc.Unsupported, match=rf"\[{OUTCOMES[fn]}\]"):
        dynacompile.compile(fn, backend="eager", fullgraph=True, isolate_recompiles=True)(arg())
