"""The residual code of an entry as Python text: what runs in the frame's stead. To read, not to run."""

from __future__ import annotations

import dis
import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from dynacompile.capture.bytecode import decode
from dynacompile.capture.calling import callable_first, called, with_null
from dynacompile.capture.opcodes.groups import TABLE
from dynacompile.cpython.instructions import BINARY_SIGNS, Instr
from dynacompile.ir.captured import GRAPH, Captured

MAKERS = {"BUILD_TUPLE": "({},)", "BUILD_LIST": "[{}]", "BUILD_SET": "{{{}}}"}
UNARY = {"UNARY_NEGATIVE": "-{}", "UNARY_POSITIVE": "+{}", "UNARY_INVERT": "~{}", "UNARY_NOT": "not {}", "GET_ITER": "iter({})"}
LETS_GO = "DELETE_FAST"  # residual code only ends references by it
SILENT = frozenset({"RESUME", "NOP", "END_FOR", "MAKE_CELL", "COPY_FREE_VARS", "POP_EXCEPT", LETS_GO})
NAMED = frozenset({"IMPORT_NAME", "IMPORT_FROM", "DELETE_GLOBAL"})  # by their arguments
NULL = ""


def decompiled(captured: Captured) -> str:
    """A header that says where the entry ends, and its code."""
    ends = f"breaks: [{captured.break_.code}] {captured.break_.reason}" if captured.break_ else "whole" if captured.whole else "goes on after a break"
    lines = [f"# {captured.site}, {ends}", f"def {name_of(captured.code)}({', '.join(parameters(captured.code))}):"]
    if captured.compact is not None:
        lines.append(f"    # graph: {captured.ops} ops; inputs {', '.join(i.source.text() for i in captured.inputs) or 'none'}")
    return "\n".join(lines + [f"    {line}" for line in Reader(captured.code).lines()])


def parameters(code: types.CodeType) -> Iterator[str]:
    count = code.co_argcount + code.co_kwonlyargcount
    yield from map(plain, code.co_varnames[:count])
    for flag, stars in ((4, "*"), (8, "**")):
        if code.co_flags & flag:
            yield stars + code.co_varnames[count]
            count += 1


def name_of(code: types.CodeType) -> str:
    """`f`, or `f_from_line_12` for what follows a break there."""
    text = code.co_qualname.rpartition(".")[2] if not code.co_qualname.startswith("<resume") else code.co_name
    line = code.co_qualname.removeprefix("<resume at line ").partition(" ")[0] if code.co_qualname.startswith("<resume") else ""
    return plain(text) + (f"_from_line_{line}" if line else "")


def plain(name: str) -> str:
    """`.t3`, a name of the residual code's own, as `t3`; `<lambda>` as `lambda_`."""
    return name.replace("<lambda>", "lambda_").replace("<", "").replace(">", "").lstrip(".")


def constant(value: object) -> str:
    if value is GRAPH:
        return "graph"
    if isinstance(value, types.CodeType):
        return name_of(value)
    if isinstance(value, dict) and "__name__" in value:
        return f"globals_of_{str(value['__name__']).replace('.', '_')}"
    if isinstance(value, Enum):
        return f"{type(value).__qualname__}.{value.name}"
    named = getattr(value, "__qualname__", None) or (getattr(value, "__name__", None) if isinstance(value, types.ModuleType) else None)
    if isinstance(named, str):
        return named
    return repr(value) if isinstance(value, (int, float, str, bytes, complex, tuple, type(None), type(...), frozenset, range)) else f"<{type(value).__name__}>"


class Reader:
    """Runs a code object on text: the stack holds expressions."""

    def __init__(self, code: types.CodeType):
        self.code, self.stack, self.depth = code, list[str](), 0
        self.out: list[str] = []
        self.keywords: tuple[str, ...] = ()
        self.decoded = decode(code)
        self.instrs = self.decoded.instrs
        self.closing: dict[int, int] = {}  # index of an instruction -> the depth of the block that begins there

    def lines(self) -> list[str]:
        handlers = {row.target.index: row for row in self.decoded.handlers if row.target.index > row.start.index}
        hidden = {index for row in self.decoded.handlers for index in range(row.target.index, row.start.index)}  # which change the error of a variable alone
        tried = {row.start.index for row in handlers.values()}
        goes_on = False
        for index, instr in enumerate(self.instrs):
            if index in hidden:
                continue
            if goes_on:
                goes_on = instr.op != "RETURN_VALUE"
                continue
            if index in self.closing:
                self.depth = self.closing[index]
            if index in tried:
                self.write("try:")
                self.depth += 1
            if index in handlers:
                self.depth = 0
                self.write("except BaseException as error:")
                self.depth, self.stack = 1, [*["error.__context__"] * handlers[index].depth, "error"]
            goes_on = self.returns_onward(index)
            if not goes_on:
                self.step(instr)
        return self.out

    def returns_onward(self, index: int) -> bool:
        """Whether the value on the stack is returned, once the calls that it asks for are made; that is not shown."""
        some = self.instrs[index : index + 3]
        follows = [i.op for i in some] == ["STORE_FAST", *callable_first("LOAD_CONST")]
        follows = follows and any(i.op == "LOAD_CONST" and self.code.co_consts[i.arg] is type for i in some)
        if follows:
            self.write(f"return {self.pop(1)[0]}")
        return follows

    def op_is_op(self, instr: Instr) -> None:
        left, right = self.pop(2)
        self.stack.append(f"{left} is {'not ' if instr.arg else ''}{right}")

    def write(self, text: str) -> None:
        self.out.append("    " * self.depth + text)

    def pop(self, count: int) -> list[str]:
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def step(self, instr: Instr) -> None:
        op = instr.op
        row: Callable[[Any], None] | None = getattr(self, f"op_{op.lower()}", None)
        if op in SILENT:
            return
        if row is not None:
            row(instr)
        elif op in UNARY:
            self.stack.append(UNARY[op].format(*self.pop(1)))
        elif op in MAKERS:
            items = ", ".join(self.pop(instr.arg))
            self.stack.append(MAKERS[op].format(items).replace("(,)", "()") if instr.arg != 0 else MAKERS[op].format("").replace(",", ""))
        elif "JUMP_IF" in op or op.startswith("POP_JUMP"):
            self.branch(instr)
        elif op.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")):
            self.stack.append(plain(self.decoded.slots[instr.arg]))
        elif op.startswith(("STORE_FAST", "STORE_DEREF")):
            self.write(f"{plain(self.decoded.slots[instr.arg])} = {self.pop(1)[0]}")
        else:
            self.other(instr)

    def other(self, instr: Instr) -> None:
        """Instructions that residual code seldom has: their operands as arguments."""
        row = TABLE.get(instr.op)
        effect = row.height(instr.arg, False) if row is not None else 0
        taken = self.pop(max(0, min(len(self.stack), 1 - effect)))
        shown = self.name(instr) if instr.op in NAMED else str(instr.arg or "")
        self.stack.append(f"{instr.op.lower()}({', '.join(filter(None, [*taken, shown]))})")

    def branch(self, instr: Instr) -> None:
        (test,) = self.pop(1)
        kind = instr.op.rpartition("IF_")[2]
        condition = {"FALSE": test, "TRUE": f"not ({test})", "NONE": f"{test} is not None", "NOT_NONE": f"{test} is None"}.get(
            kind.removesuffix("_OR_POP"), test
        )
        if kind.endswith("_OR_POP"):
            self.stack.append(test)
        self.write(f"if {condition}:")
        assert instr.target is not None
        self.closing[instr.target.index] = self.depth
        self.depth += 1

    def op_load_const(self, instr: Instr) -> None:
        self.stack.append(constant(self.code.co_consts[instr.arg]))

    def op_load_global(self, instr: Instr) -> None:
        name = self.code.co_names[instr.arg >> 1]
        self.stack += with_null(name, NULL) if instr.arg & 1 else [name]

    def op_push_null(self, instr: Instr) -> None:
        self.stack.append(NULL)

    def op_load_attr(self, instr: Instr) -> None:
        self.stack.append(f"{self.pop(1)[0]}.{self.name(instr)}")

    def op_load_method(self, instr: Instr) -> None:
        self.stack += with_null(f"{self.pop(1)[0]}.{self.name(instr)}", NULL)

    def pair(self) -> tuple[str, str]:
        """What a call takes: its callable, and NULL or the first argument."""
        first, second = self.pop(2)
        return first, second

    def name(self, instr: Instr) -> str:
        return self.code.co_names[instr.arg]

    def op_kw_names(self, instr: Instr) -> None:
        self.keywords = self.code.co_consts[instr.arg]

    def op_call(self, instr: Instr) -> None:
        args = self.pop(instr.arg)
        function, bound = called(*self.pair(), NULL)
        args = bound + args
        names, self.keywords = self.keywords, ()
        plain_count = len(args) - len(names)
        given = args[:plain_count] + [f"{k}={v}" for k, v in zip(names, args[plain_count:])]
        self.stack.append(f"{function}({', '.join(given)})")

    def op_call_function_ex(self, instr: Instr) -> None:
        kwargs = self.pop(1) if instr.arg & 1 else []
        args = self.pop(1)[0]
        function, _ = called(*self.pair(), NULL)
        self.stack.append(f"{function}({', '.join([f'*{args}', *(f'**{k}' for k in kwargs)])})")

    def op_make_function(self, instr: Instr) -> None:
        name = self.pop(1)[0]
        for flag in (8, 4, 2, 1):
            if instr.arg & flag:
                self.pop(1)
        self.stack.append(name)

    def op_copy(self, instr: Instr) -> None:
        self.stack.append(self.stack[-(instr.arg or 1)])

    def op_swap(self, instr: Instr) -> None:
        at = -(instr.arg or 1)
        self.stack[-1], self.stack[at] = self.stack[at], self.stack[-1]

    def op_pop_top(self, instr: Instr) -> None:
        (text,) = self.pop(1)
        if text.endswith(")"):
            self.write(text)

    def op_push_exc_info(self, instr: Instr) -> None:
        self.stack = ["error.__context__", "error"]

    def op_binary_subscr(self, instr: Instr) -> None:
        owner, key = self.pop(2)
        self.stack.append(f"{owner}[{key}]")

    def op_store_subscr(self, instr: Instr) -> None:
        value, owner, key = self.pop(3)
        self.write(f"{owner}[{key}] = {value}")

    def op_delete_subscr(self, instr: Instr) -> None:
        owner, key = self.pop(2)
        self.write(f"del {owner}[{key}]")

    def op_store_global(self, instr: Instr) -> None:
        self.write(f"{self.name(instr)} = {self.pop(1)[0]}")

    def op_store_attr(self, instr: Instr) -> None:
        value, owner = self.pop(2)
        self.write(f"{owner}.{self.name(instr)} = {value}")

    def op_delete_attr(self, instr: Instr) -> None:
        self.write(f"del {self.pop(1)[0]}.{self.name(instr)}")

    def op_build_map(self, instr: Instr) -> None:
        flat = self.pop(2 * (instr.arg))
        self.stack.append("{" + ", ".join(f"{k}: {v}" for k, v in zip(flat[::2], flat[1::2])) + "}")

    def op_build_slice(self, instr: Instr) -> None:
        self.stack.append(f"slice({', '.join(self.pop(instr.arg or 2))})")

    def op_binary_op(self, instr: Instr) -> None:
        left, right = self.pop(2)
        sign = BINARY_SIGNS[instr.arg]
        self.stack.append(f"{left} {sign} {right}" if not sign.endswith("=") else f"i{sign}({left}, {right})")

    def op_compare_op(self, instr: Instr) -> None:
        left, right = self.pop(2)
        self.stack.append(f"{left} {dis.cmp_op[instr.arg]} {right}")

    def op_return_value(self, instr: Instr) -> None:
        self.write(f"return {self.pop(1)[0]}")

    def op_raise_varargs(self, instr: Instr) -> None:
        taken = self.pop(instr.arg)
        self.write("raise" + "".join(f"{word}{text}" for word, text in zip((" ", " from "), taken)))
