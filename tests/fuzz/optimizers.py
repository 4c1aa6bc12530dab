"""python -m tests.fuzz.optimizers FIRST LAST: optimizers of torch.optim with random options, groups, parameters and stories, against eager, step by step.

A program is its seed: the kind of optimizer and its options, groups of parameters of several dtypes, a scheduler or rates that are set, a closure, clipping,
hooks, and what happens before each step: gradients that are None, parameters that are frozen, a group that is added, a state that is loaded, momenta and rates
that change. After each step parameters, gradients, state and groups are eager's, up to rounding; results of steps and exceptions are, too. Where nothing
but numbers changes between steps, there are few entries and no breaks: no rate and no count of steps is in an entry.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.optim import lr_scheduler

import dynacompile
from dynacompile.events import Compiled, GraphBroke

STEPS = 7
SHAPES = ((4, 3), (6,), (5, 2, 2), (), (1,), (3,), (2, 5), (1, 7), (4, 3), (6,), (3,), (8, 8), (0,), (0, 3))
MATRICES = ((4, 3), (3, 4), (6, 6), (2, 5), (4, 3))
RATES = (1e-3, 0.1, 0.01, 1.0)
DECAYS: dict[str, tuple] = {"weight_decay": (0.0, 0.1)}
MAXIMIZE = {"maximize": (False, True)}
FORMS: tuple[dict[str, Any], ...] = ({"foreach": False}, {"foreach": True})
FUSED = (*FORMS, {"fused": True})
BETAS: dict[str, tuple] = {"betas": ((0.9, 0.999), (0.5, 0.9), (0.0, 0.5)), "eps": (1e-8, 1e-3)}
# name -> (forms, options and the values to draw from)
KINDS: dict[str, tuple[tuple[dict[str, Any], ...], dict[str, tuple]]] = {
    "ASGD": (FORMS, {**DECAYS, **MAXIMIZE, "t0": (1e6, 2.0, 0.0), "lambd": (1e-4, 0.1), "alpha": (0.75, 0.5)}),
    "Adadelta": (FORMS, {**DECAYS, **MAXIMIZE, "rho": (0.9, 0.5)}),
    "Adafactor": (FORMS, {**DECAYS, **MAXIMIZE, "d": (1.0, 10.0), "beta2_decay": (-0.8, -0.5), "eps": ((None, 1e-3), (1e-8, 0.1))}),
    "Adagrad": (FUSED, {**DECAYS, **MAXIMIZE, "lr_decay": (0.0, 0.1), "initial_accumulator_value": (0.0, 0.5)}),
    "Adam": (FUSED, {**BETAS, **DECAYS, **MAXIMIZE, "amsgrad": (False, True), "decoupled_weight_decay": (False, True)}),
    "AdamW": (FUSED, {**BETAS, **DECAYS, **MAXIMIZE, "amsgrad": (False, True)}),
    "Adamax": (FORMS, {**BETAS, **DECAYS, **MAXIMIZE}),
    "LBFGS": (({},), {"max_iter": (2, 4), "history_size": (2, 10), "line_search_fn": (None, "strong_wolfe")}),
    "Muon": (({},), {"weight_decay": (0.1, 0.0), "momentum": (0.95, 0.5), "nesterov": (True, False), "ns_steps": (5, 2)}),
    "NAdam": (FORMS, {**BETAS, **DECAYS, **MAXIMIZE, "momentum_decay": (4e-3, 0.1), "decoupled_weight_decay": (False, True)}),
    "RAdam": (FORMS, {**BETAS, **DECAYS, **MAXIMIZE, "decoupled_weight_decay": (False, True)}),
    "RMSprop": (FORMS, {**DECAYS, **MAXIMIZE, "momentum": (0.0, 0.9), "centered": (False, True), "alpha": (0.99, 0.5)}),
    "Rprop": (FORMS, {**MAXIMIZE, "etas": ((0.5, 1.2), (0.9, 2.0)), "step_sizes": ((1e-6, 50), (1e-2, 0.1))}),
    "SGD": (FUSED, {**DECAYS, **MAXIMIZE, "momentum": (0.0, 0.9), "dampening": (0.0, 0.1), "nesterov": (False, True)}),
    "SparseAdam": (({},), {**MAXIMIZE, "betas": ((0.9, 0.999),)}),
}
SCHEDULERS: tuple[Callable[[torch.optim.Optimizer], Any], ...] = (
    lambda o: lr_scheduler.LambdaLR(o, lambda k: 0.9**k),
    lambda o: lr_scheduler.MultiplicativeLR(o, lambda k: 0.95),
    lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    lambda o: lr_scheduler.MultiStepLR(o, [2, 4], 0.3),
    lambda o: lr_scheduler.ConstantLR(o, 0.5, 3),
    lambda o: lr_scheduler.LinearLR(o, 0.2, 1.0, 4),
    lambda o: lr_scheduler.ExponentialLR(o, 0.8),
    lambda o: lr_scheduler.PolynomialLR(o, 6, 2.0),
    lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
    lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20, cycle_momentum=cycles(o)),
    lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 2, cycle_momentum=cycles(o)),
    lambda o: lr_scheduler.SequentialLR(o, [lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)], [2]),
    lambda o: lr_scheduler.ChainedScheduler([lr_scheduler.ConstantLR(o, 0.1, 2), lr_scheduler.ExponentialLR(o, 0.9)]),
    lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
)
NUMBERS = ("rate", "options")  # what happens between steps and needs no entry of its own
HAPPENS = (*NUMBERS, "none", "frozen", "group", "load", "reload", "all none", "other gradient")
MOST_ENTRIES = 5  # of a program in which nothing but numbers changes: one more for each option that is found to change
LOOSE = {"Muon": (1e-1, 0.5)}  # iterates in bfloat16; with torch's operations, and with kernels that round elsewhere


def cycles(optimizer: torch.optim.Optimizer) -> bool:
    return any(name in optimizer.defaults for name in ("momentum", "betas")) and type(optimizer).__name__ not in ("Muon", "RMSprop")


@dataclass(frozen=True)
class Program:
    """shapes: by group. happens: by step. manner: what is compiled. clip: what it does to gradients before."""

    seed: int
    name: str
    options: tuple[tuple[str, Any], ...]
    shapes: tuple[tuple[tuple[int, ...], ...], ...]
    dtypes: tuple[torch.dtype, ...]
    own: tuple[tuple[str, Any], ...]  # of the last group
    tensor_rate: bool
    scheduler: int | None
    happens: tuple[tuple[str, ...], ...]
    manner: str
    clip: str
    hooks: bool
    closure: bool
    scaled: bool  # as GradScaler has fused optimizers step

    def is_steady(self) -> bool:
        if self.name == "Adafactor" and any(0 in shape for shapes in self.shapes for shape in shapes):
            return False  # eager divides by the number of elements
        return all(h in NUMBERS for what in self.happens for h in what) and self.name not in ("LBFGS", "SparseAdam") and not self.closure


def generate(seed: int) -> Program:
    rng = random.Random(seed)
    name = rng.choice(list(KINDS))
    forms, choices = KINDS[name]
    options = {**rng.choice(forms), **{k: rng.choice(v) for k, v in choices.items() if rng.random() < 0.6}}
    if name != "Adafactor" or rng.random() < 0.5:
        options["lr"] = rng.choice(RATES)
    if options.get("nesterov") and name == "SGD":
        options |= {"momentum": 0.9, "dampening": 0.0}
    groups = 1 if name in ("LBFGS", "SparseAdam") else rng.choice((1, 1, 2, 3))
    pool = MATRICES if name == "Muon" else [s for s in SHAPES if s and 0 not in s] if name == "SparseAdam" else SHAPES
    shapes = tuple(tuple(rng.choice(pool) for _ in range(rng.choice((1, 2, 3, 5, 9)))) for _ in range(groups))
    dtypes = rng.choice(
        ((torch.float32,), (torch.float32,), (torch.float64,), (torch.float32, torch.float64), (torch.bfloat16,), (torch.float32, torch.bfloat16))
    )
    wrong_in_eager = name == "SGD" and options.get("fused") and torch.bfloat16 in dtypes  # from 16 elements on, with momentum, up to torch 2.13 on CPUs
    dtypes = (torch.float32,) if name in ("SparseAdam", "Muon", "LBFGS") or wrong_in_eager else dtypes
    own = {k: rng.choice(v) for k, v in choices.items() if k in ("weight_decay", "betas", "eps", "momentum", "alpha") and rng.random() < 0.5}
    if options.get("nesterov") or "etas" in options or name == "Adafactor":
        own = {k: v for k, v in own.items() if k == "weight_decay"}
    refuses_tensors = name in ("LBFGS", "SparseAdam", "Muon") or (options.get("foreach") and not options.get("capturable"))
    steady = rng.random() < 0.4
    happens = tuple(tuple(rng.sample(NUMBERS if steady else HAPPENS, rng.choice((0, 0, 1, 1, 2)))) for _ in range(STEPS))
    if rng.random() < 0.3:
        happens = ((),) * STEPS
    return Program(
        seed, name, tuple(options.items()), shapes, dtypes, tuple(own.items()), not refuses_tensors and "lr" in options and rng.random() < 0.15,
        rng.randrange(len(SCHEDULERS)) if rng.random() < 0.35 else None, happens,
        rng.choice(("function", "function", "step", "zero", "scheduled")), rng.choice(("", "", "", "norm", "value", "foreach norm")),
        rng.random() < 0.1, name == "LBFGS" or rng.random() < 0.15, bool(options.get("fused")) and rng.random() < 0.3,
    )  # fmt: skip


class Story:
    """The program, once: eagerly, or compiled by `wrap`."""

    def __init__(self, program: Program, wrap: Callable):
        self.program = program
        self.rng = random.Random(program.seed + 1)
        torch.manual_seed(program.seed)
        self.groups = [[self.parameter(s) for s in shapes] for shapes in program.shapes]
        options = dict(program.options)
        if program.tensor_rate:
            options["lr"] = torch.tensor(options["lr"])
        groups: list[dict] = [{"params": g} for g in self.groups]
        groups[-1] |= dict(program.own)
        self.optimizer = getattr(torch.optim, program.name)(groups, **options)
        self.seen: list[str] = []
        if program.hooks:
            self.optimizer.register_step_pre_hook(lambda *_: self.seen.append("before"))
            self.optimizer.register_step_post_hook(lambda *_: self.seen.append("after"))
        self.scheduler = None if program.scheduler is None else SCHEDULERS[program.scheduler](self.optimizer)
        self.run = wrap(self.optimizer.step if program.manner == "step" else self.update)

    def parameter(self, shape: tuple[int, ...]) -> torch.nn.Parameter:
        return torch.nn.Parameter(torch.randn(shape, dtype=self.rng.choice(self.program.dtypes)))

    @property
    def parameters(self) -> list[torch.nn.Parameter]:
        return [p for g in self.optimizer.param_groups for p in g["params"]]

    @property
    def is_fused(self) -> bool:
        """Eager's kernels then take gradients to lie in memory as parameters do, whatever their strides are."""
        return bool(dict(self.program.options).get("fused"))

    def closure(self) -> torch.Tensor:
        self.optimizer.zero_grad()
        loss = sum(((p.double() - 0.5) ** 2).sum() for p in self.parameters if p.requires_grad)
        if isinstance(loss, torch.Tensor):
            loss.backward()
            return loss.detach()
        return torch.zeros(())

    def update(self, *closure: Callable) -> Any:
        clip = self.program.clip
        if clip == "value":
            torch.nn.utils.clip_grad_value_(self.parameters, 0.3)
        elif clip:
            torch.nn.utils.clip_grad_norm_(self.parameters, 0.7, foreach=True if clip.startswith("foreach") else None)
        loss = self.optimizer.step(*closure)
        if self.program.manner == "zero":
            self.optimizer.zero_grad(set_to_none=self.program.seed % 2 == 0)
        if self.program.manner == "scheduled" and self.scheduler is not None and not isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau):
            self.scheduler.step()
        return loss

    def step(self, number: int) -> tuple:
        """What is to be compared after the step."""
        program = self.program
        rng = random.Random(program.seed * 100 + number)
        torch.manual_seed(program.seed * 100 + number)
        for p in self.parameters:
            p.grad = self.gradient(p) if p.requires_grad else None
        for what in program.happens[number]:
            self.happen(what, rng)
        if program.scaled:
            self.optimizer.grad_scale, self.optimizer.found_inf = torch.tensor(4.0), torch.tensor(float(rng.random() < 0.3))
        warnings.simplefilter("ignore")
        try:
            result: Any = self.run(self.closure) if program.closure else self.run()
        except Exception as error:  # noqa: BLE001 - compared with what eager raises
            result = type(error).__name__, str(error).partition("\n")[0]
        if self.scheduler is not None and program.manner != "scheduled":
            self.scheduler.step(*((1.0,) if isinstance(self.scheduler, lr_scheduler.ReduceLROnPlateau) else ()))
        state = self.optimizer.state_dict()
        return copy.deepcopy((result, self.parameters, [p.grad for p in self.parameters], state, self.seen))

    def gradient(self, p: torch.Tensor) -> torch.Tensor:
        if self.program.name == "SparseAdam":
            return torch.sparse_coo_tensor(torch.tensor([[0, p.shape[0] - 1]]), torch.randn(2, *p.shape[1:]), p.shape)
        return torch.randn_like(p)

    def happen(self, what: str, rng: random.Random) -> None:
        group = rng.choice(self.optimizer.param_groups)
        p = rng.choice(group["params"])
        if what == "rate":
            rate = rng.choice((0.5, 0.05, 0.003)) * (1 + rng.random())
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        elif what == "options":
            for name in ("momentum", "weight_decay", "alpha"):
                if isinstance(group.get(name), float) and group[name]:
                    group[name] = rng.choice((0.3, 0.6)) + rng.random() / 10
            if "betas" in group and rng.random() < 0.5:
                group["betas"] = (0.8 + rng.random() / 10, group["betas"][1])
        elif what == "none":
            p.grad = None
        elif what == "all none":
            for p in self.parameters:
                p.grad = None
        elif what == "frozen":
            p.requires_grad_(not p.requires_grad)
            p.grad = None
        elif what == "group" and self.program.name not in ("LBFGS", "SparseAdam") and self.scheduler is None:
            made = [self.parameter((4, 3)) for _ in range(rng.choice((1, 2)))]
            for p in made:
                p.grad = self.gradient(p)
            self.optimizer.add_param_group({"params": made})
        elif what == "load":
            self.optimizer.load_state_dict(copy.deepcopy(self.optimizer.state_dict()))
        elif what == "reload":
            fresh = type(self.optimizer)([{**g, "params": list(g["params"])} for g in self.optimizer.param_groups])
            fresh.load_state_dict(self.optimizer.state_dict())
            self.optimizer.load_state_dict(fresh.state_dict())
        elif what == "other gradient" and p.grad is not None and p.grad.layout is torch.strided and p.dim() == 2 and not self.is_fused:
            p.grad = torch.randn(p.shape[::-1], dtype=p.dtype).t()


def difference(got: Any, wanted: Any, tolerance: float, path: str = "") -> str | None:
    """Where and how two results differ."""
    if isinstance(got, torch.Tensor) and isinstance(wanted, torch.Tensor):
        looks = [(t.dtype, tuple(t.shape), t.layout, t.requires_grad, type(t)) for t in (got, wanted)]
        if looks[0] != looks[1]:
            return f"{path}: {looks[0]}, and eager {looks[1]}"
        a, b = (t.detach().to_dense().double() for t in (got, wanted))
        loose = max(tolerance, 64 * torch.finfo(got.dtype).eps if got.is_floating_point() else 0.0)
        if not torch.allclose(a, b, rtol=loose, atol=loose, equal_nan=True):
            return f"{path}: {(a - b).abs().max().item()} off: {a.flatten()[:4].tolist()}, and eager {b.flatten()[:4].tolist()}"
        return None
    if type(got) is not type(wanted):
        return f"{path}: {got!r:.100}, and eager {wanted!r:.100}"
    if isinstance(got, dict):
        if list(got) != list(wanted):
            return f"{path}: keys {list(got)}, and eager {list(wanted)}"
        return next((d for k in got if (d := difference(got[k], wanted[k], tolerance, f"{path}[{k!r}]"))), None)
    if isinstance(got, (list, tuple)):
        if len(got) != len(wanted):
            return f"{path}: {len(got)} items, and eager {len(wanted)}"
        return next((d for i, (a, b) in enumerate(zip(got, wanted)) if (d := difference(a, b, tolerance, f"{path}[{i}]"))), None)
    if isinstance(got, float):
        return None if math.isclose(got, wanted, rel_tol=1e-12) or got != got and wanted != wanted else f"{path}: {got}, and eager {wanted}"
    return None if got == wanted else f"{path}: {got!r:.100}, and eager {wanted!r:.100}"


BACKENDS: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "aot_eager": {"backend": "aot_eager"},
    "reference": {"options": {"reference": True}},
    "native": {},
}


def check_program(program: Program, backend: str = "eager", counts: Counter | None = None) -> list[str]:
    """What differs from eager."""
    events: list = []
    end = dynacompile.subscribe(events.append)
    tolerance = max(LOOSE.get(program.name, (1e-5, 1e-5))[backend in ("reference", "native")], 3e-2 if torch.bfloat16 in program.dtypes else 0.0)
    try:
        eager = Story(program, lambda f: f)
        ours = Story(program, lambda f: dynacompile.compile(f, isolate_recompiles=True, **BACKENDS[backend]))
        for number in range(STEPS):
            wanted, got = eager.step(number), ours.step(number)
            if (found := difference(got, wanted, tolerance)) is not None:
                if counts is not None and not is_eager_sure(program, number, tolerance):
                    counts["eager differs from eager"] += 1
                    return []
                return [f"step {number}: {found}"]
    finally:
        end()
    entries = sum(isinstance(e, Compiled) for e in events)
    breaks = {e.code: e for e in events if isinstance(e, GraphBroke)}
    if counts is not None:
        counts["entries"] += entries
        counts.update(f"{program.name}: {code}" for code in breaks)
    breaks.pop("schedule", None)
    if program.is_steady() and (entries > MOST_ENTRIES or breaks):
        return [f"{entries} entries, breaks {[f'{code}: {e.reason} at {e.site}' for code, e in breaks.items()]}"]
    return []


def is_eager_sure(program: Program, last: int, tolerance: float) -> bool:
    """Whether eager gives the same again, up to a step: it may read memory that nobody has written."""
    first, again, once_more = (Story(program, lambda f: f) for _ in range(3))
    for number in range(last + 1):
        wanted = first.step(number)
        if any(difference(story.step(number), wanted, tolerance) is not None for story in (again, once_more)):
            return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="eager", choices=list(BACKENDS))
    parser.add_argument("--show", action="store_true")
    args = parser.parse_args()
    counts: Counter = Counter()
    for seed in range(args.first, args.last):
        program = generate(seed)
        if args.show:
            print(program)
        for found in check_program(program, args.backend, counts):
            counts["differ"] += 1
            print(f"seed {seed}: {found[:1500]}\n  {program}", flush=True)
        if seed % 20 == 19:
            dynacompile.reset()
    print(dict(counts))


if __name__ == "__main__":
    main()
