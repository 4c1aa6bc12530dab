"""python -m tests.fuzz.flexible_calls FIRST LAST: layers that call flex_attention, whose functions read what changes between calls, against eager.

A program is its seed: some layers in a row, a function of scores made of a few lines, a mask made of a few, each of which reads parameters, buffers, tensors
that the frame computes, numbers and flags of the layer, sizes, modules, or other functions, by a closure, an attribute, a default, a partial or a callable
object; a mask of blocks that the frame makes or that lies on the layer; what the frame writes between mask and attention; what is returned; a story of calls
between which one thing changes: a number, a tensor (in place or another one), a function, sizes, what has gradients, the mode of gradients, autocast, a layout.
Each call's results and gradients are eager's, and so is what it leaves of the layers; where eager raises, so does the compiled layer.
"""

from __future__ import annotations

import argparse
import logging
import math
import random
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._dynamo import _trace_wrapped_higher_order_op
from torch._higher_order_ops.flex_attention import _math_attention_inner, _permute_strides, math_attention
from torch.nn.attention import flex_attention as flex

import dynacompile
from dynacompile.events import AttentionFound, FrameSkipped, GraphBroke
from tests.attention_kernels import on_cpu
from tests.scenarios import strides

MOST = 24
"""The longest sequence."""
SCORES = (
    "score + {slopes}[h] * (k - q)", "score + {table}[h, q - k + MOST]", "score + {bias}[h, q, k]", "score + {bias}[h][q][k]", "score + {bias}[h][q, k]",
    "score + {bias}[0, q, k] * 0.5", "score + {bias}[-1][k, q]", "torch.where(q >= k, score, -math.inf)", "score.masked_fill(q < k, -math.inf)",
    "torch.where({documents}[b, q] == {documents}[b, k], score, float('-inf'))", "{cap} * torch.tanh(score / {cap})", "score * {factor}",
    "score + {factor} if {flag} else score - {factor}", "score + ({rows}[q] * {columns}[k]).sum()", "score + torch.dot({rows}[q], {columns}[k])",
    "score + {rows}[q, {window}] - {columns}[k, {window} - 1]", "score + {net}(score.reshape(1)).reshape(())",
    "score - {slopes}[h] * (q + {offset} - k).abs()", "score + {table}[h, (q - k).clamp(-{window}, {window}) + {window}]",
    "score + {table}[h, ((q - k).abs().float() + 1).log2().long()]", "score.double()", "score.to(torch.bfloat16)", "score.half() * 0.5", "score * 0",
    "torch.zeros_like(score)", "score", "score + ({lengths}[b] - q) * 0.01", "score.detach() + score * 0.1", "score + {bias}[h, q, :].mean()",
    "score + {bias}[h, :, k].sum() * 0.1", "score + {bias}[:, q, k].sum()", "score + {bias}[h, q].cumsum(0)[k]", "score + {scalar}",
    "score * {scalar}.exp()", "score + math.log({window} + 1)", "score + (q % ({window} + 1) == k % 2) * 0.5", "q - k", "q >= k",
    "score if {window} > 2 else -score", "torch.where({see}(b, h, q, k), score, -math.inf)", "score + {parameters}['one'][h]",
    "score + {listed}[1][h] * {listed}[0]", "score + {bias}[h, q, k] ** 2", "score + {bias}[h, q, k].sigmoid() * {slopes}[h]", "score + {wide}[h, q, k]",
    "score + {small}[h, q, k]", "score.add(1.0)", "score.mul_(2.0)", "score + {bias}[h, k - q, k]", "score + {bias}.index_select(0, h.reshape(1))[0][q][k]",
    "score + {bias}.sum() * 0.01", "score + torch.tensor(0.5)", "score + torch.arange(4.0)[h % 4]", "score + torch.stack([q, k]).max() * 0.1",
    "score * (1.0 if q.dim() == 0 else 2.0)", "score + queries * 0.01 + keys * 0.01", "score + (keys - queries + q - k) * 0.1",
    "score + {bias}[h, q + keys - queries, k].nan_to_num()", "score + batch * 0.1", "score + (q.float() / queries - k.float() / keys)",
    "score + {take}({bias}, h, q, k)", "score + {table}[h][q + k]", "score + ({bias} * 2)[h, q, k]", "score + {bias}.mT[h, k, q]",
)  # fmt: skip
MASKS = (
    "q >= k", "q > k", "(q - k).abs() <= {window}", "q + {offset} >= k", "{documents}[b, q] == {documents}[b, k]", "k < {lengths}[b]",
    "(q >= k) & (k < {lengths}[b])", "(q >= k) | (k < {window})", "q < 0", "q >= 0", "{dense}[b, h, q, k]", "torch.where(h % 2 == 0, q >= k, q <= k)",
    "q + (keys - queries) >= k", "k < keys - 1", "{see}(b, h, q, k)", "{flagged}", "(q // {window}) == (k // {window})", "~(q == k)", "{dense}[0, h][q, k]",
    "{documents}[b][q] > 0", "q >= k if {flag} else q <= k", "{dense}[b, h, q, k] & (q >= k)", "{dense}[b].any(0)[q, k]", "{lengths}[b] > q",
    "(h == {window}) | (q >= k)", "b >= 0", "torch.ones((), dtype=torch.bool)",
)  # fmt: skip
JOINS = ("one", "one", "one", "and_masks", "or_masks", "and of lambdas", "object", "partial")
WAYS = ("attribute", "attribute", "closure", "computed", "default", "global")
"""How a function comes by what it reads; `computed`: the frame makes it of what the layer has."""
CHANGES = (
    "nothing", "window", "factor", "cap", "flag", "offset", "offset in place", "documents", "documents in place", "lengths", "slopes in place", "table",
    "bias in place", "bias", "lengths of queries", "lengths of keys", "both lengths", "both lengths", "batch", "grad", "no_grad", "inference", "autocast",
    "layout", "dense", "scalar", "net", "frozen", "functions", "scale", "see", "rebuild", "heads", "listed",
)  # fmt: skip
WRITES = (
    "state.documents[:, ::3] = 2", "state.offset += 1", "state.lengths.clamp_(max=4)", "state.window += 1", "state.dense.logical_not_()",
    "state.wide.mul_(0.5)", "state.small[0] = 1.0", "state.listed[1].mul_(2.0)", "state.factor = state.factor * 1.5",
)  # fmt: skip
"""Between the mask's making and the attention."""
RETURNS = ("result", "result", "result", "lse", "aux", "aux without lse", "lse alone", "twice")
LAYOUTS = ("plain", "plain", "rows", "one tensor", "expanded", "turned")
BLOCKS = (1, 4, 8, 16, (8, 4), 128)
NAMES = (
    "slopes", "table", "bias", "documents", "cap", "factor", "flag", "rows", "columns", "window", "net", "offset", "lengths", "scalar", "see", "parameters",
    "listed", "wide", "small", "take", "dense", "flagged",
)  # fmt: skip
COMPUTABLE = {
    "slopes": ".exp()", "bias": " * 0.5", "table": ".tanh()", "rows": ".sin()", "offset": " + 1", "window": " + 1", "factor": " * 2", "lengths": " - 1",
    "scalar": " * 2",
}  # fmt: skip
GLOBALS: dict[str, Any] = {}


def at_least(bound: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
    return q - k >= -bound


def taken(t: torch.Tensor, h: Any, q: Any, k: Any) -> Any:
    return t[h, q, k]


class Sees:
    """A mask that is a callable object."""

    def __init__(self, function: Callable):
        self.function = function

    def __call__(self, b: Any, h: Any, q: Any, k: Any) -> Any:
        return self.function(b, h, q, k)


class State(nn.Module):
    """What functions read."""

    def __init__(self, seed: int, heads: int, dtype: torch.dtype):
        super().__init__()
        torch.manual_seed(seed)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        self.slopes = nn.Parameter(torch.rand(heads, dtype=wide))
        self.table = nn.Parameter(torch.randn(heads, 2 * MOST + 2, dtype=wide))
        self.bias = nn.Parameter(torch.randn(heads, MOST, MOST, dtype=wide))
        self.rows, self.columns = nn.Parameter(torch.randn(MOST, 6, dtype=wide)), nn.Parameter(torch.randn(MOST, 6, dtype=wide))
        self.scalar = nn.Parameter(torch.tensor(0.3, dtype=wide))
        self.parameters_ = nn.ParameterDict({"one": torch.rand(heads, dtype=wide)})
        self.listed = [0.5, torch.rand(heads, dtype=wide)]
        self.net = nn.Linear(1, 1, dtype=wide)
        self.register_buffer("wide", torch.randn(heads, MOST, MOST, dtype=torch.float64))
        self.register_buffer("small", torch.randn(heads, MOST, MOST, dtype=torch.bfloat16))
        self.register_buffer("documents", torch.randint(0, 3, (4, MOST)))
        self.register_buffer("lengths", torch.randint(1, MOST, (4,)))
        self.register_buffer("dense", torch.rand(4, heads, MOST, MOST) < 0.5)
        self.register_buffer("offset", torch.tensor(0))
        self.window, self.cap, self.factor, self.flag = 3, 2.0, 0.7, True
        self.see, self.take = (lambda b, h, q, k: q >= k), taken
        self.made: Any = None
        self.scale: float | None = None


@dataclass(frozen=True)
class Program:
    seed: int
    layers: int
    scores: tuple[str, ...]
    masks: tuple[str, ...]
    join: str
    way: str
    inside: bool
    broad: bool
    blocks: Any
    groups: int
    heads: int
    returns: str
    dtype: torch.dtype
    dynamic: bool | None
    layout: str
    changes: tuple[str, ...]
    grad: bool
    write: str

    def lines(self) -> list[str]:
        """The source of a layer's forward."""
        used = {name for text in (*self.scores, *self.masks) for name in NAMES if "{" + name + "}" in text}
        names = {}
        before, defaults = [], ""
        for name in NAMES:
            own = "state." + ("parameters_" if name == "parameters" else name)
            names[name] = own
            if name not in used or name == "flagged":
                continue
            match self.way:
                case "closure" | "computed":
                    more = COMPUTABLE.get(name, "") if self.way == "computed" else ""
                    before.append(f"{name} = {own}{more}")
                    names[name] = name
                case "default":
                    defaults += f", {name}={own}"
                    names[name] = name
                case "global":
                    names[name] = f"GLOBALS['state'].{own[6:]}"
        names["flagged"] = "True if False else (q >= k)"
        body = [*before, "batch, queries, keys = query.shape[0], query.shape[2], key.shape[2]"]
        if self.scores:
            body += [f"def score_mod(score, b, h, q, k{defaults}):", *(f"    score = {text.format_map(names)}" for text in self.scores), "    return score"]
        else:
            body.append("score_mod = None")
        for i, text in enumerate(self.masks):
            body += [f"def mask{i}(b, h, q, k{defaults}):", f"    return {text.format_map(names)}"]
        if self.masks:
            body += self.joined()
            sizes = "None, None" if self.broad else "batch, query.shape[1]"
            make = f"create_block_mask(mask, {sizes}, queries, keys, device='cpu', BLOCK_SIZE={self.blocks})"
            if self.inside:
                body.append(f"block = {make}")
            else:
                body += ["block = state.made", "if block is None or make_only:", f"    block = state.made = {make}", "if make_only:", "    return None"]
        else:
            body.append("block = None")
        body += [self.write] if self.write else []
        call = f"flex_attention(query, key, value, score_mod, block, scale=state.scale, enable_gqa={self.groups != self.heads}"
        match self.returns:
            case "result":
                body.append(f"return {call})")
            case "lse":
                body.append(f"return {call}, return_lse=True)")
            case "lse alone":
                body.append(f"return {call}, return_lse=True)[1]")
            case "aux":
                body += [f"out, aux = {call}, return_aux=AuxRequest(lse=True))", "return out * 2, aux.lse + 1"]
            case "aux without lse":
                body += [f"out, aux = {call}, return_aux=AuxRequest())", "return out, aux.lse is None"]
            case "twice":
                body += [f"out = {call})", f"return out + {call.replace('(query', '(query * 2', 1)})"]
        return ["def forward(state, query, key, value, make_only=False):", *("    " + line for line in body)]

    def joined(self) -> list[str]:
        listed = ", ".join(f"mask{i}" for i in range(len(self.masks)))
        match self.join:
            case "and_masks" | "or_masks":
                return [f"mask = {self.join}({listed})"]
            case "and of lambdas":
                return ["mask = lambda b, h, q, k: " + " & ".join(f"mask{i}(b, h, q, k)" for i in range(len(self.masks)))]
            case "object":
                return ["mask = Sees(mask0)"]
            case "partial":
                return ["mask = and_masks(mask0, functools.partial(at_least, state.window))"]
        return ["mask = mask0"]

    def text(self) -> str:
        rest = {k: v for k, v in vars(self).items() if k not in ("scores", "masks")}
        return "\n".join([*self.lines(), f"  {rest}"])

    def forward(self) -> Callable:
        scope: dict[str, Any] = {
            "torch": torch, "math": math, "MOST": MOST, "GLOBALS": GLOBALS, "Sees": Sees, "at_least": at_least, "functools": __import__("functools"),
            **{name: getattr(flex, name) for name in ("flex_attention", "create_block_mask", "and_masks", "or_masks", "AuxRequest")},
        }  # fmt: skip
        exec("\n".join(self.lines()), scope)
        return scope["forward"]


def generate(seed: int) -> Program:
    draw = random.Random(seed)
    groups = draw.choice((1, 2))
    scores = tuple(draw.choice(SCORES) for _ in range(draw.choice((0, 1, 1, 1, 2, 3))))
    masks = tuple(draw.choice(MASKS) for _ in range(draw.choice((0, 1, 1, 2))))
    return Program(
        seed,
        draw.choice((1, 1, 2, 3)),
        scores,
        masks,
        draw.choice(JOINS),
        draw.choice(WAYS),
        draw.random() < 0.6,
        draw.random() < 0.3,
        draw.choice(BLOCKS),
        groups,
        groups * draw.choice((1, 1, 2)),
        draw.choice(RETURNS),
        draw.choice((torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)),
        draw.choice((None, None, None, True, False)),
        draw.choice(LAYOUTS),
        tuple(draw.choice(CHANGES) for _ in range(draw.choice((2, 3, 4)))),
        draw.random() < 0.7,
        draw.choice(WRITES) if draw.random() < 0.2 else "",
    )


@dataclass
class Story:
    """What calls are made with; changes between them."""

    program: Program
    draw: random.Random
    batch: int = 2
    queries: int = 7
    keys: int = 7
    layout: str = "plain"
    grad: bool = True
    mode: str = ""
    frozen: bool = False

    def change_states(self, what: str, states: Sequence[State]) -> None:
        draw = random.Random(self.draw.getstate()[1][0])
        for state in states:
            with torch.no_grad():
                match what:
                    case "window":
                        state.window = draw.choice((1, 2, 4, 5))
                    case "factor":
                        state.factor = draw.choice((0.1, 0.9, -1.0, 2))
                    case "cap":
                        state.cap = draw.choice((1.5, 3.0, 5))
                    case "flag":
                        state.flag = not state.flag
                    case "offset":
                        state.offset = torch.tensor(draw.choice((1, 2, -3)))
                    case "offset in place":
                        state.offset += 2
                    case "documents":
                        state.documents = torch.flip(state.documents, (0, 1))
                    case "documents in place":
                        state.documents[:, ::2] = 1
                    case "lengths":
                        state.lengths = state.lengths.clamp(max=draw.choice((1, 3, 5)))
                    case "slopes in place":
                        state.slopes.mul_(-2)
                    case "table":
                        state.table = nn.Parameter(state.table.detach() * 2)
                    case "bias in place":
                        state.bias.data[..., ::2] -= 1.0
                    case "bias":
                        state.bias = nn.Parameter(state.bias.detach().transpose(1, 2))
                    case "dense":
                        state.dense = ~state.dense
                    case "scalar":
                        state.scalar.fill_(-0.4)
                    case "net":
                        state.net.weight.mul_(-1.5)
                    case "see":
                        state.see = draw.choice((lambda b, h, q, k: q > k + 1, lambda b, h, q, k: q * 0 <= k, lambda b, h, q, k, state=state: k < state.window))
                    case "functions":
                        state.take = draw.choice((lambda t, h, q, k: t[h, k, q], lambda t, h, q, k: t[h, q, k] * 2, taken))
                    case "scale":
                        state.scale = draw.choice((0.5, 1, -0.3, None))
                    case "listed":
                        state.listed = [draw.choice((1.5, 2)), state.listed[1] + 1]
                    case "frozen":
                        state.requires_grad_(not self.frozen)
            state.made = None if what in ("window", "rebuild", "see") else state.made

    def change(self, what: str) -> None:
        draw = self.draw
        match what:
            case "lengths of queries":
                self.queries = draw.choice((1, 2, 9, 16, MOST))
            case "lengths of keys":
                self.keys = draw.choice((1, 3, 9, 17, MOST))
            case "both lengths":
                self.queries = self.keys = draw.choice((1, 5, 8, 16, 23))
            case "batch":
                self.batch = draw.choice((1, 3, 4))
            case "grad":
                self.grad = not self.grad
            case "no_grad" | "inference" | "autocast":
                self.mode = "" if self.mode == what else what
            case "layout":
                self.layout = draw.choice(LAYOUTS)
            case "frozen":
                self.frozen = not self.frozen

    def operands(self, at: int) -> list[torch.Tensor]:
        program = self.program
        generator = torch.Generator().manual_seed(program.seed * 100 + at)
        sizes = [(self.batch, h, n, 8) for h, n in ((program.heads, self.queries), (program.groups, self.keys), (program.groups, self.keys))]
        made = [torch.randn(s, generator=generator).to(program.dtype) for s in sizes]
        return [self.laid(t).requires_grad_(self.grad and program.grad) for t in made]

    def laid(self, tensor: torch.Tensor) -> torch.Tensor:
        match self.layout:
            case "rows":
                return tensor.transpose(1, 2).contiguous().transpose(1, 2)
            case "one tensor":
                return torch.cat([tensor, tensor], -1).narrow(-1, 3, tensor.shape[-1])
            case "expanded":
                return tensor[:, :1].expand(tensor.shape)
            case "turned":
                return tensor.mT.contiguous().mT
        return tensor

    @contextmanager
    def modes(self) -> Iterator[None]:
        with ExitStack() as stack:
            match self.mode:
                case "no_grad":
                    stack.enter_context(torch.no_grad())
                case "inference":
                    stack.enter_context(torch.inference_mode())
                case "autocast":
                    stack.enter_context(torch.autocast("cpu", torch.bfloat16))
            yield


def by_definition(query: Any, key: Any, value: Any, score_mod: Any, block_mask: Any, scale: Any, kernel_options: Any) -> Any:
    """torch's operator on a CPU, with gradients."""
    with torch.autocast("cpu", enabled=False), patch.dict(math_attention.__globals__, _math_attention_inner=scores_of):
        out, sums, largest = math_attention(query, key, value, score_mod, block_mask, scale, kernel_options)
    return _permute_strides(out, query.stride()), sums, largest.detach()


def scores_of(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """The scores of a definition, of which those of queries that see no key have no gradient: so torch's operator has it, and the definition NaN."""
    scores, changed = _math_attention_inner(*args)
    return scores, torch.where((changed == -math.inf).all(-1, keepdim=True), changed.detach(), changed)


def by_places(tensor: torch.Tensor, indices: list[torch.Tensor]) -> torch.Tensor:
    """torch's own has no gradient of a tensor of which indices leave dimensions."""
    return torch.ops.aten.index.Tensor(tensor, list(indices))


def eager_hop(query: Any, key: Any, value: Any, *rest: Any) -> Any:
    if torch.is_autocast_enabled("cpu"):
        query, key, value = (t if t.dtype == torch.float64 else t.to(torch.get_autocast_dtype("cpu")) for t in (query, key, value))
    return by_definition(query, key, value, *rest)


@contextmanager
def eager() -> Iterator[None]:
    with (
        patch.object(flex, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True),
        patch.object(flex, "flex_attention_hop", eager_hop),
        patch.object(_trace_wrapped_higher_order_op, "mod_index", by_places),
    ):
        yield


def run(call: Callable, story: Story, states: Sequence[State], at: int) -> list[Any]:
    operands = story.operands(at)
    with story.modes():
        found = call(states, *operands)
    leaves = [t for t in (*operands, *(p for s in states for p in s.parameters())) if t.requires_grad]
    results = list(found) if isinstance(found, tuple) else [found]
    used = [t for t in results if isinstance(t, torch.Tensor) and t.requires_grad]
    if not used or not leaves:
        return results
    tangents = [t.detach().clamp(-3, 3).cos() for t in used]
    return [*results, *torch.autograd.grad(used, leaves, tangents, allow_unused=True)]


def stacked(states: Sequence[State], query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
    found = None
    for state in states:
        made = state(query if found is None else query + 0.1 * found, key, value)
        first = made[0] if isinstance(made, tuple) else made
        found = first if first.dim() == 4 else first[..., None]
    return made


def outcome(call: Callable, *args: Any) -> Any:
    try:
        return call(*args)
    except Exception as error:  # noqa: BLE001 - compared
        return error


def check(program: Program, kernels: bool = False, backend: str = "aot_eager") -> Counter:
    """Raises AssertionError where a call differs."""
    counts: Counter = Counter()
    cls = type("Layer", (State,), {"forward": program.forward()})
    both = [[cls(program.seed + i, program.heads, program.dtype) for i in range(program.layers)] for _ in range(2)]
    if program.layers > 1 and program.seed % 2:
        for states in both:
            states[-1].window, states[-1].factor = 2, 0.2
    story = Story(program, random.Random(program.seed), layout=program.layout)
    events: list[Any] = []
    options: dict[str, Any] = {"fallback": "none", "attention_scores": (0, 1)[program.seed % 2]} | ({"reference": True} if backend == "reference" else {})
    chosen = "default" if backend == "reference" else backend
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        if kernels:
            stack.enter_context(on_cpu())
        stack.enter_context(patch.object(flex, "_validate_device", lambda *operands: None))
        stack.enter_context(eager())
        dynacompile.reset()
        compiled = dynacompile.compile(stacked, backend=chosen, isolate_recompiles=True, dynamic=program.dynamic, options=options)
        stack.callback(dynacompile.subscribe(events.append))
        for at, what in enumerate(("nothing", *program.changes)):
            story.change(what)
            found = [outcome(tell, call, story, states, at, what) for call, states in zip((stacked, compiled), both, strict=True)]
            compare(f"call {at} after {what}", found[1], found[0], program, kernels)
            counts["raised" if isinstance(found[0], Exception) else "compared"] += 1
    for e in events:
        if isinstance(e, (GraphBroke, FrameSkipped)):
            counts[f"{type(e).__name__}: {getattr(e, 'reason', '')[:160]}"] += 1
        if isinstance(e, AttentionFound):
            counts["ours" if e.ours else "operator" if e.kernel else f"kept: {e.reason}"] += 1
    return counts


def tell(call: Callable, story: Story, states: Sequence[State], at: int, what: str) -> list[Any]:
    """The results of the next call, after the layers have changed, and what it leaves of them."""
    program = story.program
    story.change_states(what, states)
    GLOBALS["state"] = states[0]
    if program.masks and not program.inside:
        for state in states:
            if what in ("lengths of queries", "lengths of keys", "both lengths", "batch", "rebuild"):
                state.made = None
            if state.made is None:
                outcome(state, *story.operands(at), True)
    found = run(call, story, states, at)
    return [*found, *(t.detach().clone() for s in states for t in (*s.parameters(), *s.buffers()))]


def compare(where: str, have: Any, want: Any, program: Program, kernels: bool) -> None:
    if isinstance(want, Exception) or isinstance(have, Exception):
        if isinstance(have, Exception) and not isinstance(want, Exception):
            raise have
        assert type(have) is type(want), f"{where}: eager raises {type(want).__name__}: {str(want)[:300]}, not {type(have).__name__}"
        return
    assert len(have) == len(want), f"{where}: {len(have)} results, eager has {len(want)}"
    for i, (one, other) in enumerate(zip(have, want, strict=True)):
        if not isinstance(other, torch.Tensor):
            if other is None and isinstance(one, torch.Tensor):
                assert not one.any(), f"{where}: result {i} is not zero"
                continue
            assert one == other, f"{where}: result {i} is {one}, not {other}"
            continue
        assert isinstance(one, torch.Tensor), f"{where}: result {i} is {one}"
        assert (one.dtype, one.shape) == (other.dtype, other.shape), f"{where}: result {i} has {one.dtype} {one.shape}, eager's {other.dtype} {other.shape}"
        assert kernels or one.requires_grad == other.requires_grad, f"{where}: result {i} requires_grad"
        assert i or program.layers > 1 or strides(one) == strides(other), f"{where}: result {i} has strides {one.stride()}, eager's {other.stride()}"
        assert one.is_inference() == other.is_inference(), f"{where}: result {i} inference"
        size = other.detach().double().nan_to_num(0, 0, 0).abs().max().item() if other.numel() else 0.0
        near = tolerance(program, other.dtype)
        close = torch.allclose(one.double(), other.double(), rtol=near, atol=near * max(1.0, size), equal_nan=True)
        assert close, f"{where}: result {i} differs by {(one.double() - other.double()).abs().nan_to_num().max().item():g} of {size:g}"


def tolerance(program: Program, dtype: torch.dtype) -> float:
    halves = torch.bfloat16, torch.float16
    rounds = any(word in text for text in program.scores for word in ("16", "half", "small"))
    return 3e-2 if rounds or dtype in halves or program.dtype in halves or "autocast" in program.changes else 2e-5


def main() -> int:
    about = "Compare layers with flex_attention with eager, over several calls."
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.flexible_calls", description=about)
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--backend", default="aot_eager", choices=("aot_eager", "reference", "default"))
    parser.add_argument("--kernels", action="store_true", help="operators of kernels, as they are defined")
    given = parser.parse_args()
    logging.disable(logging.ERROR)
    failed, counts = 0, Counter()
    for seed in range(given.first, given.last):
        program = generate(seed)
        try:
            counts.update(check(program, given.kernels, given.backend))
        except Exception as error:  # noqa: BLE001 - told, with its program
            failed += 1
            print(f"seed {seed}: {type(error).__name__}: {str(error)[:700]}\n{program.text()}\n", flush=True)
    print(f"{given.last - given.first} programs, {failed} differ; {dict(counts)}")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
