"""Random training programs in which features of PyTorch meet: a small module of two to four layers, a training step, and 4 to 8 events between its calls.

Losses, gradients, parameters, buffers, optimizers, random states, modes, errors, leaves, shared memory and the programs' own state are compared with eager
after every call. The rows stand in crossing_layers.py and crossing_training.py, the judge in told_programs.py.
"""

from __future__ import annotations

import random
import re
import textwrap
from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tests.fuzz.command import main
from tests.fuzz.crossing_layers import DO_OTHERWISE_AGAIN, LAYERS, PREAMBLE, RUN_ONCE_MORE, TRAINER_LAYERS, TRAINER_PREAMBLE, WIDEST_LAYERS
from tests.fuzz.crossing_training import (
    CALLS_OF_TWINS,
    CHECKPOINTS,
    EVENTS,
    OPTIMIZERS,
    STEPS,
    TRAINER_EVENTS,
    TRAINER_OPTIMIZERS,
    TRAINER_STEPS,
    TRAINER_UPDATES,
    UPDATES,
    WIDER_EVENTS,
    WIDEST_CALLS,
    WIDEST_EVENTS,
    WIDEST_STEPS,
)
from tests.fuzz.told_programs import BACKENDS, Eager, compare, differences, run, story_of

MANNERS = ("step", "step", "net", "net", "inplace", "loss", "method", "part", "both")
WIDER = 100_000
"""The first seed of programs that also copy and pickle what is compiled, and that call it from transforms of eager code."""
WIDEST = 300_000
"""The first seed of programs that also have the rows named so."""
TRAINERS = 400_000
"""The first seed of programs that also have what trainers and libraries of models do."""
TRANSFORMS = ("vmapped", "grad_of", "jvp_of")
OTHER_PARAMETERS = frozenset({"inner_step", "consistency", "stateless"})
"""Parts of a step, and events, that call the module with parameters that are not its own."""
MOST_ENTRIES = 250
KNOWN = {
    "double backward refused": "double backward through this compiled region is not supported",
    "another graph in a checkpoint": "CheckpointError",
    "selective checkpoint that runs twice": "Trying to backward an extra time",
    "gradients asked of a reentrant checkpoint": "When use_reentrant=True, torch.utils.checkpoint is incompatible with .grad()",
    "transforms under hooks for saved tensors": "don't yet support saved tensor hooks",
    "a copy of a compiled module has a class of its own": "Expected all models to be of the same class",
}
"""Of docs/reliability.md."""


@dataclass(frozen=True)
class Program:
    seed: int
    source: str
    layers: tuple[str, ...]
    steps: tuple[str, ...]
    events: tuple[str, ...]
    manner: str

    def __str__(self) -> str:
        return f"# {self.seed}: {self.manner}; {', '.join(self.layers)}; {', '.join(self.steps)}; {', '.join(self.events)}"

    @property
    def is_loose(self) -> bool:
        """Whether it computes in half precision."""
        return "autocast" in self.source.removeprefix(PREAMBLE) or "bfloat16" in self.events

    @property
    def known(self) -> str | None:
        """What of it eager computes otherwise in each run, or by other rules than the program's own."""
        if "linearize" in self.layers and self.manner in TRANSFORMS:
            return "linearize inside a transform, where eager reads memory that nobody has written"
        if any("checkpoint" in name for name in self.layers) and OTHER_PARAMETERS.intersection((*self.steps, *self.events)):
            return "a checkpoint that eager runs again with other parameters"
        return None

    @cached_property
    def eager(self) -> list[tuple[str, Any]]:
        return run(story_of(self.source, f"<crossing {self.seed}>"), Eager(), self.is_loose)


def block(text: str, depth: int) -> str:
    return textwrap.indent(text, "    " * depth) if text else ""


def generate(seed: int) -> Program:
    rng = random.Random(seed)
    is_wide, is_widest, trains = seed >= WIDER, seed >= WIDEST, seed >= TRAINERS
    known_layers = {**LAYERS, **(WIDEST_LAYERS if is_widest else {}), **(TRAINER_LAYERS if trains else {})}
    known_steps = {**STEPS, **(WIDEST_STEPS if is_widest else {}), **(TRAINER_STEPS if trains else {})}
    known_events = {**EVENTS, **(WIDER_EVENTS if is_wide else {}), **(WIDEST_EVENTS if is_widest else {}), **(TRAINER_EVENTS if trains else {})}
    known_updates, optimizers = {**UPDATES, **(TRAINER_UPDATES if trains else {})}, (*OPTIMIZERS, *(TRAINER_OPTIMIZERS if trains else ()))
    newest = (TRAINER_LAYERS, TRAINER_STEPS, TRAINER_EVENTS) if trains else (WIDEST_LAYERS, WIDEST_STEPS, WIDEST_EVENTS)
    known_calls = {**CALLS_OF_TWINS, **(WIDEST_CALLS if is_widest else {})}
    layers = tuple(rng.sample(list(known_layers), rng.choice((1, 2, 2, 3))))
    steps = tuple(rng.sample(list(known_steps), rng.choice((0, 1, 1, 2))))
    events = tuple(rng.choice(list(known_events)) for _ in range(rng.randint(4, 8)))
    manner = rng.choice((*MANNERS, *known_calls) if is_wide else MANNERS)
    if is_widest:  # as a choice of two hundred rarely comes
        layers = tuple(dict.fromkeys((*layers[:-1], rng.choice(list(newest[0])))) if rng.random() < 0.5 else layers)
        steps = tuple(dict.fromkeys((*steps[1:], rng.choice(list(newest[1])))) if rng.random() < 0.5 else steps)
        events = tuple(rng.choice(list(newest[2])) if rng.random() < 0.3 else name for name in events)
    if is_wide and rng.random() < 0.5:
        events = (*events[:-2], rng.choice(list(WIDER_EVENTS)), events[-1])
    if manner == "functional" and any("checkpoint" in name for name in layers):  # eager runs it again with the module's own parameters
        manner = "net"
    if manner in CHECKPOINTS and not DO_OTHERWISE_AGAIN.isdisjoint(layers):
        manner = "checkpointed_reentrant"  # which does not count what is saved
    if manner in CHECKPOINTS and any(name in RUN_ONCE_MORE or "checkpoint" in name for name in layers):
        manner = "net" if is_widest else manner
    if manner in TRANSFORMS and "lazy" in layers:  # which ends the process in eager
        manner = "net"
    init, forward = [], []
    for n, name in enumerate(layers):
        made, does = (re.sub(r"(?<=[a-z])N\b", str(n), text) for text in known_layers[name])
        init.append(made)
        forward.append(does)
    at = {place: "\n".join(known_steps[name][place] for name in steps if place in known_steps[name]) for place in ("before", "loss", "grads", "after")}
    backward = next((known_steps[name]["backward"] for name in steps if "backward" in known_steps[name]), "loss.backward()")
    around = ", ".join(known_steps[name]["around"] for name in steps if "around" in known_steps[name]) or "contextlib.nullcontext()"
    update = rng.choice(list(known_updates))
    step = [
        "def step(x, *extra):",
        block("opt.zero_grad()" if update == "zero_first" else "", 1),
        f"    with {around}:",
        block(at["before"] or "pass", 2),
        "        out = net(x, *extra)",
        "        loss = out.square().mean() if out.numel() else out.sum()",
        block(at["loss"], 2),
        "    if loss.requires_grad:",
        block(backward, 2),
        block(at["grads"] or "pass", 2),
        block(known_updates[update], 2),
        block(at["after"] or "pass", 1),
        "    return " + rng.choice(("loss", "loss.detach()", "loss, out", "{'loss': loss, 'out': out}", "Pair(out, loss)", "out, x, out[:1]")),
    ]
    builds = {
        "step": "return wrap(step)",
        "method": "return wrap(Trainer(step).run)",
        "loss": "return outside(wrap(loss_of))",
        "net": "return through(wrap(net))",
        "inplace": "wrap.inplace(net)\nreturn step",
        "part": "wrap.inplace(net.stem)\nreturn step",
        "both": "wrap.inplace(net)\nreturn wrap(step)",
    }
    if is_wide:
        builds["net"] = "held[:] = [wrap(net)]\nreturn through(lambda *args: held[0](*args))"
        builds |= {name: f"held[:] = [wrap(net)]\nreturn through(lambda *args: {text})" for name, text in known_calls.items()}
    options = rng.choice(("", "", "", "dynamic=True", "dynamic=False", "recompile_limit=2", *(("isolate_recompiles=False",) * 3 if is_wide else ())))
    lines = [
        PREAMBLE + (TRAINER_PREAMBLE if trains else ""),
        "class Net(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.stem = nn.Linear(4, 4)",
        *(block(text, 2) for text in init),
        "        self.head = nn.Linear(4, 4)",
        "        self.extra, self.flag, self.number = None, False, 1.0",
        "    def forward(self, h, *args, **kwargs):",
        "        h = self.stem(h)",
        *(block(text, 2) for text in forward),
        "        if self.extra is not None:",
        "            h = h * self.extra",
        "        if self.flag:",
        "            h = h.tanh()",
        "        return self.head(h) * self.number",
        "",
        "class Trainer:",
        "    def __init__(self, step):",
        "        self.step, self.calls = step, 0",
        "    def run(self, x, *extra):",
        "        self.calls += 1",
        "        return self.step(x, *extra)",
        "",
        "class State:",
        "    def __init__(self):",
        "        self.norms, self.losses, self.mean, self.skipped, self.history, self.last = [], {}, None, 0, [], None",
        "        self.seen, self.steps, self.tried, self.message, self.score, self.target = [], 0, 0, '', None, None",
        "",
        "def story(wrap, note):",
        "    shared_log.clear()",
        "    net, s, handles, sums, held = Net(), State(), [], [], []",
        "    around, dtype, rows, width, needs, poison, layout, extra, calls = contextlib.nullcontext, torch.float32, 3, 4, False, 1.0, '', (), 1",
    ]
    if "lazy" in layers:
        lines.append("    net(torch.ones(2, 4))" if rng.random() < 0.5 else "    pass")
    optimizer = rng.choice(optimizers).replace("P, ", "[p for p in net.parameters() if not isinstance(p, nn.parameter.UninitializedTensorMixin)], ")
    lines += [
        "    s.average = [p.detach().clone() for p in net.parameters() if not isinstance(p, nn.parameter.UninitializedTensorMixin)]",
        f"    make_opt = lambda: torch.optim.{optimizer}",
        "    opt = make_opt()",
        "    first_state = {k: v.clone() for k, v in net.state_dict().items() if not isinstance(v, nn.parameter.UninitializedTensorMixin)}",
        *(
            (
                "    for p in net.parameters():",
                "        p.register_post_accumulate_grad_hook(lambda p: sums.append(float(p.grad.to_dense().abs().float().sum())))",
            )
            if "post_accumulate" in steps
            else ()
        ),
        block("\n".join(step), 1),
        "    def through(compiled):",
        "        def run(x, *extra):",
        "            out = compiled(x, *extra)",
        "            loss = out.square().mean() if out.numel() else out.sum()",
        "            if loss.requires_grad:",
        "                loss.backward()",
        block(known_updates[update] or "pass", 4),
        "            return out",
        "        return run",
        "    def loss_of(x, *extra):",
        block(at["before"] or "pass", 2),
        "        out = net(x, *extra)",
        "        loss = out.square().mean() if out.numel() else out.sum()",
        block(at["loss"], 2),
        "        return loss",
        "    def outside(compiled):",
        "        def run(x, *extra):",
        "            loss = compiled(x, *extra)",
        "            if loss.requires_grad:",
        block(backward.replace("net(x)", "net(x.detach())"), 4),
        block(known_updates[update] or "pass", 4),
        "            return loss",
        "        return run",
        "    def build():",
        block(builds[manner].replace("wrap(step)", f"wrap(step, {options})").replace("wrap(net)", f"wrap(net, {options})"), 2),
        "    call = build()",
        "    for i in range(" + str(len(events)) + "):",
        "        torch.manual_seed(10 + i)",
    ]
    for i, name in enumerate(events):
        lines += [f"        if i == {i}:  # {name}", block(known_events[name] or "pass", 3)]
    lines += [
        "        for again in range(calls):",
        "            x = torch.randn(rows, width, dtype=dtype) * poison",
        "            x = make_input(x, layout)",
        "            if needs and not x.is_inference():",
        "                x.requires_grad_()",
        "            with around():",
        "                result = note.attempt(f'call {i} {again}', lambda: call(x, *extra), x, net, opt, vars(s), sorted(sums)"
        + (", [list(twin.parameters()) for twin in held])" if is_wide else ")"),
        "        if isinstance(result, tuple) and len(result) == 2 and i % 2 == 0:",
        "            note.attempt(f'after {i}', lambda: result[0].detach().add_(1), result, net)" if rng.random() < 0.3 else "            pass",
        "    for handle in handles:",
        "        handle.remove()",
    ]
    source = INPUTS + "\n".join(line for line in lines if line)
    return Program(seed, source, layers, steps, events, manner)


INPUTS = """
def make_input(x, layout):
    if layout == "t":
        return x.t().contiguous().t()
    if layout == "expand":
        return x[:1].expand(x.shape) if len(x) else x
    if layout == "slice":
        return torch.cat([x, x], 1)[:, ::2]
    if layout == "subclass":
        return x.as_subclass(Plain)
    if layout == "overlap":
        return torch.cat([x.reshape(-1), x.new_zeros(1)]).as_strided((len(x), x.shape[1]), (1, 1)) if 0 < len(x) <= 2 else x
    if layout == "column":
        return x[:, :1].expand(x.shape)
    if layout == "narrow":
        return torch.cat([x, x, x])[len(x):2 * len(x)]
    if layout == "offset":
        return torch.cat([x.new_zeros(1), x.reshape(-1)])[1:].view(x.shape)
    if layout == "inference":
        with torch.inference_mode():
            return x.clone()
    return x
"""


def check(program: Program, counts: Counter | None = None, backend: str = "eager") -> None:
    """Raises AssertionError where a run differs from eager's."""
    counts = Counter() if counts is None else counts
    want = program.eager
    story = story_of(program.source, f"<crossing {program.seed}>")
    for name in backend.split(","):
        assert name in BACKENDS, name
        found, compiles = compare(story, name, want, program.is_loose)
        counts[f"{name} entries"] += compiles.entries
        counts.update(f"break {code}" for code in compiles.breaks)
        if found:
            if list(differences(run(story, Eager(), program.is_loose), want)):
                counts["eager differs from eager"] += 1
                continue
            known = program.known or next((name for name, text in KNOWN.items() if text in found[0]), None)
            if known is not None:
                counts[known] += 1
                continue
            raise AssertionError(f"{name}: {found[0]}")
        assert compiles.entries <= MOST_ENTRIES, f"{name}: {compiles.entries} entries"
    counts["calls"] += sum(label.startswith("call") and "(" not in label for label, _ in want)
    counts["calls that raise"] += sum(label.startswith("call") and "(" not in label and fact[0] is not None for label, fact in want)
    counts["left by an error"] += want[-2][0] == "left by"


if __name__ == "__main__":
    raise SystemExit(main("crossings", str(__doc__), generate, check, backend="eager"))
