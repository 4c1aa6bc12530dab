"""What importing and compiling load, each looked at in a process of its own that has imported torch."""

import pytest

from tests import forked

LOADED = "import sys; print([m for m in {names} if m in sys.modules])"


def loaded_after(program: str, *names: str) -> str:
    done = forked.run(forked.BARE, "-c", program + "\n" + LOADED.format(names=names))
    assert not done.returncode, done.stderr
    return done.stdout.strip().splitlines()[-1]


def test_import_loads_no_framework_and_no_rival():
    assert loaded_after("import dynacompile", "lightning", "hydra", "wandb", "torch._dynamo", "torch._inductor", "triton", "dynacompile_native") == "[]"


PROGRAMS = {
    "function": """
compiled = dynacompile.compile(lambda x: torch.nn.functional.gelu(x * 2 + 1).sum(-1))
compiled(torch.randn(4, 5, requires_grad=True)).sum().backward()
""",
    "gpt": """
from tests.programs.test_p03_modules import Gpt
tokens = torch.randint(0, 32, (2, 12))
dynacompile.compile(Gpt())(tokens, tokens).backward()
""",
    "conv": """
from tests.programs.test_p03_modules import ConvNet
dynacompile.compile(ConvNet())(torch.randn(2, 3, 16, 16)).sum().backward()
""",
    "symbols": """
compiled = dynacompile.compile(lambda x, n: (x[x > 0].sum() * n, x.view(-1, n).sum(0)), dynamic=True, fullgraph=True)
for rows, n in ((6, 3), (8, 4)):
    sum(t.sum() for t in compiled(torch.randn(rows, requires_grad=True), n)).backward()
""",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_compile_loads_no_rival(name):
    """Loading Dynamo would be most of the seconds of a first compile."""
    assert loaded_after("import torch, dynacompile" + PROGRAMS[name], "torch._dynamo", "torch._inductor") == "[]"


def test_tensors_of_ours_are_made_where_we_say_and_not_on_the_default_device():
    """What torch refuses of a tensor, and where it keeps its fields, is asked when dynacompile is loaded: on a GPU that would end the process's use of it."""
    program = """
import collections, torch, torch.utils._device
made = collections.Counter()
Context = torch.utils._device.DeviceContext
before = Context.__torch_function__
def spy(self, function, types, args=(), kwargs=None):
    frame = sys._getframe(1)
    while frame and "/dynacompile/" not in frame.f_code.co_filename:
        frame = frame.f_back
    if frame and function in torch.utils._device._device_constructors() and not (kwargs or {}).get("device"):
        made[frame.f_code.co_filename.rpartition("/")[2], frame.f_lineno, function.__name__] += 1
    return before(self, function, types, args, kwargs or {})
Context.__torch_function__ = spy
torch.set_default_device("meta")
import importlib, pkgutil, dynacompile
dynacompile.native.core()
for module in pkgutil.walk_packages(dynacompile.__path__, "dynacompile."):
    if not module.name.startswith(("dynacompile.callbacks", "dynacompile.recipes", "dynacompile.conf")) and "__main__" not in module.name:
        importlib.import_module(module.name)
x = torch.randn(4, 5, device="cpu", requires_grad=True)
step = dynacompile.compile(lambda x: torch.nn.functional.binary_cross_entropy(torch.dropout(x, 0.3, True).sigmoid(), x.detach().sigmoid()))
step(x).backward()
assert x.grad.device.type == "cpu" and not made, made
"""
    loaded_after("import sys" + program)


def test_what_is_not_loaded_is_relied_on_by_no_entry():
    """F.pad names `torch._dynamo`, for which a stand-in answers while we compile; it may be loaded later, too."""
    program = """
import torch, dynacompile
from dynacompile.events import Compiled
made = []
dynacompile.subscribe(lambda event: made.append(event) if isinstance(event, Compiled) else None)
pad = dynacompile.compile(lambda x: torch.nn.functional.pad(x, (1, 2)), backend="eager")
for _ in range(3):
    assert pad(torch.ones(2)).tolist() == [0, 1, 1, 0, 0]
assert "torch._dynamo" not in sys.modules
import torch._dynamo
pad(torch.ones(2))
assert len(made) == 1, made
"""
    loaded_after("import sys" + program)


def test_the_rival_still_works_beside_us():
    program = """
import torch, dynacompile
f = lambda x: x.sin() + 1
x = torch.tensor([-3.0, 0.5, 2.0])  # not near -pi / 2, where the sum cancels all but the last bit of the sine
assert torch.allclose(dynacompile.compile(f)(x), f(x))
torch._dynamo.config.cache_size_limit = 17
import torch._dynamo.config as config
assert config.cache_size_limit == 17
assert torch.equal(torch.compile(f, backend="eager")(x), f(x))
assert torch.allclose(torch.compile(f, backend="dynacompile")(x), f(x))
"""
    assert loaded_after(program, "torch._dynamo") == "['torch._dynamo']"
