"""Random numbers on GPUs as loops: which number each element gets, against models of ATen's kernels, and how the loops fuse. No GPU is needed."""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch

from dynacompile.build.autotune import lengths
from dynacompile.codegen.reference import run_program, run_schedule
from dynacompile.codegen.triton import emit_kernel
from dynacompile.events import Drawn
from dynacompile.ir.loops import Extern, LoopProgram
from dynacompile.ir.shapes import new_real, symbolic_mode
from dynacompile.ir.symbolic_graphs import add_node
from dynacompile.lower import lower
from dynacompile.observe.log import line
from dynacompile.ops import draws, philox
from dynacompile.ops.draws import DRAW
from dynacompile.schedule import schedule
from tests.codegen.interpreted import interpret
from tests.lower.test_placement import Graph
from tests.lower.tracing import ENV

aten = torch.ops.aten
BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
SEED, OFFSET = 2**63 + 12345678901234567, 4 * (2**32 - 1)  # more than 32 bits, and a counter that carries
BLOCKS = 2  # of the model's device
CPU = torch.device("cpu")


def words(seed: int, sequence: int, block: int) -> list[int]:
    """Philox 4x32-10 in Python."""
    mask = 2**32 - 1
    c, k = [block & mask, block >> 32, sequence & mask, sequence >> 32], [seed & mask, seed >> 32]
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & mask, (a >> 32) ^ c[3] ^ k[1], a & mask]
        k = [(k[0] + 0x9E3779B9) & mask, (k[1] + 0xBB67AE85) & mask]
    return c


def single(number: float) -> float:
    return struct.unpack("f", struct.pack("f", number))[0]


def uniform4(seed: int, sequence: int, block: int) -> list[float]:
    """`curand_uniform4`: (0, 1] in float32."""
    return [single(single(w) * 2.0**-32 + 2.0**-33) for w in words(seed, sequence, block)]


def strided_by_grid(n: int, blocks: int) -> tuple[list[float], int]:
    """`distribution_elementwise_grid_stride_kernel` over n elements, each of its threads after the other, and by how much the offset moves on."""
    grid = min(blocks, (n + 255) // 256)
    step = 256 * grid
    rounded = ((n - 1) // (step * 4) + 1) * step * 4
    found = [float("nan")] * n
    for thread in range(step):
        block = OFFSET // 4
        for start in range(thread, rounded, step * 4):
            numbers = uniform4(SEED, thread, block)
            block += 1
            for ii in range(4):
                if start + step * ii < n:
                    found[start + step * ii] = numbers[ii]
    return found, ((n - 1) // (step * 4) + 1) * 4


def by_fours(n: int) -> list[float]:
    """What `bernoulli_tensor_cuda_kernel` compares with n probabilities."""
    return [number for thread in range((n + 3) // 4) for number in uniform4(SEED, thread, OFFSET // 4)][:n]


def with_state(program: LoopProgram, device: torch.device = CPU) -> LoopProgram:
    """The program on a device, which takes the generator's states as its last inputs."""
    states = tuple(s.outputs[0] for s in program.steps if isinstance(s, Extern))
    steps = tuple(s for s in program.steps if not isinstance(s, Extern))
    buffers = {n: replace(b, device=device, kind="input" if n in states else b.kind) for n, b in program.buffers.items()}
    return replace(program, steps=steps, buffers=buffers, inputs=(*program.inputs, *states))


def state() -> torch.Tensor:
    return torch.tensor([draws.signed(SEED), OFFSET])


def run(program: LoopProgram, *inputs: torch.Tensor) -> torch.Tensor:
    (result,) = run_program(with_state(program), [*inputs, state()])
    assert result is not None
    return result


def counts(program: LoopProgram) -> list[int]:
    """By how much each call moves the generator on."""
    return [s.args[0] for s in program.steps if isinstance(s, Extern) and s.op is DRAW and s.random]


def drawn(op, *args, blocks: int = BLOCKS, dtype: torch.dtype = F32) -> LoopProgram:
    g = Graph()
    given = [g.input(*a, dtype=dtype) if isinstance(a, tuple) else a for a in args]
    with patch.object(draws, "most_blocks", lambda device: blocks):
        return g.lower(g.call(op, *given))


def test_known_answers():
    """The vectors of Random123."""
    every, digits = 2**32 - 1, (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344, 0xA4093822, 0x299F31D0)
    known = {
        (0,) * 6: (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8),
        (every,) * 6: (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        digits: (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    }
    for given, wanted in known.items():
        tensors = [torch.tensor(n) for n in given]
        assert tuple(int(w) for w in philox.philox(tuple(tensors[:4]), tuple(tensors[4:]))) == wanted
        counter, key = given[:4], given[4:]
        assert tuple(words(key[0] | key[1] << 32, counter[2] | counter[3] << 32, counter[0] | counter[1] << 32)) == wanted


SIZES = [1, 3, 255, 256, 257, 511, 512, 513, 2047, 2048, 2049, 5000]


@pytest.mark.parametrize("n", SIZES)
def test_rand(n):
    program = drawn(aten.rand_like.default, (n,))
    wanted, count = strided_by_grid(n, BLOCKS)
    assert torch.equal(run(program, torch.empty(n)), torch.tensor([0.0 if w == 1.0 else w for w in wanted]))
    assert counts(program) == [count]


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_rand_in_half_precision_is_rounded_and_then_below_one(dtype):
    program = drawn(aten.rand_like.default, (5000,), dtype=dtype)
    wanted = torch.tensor(strided_by_grid(5000, BLOCKS)[0]).to(dtype)
    assert (wanted == 1).any()
    assert torch.equal(run(program, torch.empty(5000, dtype=dtype)), torch.where(wanted == 1, 0, wanted))


def test_elements_are_numbered_as_they_lie_in_memory():
    g = Graph()
    x = g.input(10, 20, 30)
    x.meta["val"] = x.meta["val"].permute(2, 0, 1)
    with patch.object(draws, "most_blocks", lambda device: BLOCKS):
        program = g.lower(g.call(aten.rand_like.default, x))
    got = run(program, torch.empty(10, 20, 30).permute(2, 0, 1))
    assert torch.equal(got.permute(1, 2, 0).reshape(-1), torch.tensor(strided_by_grid(6000, BLOCKS)[0]))


@pytest.mark.parametrize("n", [1, 513, 5000])
@pytest.mark.parametrize("dtype", [F32, BF16, torch.uint8, torch.bool, torch.int64])
def test_coins_of_one_probability(n, dtype):
    program = drawn(aten.bernoulli.p, (n,), 0.3, dtype=dtype)
    wanted, count = strided_by_grid(n, BLOCKS)
    assert torch.equal(run(program, torch.empty(n, dtype=dtype)), (torch.tensor(wanted) < 0.3).to(dtype))
    assert counts(program) == [count]


@pytest.mark.parametrize("dtype", [F32, BF16])
def test_coins_of_a_probability_that_varies(dtype):
    """One program tosses them for each probability, which eager compares in float32."""
    g = Graph()
    x, p = g.input(5000, dtype=dtype), g.graph.placeholder("p")
    p.meta["val"] = new_real(symbolic_mode(lambda: None).shape_env, "p", 0.3)
    coins = add_node(g.graph, "call_function", aten.bernoulli.p, (x, p.meta["val"]), {})
    coins.meta["val"] = x.meta["val"]
    with patch.object(draws, "most_blocks", lambda device: BLOCKS):
        program = with_state(g.lower(coins))
    numbers = torch.tensor(strided_by_grid(5000, BLOCKS)[0])
    for probability in (0.3, 0.5, 0.125, numbers[17].item()):
        (got,) = run_program(program, [torch.empty(5000, dtype=dtype), probability, state()])
        assert torch.equal(got, (numbers < torch.tensor(probability)).to(dtype))


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 6, 7, 1000, 5003])
@pytest.mark.parametrize("dtype", [F32, BF16, F16, F64])
def test_coins_of_probabilities(n, dtype):
    program = drawn(aten.bernoulli.default, (n,), dtype=dtype)
    p = torch.rand(n, generator=torch.Generator().manual_seed(n)).to(dtype)
    p[::5], p[1::7] = 0, 1
    wide = F64 if dtype == F64 else F32
    assert torch.equal(run(program, p), (torch.tensor(by_fours(n)).to(wide) <= p.to(wide)).to(dtype))
    assert counts(program) == [12]


def test_a_number_that_is_no_probability_is_refused():
    program = drawn(aten.bernoulli.default, (8,))
    for wrong in (-0.1, 1.5, float("nan")):
        p = torch.full((8,), 0.5)
        p[6] = wrong
        with pytest.raises(RuntimeError, match="not what its operation takes"):
            run(program, p)


def test_draws_keep_their_order():
    g = Graph()
    x = g.input(3000)
    nodes = [g.call(aten.rand_like.default, x), g.call(aten.bernoulli.default, x), g.call(aten.randn_like.default, x), g.call(aten.bernoulli.p, x, 0.5)]
    plan = schedule(g.lower(*nodes), ENV)
    calls = [s for s in plan.steps if isinstance(s, Extern)]
    assert [s.op for s in calls] == [DRAW, DRAW, aten.randn_like.default, DRAW] and [s.args[0] for s in calls if s.op is DRAW] == [4, 12, 4]


def test_a_draw_that_nothing_reads_moves_the_generator_on():
    g = Graph()
    x = g.input(3000)
    g.call(aten.rand_like.default, x)
    program = g.lower(g.call(aten.neg.default, x))
    assert counts(program) == [4] and len(program.steps) == 2


def test_draws_are_part_of_the_kernels_around_them():
    g = Graph()
    x = g.input(64, 1000)
    noisy = g.call(aten.add.Tensor, g.call(aten.rand_like.default, x), x)
    coins = g.call(aten.bernoulli.default, g.call(aten.sigmoid.default, x))
    halved = g.call(aten.mul.Tensor, g.call(aten.bernoulli.p, x, 0.5), g.call(aten.mul.Tensor, x, 2.0))
    plan = schedule(g.lower(noisy, coins, halved), ENV)
    assert len(plan.kernels) == 1
    assert sum(isinstance(s, Extern) for s in plan.steps) == 3


REFUSED = {
    "normal": (lambda g: (aten.randn_like.default, g.input(8)), "no rule"),
    "float64": (lambda g: (aten.rand_like.default, g.input(8, dtype=F64)), "more bits"),
    "coins in float64": (lambda g: (aten.bernoulli.p, g.input(8, dtype=F64), 0.5), "more bits"),
    "empty": (lambda g: (aten.bernoulli.default, g.input(0)), "no elements"),
    "large": (lambda g: (aten.rand_like.default, g.input(2**29)), "in parts"),
    "probability above one": (lambda g: (aten.bernoulli.p, g.input(8), 1.5), "no known number"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_a_call_says_why(name):
    make, reason = REFUSED[name]
    events: list[Drawn] = []
    g = Graph()
    op, x, *rest = make(g)
    node = g.graph.call_function(op, (x, *rest))
    node.meta["val"] = x.meta["val"]
    g.graph.output((node,))
    program = lower(torch.fx.GraphModule({}, g.graph), replace(ENV, emit=events.append))
    assert [s.op for s in program.steps if isinstance(s, Extern)] == [op]
    assert [(e.kernel, reason in e.reason) for e in events] == [(False, True)]
    assert f"a call of ATen, {events[0].reason}" in line(events[0])


def test_probabilities_that_do_not_lie_one_after_the_other():
    g = Graph()
    x = g.input(8, 9)
    program = g.lower(g.call(aten.bernoulli.default, g.call(aten.t.default, x)))
    assert not counts(program)


@pytest.mark.parametrize("n, copies, points", [(512, 1, 512), (1000, 2, 512), (1536, 3, 512), (2048, 4, 512), (2049, 4, 1024), (4096, 4, 1024)])
def test_a_block_of_words_is_made_once(n, copies, points):
    """A point for every block that eager's 512 threads draw; conditions only where elements end before blocks do."""
    (kernel,) = schedule(drawn(aten.rand_like.default, (n,)), ENV).kernels.values()
    body = kernel.nest.body
    draws_of = [op for op in body if op.name == "uniform"]
    assert len(draws_of) == len(kernel.nest.stores()) == copies and len({op.args[:3] for op in draws_of}) == 1
    assert math.prod(a.size for a in kernel.nest.axes) == points
    assert any(a.mask is not None for a in kernel.nest.stores()) == bool(n % 512 or n == 2049)


def test_coins_of_four_neighbours_are_one_block_in_the_text():
    (kernel,) = schedule(drawn(aten.bernoulli.default, (64, 1000)), ENV).kernels.values()
    assert "uniform_by_fours(" in emit_kernel(kernel, ENV).text


def test_a_kernel_that_asserts_probabilities_is_not_measured_on_made_up_values():
    for op, measured in ((aten.bernoulli.default, False), (aten.rand_like.default, True)):
        (kernel,) = schedule(drawn(op, (64, 1000)), ENV).kernels.values()
        assert (lengths(emit_kernel(kernel, ENV)) is not None) == measured


SETS = [(300, 700, 5000, 6000), (5000, 5000), (6000, 5000, 9000)]


@pytest.mark.parametrize("sizes", SETS, ids=str)
@pytest.mark.parametrize("op", [aten.rand_like.default, aten.bernoulli.default], ids=str)
def test_draws_for_lists_of_tensors(op, sizes):
    """Like kernels over different tensors are one kernel over a list of them; each has a state of its own."""
    g = Graph()
    xs = [g.input(n) for n in sizes]
    with patch.object(draws, "most_blocks", lambda device: BLOCKS):
        program = g.lower(*[g.call(op, x) for x in xs])
    given = [torch.rand(n, generator=torch.Generator().manual_seed(n)) for n in sizes]
    states = [torch.tensor([draws.signed(SEED) + i, OFFSET + 4 * i]) for i in range(len(sizes))]
    wanted = run_program(with_state(program), [*given, *states])
    on_device = with_state(program, torch.device("cuda", 0))
    plan = schedule(on_device, ENV)
    on_cpu = replace(plan, device=CPU, buffers={n: replace(b, device=CPU) for n, b in plan.buffers.items()})
    for one, other in zip(run_schedule(on_cpu, [*given, *states]), wanted, strict=True):
        assert torch.equal(one, other)


@pytest.fixture(scope="module")
def emitted(tmp_path_factory) -> Iterator[dict[str, tuple[torch.Tensor, torch.Tensor]]]:
    """For each program, what its one kernel stored in Triton's interpreter, and what the reference interpreter gives."""
    programs = {
        "rand": (aten.rand_like.default, (3, 777), F32, ()),
        "rand-even": (aten.rand_like.default, (4096,), F32, ()),
        "rand-bf16": (aten.rand_like.default, (5000,), BF16, ()),
        "coins": (aten.bernoulli.p, (5000,), F32, (0.25,)),
        "probabilities": (aten.bernoulli.default, (3, 777), F32, ()),
        "probabilities-f16": (aten.bernoulli.default, (1030,), F16, ()),
        "probabilities-f64": (aten.bernoulli.default, (130,), F64, ()),
    }
    made = {name: (drawn(op, size, *rest, dtype=dtype), size, dtype) for name, (op, size, dtype, rest) in programs.items()}
    made |= {f"rows of {name}": (rows_of(op, size), size, F32) for name, op, size in ROWS}
    jobs, wanted = [], {}
    for name, (program, size, dtype) in made.items():
        (kernel,) = schedule(program, ENV).kernels.values()
        source = emit_kernel(kernel, ENV)
        x = torch.rand(size, generator=torch.Generator().manual_seed(1)).to(dtype)
        wanted[name] = run(program, x)
        states = {p.name for p in kernel.params if p.dtype == torch.int64}
        outputs = torch.full((wanted[name].numel(),), 7, dtype=dtype)
        tensors = [state() if p.name in states else x.reshape(-1) if p.mode == "in" else outputs for p in kernel.params]
        jobs.append((source.text, source.entry, dict(source.candidates[0].blocks), source.grids[0], tensors))
    results = interpret(jobs, tmp_path_factory.mktemp("draws"))
    yield {name: (got[-1].reshape(wanted[name].shape), wanted[name]) for name, got in zip(made, results, strict=True)}


@pytest.mark.parametrize("name", ["rand", "rand-even", "rand-bf16", "coins", "probabilities", "probabilities-f16", "probabilities-f64"])
def test_kernels_draw_the_same_numbers(emitted, name):
    got, wanted = emitted[name]
    assert torch.equal(got, wanted)


ROWS = [
    ("coins", aten.bernoulli.default, (24, 300)),  # some of a tile's blocks lie behind a row's end
    ("coins, wide", aten.bernoulli.default, (24, 768)),  # a row in three parts
    ("rand", aten.rand_like.default, (24, 300)),
]


def rows_of(op, size) -> LoopProgram:
    """A reduction of what is drawn."""
    g = Graph()
    with patch.object(draws, "most_blocks", lambda device: BLOCKS):
        return g.lower(g.call(aten.amax.default if op is aten.rand_like.default else aten.sum.dim_IntList, g.call(op, g.input(*size)), [1]))


@pytest.mark.parametrize("name", [name for name, _, _ in ROWS])
def test_kernels_that_reduce_what_they_draw(emitted, name):
    got, wanted = emitted[f"rows of {name}"]
    assert torch.equal(got, wanted)
