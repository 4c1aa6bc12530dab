"""Random programs that keep, read, change and hook gradients of tensors that are no leaves, inside of the compiled function and after it, and that run
backward passes inside of it.

`python -m tests.fuzz.kept_gradients FIRST LAST [--backends eager,aot_eager,reference] [--show]`
"""

from __future__ import annotations

from tests.fuzz import contract
from tests.fuzz.stories import Story, main

KEEPS = (
    "{v}.retain_grad() if {v}.requires_grad else None",
    "{v}.register_hook(lambda g: g * 2) if {v}.requires_grad else None",
    "{v}.register_hook(lambda g: g * {w}.detach()) if {v}.requires_grad else None",
    "handle = {v}.register_hook(lambda g: g * 3) if {v}.requires_grad else None",
)
PASSES = (
    "({v} * 1.5).sum().backward(retain_graph=True) if {v}.requires_grad else None",
    "({v} * {w}).sum().backward(retain_graph=True) if {v}.requires_grad or {w}.requires_grad else None",
    "{n} = sum(torch.autograd.grad(({v} * {v}).sum(), [{v}], retain_graph=True)) if {v}.requires_grad else {v} + 1",
)
READS = (
    "{n} = {v} * 2 if grad_of({v}) is None else {v} + grad_of({v})",
    "{n} = {v} * (3 if grad_of({v}) is None else 4) + {v}.retains_grad",
    "grad_of({v}).mul_(2) if grad_of({v}) is not None else None",
    "{v}.grad = None",
)
HELPER = """
def grad_of(t):
    return t.grad if t.is_leaf or t.retains_grad else None
"""
ASKED = ("{t}.retain_grad() if {t}.requires_grad else None", "{t}.register_hook(lambda g: g * 5) if {t}.requires_grad else None")


class Maker(contract.Maker):
    kinds = (*contract.KINDS, KEEPS, PASSES, READS)
    often = (8, 7, 4, 2, 1, 1, 2, 1, 6, 3, 4)

    def later(self, outputs: int, inputs: list[str]) -> list[str]:
        asked = [self.rng.choice(ASKED).format(t=f"out[{self.rng.randrange(outputs)}]") for _ in range(self.rng.randint(0, 3))]
        lines = [f"yield str(attempt(lambda: {action}))[:20]" if "hook" not in action else f"attempt(lambda: {action})" for action in asked]
        rest = super().later(outputs, inputs)
        if asked:  # a result that is a view in eager, and none here, gets another node where it is written
            rest = [line for line in rest if not (line.startswith("yield str") and "out[" in line)]
        return [*lines, *rest, "yield [values_of(grad_of(t)) for t in out if isinstance(t, torch.Tensor)]"]

    def story(self) -> Story:
        return Story(HELPER + super().story().source)


def make(seed: int) -> Story:
    """The program of a seed."""
    return Maker(seed).story()


if __name__ == "__main__":
    main(make)
