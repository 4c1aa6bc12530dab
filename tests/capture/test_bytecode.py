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
import opcode
import re
import textwrap
import types
from pathlib import Path

import pytest

from dynacompile import cpython
from dynacompile.capture.assemble import assemble
from dynacompile.capture.breaking import OPERANDS
from dynacompile.capture.bytecode import decode
from dynacompile.capture.opcodes.groups import TABLE
from dynacompile.cpython import RUNNING, SUPPORTED, version_of
from dynacompile.cpython.instructions import BINARY_SIGNS, Instr

MODULES = [argparse, ast, collections, contextlib, dataclasses, inspect, json.decoder, textwrap]
BYTE_BY_BYTE = ("3.11", "3.12")  # later ones have instructions for two locals at once, which are read as two
WITH_ANOTHER = ("FOR_ITER", "END_FOR", "KW_NAMES")  # CPython's versions divide the work between such a pair
ELSEWHERE = {"JUMP_IF_TRUE_OR_POP", "JUMP_IF_FALSE_OR_POP", "LOAD_METHOD", "UNARY_POSITIVE", "LIST_TO_TUPLE"}  # in 3.11 alone, as they are
ELSEWHERE |= {"BINARY_SLICE", "STORE_SLICE", "LOAD_SUPER_ATTR", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_CHECK", "END_SEND", "RETURN_CONST"}  # since 3.12
ELSEWHERE |= {"TO_BOOL", "CONVERT_VALUE", "KW_NAMES", "FORMAT_VALUE"}
GENERATOR = inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR  # need room for what is thrown in


def codes(code):
    yield code
    for const in code.co_consts:
        if isinstance(const, types.CodeType):
            yield from codes(const)


def own_effect(name, arg, jump):
    """The change of the stack by what this CPython runs for an instruction."""
    goal = Instr("NOP", index=1)
    instrs = [Instr(name, arg, goal if jumps(name) else None, index=0), goal]
    write = RUNNING.writes.get(name)
    pairs = [(name, arg)] if write is None else write(instrs, 0)
    total = 0
    for place, (op, argument) in enumerate(pairs):
        number = dis.opmap[op]
        taken = jump and number in dis.hasjrel and place == len(pairs) - 1
        if op == "RETURN_GENERATOR":  # CPython counts what the first next() sends since 3.13 only
            return 1
        total += dis.stack_effect(number, argument if number >= dis.HAVE_ARGUMENT else None, jump=taken)
    return total


def jumps(name):
    return "JUMP" in name or name in ("FOR_ITER", "SEND")


def exists(name):
    own = dis.opmap.get(name, 256) < 256 if name not in RUNNING.writes else True
    return own and name not in WITH_ANOTHER


@pytest.mark.parametrize("name", sorted(n for n in TABLE if exists(n)))
def test_declared_stack_effect(name):
    for arg in (0, 1, 2, 3, 4, 5, 8, 15, 257) if name != "COMPARE_OP" else range(6):
        for jump in (True, False) if jumps(name) else (False,):
            try:
                wanted = own_effect(name, arg, jump)
            except ValueError:
                continue
            assert TABLE[name].height(arg or 0, jump) == wanted, (name, arg, jump)


def test_a_loop_leaves_its_iterator_behind():
    """FOR_ITER and END_FOR together, where the iterator has ended: CPython divides the work between them."""
    jump = TABLE["FOR_ITER"].height(0, True) + TABLE["END_FOR"].height(0, False)
    assert jump == -1 == own_effect("FOR_ITER", 0, True) + own_effect("END_FOR", 0, False)


def test_tables_are_cpythons():
    entries = opcode._inline_cache_entries
    named = entries if isinstance(entries, dict) else {dis.opname[i]: n for i, n in enumerate(entries) if n}
    assert {name: n for name, n in named.items() if n and name in dis.opmap} == RUNNING.caches
    assert BINARY_SIGNS == tuple(sign for _, sign in opcode._nb_ops)[: len(BINARY_SIGNS)]


def test_each_version_says_the_same_of_itself():
    for running in SUPPORTED:
        version = version_of(running)
        assert version.name == "{}.{}".format(*running)
        assert (Path(cpython.__file__).parent / f"v{running[0]}{running[1]}.h").exists()
    assert version_of((3, 10)).name == "3.11" and version_of((3, 99)).name == version_of(SUPPORTED[-1]).name


def test_rows_exist_in_one_of_the_versions():
    written = {name for running in SUPPORTED for name in version_of(running).writes}
    known = set(dis.opmap) | written | ELSEWHERE
    assert set(TABLE) <= known, set(TABLE) - known
    assert set(OPERANDS) <= set(TABLE)


@pytest.mark.parametrize("module", MODULES, ids=[m.__name__ for m in MODULES])
def test_assembling_what_was_decoded_gives_the_same_code(module):
    for code in codes(compile(inspect.getsource(module), module.__file__, "exec")):
        decoded = decode(code)
        again = assemble(code, list(decoded.instrs), decoded.handlers)
        assert listed(decode(again)) == listed(decoded)
        assert again.co_stacksize >= code.co_stacksize or code.co_flags & GENERATOR
        if RUNNING.name in BYTE_BY_BYTE:
            assert again.co_code == code.co_code
            assert list(again.co_positions()) == list(code.co_positions())
            assert dis._parse_exception_table(again) == dis._parse_exception_table(code)


def listed(decoded):
    """Everything that an instruction and a handler says, to be compared."""
    instrs = [(i.op, i.target.index if i.target else i.arg, i.position) for i in decoded.instrs]
    return instrs, [(h.start.index, h.end.index, h.target.index, h.depth, h.lasti) for h in decoded.handlers]


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


def test_only_one_place_knows_where_the_null_of_a_call_lies():
    """It is below the callable up to CPython 3.12, and above it since, so that `CallWriter` alone may push it: through `calling` or `callee`."""
    folder = Path(assemble.__code__.co_filename).parent
    found = {path.name for path in folder.rglob("*.py") if re.search(r"\.push_null\(\)", path.read_text())}
    assert found == {"calling.py", "residual.py"}  # in the latter where NULL is among the values of a stack
    assert (folder / "residual.py").read_text().count(".push_null()") == 1
