"""A fault of ptxas before CUDA 12.9: machine code that reads a uniform register which nothing wrote.

Seen on Hopper, with ptxas 12.8 at every level but 0, where two descriptors of shared memory that lie at one place in different layouts (wgmma's operands of two
products) have their common part in one register: the second is made from a register that holds nothing, and the product reads whatever is there, or memory
that is none of the kernel's. Of 50 attention kernels of the fuzzer that use wgmma, two had it. What `nvdisasm` prints tells.

Run in workers of the pool, which import nothing of this package, so this file imports the standard library alone.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path

SOUND = (12, 9)  # the release of ptxas from which on it is not looked for
INSTRUCTION = re.compile(r"\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?(?P<op>\S+)\s+(?P<operands>.*?)\s*;")
REGISTER = re.compile(r"\bUR(\d+)\b")
WRITES = ("U", "S2UR", "R2UR", "CS2UR", "REDUX", "CREDUX", "LDCU", "VOTEU")  # what their first operand names, instructions of these names write


def may_have_it(ptx: str, version: str) -> bool:
    """version: of ptxas, such as "12.8"."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return "wgmma.mma_async" in ptx and found is not None and (int(found[1]), int(found[2])) < SOUND


def unwritten(listing: str) -> list[str]:
    """The instructions of a disassembled kernel that read a uniform register which no instruction before them, in the order of the text, writes."""
    written: set[int] = set()
    found = []
    for line in listing.splitlines():
        instruction = INSTRUCTION.match(line)
        if instruction is None:
            continue
        op, operands = instruction["op"], instruction["operands"].split(",")
        results = operands[:1] if op.startswith(WRITES) and "[" not in operands[0] else []
        read = {n for operand in operands[len(results) :] for n in registers_read(operand)}
        if read - written:
            found.append(line.strip())
        for number in map(int, REGISTER.findall("".join(results))):
            written.update(range(number, number + width(op)))
    return found


def registers_read(operand: str) -> list[int]:
    """A descriptor of wgmma is four registers, of which the last two are the one of the operand that is always in shared memory."""
    numbers = [int(n) for n in REGISTER.findall(operand)]
    return [n + k for n in numbers for k in (2, 3)] if "gdesc" in operand else numbers


def width(op: str) -> int:
    """How many registers an instruction writes."""
    return 4 if ".128" in op else 2 if ".64" in op or ".WIDE" in op else 1


def disassemble(cubin: bytes, nvdisasm: str) -> str:
    """Raises OSError or subprocess.SubprocessError."""
    with tempfile.TemporaryDirectory(prefix="dynacompile-") as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(cubin)
        return subprocess.run([nvdisasm, "-c", str(path)], capture_output=True, text=True, check=True, timeout=60).stdout
