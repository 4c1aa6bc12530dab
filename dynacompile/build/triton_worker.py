"""A worker of the pool: reads jobs on stdin, compiles Triton source to a cubin, writes results to stdout.

Run as a script (`python -P triton_worker.py`), so that it imports Triton and nothing of the user's program. Needs no GPU.
"""

from __future__ import annotations

import importlib.util
import linecache
import os
import re
import select
import subprocess
import time
from pathlib import Path
from types import ModuleType
from typing import Any

from triton import knobs
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, make_backend
from triton.errors import TritonError


def beside(name: str) -> ModuleType:
    """A file of this folder as a module; its package would import torch."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type]
    spec.loader.exec_module(module)  # type: ignore[union-attr]
    return module


wire, uniform_registers, ptxas_faults = beside("wire"), beside("uniform_registers"), beside("ptxas_faults")

# What Triton and its passes raise, and what running our text may.
FAILURES = (
    TritonError,
    subprocess.SubprocessError,
    RuntimeError,
    OSError,
    SyntaxError,
    NameError,
    TypeError,
    ValueError,
    LookupError,
    AttributeError,
    AssertionError,
)
IDLE_SECONDS = 300.0  # then the worker ends; the pool starts another when needed
WATCH_SECONDS = 5.0  # how often it looks whether its parent still lives
WARM_UP = {
    "text": """
import triton
import triton.language as tl
from triton.language.extra import libdevice
@triton.jit
def warm_up(x_ptr, y_ptr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + i, mask=i < 100, other=0.0)
    tl.store(y_ptr + i, libdevice.exp(x) + tl.sum(x, 0))
""",
    "entry": "warm_up",
    "pointers": ["*fp32", "*fp32"],
    "constants": {"BLOCK": 128},
    "warps": 4,
    "stages": 1,
    "target": ["cuda", 90, 32],
}  # the first kernel that a process compiles takes 0.2 s more than the next


def compile_job(job: dict) -> tuple[dict, bytes]:
    """job: text, entry, pointers and scalars (Triton types), multiples (positions of scalars that are multiples of 16), constants, warps, stages,
    fuses (whether products and sums are joined to one instruction; so if left out), flushes (whether libdevice's functions take numbers below the normal
    ones for 0; not so if left out, as in eager's kernels), target [backend, arch, warp size].
    Result: symbol, shared (bytes), warps, params (pointers that the cubin takes, Triton's own included), scratch (bytes of global memory that each program
    needs for itself); and the cubin."""
    metadata, ptx, cubin = compile_sound(job)
    entry = re.search(r"\.entry\s+\S+?\((.*?)\)", ptx, re.DOTALL)
    params = entry.group(1).count(".param") if entry else len(job["pointers"])
    facts = {"symbol": metadata["name"], "shared": metadata["shared"], "warps": metadata["num_warps"], "params": params}
    return facts | {"scratch": metadata.get("global_scratch_size") or 0}, cubin


def compile_sound(job: dict) -> tuple[dict, str, bytes]:
    """The same as compile_text; a kernel that ptxas broke is compiled again, with the matrix instructions of Ampere in place of Hopper's."""
    found = compile_text(job)
    if not uniform_registers.may_have_it(found[1], knobs.nvidia.ptxas.version):
        return found
    if not uniform_registers.unwritten(uniform_registers.disassemble(found[2], knobs.nvidia.nvdisasm.path)):
        return found
    given = os.environ.get("DISABLE_MMA_V3")
    os.environ["DISABLE_MMA_V3"] = "1"  # read by Triton in each compile
    try:
        return compile_text(job)
    finally:
        del os.environ["DISABLE_MMA_V3"]
        if given is not None:
            os.environ["DISABLE_MMA_V3"] = given


def compile_text(job: dict) -> tuple[dict, str, bytes]:
    """What Triton tells of the kernel, its PTX and its cubin."""
    filename = f"<{job['entry']}>"
    linecache.cache[filename] = (len(job["text"]), None, job["text"].splitlines(True), filename)
    module: dict = {"__name__": job["entry"]}
    exec(compile(job["text"], filename, "exec"), module)  # our own text
    function = module[job["entry"]]
    names = function.arg_names
    signature = dict(zip(names, [*job["pointers"], *job.get("scalars", ())], strict=False)) | dict.fromkeys(job["constants"], "constexpr")
    scalars = [len(job["pointers"]) + i for i in job.get("multiples", ())]
    aligned = {(i,): [["tt.divisibility", 16]] for i in (*range(len(job["pointers"])), *scalars)}
    source = ASTSource(function, signature, job["constants"], aligned)
    target = GPUTarget(*job["target"])
    backend = make_backend(target)
    asked = {"num_warps": job["warps"], "num_stages": job["stages"], "enable_fp_fusion": job.get("fuses", True)}
    asked["enable_reflect_ftz"] = job.get("flushes", False)
    if "tl.device_assert" in job["text"]:  # what else debugging brings, checks of integer overflow, stays off
        asked |= {"debug": True, "sanitize_overflow": False}
    options = backend.parse_options(asked)
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict = {}
    backend.add_stages(stages, options, source.language)
    metadata = {"target": target, **options.__dict__}
    level: Any = source.make_ir(target, options, backend.get_codegen_implementation(options), backend.get_module_map(), context)
    ptx = ""
    for name, lower in stages.items():
        level = lower(level, metadata)
        if name == "ptx":
            ptx = level = ptxas_faults.rewritten(level)
    linecache.cache.pop(filename, None)
    return metadata, ptx, level


def answer(job: dict) -> tuple[dict, bytes]:
    start = time.perf_counter()
    try:
        result, cubin = compile_job(job)
    except FAILURES as error:  # handed to the pool, which raises BuildError
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}, b""
    return {"ok": True, "seconds": time.perf_counter() - start, **result}, cubin


def main() -> None:
    parent = os.getppid()
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    sink = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what compilers print must not reach the protocol
    if not select.select([source], [], [], 0)[0]:
        answer(WARM_UP)
    idle = 0.0
    while idle < IDLE_SECONDS and os.getppid() == parent:
        ready, _, _ = select.select([source], [], [], WATCH_SECONDS)
        if not ready:
            idle += WATCH_SECONDS
            continue
        message = wire.read_message(source)
        if message is None:
            return
        wire.write_message(sink, *answer(message[0]))
        idle = 0.0


if __name__ == "__main__":
    main()
