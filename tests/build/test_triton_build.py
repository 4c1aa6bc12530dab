"""Triton kernels to cubins, without a GPU: the pool, the store, tuning."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dynacompile.build import pool as pools
from dynacompile.build import triton as builds
from dynacompile.build.autotune import agree, named
from dynacompile.build.pool import Worker, WorkerPool, shared_pool
from dynacompile.build.store import Store
from dynacompile.build.triton import against, build_triton, job, kernel_key, pack, unpack
from dynacompile.codegen.triton import emit_kernel
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.errors import BuildError
from dynacompile.events import CacheLooked, KernelRefused, KernelTuned
from dynacompile.ir.schedule import CudaKernel, KernelSource
from tests.lower.tracing import ENV

from ..codegen.product_cases import CASES as PRODUCTS
from ..codegen.product_cases import fused
from ..codegen.triton_cases import CASES, chain, gather, softmax

BUILT = ("chain", "integers", "gather", "padded", "transpose", "softmax_looped", "layer_norm", "columns_sum", "many", "whole_looped", "scalar")


@pytest.fixture
def store(tmp_path) -> Store:
    return Store(tmp_path / "binaries")


@pytest.fixture
def events() -> list:
    return []


@pytest.fixture
def env(events) -> Env:
    return Env(CompileConfig(workers=2), events.append, "test", -1, Path("unused"))


@pytest.fixture(scope="module", autouse=True)
def own_pool():
    yield
    shared_pool(2).close()
    shared_pool.cache_clear()


def sources(*names: str) -> dict[str, KernelSource]:
    return {name: emit_kernel(CASES[name](), ENV) for name in names}


def test_every_kind_becomes_a_cubin(env, store):
    wanted = sources(*BUILT)
    built = build_triton(wanted, env, store)
    assert list(built) == list(wanted)
    for name, kernel in built.items():
        assert kernel.cubin[:4] == b"\x7fELF" and kernel.symbol.encode() in kernel.cubin, name
        assert kernel.extra >= 0 and kernel.warps == wanted[name].candidates[0].warps and kernel.grid == wanted[name].grids[0]


def test_the_store_answers_the_second_time_whatever_the_names(env, events, store):
    one = {"a": emit_kernel(softmax(), ENV)}
    built = build_triton(one, env, store)
    renamed = replace(softmax(), name="other_name")
    again = build_triton({"b": emit_kernel(renamed, ENV), "c": one["a"]}, env, store)
    assert again["b"] == again["c"] == built["a"]
    assert [e.hit for e in events if isinstance(e, CacheLooked)] == [False, True], "two names, one entry"


def test_keys_follow_what_the_code_depends_on():
    source = emit_kernel(chain(1 << 20), ENV)
    first = source.candidates[0]
    assert len({kernel_key(source, c) for c in source.candidates}) == len(source.candidates)
    assert kernel_key(emit_kernel(chain(1 << 20, torch.bfloat16), ENV), first) != kernel_key(source, first)
    assert kernel_key(emit_kernel(chain(1 << 21), ENV), first) == kernel_key(source, first), "a size that no mask needs is only in the grid"


@pytest.mark.parametrize(
    "variable, value, matters",
    [
        ("TRITON_F32_DEFAULT", "tf32", True),
        ("DISABLE_PTXAS_OPT", "1", True),
        ("TRITON_PTXAS_PATH", "{tmp}/ptxas", True),
        ("TRITON_CACHE_DIR", "/somewhere", False),
        ("TRITON_DEFAULT_FP_FUSION", "0", False),
        ("TRITON_INTERPRET", "1", False),
    ],
)
def test_keys_follow_the_settings_of_triton_that_workers_have(variable, value, matters, tmp_path, monkeypatch):
    (tmp_path / "ptxas").write_text("one")
    monkeypatch.delenv(variable, raising=False)
    source = emit_kernel(chain(1 << 20), ENV)
    keys = []
    for given in (None, value.format(tmp=tmp_path)):
        pools.settings.cache_clear()  # as in another process
        if given is not None:
            monkeypatch.setenv(variable, given)
        keys.append(kernel_key(source, source.candidates[0]))
    assert (keys[0] != keys[1]) == matters
    (tmp_path / "ptxas").write_text("two")
    assert (kernel_key(source, source.candidates[0]) != keys[1]) == (variable == "TRITON_PTXAS_PATH")
    pools.settings.cache_clear()


def test_workers_have_the_settings_that_keys_have(monkeypatch):
    """Those of when they were first asked for: a worker that is started later is no other compiler."""
    monkeypatch.setenv("TRITON_F32_DEFAULT", "ieee")
    pools.settings.cache_clear()
    kernel_key(emit_kernel(chain(), ENV), emit_kernel(chain(), ENV).candidates[0])
    monkeypatch.setenv("TRITON_F32_DEFAULT", "tf32")
    pool = WorkerPool(1)
    pool.warm()
    place, environment = Path(f"/proc/{pool.workers[0].process.pid}/environ"), []
    end = time.monotonic() + 30
    while not any(environment) and time.monotonic() < end:  # empty until the worker has begun
        environment = place.read_bytes().split(b"\0")
    pools.settings.cache_clear()
    assert b"TRITON_F32_DEFAULT=ieee" in environment


def test_packing_keeps_everything():
    kernel = CudaKernel(cubin=b"\x7fELF\x00", symbol="k", grid=(3, 1, 1), warps=4, shared=128, extra=2)
    assert unpack(pack({"symbol": "k", "warps": 4, "shared": 128, "extra": 2}, kernel.cubin), (3, 1, 1)) == kernel


def test_a_refused_source_is_a_build_error_and_the_pool_lives_on(env, store):
    bad = emit_kernel(chain(), ENV)
    bad = replace(bad, text=bad.text.replace("tl.abs", "tl.no_such_function"))
    with pytest.raises(BuildError, match="mul_add_sigmoid_gelu: .*(?s:.*)no_such_function"):
        build_triton({"bad": bad}, env, store)
    assert build_triton(sources("scalar"), env, store)["scalar"].symbol == "step"


def without(source: KernelSource, block: str) -> KernelSource:
    """`source`, which Triton refuses where a block's size is the first candidate's, as one of its faults would."""
    size = source.candidates[0].blocks[block]
    start = source.text.index("):\n", source.text.index(f"def {source.entry}(")) + 3
    return replace(source, text=f"{source.text[:start]}    tl.static_assert({block} != {size})\n{source.text[start:]}")


def test_what_triton_refuses_gives_way_to_the_next_candidate(env, events, store):
    source = without(emit_kernel(chain(1 << 20), ENV), "XBLOCK")
    for _ in range(2):
        built = build_triton({"k": source}, env, store)["k"]
        other = next(c for c in source.candidates if c.blocks != source.candidates[0].blocks)
        assert built.cubin[:4] == b"\x7fELF" and built.grid == source.grids[source.candidates.index(other)]
        assert {e.candidate.split(",")[0] for e in events if isinstance(e, KernelRefused)} == {named(source.candidates[0]).split(",")[0]}
        events.clear()  # an error of the compiler is not remembered: it may be one of the machine
    alone = replace(source, candidates=source.candidates[:1], grids=source.grids[:1])
    with pytest.raises(BuildError, match=f"{source.entry}: .*(?s:.*)static_assert"):
        build_triton({"k": alone}, env, store)


def test_a_worker_that_ended_is_replaced_and_one_that_crashes_twice_is_an_error():
    pool = WorkerPool(1)
    task = job(emit_kernel(CASES["scalar"](), ENV), emit_kernel(CASES["scalar"](), ENV).candidates[0])
    assert pool.compile([task])[0][0]["ok"]
    pool.workers[0].process.kill()
    pool.workers[0].process.wait()
    assert pool.compile([task])[0][0]["ok"]
    with pytest.raises(BuildError, match="crashed"):
        pool.compile([task | {"text": "import os\nos._exit(3)\n"}])
    pool.close()


def test_workers_that_all_ended_of_idleness_are_no_crash_of_the_job():
    pool = WorkerPool(2)
    for _ in range(2):
        process = subprocess.Popen([sys.executable, "-c", ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        pool.workers.append(Worker(process, tempfile.TemporaryFile()))
    for worker in pool.workers:
        worker.process.wait()
    task = job(emit_kernel(CASES["scalar"](), ENV), emit_kernel(CASES["scalar"](), ENV).candidates[0])
    assert pool.compile([task])[0][0]["ok"]
    pool.close()


def test_a_worker_that_hangs_is_ended(monkeypatch):
    monkeypatch.setattr(pools, "JOB_SECONDS", 2.0)
    pool = WorkerPool(1)
    task = job(emit_kernel(CASES["scalar"](), ENV), emit_kernel(CASES["scalar"](), ENV).candidates[0])
    with pytest.raises(BuildError, match="more than 2 s"):
        pool.compile([task | {"text": "import time\ntime.sleep(60)\n"}])
    assert not pool.workers


def test_importing_and_keying_start_no_process():
    pool = WorkerPool(1)
    assert not pool.workers
    kernel_key(emit_kernel(chain(), ENV), emit_kernel(chain(), ENV).candidates[0])
    assert not pool.workers


def test_a_forked_child_does_not_use_its_parents_workers():
    pool = WorkerPool(1)
    pool.warm()
    child = os.fork()
    if child == 0:
        os._exit(len(pool.workers))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert all(worker.process.poll() is None for worker in pool.workers)
    pool.close()


@pytest.fixture
def tuned_env(events) -> Env:
    return Env(CompileConfig(workers=2, mode="max-autotune"), events.append, "test", -1, Path("unused"))


def on_cpu(source: KernelSource) -> KernelSource:
    return replace(source, kernel=replace(source.kernel, device=torch.device("cpu")))


def test_what_triton_refuses_is_not_measured(tuned_env, events, store):
    source = on_cpu(without(emit_kernel(chain(1 << 14), ENV), "XBLOCK"))
    build_triton({"k": source}, tuned_env, store, lambda kernel, tensors: 1.0)
    (told,) = (e for e in events if isinstance(e, KernelTuned))
    left = [named(c) for c in source.candidates if c.blocks != source.candidates[0].blocks]
    assert [name for name, _ in told.candidates] == left and len(left) < len(source.candidates)


def test_tuning_takes_the_fastest_and_remembers_it(tuned_env, events, store):
    source = on_cpu(emit_kernel(softmax(64, 64), ENV))
    seconds = iter([50.0, 20.0, 90.0, 80.0, 70.0])
    asked: list[CudaKernel] = []

    def measure(kernel, tensors):
        asked.append(kernel)
        return next(seconds)

    built = build_triton({"k": source}, tuned_env, store, measure)
    assert built["k"] == asked[1] and len(asked) == len(source.candidates)
    (tuned,) = [e for e in events if isinstance(e, KernelTuned)]
    assert tuned.winner == tuned.candidates[1][0]
    assert build_triton({"k": source}, tuned_env, store, measure)["k"] == asked[1]  # no further measuring: the iterator would tell
    assert len(asked) == len(source.candidates)


def test_a_candidate_that_disagrees_never_wins(tuned_env, store):
    source = on_cpu(emit_kernel(softmax(64, 64), ENV))
    calls = []

    def measure(kernel, tensors):
        calls.append(kernel)
        tensors[1].fill_(float(len(calls) > 1))
        return 100.0 / len(calls)

    assert build_triton({"k": source}, tuned_env, store, measure)["k"] == calls[0]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        pytest.param([1000.0, 1e-3, float("inf"), float("nan")], True, id="cancelled-sum"),
        pytest.param([1000.0, 0.2, float("inf"), float("nan")], False, id="another-value"),
        pytest.param([1000.0, 0.0, float("nan"), float("nan")], False, id="nan-for-infinity"),
        pytest.param([1000.0, float("nan"), float("inf"), float("nan")], False, id="nan-for-a-number"),
        pytest.param([float("inf"), 0.0, float("inf"), float("nan")], False, id="infinity-for-a-number"),
    ],
)
def test_candidates_agree_to_the_rounding_of_the_largest_element(other, same):
    assert agree(torch.tensor(other), torch.tensor([1000.0, 0.0, float("inf"), float("nan")])) == same


def test_what_cannot_be_fed_keeps_its_first_candidate(tuned_env, store):
    source = on_cpu(emit_kernel(gather(), ENV))

    def measure(kernel, tensors):
        raise AssertionError("indirect accesses must not be measured on made-up indices")

    assert build_triton({"k": source}, tuned_env, store, measure)["k"].grid == source.grids[0]


def product(name: str, *sizes: tuple[int, ...]) -> KernelSource:
    """A product with its epilogue."""
    return fused(replace(PRODUCTS[name], sizes=sizes))[2]


@pytest.mark.parametrize("name", ["gelu of a linear layer", "gate and values"])
def test_a_product_becomes_a_cubin_that_is_given_memory_for_descriptors(name, env, store):
    """In the place of the pointer that Triton's launcher passes; one more that it passes, for profiles, stays null."""
    third = (2816,) if name.startswith("gelu") else (256, 2816)
    source = product(name, (4096, 256), (256, 2816), third)
    assert source.candidates[0].blocks["TMA"]
    built = build_triton({"k": source}, env, store)["k"]
    assert built.extra == 1 and source.kernel.params[-1].mode == "scratch"
    assert built.shared <= 227 << 10


LARGE = {
    "batch": ((8, 1024, 512), (8, 512, 1024)),
    "tf32": ((4096, 256), (256, 2816), (2816,)),
    "float32": ((1024, 256), (256, 1024), (1024,)),
    "8-bit numbers": ((4096, 256), (2816, 256), (), (), (2816,)),
    "8-bit numbers, fast sums": ((4096, 256), (2816, 256), (), (), (2816,)),
    "gate and values that stay": ((4096, 256), (256, 2816), (256, 2816)),
}


@pytest.mark.parametrize("name", LARGE)
def test_products_of_every_kind_become_cubins(name, env, store):
    source = product(name, *LARGE[name])
    built = build_triton({"k": source}, env, store)["k"]
    assert built.cubin[:4] == b"\x7fELF" and built.grid == source.grids[0], "the first candidate is not refused"
    assert source.candidates[0].blocks["TMA"] == {"float32": 0, "gate and values that stay": 2}.get(name, 1)


@pytest.mark.further
def test_a_product_that_no_processor_can_run_gives_way_to_the_next_candidate(events, env, store, monkeypatch):
    source = product("gelu of a linear layer", (4096, 256), (256, 2816), (2816,))
    monkeypatch.setattr(builds, "MOST_SHARED", 100_000)
    built = build_triton({"k": source}, env, store)["k"]
    assert built.shared <= 100_000 and built.grid != () and any(isinstance(e, KernelRefused) and "shared memory" in e.error for e in events)
    kept = replace(source, candidates=source.candidates[:1], grids=source.grids[:1])
    monkeypatch.setattr(builds, "MOST_SHARED", 1000)
    with pytest.raises(BuildError, match="shared memory"):
        build_triton({"k": replace(kept, text=kept.text + "\n")}, env, store)


def test_descriptors_that_do_not_fit_their_memory_are_refused():
    source = product("gelu of a linear layer", (4096, 256), (256, 2816), (2816,))
    facts = {"ok": True, "shared": 1000, "scratch": 256}
    assert against(facts, source, source.candidates[0]) == ""
    assert "descriptors" in against(facts | {"scratch": 2000}, source, source.candidates[0])
    plain = emit_kernel(CASES["scalar"](), ENV)
    assert "descriptors" in against(facts, plain, plain.candidates[0]), "of a kernel that has no memory for them"
