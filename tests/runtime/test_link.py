"""Programs: kernels, memory, views, extern calls, errors."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from dynacompile.errors import BuildError, VerifyError
from dynacompile.ir.schedule import CpuKernel, Module
from dynacompile.runtime import link
from tests.runtime.schedules import Allocate, Free, Launch, Maker, Place, Ref, buffer, extern, given, run_oracle

aten = torch.ops.aten


def test_one_kernel(linked):
    program = linked(("a", "b"), ("o",), [given("a"), given("b"), buffer("o")], [Allocate("o"), Launch("add", ("a", "b", "o"))])
    a, b = torch.randn(2, 3), torch.randn(2, 3)
    (o,) = program(a, b)
    assert torch.equal(o, a + b) and o.stride() == (3, 1) and not o.requires_grad
    assert program.facts == {"launches": 1, "kernels": 1, "externs": 0, "bytes": 72, "arena": 0, "peak": 24, "unfused_peak": 0}
    assert "Launch(kernel='add'" in program.text and "1 outputs" in repr(program)


def test_arena_shares_bytes_when_lives_do_not_meet(linked):
    """t0 and t2 share bytes; t1 lies beside them."""
    program = linked(
        ("a",),
        ("o",),
        [given("a"), buffer("t0"), buffer("t1"), buffer("t2"), buffer("o")],
        [
            Place("t0", 0),
            Launch("twice", ("a", "t0")),
            Place("t1", 64),
            Launch("relu", ("t0", "t1")),
            Place("t2", 0),
            Launch("twice", ("t1", "t2")),
            Allocate("o"),
            Launch("add", ("t1", "t2", "o")),
        ],
        arena=128,
    )
    a = torch.randn(2, 3)
    assert torch.equal(program(a)[0], (2 * a).relu() * 3)


def test_an_input_counts_from_its_own_first_element(linked):
    """The same program with inputs at different storage offsets."""
    program = linked(("a",), ("o",), [given("a"), buffer("o")], [Allocate("o"), Launch("twice", ("a", "o"))])
    pool = torch.randn(5, 2, 3)
    for i in range(5):
        assert torch.equal(program(pool[i])[0], 2 * pool[i])


def test_views_of_inputs_temps_and_outputs(linked):
    views = [
        buffer("at", (3, 2), (1, 3), base="a"),
        buffer("row", (3,), (1,), offset=3, base="a"),
        buffer("ot", (3, 2), (1, 3), base="o"),
        buffer("tt", (3, 2), (1, 3), base="t"),
    ]
    program = linked(
        ("a",),
        ("o", "ot", "row", "at", "p"),
        [given("a"), buffer("o"), buffer("t"), buffer("p", (2, 2)), *views],
        [
            Place("t", 0),
            Launch("relu", ("a", "t")),
            Allocate("o"),
            Launch("twice", ("a", "o")),
            Allocate("p"),
            extern(aten.mm.default, (Ref("a"), Ref("tt")), ("p",), aten.mm.out),
        ],
        arena=64,
    )
    a = torch.randn(4, 3)[1:3]
    o, ot, row, at, p = program(a)
    assert torch.equal(ot, (2 * a).t()) and torch.equal(row, a[1]) and torch.equal(at, a.t())
    assert ot.data_ptr() == o.data_ptr() and row.data_ptr() == a[1].data_ptr()
    torch.testing.assert_close(p, a @ a.relu().t())
    before = a._version
    at.add_(1)
    assert a._version == before + 1 and ot._version == o._version == 0


def test_a_view_in_another_dtype():
    program = link(Maker(None)(("a",), ("i",), [given("a"), buffer("i", (3,), dtype=torch.int32, offset=3, base="a")], []))
    a = torch.randn(4, 3)[1:3]
    assert torch.equal(program(a)[0], a[1].view(torch.int32))


def test_outputs_that_are_inputs_constants_or_none(linked):
    constant = torch.arange(6.0).reshape(2, 3)
    program = linked(
        ("a", None),
        ("a", None, "c", "o", "o"),
        [given("a"), buffer("c", kind="constant"), buffer("o")],
        [Allocate("o"), Launch("mul", ("a", "c", "o"))],
        constants={"c": constant},
    )
    a = torch.randn(2, 3)
    same, none, held, o, again = program(a, 7)
    assert same is a and none is None and held is constant and o is again
    assert torch.equal(o, a * constant)


def test_mutated_input(linked):
    program = linked(("a",), (), [given("a")], [Launch("increment", ("a",))])
    a = torch.zeros(3, 2, 3)
    assert program(a[1]) == ()
    assert torch.equal(a, torch.stack([torch.zeros(2, 3), torch.ones(2, 3), torch.zeros(2, 3)]))


def test_extern_kinds(linked):
    """Out variants into the arena and into outputs, allocating ops, several results, unused results, defaults, scalars, dtypes, tensor lists."""
    steps = [
        Place("t", 0),
        extern(aten.mm.default, (Ref("a"), Ref("b")), ("t",), aten.mm.out),
        Allocate("u"),
        extern(aten.addmm.default, (Ref("c"), Ref("a"), Ref("b")), ("u",), aten.addmm.out, beta=0.5, alpha=2),
        extern(aten.cat.default, ((Ref("t"), Ref("u")), 1), ("k",)),
        extern(aten.max.dim, (Ref("k"), 1), (None, "m")),
        extern(aten._to_copy.default, (Ref("m"),), ("d",), dtype=torch.float64),
        extern(aten.native_layer_norm.default, (Ref("k"), (4,), None, None, 1e-5), ("n", None, "r")),
        extern(aten.split.Tensor, (Ref("k"), 2, 1), ("s0", "s1")),
        Free("t"),
    ]
    buffers = [
        given("a", (2, 3)),
        given("b", (3, 2)),
        given("c", (2,)),
        buffer("t", (2, 2)),
        buffer("u", (2, 2)),
        buffer("k", (2, 4), kind="extern"),
        buffer("m", (2,), kind="extern", dtype=torch.int64),
        buffer("d", (2,), kind="extern", dtype=torch.float64),
        buffer("n", (2, 4), kind="extern"),
        buffer("r", (2, 1), kind="extern"),
        buffer("s0", (2, 2), kind="extern"),
        buffer("s1", (2, 2), kind="extern"),
    ]
    program = linked(("a", "b", "c"), ("u", "k", "d", "n", "r", "s1"), buffers, steps, arena=64)
    a, b, c = torch.randn(2, 3), torch.randn(3, 2), torch.randn(2)
    u, k, d, n, r, s1 = program(a, b, c)
    torch.testing.assert_close(u, torch.addmm(c, a, b, beta=0.5, alpha=2))
    torch.testing.assert_close(k, torch.cat([a @ b, u], 1))
    torch.testing.assert_close(d, k.max(1).indices.double())
    expected = torch.native_layer_norm(k, (4,), None, None, 1e-5)
    torch.testing.assert_close((n, r), (expected[0], expected[2]))
    assert torch.equal(s1, k[:, 2:]) and s1.stride() == (2, 1)  # a strided result is brought to the planned geometry


def test_convolution(linked):
    args = (Ref("x"), Ref("w"), Ref("b"), (1, 1), (1, 1), (1, 1), False, (0, 0), 1)
    buffers = [
        given("x", (2, 3, 5, 5)),
        given("w", (4, 3, 3, 3)),
        given("b", (4,)),
        buffer("y", (2, 4, 5, 5), kind="extern"),
        buffer("z", (2, 4, 5, 5), kind="extern"),
    ]
    program = linked(("x", "w", "b"), ("y", "z"), buffers, [extern(aten.convolution.default, args, ("y",)), extern(aten.relu.default, (Ref("y"),), ("z",))])
    x, w, b = torch.randn(2, 3, 5, 5), torch.randn(4, 3, 3, 3), torch.randn(4)
    y, z = program(x, w, b)
    torch.testing.assert_close(y, torch.conv2d(x, w, b, padding=1))
    assert torch.equal(z, y.relu())


def test_extern_that_mutates_and_optional_tensor_lists(linked):
    args = (Ref("a"), (None, Ref("i")), Ref("v"), True)
    buffers = [given("a"), given("i", (2,), dtype=torch.int64), given("v", (2, 2))]
    program = linked(("a", "i", "v"), (), buffers, [extern(aten.index_put_.default, args, (None,), None, ("a",))])
    a, i, v = torch.zeros(2, 3), torch.tensor([0, 2]), torch.ones(2, 2)
    program(a, i, v)
    assert torch.equal(a, torch.tensor([[1.0, 0, 1], [1, 0, 1]]))


def test_externs_run_below_autograd_and_autocast(linked):
    buffers = [given("a", (2, 3)), given("b", (3, 2)), buffer("p", (2, 2), kind="extern")]
    program = linked(("a", "b"), ("p",), buffers, [extern(aten.mm.default, (Ref("a"), Ref("b")), ("p",))])
    a, b = torch.randn(2, 3, requires_grad=True), torch.randn(3, 2)
    with torch.autocast("cpu", torch.bfloat16):
        (p,) = program(a, b)
    assert p.dtype == torch.float32 and not p.requires_grad and torch.is_grad_enabled()
    with torch.inference_mode():
        assert program(a, b)[0].is_inference()


def test_random_ops_use_the_default_generator(linked):
    program = linked(
        (), ("r",), [buffer("r", (8,), kind="extern")], [extern(aten.rand.default, ((8,),), ("r",), device=torch.device("cpu"), dtype=torch.float32)]
    )
    torch.manual_seed(3)
    (r,) = program()
    torch.manual_seed(3)
    assert torch.equal(r, torch.rand(8))


@pytest.mark.parametrize(
    ("args", "error", "message"),
    [
        ((torch.ones(2, 3, dtype=torch.float64),), TypeError, "input 0 .a. must be Float, not double"),
        ((torch.ones(3, 2),), ValueError, r"of sizes \[2, 3\].*not \[3, 2\]"),
        ((torch.ones(3, 2).t(),), ValueError, "strides"),
        ((3,), TypeError, "must be a tensor, not int"),
        ((), TypeError, "takes 1 inputs, not 0"),
        ((torch.ones(2, 3, device="meta"),), ValueError, "on cpu, not meta"),
    ],
)
def test_wrong_inputs(linked, args, error, message):
    program = linked(("a",), ("o",), [given("a"), buffer("o")], [Allocate("o"), Launch("twice", ("a", "o"))])
    with pytest.raises(error, match=message):
        program(*args)


def test_errors_of_externs_propagate(linked):
    buffers = [given("a", (2, 3)), given("b", (3, 2)), buffer("p", (2, 2), kind="extern")]
    wrong = linked(("a",), ("p",), buffers, [extern(aten.mm.default, (Ref("a"), Ref("a")), ("p",))])
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes cannot be multiplied"):
        wrong(torch.randn(2, 3))
    dtype = linked(
        ("a", "b"), ("p",), [*buffers[:2], buffer("p", (2, 2), kind="extern", dtype=torch.float64)], [extern(aten.mm.default, (Ref("a"), Ref("b")), ("p",))]
    )
    with pytest.raises(RuntimeError, match="an op returned float.*compiled for double"):
        dtype(torch.randn(2, 3), torch.randn(3, 2))
    index = linked(("a",), ("p",), [buffers[0], buffer("p", (2,), kind="extern")], [extern(aten.select.int, (Ref("a"), 1, 9), ("p",))])
    with pytest.raises(IndexError, match="out of range"):
        index(torch.randn(2, 3))
    assert torch.is_grad_enabled() and torch.ones(1, requires_grad=True).mul(2).requires_grad


def test_errors_of_python_kernels_propagate():
    def fails(kernel, tensors):
        raise LookupError(f"no {kernel.name}")

    program = link(Maker(None)(("a",), ("o",), [given("a"), buffer("o")], [Allocate("o"), Launch("twice", ("a", "o"))]), None, fails)
    with pytest.raises(LookupError, match="no twice"):
        program(torch.randn(2, 3))


def test_schedules_that_contradict_themselves(module):
    a, o = given("a"), buffer("o")
    with pytest.raises(VerifyError, match="does not fit the arena"):
        link(module(("a",), (), [a, o], [Place("o", 64), Launch("twice", ("a", "o"))], arena=64))
    with pytest.raises(VerifyError, match="params"):
        link(module(("a",), (), [a, o], [Launch("twice", ("a",))]))
    with pytest.raises(VerifyError, match="reference interpreter"):
        link(Maker(None)(("a",), ("o",), [a, o], [Allocate("o"), Launch("twice", ("a", "o"))]))
    with pytest.raises(RuntimeError, match="needs argument mat2"):
        raise RuntimeError(pytest.raises(TypeError, link, module(("a",), ("o",), [a, o], [extern(aten.mm.default, (Ref("a"),), ("o",))])).value)
    unallocated = link(module(("a",), ("o",), [a, o], []))
    with pytest.raises(RuntimeError, match="uses o where it has no memory"):
        unallocated(torch.ones(2, 3))


def test_a_kernel_that_does_not_load(module):
    made = module(("a",), ("o",), [given("a"), buffer("o")], [Allocate("o"), Launch("twice", ("a", "o"))])
    kernel = made.kernels["twice"]
    with pytest.raises(BuildError, match="gone.*Delete the compile cache"):
        link(Module(made.schedule, {"twice": CpuKernel(kernel.library, "gone")}))


def test_nothing_is_kept(linked):
    steps = [Place("t", 0), Launch("twice", ("a", "t")), extern(aten.mm.default, (Ref("t"), Ref("b")), ("p",)), Allocate("o"), Launch("relu", ("t", "o"))]
    program = linked(
        ("a", "b"), ("o", "p", "a"), [given("a"), given("b", (3, 2)), buffer("t"), buffer("p", (2, 2), kind="extern"), buffer("o")], steps, arena=64
    )
    a, b = torch.randn(2, 3), torch.randn(3, 2)
    outputs = program(a, b)
    watched = [weakref.ref(t) for t in (a, b, *outputs)]
    del a, b, outputs
    gc.collect()
    assert [w() for w in watched] == [None] * len(watched)
    gone = weakref.ref(program)
    del program
    gc.collect()
    assert gone() is None


def test_empty_tensors(linked):
    program = linked(
        ("a", "b"),
        ("p",),
        [given("a", (0, 3)), given("b", (3, 2)), buffer("p", (0, 2))],
        [Allocate("p"), extern(aten.mm.default, (Ref("a"), Ref("b")), ("p",), aten.mm.out)],
    )
    assert program(torch.ones(0, 3), torch.ones(3, 2))[0].shape == (0, 2)


def test_reference_kernels_see_the_memory_of_the_root():
    seen = []

    def reference(kernel, tensors):
        seen.append([(t.dtype, tuple(t.shape), t.stride()) for t in tensors])
        run_oracle(kernel, tensors)

    made = Maker(None)(("a",), ("o",), [given("a"), buffer("at", (3, 2), (1, 3), base="a"), buffer("o")], [Allocate("o"), Launch("twice", ("at", "o"))])
    a = torch.randn(2, 3)
    assert torch.equal(link(made, None, reference)(a)[0], 2 * a)
    assert seen == [[(torch.float32, (6,), (1,))] * 2]
