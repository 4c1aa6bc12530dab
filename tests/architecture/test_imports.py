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
