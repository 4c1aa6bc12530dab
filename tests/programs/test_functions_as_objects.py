"""What users do with a function they do with a compiled one: name it, wrap it, give it defaults, trace it."""

from __future__ import annotations

import functools
import inspect

import pytest
import torch
from torch import nn
from torch._subclasses import FakeTensorMode

import dynacompile
from tests import forked

x = torch.linspace(-1, 1, 6).reshape(2, 3)


def made(backend="eager"):
    def base(x, y: int = 1, *, z=2):
        """Scales."""
        return x * y + z

    base.extra = 5
    return base, dynacompile.compile(base, backend=backend)


def test_wraps_names_the_compiled_function():
    base, compiled = made()
    wrapped = functools.wraps(len)(compiled)
    assert wrapped is compiled and compiled.__name__ == "len" and compiled.__wrapped__ is len
    torch.testing.assert_close(compiled(x), base(x))
    assert not hasattr(base, "__wrapped__") and base.__name__ == "base"
    assert len(dynacompile.cache_entries(dynacompile.compile(compiled, backend="eager"))) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [("__name__", "q"), ("__doc__", "d"), ("__module__", "m"), ("__annotations__", {}), ("__signature__", inspect.signature(len)), ("state", 1), ("extra", 6)],
)
def test_attributes_can_be_set_and_deleted(name, value):
    base, compiled = made()
    before = getattr(base, name, None)
    setattr(compiled, name, value)
    assert getattr(compiled, name) == value and getattr(base, name, None) == before
    delattr(compiled, name)
    with pytest.raises(AttributeError):
        delattr(compiled, name)


def test_defaults_and_code_are_the_functions():
    base, compiled = made()
    compiled(x)
    compiled.__kwdefaults__ = {"z": 10}
    compiled.__defaults__ = (7,)
    torch.testing.assert_close(compiled(x), x * 7 + 10)
    compiled.__code__ = (lambda x, y=1, *, z=2: x - z).__code__
    torch.testing.assert_close(compiled(x), x - 10)


def test_what_was_set_on_the_function_is_handed_on():
    base, compiled = made()
    assert vars(compiled) == {"extra": 5}
    other = functools.wraps(compiled)(lambda *args: compiled(*args))
    assert other.extra == 5 and other.__doc__ == "Scales."
    assert {"__code__", "__defaults__", "extra", "__name__"} <= set(dir(compiled))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x):
        return self.inner(x).relu()


@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("backend", ["eager", "default"])
def test_jit_trace_sees_the_operations(backend, warm):
    for target in (made()[0], Layer().requires_grad_(False)):
        compiled = dynacompile.compile(target, backend=backend)
        if warm:
            compiled(x)
        traced = torch.jit.trace(compiled, (x,))
        torch.testing.assert_close(traced(x + 1), target(x + 1))
        torch.testing.assert_close(torch.jit.trace(lambda v, f=compiled: f(v) * 2, (x,))(x + 1), target(x + 1) * 2)


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_fake_tensors_do_not_reach_programs(backend):
    base, compiled = made(backend)
    mode = FakeTensorMode()
    fake = mode.from_tensor(x)
    for _ in range(2):
        with mode:
            assert type(compiled(fake)) is type(fake)
        assert type(compiled(fake)) is type(fake)
        torch.testing.assert_close(compiled(x), base(x))


RIVAL = """
import torch, dynacompile
for backend in ("eager", "aot_eager", "default"):
    for warm in (False, True):
        dynacompile.reset(); torch._dynamo.reset()
        inner = dynacompile.compile(lambda x: x.sin() + 3, backend=backend)
        if warm:
            inner(torch.ones(2))
        outer = torch.compile(lambda x: inner(x) * 2, backend="eager")
        for size in (2, 3, 4):
            got = outer(torch.ones(size))
            assert type(got) is torch.Tensor, type(got)
            torch.testing.assert_close(got, (torch.ones(size).sin() + 3) * 2)
        assert len(dynacompile.cache_entries(inner)) >= 1
        torch.testing.assert_close(torch.compile(inner, backend="eager")(torch.ones(2)), torch.ones(2).sin() + 3)
        def fails(x):
            raise KeyError("of the user")
        try:
            torch.compile(dynacompile.compile(fails, backend=backend), backend="eager")(torch.ones(2))
        except KeyError:
            pass
        def plain(x):
            return x * 5
        assert torch.compile(plain, backend="eager", fullgraph=True)(torch.ones(1)).item() == 5
print("right")
"""

ENDING = """
import atexit, sys, threading, weakref, torch, dynacompile
compiled = dynacompile.compile(lambda x: (x * 2).sin(), backend=sys.argv[1])
def use(place):
    assert torch.equal(compiled(torch.ones(3)), (torch.ones(3) * 2).sin())
    print(place, flush=True)
class Late:
    def __init__(self, place): self.place = place
    def __del__(self): use(self.place)
sys.modules["kept until the end"] = Late("late")
atexit.register(use, "atexit")
class Owner: pass
owner = Owner()
weakref.finalize(owner, use, "finalize")
def wait():
    threading.main_thread().join()
    use("thread")
threading.Thread(target=wait).start()
"""


def run(program, *arguments):
    return forked.run(forked.TORCH, "-W", "ignore", "-c", program, *arguments)


def test_torch_compile_over_a_compiled_function():
    done = run(RIVAL)
    assert done.returncode == 0 and done.stdout.strip().endswith("right"), done.stderr[-2000:]


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_compiles_while_the_interpreter_ends(backend):
    done = run(ENDING, backend)
    assert done.returncode == 0 and sorted(done.stdout.split()) == ["atexit", "finalize", "late", "thread"], done.stdout + done.stderr[-2000:]
