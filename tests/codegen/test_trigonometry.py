"""The PTX of sine's and cosine's argument reduction, run instruction by instruction in NumPy, and the polynomial after it."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest

from dynacompile.codegen.triton.trigonometry import FAR, PACK, reduction

F32, F64, U32, U64, I64 = np.float32, np.float64, np.uint32, np.uint64, np.int64
KINDS = {"f32": F32, "f64": F64, "b32": U32, "b64": U64, "u32": U32, "u64": U64, "s64": I64}


def fused(a, b, c, down):
    """a * b + c in float32 with one rounding: products of float32 are exact in float64, and so are the sums here, but for halves of an ulp."""
    exact = a.astype(F64) * b.astype(F64) + c.astype(F64)
    near = exact.astype(F32)
    return np.where(near > exact, np.nextafter(near, F32(-np.inf)), near).astype(F32) if down else near


def shift_left(value, count):
    return (value << count.astype(value.dtype)).astype(value.dtype)


def funnel(low, high, count):
    whole = (high.astype(U64) << U64(32)) | low.astype(U64)
    return ((whole << (count.astype(U64) & U64(31))) >> U64(32)).astype(U32)


COMPARE = {"gt": np.greater, "ne": np.not_equal, "eq": np.equal}


class Ptx:
    """Registers by name; every one holds as many lanes as the operands $PACK.. have."""

    def __init__(self, operands):
        self.lanes = len(operands[0])
        self.registers = {f"${PACK + i}": x for i, x in enumerate(operands)}

    def read(self, text, kind):
        if text in self.registers:
            value = self.registers[text]
            return value.view(KINDS[kind]) if value.dtype.itemsize == np.dtype(KINDS[kind]).itemsize else value
        if text.startswith("0f"):
            number = F32(struct.unpack(">f", bytes.fromhex(text[2:]))[0])
        elif text.startswith("0d"):
            number = F64(struct.unpack(">d", bytes.fromhex(text[2:]))[0])
        else:
            number = KINDS[kind](int(text, 0))
        return np.full(self.lanes, number).view(KINDS[kind])

    def run(self, text):
        for line in text.replace("{ .reg", ".reg").removesuffix("}").split(";"):
            line = line.replace("DONE:", "").strip()
            if line and not line.startswith((".reg", "@")):
                name, _, rest = line.partition(" ")
                self.step(name.split("."), [t.strip() for t in re.split(r",(?![^{]*})", rest)])

    def step(self, name, operands):
        kind = name[-1]
        match name:
            case ["mov", "b64"] if operands[1].startswith("{"):
                low, high = (self.read(t.strip(), "u32") for t in operands[1].strip("{}").split(","))
                result = (high.astype(U64) << U64(32)) | low.astype(U64)
            case ["mov", "b64"]:
                whole = self.read(operands[1], "u64")
                low, high = operands[0].strip("{}").split(",")
                self.registers[low.strip()], self.registers[high.strip()] = whole.astype(U32), (whole >> U64(32)).astype(U32)
                return
            case ["setp", compare, *rest]:
                result = COMPARE[compare](self.read(operands[1], kind), self.read(operands[2], kind))
                result = result | self.registers[operands[3]] if "or" in rest else result
            case ["selp", _]:
                result = np.where(self.registers[operands[3]], self.read(operands[1], kind), self.read(operands[2], kind))
            case ["cvt", "rn", target, source] | ["cvt", target, source]:
                result = self.read(operands[1], source).astype(KINDS[target])
            case ["mad", "wide", "u32"]:
                a, b = (self.read(t, "u32").astype(U64) for t in operands[1:3])
                result = a * b + self.read(operands[3], "u64")
            case _:
                args = [self.read(t, kind) for t in operands[1:]]
                result = self.arithmetic(name, args)
        self.registers[operands[0]] = result

    def arithmetic(self, name, args):
        match name:
            case ["mov", _]:
                return args[0]
            case ["abs", _]:
                return np.abs(args[0])
            case ["fma", rounding, _]:
                return fused(*args, down=rounding == "rm")
            case ["add", _]:
                return args[0] + args[1]
            case ["sub", _]:
                return args[0] - args[1]
            case ["mul", "f64"]:
                return args[0] * args[1]
            case ["mul", "hi", _]:
                return ((args[0].astype(U64) * args[1].astype(U64)) >> U64(32)).astype(U32)
            case ["mad", "lo", _]:
                return args[0] * args[1] + args[2]
            case ["and", _]:
                return args[0] & args[1]
            case ["or", _]:
                return args[0] | args[1]
            case ["xor", _]:
                return args[0] ^ args[1]
            case ["shl", _]:
                return shift_left(args[0], args[1])
            case ["bfe", _]:
                return (args[0] >> args[1]) & ((U32(1) << args[2]) - U32(1))
            case ["shf", "l", "wrap", _]:
                return funnel(*args)
            case _:
                raise AssertionError(name)


def half_period(r):
    z = r * r
    p = np.full_like(r, 2.60397996e-06)
    for c in (-0.000198089547, 0.00833304878, -0.166666567):
        p = fused(p, z, np.full_like(r, c), False)
    return fused(p * r, z, r, False)


def arguments():
    """Every binade, the greatest and least numbers, neighbours of multiples of pi/2, zeros."""
    generator = np.random.default_rng(0)
    anywhere = generator.integers(0, 0x7F800000, 400_000, dtype=np.uint32).view(F32)
    usual = generator.normal(0, 3, 200_000).astype(F32)
    turns = (np.arange(1, 100_000) * (np.pi / 2)).astype(F32)
    special = np.array([0.0, 1e-45, 1.17549435e-38, FAR, np.nextafter(F32(FAR), F32(np.inf)), 3.40282347e38, 1e38], F32)
    x = np.concatenate([anywhere, usual, turns, np.nextafter(turns, F32(0)), special])
    x = np.concatenate([x, -x])
    return x[: len(x) // PACK * PACK]


@pytest.mark.parametrize("cosine", [False, True])
def test_accurate_everywhere(cosine):
    x = arguments()
    with np.errstate(all="ignore"):
        machine = Ptx(np.split(x, PACK))
        machine.run(reduction(cosine, PACK))
        r = np.concatenate([machine.registers[f"${i}"].view(F32) for i in range(PACK)])
        got = half_period(r)
    wanted = np.cos(x.astype(F64)) if cosine else np.sin(x.astype(F64))
    ulp = np.spacing(np.abs(wanted).astype(F32)).astype(F64)
    assert np.abs(r).max() < 1.575  # pi/2, and what rounding n adds
    error = np.abs(got - wanted) / ulp
    assert error.max() <= (2.1 if cosine else 1.8)


@pytest.mark.parametrize("cosine", [False, True])
def test_no_number_gives_no_number(cosine):
    x = np.array([np.nan, np.inf, -np.inf, 1.0], F32)
    machine = Ptx(np.split(x, PACK))
    with np.errstate(all="ignore"):
        machine.run(reduction(cosine, PACK))
    assert [bool(np.isnan(machine.registers[f"${i}"].view(F32)[0])) for i in range(PACK)] == [True, True, True, False]


def test_zero_keeps_its_sign():
    x = np.array([-0.0, 0.0, -0.0, 0.0], F32)
    machine = Ptx(np.split(x, PACK))
    machine.run(reduction(False, PACK))
    assert [bool(np.signbit(machine.registers[f"${i}"].view(F32)[0])) for i in range(PACK)] == [True, False, True, False]
