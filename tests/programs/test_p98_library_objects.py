"""Context variables, thread locals, enums, dataclasses, copies, weak references, heaps, questions to torch, profilers, modes."""

from __future__ import annotations

import bisect
import collections
import contextlib
import contextvars
import copy
import dataclasses
import enum
import heapq
import threading
import typing
import weakref

import pytest
import torch
from torch import nn

from tests.checking import check

EAGER = {"backend": "eager"}
VAR = contextvars.ContextVar("VAR", default=2)
NOVAL = contextvars.ContextVar("NOVAL")
LOCAL = threading.local()
LOCAL.k = 3


class MyLocal(threading.local):
    q = 5


ML = MyLocal()
ML.z = 2


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Flag(enum.IntFlag):
    A = 1
    B = 2


@dataclasses.dataclass
class D:
    a: int
    b: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Fz:
    a: int = 1


class Obj:
    def __init__(s):
        s.v = 4
        s.l = [1, [2]]


class Copies:
    def __init__(s):
        s.v = 4

    def __copy__(s):
        c = Copies()
        c.v = 9
        return c

    def __deepcopy__(s, memo):
        c = Copies()
        c.v = 10
        return c


class Red:
    def __init__(s, v):
        s.v = v

    def __reduce__(s):
        return Red, (s.v + 1,)


class St:
    __slots__ = ("a", "b")

    def __init__(s):
        s.a, s.b = 1, [2]


class GS:
    def __init__(s):
        s.a = 1

    def __getstate__(s):
        return {"a": 5}

    def __setstate__(s, st):
        s.a = st["a"] * 2


OBJ = Obj()
REF = weakref.ref(OBJ)
PROXY = weakref.proxy(OBJ)


def ctx(x):
    return x * VAR.get(), VAR.get(), NOVAL.get(5), VAR.name


def ctxset(x):
    t = VAR.set(7)
    y = x * VAR.get()
    VAR.reset(t)
    return y, VAR.get()


def ctxerr(x):
    try:
        NOVAL.get()
    except LookupError:
        return x + 1


def loc(x):
    return x * LOCAL.k, hasattr(LOCAL, "nope"), getattr(LOCAL, "nope", 2), ML.z, ML.q, vars(LOCAL)


def locset(x):
    LOCAL.w = 5
    LOCAL.k = LOCAL.k
    return x * LOCAL.w


def enums(x):
    return (
        x * Color.RED.value,
        Color.BLUE.name,
        Color(2) is Color.BLUE,
        Color["RED"],
        list(Color),
        len(Color),
        Flag.A | Flag.B,
        Color.__members__["RED"],
        isinstance(Color.RED, Color),
        Color.RED in Color,
        Color.RED.__class__ is Color,
    )


def dcs(x):
    d = D(1, [2])
    return (
        x * d.a,
        dataclasses.asdict(d),
        dataclasses.astuple(d),
        dataclasses.replace(d, a=5).a,
        [f.name for f in dataclasses.fields(d)],
        dataclasses.is_dataclass(d),
        D(1) == D(1),
        repr(d),
        hash(Fz()) == hash(Fz()),
    )


def frozen(x):
    f = Fz()
    try:
        f.a = 2
    except dataclasses.FrozenInstanceError as e:
        return x + 1, str(e)


def cp(x):
    o = Obj()
    c = copy.copy(o)
    d = copy.deepcopy(o)
    d.l[1].append(5)
    c.v = 8
    return x + 1, o.v, c.v, c.l is o.l, d.l, o.l, copy.copy(Copies()).v, copy.deepcopy(Copies()).v


def cp2(x):
    return (
        x + 1,
        copy.copy(Red(3)).v,
        copy.deepcopy([Red(3)])[0].v,
        copy.deepcopy(St()).b,
        copy.copy(St()).a,
        copy.copy(GS()).a,
        copy.deepcopy(GS()).a,
        copy.deepcopy({"a": (1, [2])}),
        copy.deepcopy(collections.OrderedDict(a=[1])),
    )


def cpt(x):
    l = [x, x + 1]
    l.append(l[0])
    d = copy.deepcopy(l)
    return d, d[0] is d[2]


def cpmemo(x):
    a = [1]
    memo = {}
    b = copy.deepcopy(a, memo)
    return x + 1, b, id(a) in memo


def weak(x):
    return x * REF().v, REF() is OBJ, PROXY.v, weakref.ref(OBJ) == REF, weakref.ref(OBJ) is REF, isinstance(PROXY, Obj), weakref.ref(OBJ)() is OBJ


def weakmade(x):
    o = Obj()
    r = weakref.ref(o)
    y = x * r().v
    return y, r() is o


def weakgone(x):
    o = Obj()
    r = weakref.ref(o)
    del o
    return x + 1, r() is None


def proxyset(x):
    PROXY.v = 4
    return x * OBJ.v


def typ(x):
    return (
        x + 1,
        typing.get_type_hints(Fz),
        typing.get_origin(list[int]),
        typing.get_args(dict[str, int]),
        typing.cast(int, 3),
        isinstance(3, typing.SupportsInt),
        typing.TYPE_CHECKING,
    )


def heaps(x):
    h = [5, 3, 4, 1]
    heapq.heapify(h)
    heapq.heappush(h, 0)
    a = heapq.heappop(h)
    b = heapq.heappushpop(h, 2)
    c = heapq.heapreplace(h, 9)
    return (
        x + a,
        h,
        b,
        c,
        heapq.nsmallest(2, h),
        heapq.nlargest(2, h),
        list(heapq.merge([1, 4], [2, 3])),
        bisect.bisect([1, 3, 5], 3),
        bisect.bisect_left([1, 3, 5], 3, key=lambda v: v),
        bisect.insort(h, 3),
    )


def cm(x):
    @contextlib.contextmanager
    def m():
        yield 3

    with m() as k, contextlib.suppress(ValueError), contextlib.ExitStack() as st:
        st.callback(lambda: None)
        x = x * k
    return x


def jit(x):
    return (
        torch.jit.annotate(torch.Tensor, x) + 1,
        torch.jit.is_scripting(),
        torch.jit.is_tracing(),
        torch.onnx.is_in_onnx_export(),
        torch._C._log_api_usage_once("a.b"),
        torch.compiler.is_compiling() and False,
    )


@torch.jit.script_if_tracing
def sit(x):
    return x * 2


def sit_(x):
    return sit(x) + 1


def preds(x):
    return (
        x + 1,
        torch.cuda.is_available(),
        torch.is_grad_enabled(),
        torch.is_tensor(x),
        torch.is_floating_point(x),
        torch.backends.mkldnn.is_available(),
        torch.backends.cudnn.is_available(),
        torch.is_autocast_enabled(),
        torch.is_inference_mode_enabled(),
        torch.distributed.is_available(),
        torch.distributed.is_initialized(),
        torch.get_default_dtype(),
        torch.get_num_threads(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_anomaly_enabled(),
        torch._C._get_tracing_state(),
        torch.overrides.is_tensor_like(x),
        torch.backends.cuda.flash_sdp_enabled(),
        torch.version.cuda,
        torch.__version__,
        torch.is_complex(x),
        torch.is_storage(x),
        torch.utils.data.get_worker_info(),
        torch.backends.mps.is_available(),
        torch.xpu.is_available(),
        torch.get_float32_matmul_precision(),
    )


def rec(x):
    with torch.profiler.record_function("a"), torch.autograd.profiler.record_function("b"):
        return x + 1


def prof(x):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]):
        y = x * 2
    return y + 1


def modes(x):
    with torch.device("cpu"):
        return torch.func.vmap(lambda t: t * 2 + torch.ones(()))(x), torch.zeros(2)


def gradmode(x):
    with torch.device("cpu"):
        return torch.func.grad(lambda t: (t * t).sum())(x)


ML1, ML2 = nn.Linear(4, 4), nn.Linear(4, 4)


def stack(x):
    p, b = torch.func.stack_module_state([ML1, ML2])
    return torch.func.vmap(lambda p, b, v: torch.func.functional_call(ML1, (p, b), (v,)), in_dims=(0, 0, None))(p, b, x)


LAZY = nn.LazyLinear(3)


class TF:
    def __init__(s, t):
        s.t = t

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        def un(a):
            return a.t if isinstance(a, TF) else a

        return TF(func(*map(un, args), **(kwargs or {})))


def tf(x):
    return torch.add(TF(x), 1).t, torch.sin(TF(x)).t * 2


def arg():
    return torch.tensor([0.5, -1.0, 2.0, 3.0])


ARGUMENTS = {}
CASES = [
    *(
        (fn, 1, 0)
        for fn in (
            ctx,
            ctxset,
            ctxerr,
            loc,
            locset,
            enums,
            dcs,
            frozen,
            cp,
            cp2,
            cpt,
            cpmemo,
            weak,
            weakmade,
            proxyset,
            heaps,
            cm,
            jit,
            sit_,
            preds,
            rec,
            modes,
            gradmode,
            tf,
        )
    ),
    (weakgone, 0, 0),
    (typ, 1, 1),
    (prof, 2, 2),
    (stack, 1, 1),
]  # graphs, breaks


@pytest.mark.parametrize("fn,graphs,breaks", CASES, ids=[case[0].__name__ for case in CASES])
def test_as_in_eager(fn, graphs, breaks):
    check(fn, *ARGUMENTS.get(fn, (arg(),)), graphs=graphs, breaks=breaks, options=EAGER)
