"""Runs captured frames without the native hook: binds residual code to functions, and meets resume functions through trampolines."""

from __future__ import annotations

import builtins
import inspect
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from dynacompile.capture import CodeCache, capture_frame
from dynacompile.capture.assemble import assemble
from dynacompile.capture.calling import callable_first
from dynacompile.config import CompileConfig
from dynacompile.cpython.instructions import Instr
from dynacompile.env import Env
from dynacompile.errors import Unsupported
from dynacompile.ir.captured import Captured
from dynacompile.ir.source import Attr, ClosureCell, Constant, DefaultArg, DictAttr, Item, Registered, Source, TypeOf


@dataclass
class Frame:
    """What the hook's frame proxy offers."""

    code: types.CodeType
    function: types.FunctionType
    globals: dict
    builtins: dict
    slots: tuple
    closure: tuple | None


def environment(**config: Any) -> Env:
    return Env(config=CompileConfig(**config), emit=lambda event: None, region="test", bucket=-1, cache=Path("/nonexistent"))


def step(base: Any, source: Source) -> Any:
    match source:
        case Attr(_, name):
            return getattr(base, name)
        case DictAttr(_, name):
            return base.__dict__[name]
        case Registered(_, table, name):
            return base.__dict__[table][name]
        case Item(_, key):
            return base[key]
        case TypeOf():
            return type(base)
        case ClosureCell(_, _, index):
            return base.__closure__[index].cell_contents
        case DefaultArg(_, key):
            return base.__defaults__[key] if isinstance(key, int) else base.__kwdefaults__[key]
    raise AssertionError(source)


def evaluate(source: Source, roots: dict[Source, Any]) -> Any:
    path = list(source.steps())
    value = path[0].value if isinstance(path[0], Constant) else roots[path[0]]
    for part in path[1:]:
        value = step(value, part)
    return value


@dataclass
class Driver:
    """Captures every frame that `run` leads to; keeps what was captured and what was left to Python."""

    env: Env = field(default_factory=environment)
    codes: CodeCache = field(default_factory=CodeCache)
    captured: list[Captured] = field(default_factory=list)
    skipped: list[Unsupported] = field(default_factory=list)
    namespace: dict = field(default_factory=dict)  # globals of the function that is run

    @property
    def graphs(self) -> int:
        return sum(c.graph is not None for c in self.captured)

    @property
    def ops(self) -> list[str]:
        return [n.name for c in self.captured if c.graph for n in c.graph.graph.nodes if n.op.startswith("call")]

    def __call__(self, fn: Callable, *args: Any, **kwargs: Any) -> Any:
        if isinstance(fn, types.MethodType):
            return self(fn.__func__, fn.__self__, *args, **kwargs)
        self.namespace = fn.__globals__
        bound = inspect.signature(fn, follow_wrapped=False).bind(*args, **kwargs)
        bound.apply_defaults()
        names = fn.__code__.co_varnames
        slots = [bound.arguments[n] for n in names[: len(bound.arguments)]]
        return self.call(fn, slots)

    def call(self, fn: types.FunctionType, slots: list[Any]) -> Any:
        """Runs fn with its parameters bound: captured if that is possible."""
        code = fn.__code__
        frame = Frame(code, fn, fn.__globals__, vars(builtins), tuple(slots), fn.__closure__)
        try:
            captured = capture_frame(frame, self.env, self.codes)
        except Unsupported as reason:
            if self.env.config.fullgraph:
                raise
            self.skipped.append(reason)
            return self.invoke(fn, code, slots)
        captured.verify()
        assert captured.text()
        self.captured.append(captured)
        bound = captured.bind(self.gather(captured)) if captured.graph else captured.code
        consts = tuple(self.trampoline(c) if c in captured.resumes else c for c in bound.co_consts) if captured.resumes else bound.co_consts
        return self.invoke(fn, bound.replace(co_consts=consts), slots)

    def gather(self, captured: Captured) -> Callable:
        def call(*values: Any) -> tuple:
            roots = dict(zip(captured.roots, values, strict=True))
            return captured.graph(*(evaluate(i.source, roots) for i in captured.inputs))

        return call

    def invoke(self, fn: types.FunctionType, code: types.CodeType, slots: list[Any]) -> Any:
        """Calls fn with other code, parameters given by slot."""
        function = types.FunctionType(code, fn.__globals__, fn.__name__, None, fn.__closure__)
        positional = list(slots[: code.co_argcount])
        names = code.co_varnames
        kwonly = dict(zip(names[code.co_argcount :], slots[code.co_argcount : code.co_argcount + code.co_kwonlyargcount]))
        rest = list(slots[code.co_argcount + code.co_kwonlyargcount :])
        if code.co_flags & inspect.CO_VARARGS:
            positional += rest.pop(0)
        if code.co_flags & inspect.CO_VARKEYWORDS:
            kwonly |= rest.pop(0)
        return function(*positional, **kwonly)

    def trampoline(self, code: types.CodeType) -> types.CodeType:
        """Code with the signature of a resume function that comes back to the driver."""
        parameters = code.co_varnames[: code.co_argcount]

        def meet(slots: tuple, cells: tuple) -> Any:
            return self.call(types.FunctionType(code, self.namespace, code.co_name, None, cells or None), list(slots))

        body = [Instr("COPY_FREE_VARS", len(code.co_freevars))] if code.co_freevars else []
        body += [Instr("RESUME"), *(Instr(op) for op in callable_first("LOAD_CONST"))]
        body += [Instr("LOAD_FAST", i) for i in range(len(parameters))] + [Instr("BUILD_TUPLE", len(parameters))]
        body += [Instr("LOAD_CLOSURE", len(parameters) + i) for i in range(len(code.co_freevars))] + [Instr("BUILD_TUPLE", len(code.co_freevars))]
        body += [Instr("CALL", 2), Instr("RETURN_VALUE")]
        for instr in body:
            instr.position = (code.co_firstlineno, code.co_firstlineno, 0, 0)
        return assemble(code, body, (), co_consts=(meet,), co_names=(), co_varnames=parameters)


def run(fn: Callable, *args: Any, **config: Any) -> tuple[Any, Driver]:
    driver = Driver(env=environment(**config))
    return driver(fn, *args), driver


def state_of(value: Any) -> Any:
    """A comparable picture of a result: structure, types, tensors by value."""
    if isinstance(value, torch.Tensor):
        return ("tensor", value.dtype, tuple(value.shape), value.requires_grad, value.detach().tolist())
    if isinstance(value, (list, tuple)):
        return (type(value), [state_of(v) for v in value])
    if isinstance(value, dict):
        return (type(value), [(k, state_of(v)) for k, v in value.items()])
    if isinstance(value, (set, frozenset)):
        return (type(value), sorted(map(repr, value)))
    if isinstance(value, torch.nn.Module):
        return (
            type(value),
            [(k, state_of(v)) for k, v in value.state_dict().items()],
            state_of({k: v for k, v in vars(value).items() if not k.startswith("_")}),
        )
    if hasattr(value, "__dict__") and not callable(value):
        return (type(value), state_of(vars(value)))
    return value if isinstance(value, (int, float, str, bool, complex, bytes, type(None))) else type(value)


def check(make: Callable, fn: Callable, graphs: int = 1, **config: Any) -> Driver:
    """Runs fn on make()'s arguments in eager and captured; results and the arguments afterwards must be equal, also random state."""
    torch.manual_seed(0)
    eager_args = make()
    torch.manual_seed(1)
    try:
        wanted, error = fn(*eager_args), None
    except Exception as reason:  # noqa: BLE001
        wanted, error = None, reason
    torch.manual_seed(0)
    args = make()
    torch.manual_seed(1)
    driver = Driver(env=environment(**config))
    try:
        got, raised = driver(fn, *args), None
    except Exception as reason:
        if isinstance(reason, Unsupported) or error is None:
            raise
        got, raised = None, reason
    assert type(raised) is type(error), (raised, error)
    assert str(raised) == str(error)
    assert state_of(got) == state_of(wanted)
    assert state_of(args) == state_of(eager_args)
    assert driver.graphs == graphs, [c.text() for c in driver.captured] + [str(s) for s in driver.skipped]
    assert torch.is_grad_enabled()
    return driver
