"""Launching a cubin through the CUDA driver, to measure it and to test it; compiled programs launch natively in the runtime."""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable, Sequence
from statistics import median

import torch

from dynacompile.errors import BuildError
from dynacompile.ir.index import hint
from dynacompile.ir.schedule import CudaKernel

MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
PLAIN_SHARED = 48 * 1024
REPEATS = 15
SHORT = 40.0  # microseconds
IN_A_ROW = 20
AHEAD = 5  # times that caches are overwritten, of about 30 microseconds each
CACHE_BYTES = 128 << 20  # written between launches, so that each one finds the caches cold


@functools.cache
def driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise BuildError("libcuda.so.1 is missing: install the NVIDIA driver to run kernels on a GPU") from error


def check(status: int, what: str) -> None:
    if status:
        name = ctypes.c_char_p()
        driver().cuGetErrorName(status, ctypes.byref(name))
        raise BuildError(f"{what}: {(name.value or b'unknown error').decode()}")


class LoadedKernel:
    """A cubin in the current device's context; unloaded by close()."""

    def __init__(self, kernel: CudaKernel):
        self.kernel = kernel
        torch.cuda.current_stream()  # makes the context
        self.module, self.function = ctypes.c_void_p(), ctypes.c_void_p()
        check(driver().cuModuleLoadData(ctypes.byref(self.module), kernel.cubin), f"loading {kernel.symbol}")
        check(driver().cuModuleGetFunction(ctypes.byref(self.function), self.module, kernel.symbol.encode()), f"finding {kernel.symbol}")
        if kernel.shared > PLAIN_SHARED:
            check(driver().cuFuncSetAttribute(self.function, MAX_DYNAMIC_SHARED, kernel.shared), f"{kernel.shared} bytes of shared memory for {kernel.symbol}")

    def launch(self, tensors: Sequence[torch.Tensor]) -> None:
        """Queues one launch on the current stream; tensors: one per param, their data_ptr 16-byte aligned. Symbols are as in the example."""
        numbers = [ctypes.c_double(s.hint) if s.real else ctypes.c_int64(s.hint) for s in self.kernel.symbols]
        values = [*(ctypes.c_void_p(t.data_ptr()) for t in tensors), *numbers, *[ctypes.c_void_p(0)] * self.kernel.extra]
        arguments = (ctypes.c_void_p * len(values))(*(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values))
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        x, y, z = map(hint, self.kernel.grid)
        status = driver().cuLaunchKernel(self.function, x, y, z, self.kernel.warps * 32, 1, 1, self.kernel.shared, stream, arguments, None)
        check(status, f"launching {self.kernel.symbol}")

    def close(self) -> None:
        check(driver().cuModuleUnload(self.module), f"unloading {self.kernel.symbol}")


def measure_on_device(kernel: CudaKernel, tensors: Sequence[torch.Tensor]) -> float:
    """Median microseconds of a launch: with cold caches, or, for kernels too short for events to resolve, in a row in a CUDA graph.
    The tensors hold the result of one launch afterwards."""
    loaded = LoadedKernel(kernel)
    loaded.launch(tensors)
    work = [t.clone() for t in tensors]
    result = median_of(REPEATS, lambda: loaded.launch(work), torch.empty(CACHE_BYTES, dtype=torch.uint8, device=tensors[0].device))
    if result < SHORT:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(IN_A_ROW):
                loaded.launch(work)
        torch.cuda.synchronize()  # what torch has stored for the generator before it recorded comes behind no replay of others
        result = median_of(REPEATS, graph.replay, None) / IN_A_ROW
    loaded.close()
    return result


def measure_run(kernel: CudaKernel, tensors: Sequence[torch.Tensor], before: Callable[[], object] | None = None) -> float:
    """Median microseconds, with cold caches, of `before` and then a launch. The tensors hold what the last launch has stored. Caches are overwritten
    several times over, so that the device is still busy with that when the host has launched what is measured."""
    loaded = LoadedKernel(kernel)
    cache = torch.empty(CACHE_BYTES, dtype=torch.uint8, device=tensors[0].device)

    def run() -> None:
        if before is not None:
            before()
        loaded.launch(tensors)

    run()
    result = median_of(REPEATS, run, cache, AHEAD)
    loaded.close()
    return result


def median_of(repeats: int, run: Callable[[], object], cache: torch.Tensor | None, times_over: int = 1) -> float:
    """Median microseconds of `run` on the current stream; `cache` is overwritten before each."""
    times = []
    for _ in range(repeats):
        for _ in range(0 if cache is None else times_over):
            cache.zero_()  # type: ignore[union-attr]
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        run()
        end.record()
        times.append((start, end))
    torch.cuda.synchronize()
    return median(s.elapsed_time(e) for s, e in times) * 1e3
