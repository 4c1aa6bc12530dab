"""The residual code of an entry as Python text: what runs in the frame's stead. To read, not to run."""

from __future__ import annotations

import dis
import sys
import types
from collections.abc import Callable, Iterator
from enum import Enum
from typing import Any

from dynacompile.ir.captured import GRAPH, Captured

PY312 = sys.version_info >= (3, 12)
MAKERS = {"BUILD_TUPLE": "({},)", "BUILD_LIST": "[{}]", "BUILD_SET": "{{{}}}"}
UNARY = {"UNARY_NEGATIVE": "-{}", "UNARY_POSITIVE": "+{}", "UNARY_INVERT": "~{}", "UNARY_NOT": "not {}", "GET_ITER": "iter({})"}
LETS_GO = "DELETE_FAST"  # residual code only ends references by it
SILENT = frozenset({"RESUME", "NOP", "PRECALL", "CACHE", "MAKE_CELL", "COPY_FREE_VARS", "POP_EXCEPT", LETS_GO})
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
        self.instrs = [i for i in dis.get_instructions(code) if i.opname != "EXTENDED_ARG"]
        self.closing: dict[int, int] = {}  # offset -> the depth of the block that begins there

    def lines(self) -> list[str]:
        handlers = {row.target: row for row in dis._parse_exception_table(self.code)}  # type: ignore[attr-defined]
        tried = {row.start for row in handlers.values()}
        goes_on = False
        for index, instr in enumerate(self.instrs):
            if goes_on:
                goes_on = instr.opname != "RETURN_VALUE"
                continue
            if instr.offset in self.closing:
                self.depth = self.closing[instr.offset]
            if instr.offset in tried:
                self.write("try:")
                self.depth += 1
            if instr.offset in handlers:
                self.depth = 0
                self.write("except BaseException as error:")
                self.depth, self.stack = 1, [*["error.__context__"] * handlers[instr.offset].depth, "error"]
            goes_on = self.returns_onward(index)
            if not goes_on:
                self.step(instr)
        return self.out

    def returns_onward(self, index: int) -> bool:
        """Whether the value on the stack is returned, once the calls that it asks for are made; that is not shown."""
        ops = [i.opname for i in self.instrs[index : index + 3]]
        follows = ops == ["STORE_FAST", "PUSH_NULL", "LOAD_CONST"] and self.instrs[index + 2].argval is type
        if follows:
            self.write(f"return {self.pop(1)[0]}")
        return follows

    def op_is_op(self, instr: dis.Instruction) -> None:
        left, right = self.pop(2)
        self.stack.append(f"{left} is {'not ' if instr.arg else ''}{right}")

    def write(self, text: str) -> None:
        self.out.append("    " * self.depth + text)

    def pop(self, count: int) -> list[str]:
        taken = self.stack[len(self.stack) - count :]
        del self.stack[len(self.stack) - count :]
        return taken

    def step(self, instr: dis.Instruction) -> None:
        op = instr.opname
        row: Callable[[Any], None] | None = getattr(self, f"op_{op.lower()}", None)
        if op in SILENT:
            return
        if row is not None:
            row(instr)
        elif op in UNARY:
            self.stack.append(UNARY[op].format(*self.pop(1)))
        elif op in MAKERS:
            items = ", ".join(self.pop(instr.arg or 0))
            self.stack.append(MAKERS[op].format(items).replace("(,)", "()") if instr.arg != 0 else MAKERS[op].format("").replace(",", ""))
        elif "JUMP_IF" in op or op.startswith("POP_JUMP"):
            self.branch(instr)
        elif op.startswith(("LOAD_FAST", "LOAD_DEREF", "LOAD_CLOSURE")):
            self.stack.append(plain(str(instr.argval)))
        elif op.startswith(("STORE_FAST", "STORE_DEREF", "STORE_GLOBAL")):
            self.write(f"{plain(str(instr.argval))} = {self.pop(1)[0]}")
        else:
            self.other(instr)

    def other(self, instr: dis.Instruction) -> None:
        """Instructions that residual code seldom has: their operands as arguments."""
        arg = instr.arg if instr.opcode >= dis.HAVE_ARGUMENT else None
        effect = dis.stack_effect(instr.opcode, arg)
        taken = self.pop(max(0, min(len(self.stack), 1 - effect)))
        self.stack.append(f"{instr.opname.lower()}({', '.join(filter(None, [*taken, instr.argrepr]))})")

    def branch(self, instr: dis.Instruction) -> None:
        (test,) = self.pop(1)
        kind = instr.opname.rpartition("IF_")[2]
        condition = {"FALSE": test, "TRUE": f"not ({test})", "NONE": f"{test} is not None", "NOT_NONE": f"{test} is None"}.get(
            kind.removesuffix("_OR_POP"), test
        )
        if kind.endswith("_OR_POP"):
            self.stack.append(test)
        self.write(f"if {condition}:")
        self.closing[instr.argval] = self.depth
        self.depth += 1

    def op_load_const(self, instr: dis.Instruction) -> None:
        self.stack.append(constant(instr.argval))

    def op_load_global(self, instr: dis.Instruction) -> None:
        self.stack += [NULL] if instr.arg and instr.arg & 1 else []
        self.stack.append(str(instr.argval))

    def op_push_null(self, instr: dis.Instruction) -> None:
        self.stack.append(NULL)

    def op_load_attr(self, instr: dis.Instruction) -> None:
        owner = self.pop(1)[0]
        self.stack += [NULL] if PY312 and instr.arg and instr.arg & 1 else []
        self.stack.append(f"{owner}.{instr.argval}")

    def op_load_method(self, instr: dis.Instruction) -> None:
        self.stack += [NULL, f"{self.pop(1)[0]}.{instr.argval}"]

    def op_kw_names(self, instr: dis.Instruction) -> None:
        self.keywords = self.code.co_consts[instr.arg or 0]

    def op_call(self, instr: dis.Instruction) -> None:
        args = self.pop(instr.arg or 0)
        first, second = self.pop(2)
        function, args = (second, args) if first is NULL else (first, [second, *args])
        names, self.keywords = self.keywords, ()
        plain_count = len(args) - len(names)
        given = args[:plain_count] + [f"{k}={v}" for k, v in zip(names, args[plain_count:])]
        self.stack.append(f"{function}({', '.join(given)})")

    def op_call_function_ex(self, instr: dis.Instruction) -> None:
        kwargs = self.pop(1) if instr.arg and instr.arg & 1 else []
        args, function = self.pop(1)[0], self.pop(1)[0]
        self.pop(1)
        self.stack.append(f"{function}({', '.join([f'*{args}', *(f'**{k}' for k in kwargs)])})")

    def op_make_function(self, instr: dis.Instruction) -> None:
        name = self.pop(1)[0]
        for flag in (8, 4, 2, 1):
            if instr.arg and instr.arg & flag:
                self.pop(1)
        self.stack.append(name)

    def op_copy(self, instr: dis.Instruction) -> None:
        self.stack.append(self.stack[-(instr.arg or 1)])

    def op_swap(self, instr: dis.Instruction) -> None:
        at = -(instr.arg or 1)
        self.stack[-1], self.stack[at] = self.stack[at], self.stack[-1]

    def op_pop_top(self, instr: dis.Instruction) -> None:
        (text,) = self.pop(1)
        if text.endswith(")"):
            self.write(text)

    def op_push_exc_info(self, instr: dis.Instruction) -> None:
        self.stack = ["error.__context__", "error"]

    def op_binary_subscr(self, instr: dis.Instruction) -> None:
        owner, key = self.pop(2)
        self.stack.append(f"{owner}[{key}]")

    def op_store_subscr(self, instr: dis.Instruction) -> None:
        value, owner, key = self.pop(3)
        self.write(f"{owner}[{key}] = {value}")

    def op_delete_subscr(self, instr: dis.Instruction) -> None:
        owner, key = self.pop(2)
        self.write(f"del {owner}[{key}]")

    def op_store_attr(self, instr: dis.Instruction) -> None:
        value, owner = self.pop(2)
        self.write(f"{owner}.{instr.argval} = {value}")

    def op_delete_attr(self, instr: dis.Instruction) -> None:
        self.write(f"del {self.pop(1)[0]}.{instr.argval}")

    def op_build_map(self, instr: dis.Instruction) -> None:
        flat = self.pop(2 * (instr.arg or 0))
        self.stack.append("{" + ", ".join(f"{k}: {v}" for k, v in zip(flat[::2], flat[1::2])) + "}")

    def op_build_slice(self, instr: dis.Instruction) -> None:
        self.stack.append(f"slice({', '.join(self.pop(instr.arg or 2))})")

    def op_binary_op(self, instr: dis.Instruction) -> None:
        left, right = self.pop(2)
        self.stack.append(f"{left} {instr.argrepr} {right}" if not instr.argrepr.endswith("=") else f"i{instr.argrepr}({left}, {right})")

    op_compare_op = op_binary_op

    def op_return_value(self, instr: dis.Instruction) -> None:
        self.write(f"return {self.pop(1)[0]}")

    def op_raise_varargs(self, instr: dis.Instruction) -> None:
        taken = self.pop(instr.arg or 0)
        self.write("raise" + "".join(f"{word}{text}" for word, text in zip((" ", " from "), taken)))
