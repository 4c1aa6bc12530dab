"""The opcode table against CPython, and code objects taken apart and put together again."""

from __future__ import annotations

import argparse
import ast
import collections
import contextlib
import dataclasses
import dis
import inspect
import json.decoder
import textwrap
import types

import pytest

from dynacompile.capture.assemble import assemble
from dynacompile.capture.breaking import OPERANDS
from dynacompile.capture.bytecode import PY312, Instr, decode
from dynacompile.capture.opcodes import TABLE

MODULES = [argparse, ast, collections, contextlib, dataclasses, inspect, json.decoder, textwrap]
GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # need room for what is thrown in


def codes(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


@pytest.mark.parametrize("name", sorted(n for n in TABLE if dis.opmap.get(n, 256) < 256))
def test_declared_stack_effect(name):
    number = dis.opmap[name]
    arguments = (0, 1, 2, 3, 4, 8, 15, 257) if number >= dis.HAVE_ARGUMENT else (None,)
    for arg in arguments:
        for jump in (True, False) if number in dis.hasjrel else (False,):
            try:
                wanted = dis.stack_effect(number, arg, jump=jump)
            except ValueError:
                continue
            assert TABLE[name].height(arg or 0, jump) == wanted, (name, arg, jump)


def test_rows_exist_in_one_of_the_versions():
    elsewhere = {"PRECALL", "LOAD_METHOD", "JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "UNARY_POSITIVE", "LIST_TO_TUPLE"}
    newer = {
        "END_FOR",
        "END_SEND",
        "RETURN_CONST",
        "BINARY_SLICE",
        "STORE_SLICE",
        "LOAD_SUPER_ATTR",
        "CALL_INTRINSIC_1",
        "LOAD_FAST_AND_CLEAR",
        "LOAD_FAST_CHECK",
    }
    unknown = {n for n in TABLE if n not in dis.opmap} - (elsewhere if PY312 else newer)
    assert all("JUMP" in n for n in unknown), unknown
    assert set(OPERANDS) <= set(TABLE)


@pytest.mark.parametrize("module", MODULES, ids=[m.__name__ for m in MODULES])
def test_assembling_what_was_decoded_gives_the_same_code(module):
    for code in codes(compile(inspect.getsource(module), module.__file__, "exec")):
        decoded = decode(code)
        again = assemble(code, list(decoded.instrs), decoded.handlers)
        assert again.co_code == code.co_code
        assert list(again.co_positions()) == list(code.co_positions())
        assert dis._parse_exception_table(again) == dis._parse_exception_table(code)
        assert again.co_stacksize >= code.co_stacksize or code.co_flags & GENERATOR


def test_long_jumps_get_prefixes():
    def shell():
        return 1

    skip = Instr("JUMP_FORWARD", position=(1, 1, 0, 0))
    end = Instr("LOAD_CONST", 1)
    skip.target = end
    body = [Instr("RESUME"), skip, *[Instr("NOP") for _ in range(70_000)], end, Instr("RETURN_VALUE")]
    assert eval(assemble(shell.__code__, body, (), co_consts=(None, 7))) == 7


def test_liveness_and_loops():
    def sample(a, b):
        c = a
        for i in range(b):
            c = c + i
        return c

    decoded = decode(sample.__code__)
    loop = next(i for i in decoded.instrs if i.op == "FOR_ITER")
    assert {decoded.slots[s] for s in decoded.live_slots(loop)} == {"c"}
    assert {decoded.slots[s] for s in decoded.live_slots(decoded.instrs[0])} == {"a", "b"}
    inside = next(i for i in decoded.instrs if i.op == "BINARY_OP")
    assert decoded.loop_heads(inside) == [loop] and decoded.loop_heads(decoded.instrs[0]) == []
