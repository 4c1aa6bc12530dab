"""Tells what the compiler makes of a call, forward and backward.

    python scripts/explain.py model:loss "torch.randn(4, 8)" 3      # a function or module, then its arguments as Python expressions
    python scripts/explain.py model:example                         # a factory: takes nothing, gives (function or module, argument, ...)
    python scripts/explain.py --recipe gpt --show schedule          # a net of the recipes

--show prints what a stage handed on, once for each graph that it ran on: the forward graph's first, then the backward graph's.
"""

from __future__ import annotations

import argparse
import importlib
import operator
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch

import dynacompile
from dynacompile.recipes import GPT, MLP, ConvNet, NextByte

Example = tuple[Callable[..., Any], tuple[Any, ...]]  # what to explain, and its arguments
RECIPES: dict[str, Callable[[], torch.nn.Module]] = {"gpt": lambda: GPT(layers=2), "mlp": MLP, "conv": ConvNet}
SHOWN: dict[str, tuple[str, Callable[[Any], str]]] = {  # --show: the stage, and the part of its hand-off
    "captured": ("capture", lambda captured: captured.text()),
    "forward": ("differentiate", lambda pair: pair.forward.code.strip()),
    "backward": ("differentiate", lambda pair: pair.backward.code.strip() if pair.backward is not None else "no backward: nothing needs a gradient"),
    "loops": ("lower", lambda program: program.text()),
    "schedule": ("schedule", lambda schedule: schedule.text()),
    "sources": ("generate", lambda sources: sources.text()),
}


def recipe(name: str) -> Example:
    """The loss of one net of the recipes on random bytes: 8 windows of 64."""
    torch.manual_seed(0)
    tokens = torch.randint(0, 256, (8, 65))
    return NextByte(RECIPES[name]()).loss, ((tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()),)


def named(target: str, expressions: Sequence[str]) -> Example:
    """The function of `module:name` on the values of the expressions; without expressions, what that factory gives."""
    module, _, name = target.partition(":")
    if not name:
        sys.exit(f"{target!r} names no function: write module:function")
    sys.path.insert(0, os.getcwd())
    found = operator.attrgetter(name)(importlib.import_module(module))
    if expressions:
        return found, tuple(eval(e, {"torch": torch}) for e in expressions)
    function, *args = found()
    return function, tuple(args)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    chosen = parser.add_mutually_exclusive_group(required=True)
    chosen.add_argument("target", nargs="?", metavar="module:name")
    chosen.add_argument("--recipe", choices=RECIPES)
    parser.add_argument("expressions", nargs="*", metavar="argument")
    parser.add_argument("--show", choices=SHOWN, action="append", default=[], help="may be given more than once")
    parser.add_argument("--mode", help="as dynacompile.compile's")
    parser.add_argument("--dynamic", action="store_true", help="sizes become symbols")
    parser.add_argument("--forward-only", action="store_true", help="do not run backward")
    args = parser.parse_args(arguments)
    function, inputs = recipe(args.recipe) if args.recipe else named(args.target, args.expressions)

    def show(stage: str, result: object) -> None:
        for name in args.show:
            if SHOWN[name][0] == stage:
                print(f"--- {name}\n{SHOWN[name][1](result)}\n")

    print(dynacompile.explain(function, backward=not args.forward_only, observer=show, mode=args.mode, dynamic=args.dynamic or None)(*inputs))


if __name__ == "__main__":
    main()
