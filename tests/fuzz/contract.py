"""Random programs about the contract with autograd: custom functions, modes of gradients, leaves made inside, partial backward passes, writes before them.

`python -m tests.fuzz.contract FIRST LAST [--backends eager,aot_eager,reference] [--show]`
"""

from __future__ import annotations

import random

from tests.fuzz.stories import Story, block, main

FUNCTIONS = "from tests.custom_functions import Dirty, DirtyOther, MaybeNone, Zeros, Marked, Same, Keeps, Split"
UNARY = ("{v}.exp()", "{v}.sin()", "{v}.relu()", "{v}.sigmoid()", "{v}.tanh()", "{v}.abs().sqrt()", "{v} * {v}", "{v} ** 2", "{v} ** 0", "{v}.softmax(-1)")
UNARY += ("{v}.clone()", "{v} + 1", "{v}.abs().log()", "1 / {v}", "{v}.norm() + {v}", "{v}.t().contiguous().t()")
BINARY = ("{v} + {w}", "{v} * {w}", "{v} - {w}", "{v} / ({w}.abs() + 1)", "torch.where({v} > 0, {v}, {w})", "torch.minimum({v}, {w})", "{v}.detach() * {w}")
VIEWS = ("{v}.view(3, 2).view(2, 3)", "{v}[:]", "{v}.t().t()", "{v}.expand(2, 3)", "{v}.detach()", "{v}.view(-1).view(2, 3)", "torch.stack({v}.unbind())")
WRITES = ("{v}.add_(1)", "{v}.mul_({w})", "{v}.exp_()", "{v}.zero_()", "{v}.copy_({w})", "{v}.relu_()", "{v}[0] = 1", "{v}[0].mul_(2)", "{v} *= 2")
WRITES += ("{v}.detach().add_(1)",)
LEAVES = ("{n} = {v}.detach().requires_grad_()", "{v}.requires_grad_()", "{v}.detach_()", "{n} = torch.ones(2, 3, requires_grad=True)")
LEAVES += ("{n} = {v}.clone().detach().requires_grad_()", "{v}.requires_grad_(False)", "{n} = torch.nn.Parameter({v}.detach())")
LEAVES += ("{n} = {v}.view(3, 2).view(2, 3).requires_grad_()",)
CUSTOM = ("{n} = Dirty.apply({v})", "{n}, {m} = DirtyOther.apply({v}, {w})", "{n}, {m} = MaybeNone.apply({v}, {w})", "{n}, {m} = Zeros.apply({v}, {w})")
CUSTOM += ("{n}, {m} = Marked.apply({v}, {w})", "{n} = Same.apply({v})", "{n} = Keeps.apply({v}, {w})[0]", "{n} = Split.apply({v}, {w})")
MODES = ("torch.no_grad()", "torch.enable_grad()", "torch.inference_mode()", "torch.inference_mode(False)")
MODES += ("torch.set_grad_enabled(True)", "torch.set_grad_enabled(False)")
HOOKS = ("{v}.register_hook(lambda g: g * 2) if {v}.requires_grad else None",)
INPUTS = (
    "torch.linspace(-1, 2, 6).view(2, 3).clone().requires_grad_()",
    "torch.linspace(-1, 2, 6).view(2, 3).clone()",
    "torch.linspace(-1, 2, 6).view(2, 3).requires_grad_() * 1",
    "(torch.linspace(-1, 2, 6).requires_grad_() * 1).view(2, 3)",
    "torch.linspace(0, 1, 6).view(2, 3).clone().requires_grad_()",
    "torch.zeros(2, 3, requires_grad=True)",
    "torch.linspace(0, 2, 6).view(2, 3).requires_grad_().detach()",
    "inference()",
)
CHANGES = (
    "{t}.add_(1)",
    "change({t}, parameters).unsqueeze_(0).squeeze_(0)",
    "change({t}, parameters).t_()",
    "quiet({t}, parameters)",
    "zero({t}, parameters)",
    "change({t}, parameters).unsqueeze_(0)",
)
WEIGHTS = (6, 4, 4, 2, 3, 2, 1, 1)
KINDS = (UNARY, BINARY, VIEWS, WRITES, LEAVES, CUSTOM, MODES, HOOKS)
OFTEN = (8, 7, 4, 4, 2, 5, 3, 1)


class Maker:
    kinds: tuple[tuple[str, ...], ...] = KINDS
    often: tuple[int, ...] = OFTEN

    def __init__(self, seed: int):
        self.rng = random.Random(seed)
        self.names: list[str] = []
        self.count = 0

    def new(self) -> str:
        self.count += 1
        return f"t{self.count}"

    def any(self) -> str:
        return self.rng.choice(self.names[-4:] if self.rng.random() < 0.6 else self.names)

    def statement(self, depth: int) -> list[str]:
        kind = self.rng.choices(self.kinds, self.often)[0]
        form = self.rng.choice(kind)
        if kind is MODES:
            before = list(self.names)
            body = [line for _ in range(self.rng.randint(1, 2)) for line in self.statement(depth + 1)] if depth < 2 else ["pass"]
            del before
            return [f"with {form}:", block(body)]
        if kind in (UNARY, BINARY, VIEWS):
            form = "{n} = " + form
        n, m = self.new(), self.new()
        text = form.format(v=self.any(), w=self.any(), n=n, m=m)
        self.names += [name for name, hole in ((n, "{n}"), (m, "{m}")) if hole in form]
        return [text]

    def later(self, outputs: int, inputs: list[str]) -> list[str]:
        """What the caller does with the results."""
        lines = []
        targets = [f"out[{i}]" for i in range(outputs)] + inputs
        for _ in range(self.rng.randint(0, 2)):
            target = self.rng.choice(targets)
            action = self.rng.choice(CHANGES)
            lines.append(f"yield str(attempt(lambda: {action.format(t=target)}))[:40]")
        everything = self.rng.sample(range(outputs), outputs)  # what is written is asked for: a compiled graph tells of its saved tensors all at once
        chosen = everything if lines else everything[: self.rng.randint(1, outputs)]
        retain = self.rng.random() < 0.3
        if self.rng.random() < 0.25:
            wanted = self.rng.choice(inputs)
            lines.append(f"yield values_of(attempt(lambda: torch.autograd.grad(loss([out[i] for i in {chosen}]), [{wanted}], allow_unused=True)))")
        else:
            lines += [f"first = str(attempt(lambda: loss([out[i] for i in {chosen}]).backward(retain_graph={retain})))", "yield first"]
            lines += ["if first != 'None':", "    continue"]  # some gradients may have come
            if retain or self.rng.random() < 0.3:
                again = everything if len(lines) > 1 else self.rng.sample(range(outputs), self.rng.randint(1, outputs))
                lines += [f"first = str(attempt(lambda: loss([out[i] for i in {again}]).backward()))", "yield first", "if first != 'None':", "    continue"]
        return lines

    def story(self) -> Story:
        inputs = [f"x{i}" for i in range(self.rng.randint(1, 3))]
        made = [self.rng.choices(INPUTS, WEIGHTS)[0] for _ in inputs]
        self.names = list(inputs)
        body = [line for _ in range(self.rng.randint(1, 6)) for line in self.statement(0)]
        outer = [n for n in self.names if n not in inputs] or list(inputs)
        results = self.rng.sample(outer, min(len(outer), self.rng.randint(1, 3)))
        if self.rng.random() < 0.15:
            results.append(self.rng.choice(inputs))
        mode = self.rng.choices(("torch.enable_grad()", "torch.no_grad()", "torch.inference_mode()"), (12, 1, 1))[0]
        makes = [f"{name} = {text}" for name, text in zip(inputs, made, strict=True)]
        listed = ", ".join(inputs) + ","
        parameters = f"parameters = [t for t in ({listed}) if t.requires_grad and t.is_leaf]"
        lines = [
            FUNCTIONS,
            f"def frame({', '.join(inputs)}):",
            block([*body, f"return ({', '.join(results)},)"]),
            HELPERS,
            "def story(frame):",
            "    for again in range(2):",
            block([*makes, f"roots = tuple(root(t) for t in ({listed}))", parameters], 2),
            f"        with {mode}:",
            f"            out = attempt(frame, {', '.join(inputs)})",
            "        yield told_of(out, (" + ", ".join(inputs) + ",))",
            "        yield is_told(out) and told_of([" + ", ".join(inputs) + "], (" + ", ".join(inputs) + ",))",
            "        if isinstance(out, str):",
            "            continue",
            block(self.later(len(results), inputs), 2),
            "        yield told_of(out), told_of([" + ", ".join(inputs) + "]), [values_of(t.grad) for t in (*roots, *leaves(out))]",
        ]
        return Story("\n".join(lines))


HELPERS = """
def inference():
    with torch.inference_mode():
        return torch.linspace(-1, 2, 6).view(2, 3).clone()

def root(t):
    if not t.requires_grad or t.is_leaf:
        return t
    while t.grad_fn.next_functions[0][0] is not None:
        if hasattr(t.grad_fn.next_functions[0][0], "variable"):
            return t.grad_fn.next_functions[0][0].variable
        t = type("Node", (), {"grad_fn": t.grad_fn.next_functions[0][0]})
    return t

def leaves(values):
    return [t for t in values if isinstance(t, torch.Tensor) and t.is_leaf and t.requires_grad]

def loss(values):
    return sum((v * (i + 2)).sum() for i, v in enumerate(values))

def change(t, parameters):
    return torch.ones(2, 3) if any(t.untyped_storage().data_ptr() == p.untyped_storage().data_ptr() for p in parameters) else t

def quiet(t, parameters):
    if not any(t.untyped_storage().data_ptr() == p.untyped_storage().data_ptr() for p in parameters):
        with torch.no_grad():
            return t.mul_(2)

def zero(t, parameters):
    if not any(t.untyped_storage().data_ptr() == p.untyped_storage().data_ptr() for p in parameters):
        return t.detach().zero_()
"""


def make(seed: int) -> Story:
    """The program of a seed."""
    return Maker(seed).story()


if __name__ == "__main__":
    main(make)
