"""Why a graph ends: the table of breaks. A row has a code, what is said about it, and what the user can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dynacompile.errors import Unsupported
from dynacompile.ir.source import Source
from dynacompile.ir.wording import shown


@dataclass(frozen=True)
class Row:
    """reason and hint may hold one `{}` for the detail."""

    reason: str
    hint: str


BREAKS: dict[str, Row] = {
    "asked": Row("dynacompile.graph_break() was called{}", "remove the call to keep one graph"),
    "disabled": Row("{} is marked to run as plain Python", "remove the mark, or move the call out of the compiled region"),
    "print": Row("{} writes to a stream", "move it out of the compiled region, or guard it with `if not dynacompile.is_compiling()`"),
    "logging": Row("{} logs or warns", "log strings and numbers, or guard the call with `if not dynacompile.is_compiling()`"),
    "after-graph": Row("{}", "move that before the call, or the call to the end of the function"),
    "to-python": Row("{} turns a tensor into a Python value", "keep the value a tensor, or compute it outside of the compiled region"),
    "changing-container": Row("{} holds something else in each call", "read it outside of the compiled region, or no more of it than its end (`history[-1]`)"),
    "changing-key": Row("a key of {} is another one in each call", "write to it outside of the compiled region, or use a list"),
    "data-dependent-branch": Row("a branch depends on the values of a tensor ({})", "use torch.where or torch.cond"),
    "data-dependent-shape": Row("the shape of {}'s result depends on values", "use a masked variant with a fixed shape"),
    "caught-error": Row("{} may raise, by its values, what a clause around it takes", "move the operation out of the `try` block"),
    "unknown-function": Row("{} is not known to capture", "call it outside of the compiled region"),
    "collective": Row("{} talks to other processes", "use torch.distributed._functional_collectives, or call it outside of the compiled region"),
    "unknown-object": Row("{} is not modelled by capture", "use plain tensors, numbers, lists, tuples, dicts or nn.Module attributes here"),
    "tensor-subclass": Row("{} and is left to Python", "use a subclass that overrides __torch_function__ alone, or pass plain tensors in"),
    "aliased-wrapper": Row("{}, and it wraps others", "return a copy of it (`clone()`)"),
    "symbolic-wrapper": Row("sizes or numbers are symbols beside {}", "compile with dynamic=False: each size has an entry of its own"),
    "unknown-attribute": Row("attribute access not modelled by capture: {}", "read the attribute before the compiled region and pass the value in"),
    "unknown-opcode": Row("the instruction {} is not modelled by capture", "rewrite the statement, or move it to a function marked with dynacompile.disable"),
    "unknown-operation": Row("operation not modelled by capture: {}", "rewrite the expression with tensor operations or plain Python values"),
    "tensor-attribute": Row("tensor attribute or method not captured: {}", "use it outside of the compiled region"),
    "drawn-value": Row("Python needs the number that {} draws", "draw it before the compiled region, or choose by torch.where of a number that torch draws"),
    "drawn-number": Row("{} draws what the graph can't take as an input", "draw before the compiled region, and pass the number in"),
    "random-state": Row("{} reads or changes the state of a random generator", "seed before the compiled region"),
    "nested-region": Row("{} is compiled as a region of its own", "leave it out of the settings for parts of the model to compile it with its caller"),
    "autograd-function": Row("{} is a custom autograd.Function", "express it with tensor operations or torch.library.custom_op"),
    "autograd-call": Row("{} runs or changes autograd inside the region", "compile the forward pass only"),
    "sub-graph": Row("a function that has to be one graph is not: {}", "use functions of tensors that have no effects and return new tensors"),
    "checkpoint": Row("{} is activation checkpointing", "let the compiler choose what to keep (memory_budget)"),
    "checkpointed": Row("{}, in a function that a checkpoint runs again", "change it outside of the function that is checkpointed"),
    "op-failed": Row("an operation failed while it was traced: {}", "if eager raises too, fix the call; otherwise please report it"),
    "op-unsupported": Row("an operation has no fake implementation: {}", "register one with torch.library.register_fake"),
    "would-raise": Row("Python would raise here: {}", "if eager does not raise, please report it"),
    "raise": Row("an exception is raised{}", "raise outside of the compiled region"),
    "context-manager": Row("the context manager {} is not modelled by capture", "open it outside of the compiled region"),
    "generator": Row("generator or coroutine: {}", "use a list, or a plain function"),
    "import": Row("an import inside the function: {}", "import at the top of the module"),
    "hooks": Row("{} has hooks that capture does not inline", "remove the hook, or call the module outside of the compiled region"),
    "setattr": Row("attribute assignment not modelled by capture: {}", "assign outside of the compiled region"),
    "mutation": Row("mutation not modelled by capture: {}", "mutate outside of the compiled region"),
    "aliased-mutation": Row("inputs that share memory are written in place: {}", "clone one of them first"),
    "setting": Row("operations of one graph would run under different settings: {}", "change the setting before the first operation, or outside"),
    "rebuild": Row("{} can't be recreated after the graph", "keep such objects out of variables that live across a graph break or are returned"),
    "in-loop": Row("a loop that Python advances from round to round: {}", "loop over a list, a tuple or a range, which the graph can follow"),
    "in-block": Row("a graph break inside a with or try block: {}", "remove the break, or move the block's body to a function"),
    "frame-variables": Row("a function that reads its own variables by locals(), eval() or a frame object has to break: {}", "pass the values explicitly"),
    "active-mode": Row("a torch-function mode, dispatch mode, torch.func transform or forward-mode differentiation is active{}", "call it outside of the mode"),
    "wrapper": Row("{} runs as Python, and what it wraps is compiled", "compile what is wrapped, before it is"),
    "frame-kind": Row("frames of this kind are not captured: {}", "compile a plain function or method"),
    "internal": Row("capture itself failed on {}", "Python runs the frame instead; please report it with DYNACOMPILE_LOGS=all"),
    "which-object": Row("{}: which of several equal objects it is, capture does not know", "compare them by ==, or keep the object itself in a variable"),
    "watching": Row("{} has every frame watched that runs from there on", "nothing is to be done: the function runs as Python, for who watches it"),
    "lifetime": Row("{} may be gone already", "keep the object in a variable for as long as its weak reference is used"),
    "schedule": Row("{} computes rates of the next step on the host, by a count that differs in each call", "call it outside of the compiled region"),
    "too-deep": Row("calls nest too deeply to be inlined ({})", "unroll the recursion"),
    "first-step": Row(
        "{} makes its state in this call, which no later one does", "nothing is to be done: this call runs as Python, and later ones are compiled"
    ),
    "too-long": Row("more than {} instructions were traced", "compile the functions that it calls, or the body of the loop; or raise trace_limit"),
    "too-many-operations": Row("more than {} operations were traced", "compile the functions that it calls, or the body of the loop; or raise trace_limit"),
}


WORDED = (AttributeError, IndexError, NameError, RuntimeError, StopIteration, TypeError)  # what these say tells names and types, not values
UNBOUNDED = frozenset({"too-long", "too-many-operations"})
"""A frame that reaches a limit of the trace is left to Python as a whole: each of its pieces would be as long."""
FIRST_STEP = "first-step"
LIFETIME = "lifetime"
WHOLE = UNBOUNDED | {FIRST_STEP, LIFETIME, "watching", "which-object"}
"""What leaves a frame to Python as a whole."""
OF_VALUES = frozenset({"data-dependent-shape", "to-python", "drawn-value"})
"""What symbols for values can keep from ending a graph."""


class NotConstant(Exception):
    """A value whose Python value capture does not know was asked for it; always turned into a break by whoever asks."""


def unsupported(code: str, detail: object = "") -> Unsupported:
    """The error for row `code`; where it happened is added by the interpreter."""
    row = BREAKS[code]
    return Unsupported(code, row.reason.format(detail), row.hint)


class NotThereYet(Unsupported):
    """Python puts something into a dict here, once: what breaks for it, callers included, serves only as long as it is not there.

    table: where the dict lies. name: what it is to have.
    """

    def __init__(self, reason: Unsupported, table: Source, name: str):
        super().__init__(reason.code, reason.reason, reason.hint)
        self.table, self.name = table, name


class Raised(Unsupported):
    """The program raises an exception here: for a handler of it, where one is followed; a break otherwise, so that Python raises it.

    value: the exception as a tracked value, made when a handler wants it. args_: its arguments, None where they are not known in full.
    trail: the code and place of each frame, of a raise statement; empty where an exception is passed on. anew: it gives the exception, which was
    there before the frame, the context of a caller.
    """

    def __init__(self, detail: str, value: Any, cls: type, args: tuple | None = None, code: str = "raise"):
        row = BREAKS[code]
        super().__init__(code, row.reason.format(detail), row.hint)
        self.value, self.cls, self.args_ = value, cls, args
        self.linked = False  # the exception that was being handled is known to it
        self.trail: tuple = ()
        self.anew = False


def raises(cls: type, *args: object, known: bool = True, by_user: bool = False) -> Raised:
    """Python raises `cls(*args)` here. known: the arguments are exactly Python's. by_user: the message is the user's, and may tell values."""
    told = args if cls in WORDED and not by_user and all(isinstance(arg, str) for arg in args) else map(shown, args)
    return Raised(f"{cls.__name__}: {', '.join(map(str, told))}", None, cls, args if known else None, "would-raise")
