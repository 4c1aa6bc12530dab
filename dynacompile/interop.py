"""The one place that touches torch.compile's stack: our graphs through Inductor, and our compiler as a backend of torch.compile."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch.fx

from dynacompile.config import CompileConfig
from dynacompile.env import Env, cache_dir
from dynacompile.pipeline import GraphCall, compile_graph


def inductor_call(graph: torch.fx.GraphModule, fakes: Sequence[object]) -> GraphCall:
    """The captured graph compiled by Inductor, differentiable as torch.compile makes it.

    Imported by name at the first use: Inductor costs seconds, and only those who ask for it pay.
    """
    inductor = importlib.import_module("torch._inductor.compile_fx")
    compiled = inductor.compile_fx(graph, list(fakes))

    def run(*inputs: Any) -> tuple:
        return tuple(compiled(*inputs))

    return run


def backend(graph: torch.fx.GraphModule, example_inputs: Sequence[object], **options: Any) -> GraphCall:
    """`torch.compile(model, backend="dynacompile")`: Dynamo captures and guards, we compile. options: fields of CompileConfig."""
    config = CompileConfig.of(dict(options.get("options") or {}))
    env = Env(config=config, emit=lambda event: None, region="torch.compile", bucket=-1, cache=cache_dir())
    fakes = [n.meta.get("example_value", n.meta.get("val")) for n in graph.graph.nodes if n.op == "placeholder"]
    return compile_graph(graph, [e if f is None else f for f, e in zip(fakes, example_inputs, strict=True)], env)
