"""What the modules of crossings.py are made of, each a feature of PyTorch: what a program has before its module, and the module's layers.

A layer takes `h` of (rows, 4) and gives it again; `N` is its number in the module.
"""

from __future__ import annotations

PREAMBLE = """
import copy, collections, contextlib, dataclasses, io, math, pickle, random, typing
import torch, torch.nn as nn, torch.nn.functional as F
import torch.nn.utils.prune, torch.func, torch.autograd.forward_ad
from torch.nn.utils import parametrizations, parametrize
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

class Symmetric(nn.Module):
    def forward(self, w):
        return w.triu() + w.triu(1).mT
    def right_inverse(self, w):
        return w.triu()

class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        ctx.k = k
        return x * k, k + 1, x.sin()
    @staticmethod
    def backward(ctx, g, _, h):
        x, = ctx.saved_tensors
        total = None
        if g is not None:
            total = g * ctx.k
        if h is not None:
            total = h * x.cos() if total is None else total + h * x.cos()
        return total, None

class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)
    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 2

class Straight(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return x.round(), x > 0
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
    @staticmethod
    def backward(ctx, g, _):
        return g
    @staticmethod
    def jvp(ctx, t):
        return t, None

class Plain(torch.Tensor):
    pass

class Seen(torch.Tensor):
    calls = 0
    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        Seen.calls += 1
        return super().__torch_function__(function, types, args, kwargs or {})

@dataclasses.dataclass
class Undo:
    owner: typing.Any
    name: str
    value: typing.Any
    def remove(self):
        setattr(self.owner, self.name, self.value)

class Pair(typing.NamedTuple):
    first: torch.Tensor
    second: typing.Any

@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 1.0
    seen: list = dataclasses.field(default_factory=list)

class Recursive(nn.Module):
    def __init__(self, depth):
        super().__init__()
        self.own, self.inner, self.calls = nn.Linear(4, 4), Recursive(depth - 1) if depth else None, 0
    def forward(self, x, depth=0):
        self.calls += 1
        y = self.own(x)
        return y if self.inner is None else self.inner(y.relu(), depth + 1) + x * depth

class Queue(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.zeros(3, 4))
        self.register_buffer("count", torch.zeros((), dtype=torch.long), persistent=False)
        self.at = 0
    def forward(self, x):
        if self.training and len(x):
            self.kept[self.at] = x.detach().mean(0)
            self.count += 1
            self.at = (self.at + 1) % 3
        return x + self.kept.sum(0) / self.count.clamp(min=1)

class Stateful(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell, self.state, self.history = nn.GRUCell(4, 4), None, []
    def forward(self, x):
        if self.state is not None and self.state.shape == x.shape and self.state.dtype == x.dtype:
            self.state = self.cell(x, self.state.detach())
        else:
            self.state = self.cell(x)
        self.history.append(tuple(x.shape))
        return self.state

def disabled(x):
    return x * 1.5

disabled = torch.compiler.disable(disabled)

def checkpointed(module, *args):
    with torch.utils.checkpoint.set_checkpoint_early_stop(False):  # which ends the function amid a graph, before what Python does
        return checkpoint(module, *args, use_reentrant=False)

shared_log = []
"""

# feature: (what __init__ has, what forward has)
LAYERS: dict[str, tuple[str, str]] = {
    "linear": ("self.pN = nn.Linear(4, 4)", "h = self.pN(h)"),
    "weight_norm": ("self.pN = parametrizations.weight_norm(nn.Linear(4, 4))", "h = self.pN(h)"),
    "spectral_norm": ("self.pN = parametrizations.spectral_norm(nn.Linear(4, 4))", "h = self.pN(h)"),
    "orthogonal": ("self.pN = parametrizations.orthogonal(nn.Linear(4, 4))", "h = self.pN(h)"),
    "old_weight_norm": ("self.pN = nn.utils.weight_norm(nn.Linear(4, 4))", "h = self.pN(h)"),
    "symmetric": ("self.pN = nn.Linear(4, 4)\nparametrize.register_parametrization(self.pN, 'weight', Symmetric())", "h = self.pN(h)"),
    "cached_parametrization": ("self.pN = parametrizations.weight_norm(nn.Linear(4, 4))", "with parametrize.cached():\n    h = self.pN(self.pN(h).tanh())"),
    "tied": ("self.pN, self.qN = nn.Linear(4, 4), nn.Linear(4, 4)\nself.qN.weight = self.pN.weight", "h = self.qN(self.pN(h).tanh())"),
    "tied_transposed": ("self.pN = nn.Linear(4, 4)", "h = F.linear(self.pN(h).tanh(), self.pN.weight.t())"),
    "batch_norm": ("self.pN = nn.BatchNorm1d(4)", "h = self.pN(h)"),
    "batch_norm_cumulative": ("self.pN = nn.BatchNorm1d(4, momentum=None)", "h = self.pN(h)"),
    "layer_norm": ("self.pN = nn.LayerNorm(4)", "h = self.pN(h)"),
    "dropout": ("self.pN = nn.Dropout(0.4)", "h = self.pN(h)"),
    "alpha_dropout": ("self.pN = nn.AlphaDropout(0.3)", "h = self.pN(h)"),
    "rrelu": ("self.pN = nn.RReLU(inplace=True)", "h = self.pN(h * 1)"),
    "inplace_activation": ("self.pN, self.qN = nn.Linear(4, 4), nn.LeakyReLU(0.2, inplace=True)", "h = self.qN(self.pN(h))"),
    "sparse_embedding": ("self.pN = nn.Embedding(4, 4, sparse=True, padding_idx=0)", "h = h + self.pN(h.argmax(-1))"),
    "embedding": ("self.pN = nn.Embedding(4, 4, max_norm=1.0, scale_grad_by_freq=True)", "h = h + self.pN(h.argmax(-1)) * 2"),
    "embedding_bag": ("self.pN = nn.EmbeddingBag(4, 4, mode='mean')", "h = h + self.pN(h.argsort(-1)[:, :2])"),
    "lstm": ("self.pN = nn.LSTM(4, 2, bidirectional=True, batch_first=True)", "h = h + self.pN(h[:, None].expand(-1, 2, -1))[0].mean(1)"),
    "gru_state": ("self.pN = Stateful()", "h = self.pN(h)"),
    "packed": (
        "self.pN = nn.GRU(4, 4)",
        "if len(h) > 1:\n    packed = nn.utils.rnn.pack_sequence([h, h[:1]])\n    h = h + nn.utils.rnn.pad_packed_sequence(self.pN(packed)[0])[0].mean(1)",
    ),
    "attention": (
        "self.pN = nn.MultiheadAttention(4, 2, dropout=0.1, batch_first=True)",
        "attended, weights = self.pN(h[None], h[None], h[None], need_weights=self.training)\nh = h + attended[0]",
    ),
    "transformer": ("self.pN = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.1, batch_first=True)", "h = self.pN(h[None])[0]"),
    "convolution": ("self.pN = nn.Conv2d(1, 2, 3, padding=1)", "h = self.pN(h.view(-1, 1, 2, 2)).mean(1).flatten(1) + h"),
    "complex": (
        "self.pN = nn.Parameter(torch.randn(4, 4, dtype=torch.complex64))",
        "h = torch.view_as_real(h.to(self.pN.dtype) @ self.pN).sum(-1).to(h.dtype)",
    ),
    "lazy": ("self.pN = nn.LazyLinear(4)", "h = self.pN(h)"),
    "recursive": ("self.pN = Recursive(2)", "h = self.pN(h)"),
    "module_dict": (
        "self.pN = nn.ModuleDict({k: nn.Linear(4, 4) for k in 'ab'})\nself.normsN = {}",
        "for key, part in self.pN.items():\n    h = part(h).tanh()\n    self.normsN[key] = h.detach().norm()",
    ),
    "parameter_list": ("self.pN = nn.ParameterList(torch.full((4,), 0.5 + i) for i in range(3))", "for i, p in enumerate(self.pN):\n    h = h * p + i"),
    "queue": ("self.pN = Queue()", "h = self.pN(h)"),
    "buffer_assigned": ("self.register_buffer('pN', torch.zeros(4), persistent=False)", "self.pN = 0.9 * self.pN + 0.1 * h.detach().sum(0)\nh = h - self.pN"),
    "buffer_registered": (
        "self.madeN = False",
        "if not self.madeN:\n    self.register_buffer('lateN', h.detach().sum(0))\n    self.madeN = True\nh = h * 0.5 + self.lateN",
    ),
    "scaled_function": ("self.kN = 1", "a, self.kN, b = Scaled.apply(h, self.kN)\nh = a if self.kN % 3 else b"),
    "dirty_function": ("self.pN = nn.Linear(4, 4)", "h = Doubled.apply(self.pN(h))"),
    "straight_function": ("self.pN = nn.Linear(4, 4)", "rounded, above = Straight.apply(self.pN(h))\nh = rounded * above + h"),
    "checkpoint": ("self.pN = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3), nn.Tanh())", "h = checkpoint(self.pN, h, use_reentrant=False)"),
    "checkpoint_reentrant": ("self.pN = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.3))", "h = checkpoint(self.pN, h, use_reentrant=True)"),
    "checkpoint_nested": (
        "self.pN = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))",
        "h = checkpoint(lambda v: checkpoint(self.pN, v, use_reentrant=False) + v, h, use_reentrant=False)",
    ),
    "checkpoint_closure": (
        "self.pN, self.callsN = nn.Linear(4, 4), 0",
        "def partN(v, k):\n    return self.pN(v) * k, k + 1\nh, self.callsN = checkpoint(partN, h, self.callsN + 1, use_reentrant=False)",
    ),
    "autocast": ("self.pN = nn.Linear(4, 4)", "with torch.autocast('cpu', torch.bfloat16):\n    h = self.pN(h).to(h.dtype) + h"),
    "autocast_nested": (
        "self.pN, self.qN = nn.Linear(4, 4), nn.Linear(4, 4)",
        "with torch.autocast('cpu', torch.bfloat16):\n    low = self.pN(h)\n    with torch.autocast('cpu', enabled=False):\n"
        "        h = self.qN(low.to(h.dtype)) + h\n    kept = torch.is_autocast_enabled('cpu')\nh = h * (2 if kept else 3)",
    ),
    "view_writes": ("self.pN = nn.Linear(4, 4)", "h = self.pN(h)\nfirst = h[:, :2]\nfirst.mul_(2)\nh[:, 3] += first[:, 0]\nh.t()[1].add_(1)"),
    "masked_writes": ("self.pN = nn.Parameter(torch.ones(4))", "h = h * self.pN\nh[h > 1] = 1\nh.masked_fill_(h < -1, -1)"),
    "out_argument": (
        "self.pN = nn.Linear(4, 4)\nself.register_buffer('outN', torch.zeros(4))",
        "with torch.no_grad():\n    torch.sum(h.detach().float(), 0, out=self.outN)\nh = self.pN(h) + self.outN",
    ),
    "subclass_parameter": ("self.pN = nn.Parameter(torch.ones(4).as_subclass(Seen))", "h = (h * self.pN).as_subclass(torch.Tensor)"),
    "subclass_values": ("self.pN = nn.Linear(4, 4)", "h = (self.pN(h.as_subclass(Plain)) + 1).as_subclass(torch.Tensor)"),
    "functional_call": (
        "self.pN = nn.Linear(4, 4)",
        "h = torch.func.functional_call(self.pN, {k: v * 0.5 for k, v in self.pN.named_parameters()}, (h,)) + self.pN(h)",
    ),
    "vmap": ("self.pN = nn.Linear(4, 4)", "h = torch.func.vmap(lambda row: self.pN(row).tanh())(h)"),
    "vmap_dropout": ("self.pN = nn.Linear(4, 4)", "h = torch.func.vmap(lambda row: F.dropout(self.pN(row), 0.3, self.training), randomness='different')(h)"),
    "func_grad": ("self.pN = nn.Linear(4, 4)", "h = torch.func.grad(lambda v: self.pN(v).tanh().square().sum())(h)"),
    "jvp": ("self.pN = nn.Linear(4, 4)", "h = torch.func.jvp(lambda v: self.pN(v).sin(), (h,), (h.cos(),))[1]"),
    "jacrev": ("self.pN = nn.Linear(4, 4)", "h = h + torch.func.vmap(torch.func.jacrev(lambda row: self.pN(row).tanh()))(h).sum(-1)"),
    "forces": (
        "self.pN = nn.Linear(4, 4)",
        "with torch.enable_grad():\n    at = h if h.requires_grad else h.detach().requires_grad_()\n"
        "    h = h + torch.autograd.grad(self.pN(at).tanh().sum(), at, create_graph=self.training)[0]",
    ),
    "item_branch": ("self.takenN = [0, 0]", "if h.sum().item() > 0:\n    self.takenN[0] += 1\n    h = h * 0.5\nelse:\n    self.takenN[1] += 1\n    h = h + 1"),
    "counter": ("self.countN = 0", "self.countN += 1\nh = h * (1 + 0.1 * self.countN)"),
    "running_float": ("self.meanN = 0.0", "self.meanN = 0.9 * self.meanN + 0.1 * float(h.detach().float().sum())\nh = h + self.meanN"),
    "growing_list": ("self.logN = []", "self.logN.append(h.detach().sum())\nh = h + len(self.logN)"),
    "early_exit": ("self.exitN = 0", "if h.shape[0] == 2:\n    self.exitN += 1\n    return h"),
    "raises": ("self.seenN = 0", "self.seenN += 1\nif self.seenN % 3 == 2:\n    raise ValueError(f'call {self.seenN} of {tuple(h.shape)}')"),
    "raises_after_writes": (
        "self.seenN = 0\nself.register_buffer('pN', torch.zeros(4))",
        "self.seenN += 1\nself.pN += h.detach().sum(0)\nif self.seenN % 4 == 3:\n    raise KeyError(self.seenN)\nh = h + self.pN",
    ),
    "caught": (
        "self.pN, self.caughtN = nn.Linear(3, 4), 0",
        "try:\n    h = self.pN(h)\nexcept RuntimeError:\n    self.caughtN += 1\n    h = self.pN(h[:, :3])",
    ),
    "hook_in_forward": (
        "self.pN = nn.Linear(4, 4)",
        "handle = self.pN.register_forward_hook(lambda m, i, o: o * 2)\nh = self.pN(h)\nhandle.remove()\nh = self.pN(h)",
    ),
    "tensor_hook": ("self.pN = nn.Linear(4, 4)", "h = self.pN(h)\nif h.requires_grad:\n    h.register_hook(lambda g: g * 2)\nh = h.tanh()"),
    "saved_hooks": (
        "self.pN = nn.Linear(4, 4)",
        "with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 1, lambda t: t):\n    h = self.pN(h).sin()",
    ),
    "retained": ("self.pN, self.heldN = nn.Linear(4, 4), None", "h = self.pN(h)\nif h.requires_grad:\n    h.retain_grad()\nself.heldN = h\nh = h.sin()"),
    "stop_gradient": ("self.pN = nn.Linear(4, 4)", "h = self.pN(h) + (h - self.pN(h)).detach()"),
    "no_grad": (
        "self.pN = nn.Linear(4, 4)",
        ("with torch.no_grad():\n    target = self.pN(h)\n    self.pN.bias.add_(0.01)\nh = (self.pN(h) - target).square() + h"),
    ),
    "inference": ("self.pN = nn.Linear(4, 4)", "with torch.inference_mode():\n    target = self.pN(h)\nh = self.pN(h) + target.clone()"),
    "grad_by_training": ("self.pN = nn.Linear(4, 4)", "with torch.set_grad_enabled(self.training and torch.is_grad_enabled()):\n    h = self.pN(h)"),
    "graph_break": ("self.pN = nn.Linear(4, 4)", "h = self.pN(h)\ntorch.compiler.graph_break() if hasattr(torch.compiler, 'graph_break') else None\nh = h * 2"),
    "disabled": ("self.pN = nn.Linear(4, 4)", "h = disabled(self.pN(h))"),
    "generator": ("self.genN = torch.Generator().manual_seed(3)", "h = h + torch.randn(h.shape, generator=self.genN).to(h.dtype)"),
    "seeded": ("", "h = h + torch.rand(4).to(h.dtype)\nif self.training:\n    torch.manual_seed(len(h))\nh = h * torch.bernoulli(torch.full_like(h, 0.7))"),
    "python_random": ("", "h = h * random.random() + random.choice((1, 2))"),
    "default_dtype": (
        "",
        ("before = torch.get_default_dtype()\ntorch.set_default_dtype(torch.float64)\nh = h + torch.ones(4).to(h.dtype)\ntorch.set_default_dtype(before)"),
    ),
    "dataclass": ("", "batch = Batch(h, scale=0.5)\nbatch.seen.append(batch.x.detach())\nself.batchN = batch.seen\nh = batch.x * batch.scale"),
    "keyword_inputs": ("", "h = h + kwargs.get('shift', 0)\nfor extra in args:\n    h = h + extra.sum()"),
    "frozen_inside": (
        "self.pN = nn.Linear(4, 4)",
        "for p in self.pN.parameters():\n    p.requires_grad_(False)\nh = self.pN(h)\n"
        "for p in self.pN.parameters():\n    p.requires_grad_(True)\nh = self.pN(h)",
    ),
    "weight_replaced": (
        "self.pN = nn.Linear(4, 4)",
        ("h = self.pN(h)\nif self.training:\n    self.pN.bias = nn.Parameter(self.pN.bias.detach() * 0.5)\nh = self.pN(h)"),
    ),
    "data_written": ("self.pN = nn.Linear(4, 4)", "self.pN.bias.data.mul_(0.9)\nh = self.pN(h)"),
    "deepcopied": ("self.pN = nn.Linear(4, 4)", "h = copy.deepcopy(self.pN)(h) + self.pN(h)"),
    "forward_ad": (
        "self.pN = nn.Linear(4, 4)",
        "with torch.autograd.forward_ad.dual_level():\n    dual = self.pN(torch.autograd.forward_ad.make_dual(h, h.cos()))\n"
        "    h = h + torch.autograd.forward_ad.unpack_dual(dual).tangent",
    ),
    "views_of_outputs": ("self.pN = nn.Linear(4, 4)", "h = self.pN(h)\nself.viewN = h.detach()[0:1]\nh = h.unsqueeze(0).expand(2, -1, -1)[1]"),
    "scan": (
        "self.pN = nn.Linear(4, 4)",
        (
            "state = torch.zeros_like(h[:1])\nrows = []\nfor row in h.split(1):\n    state = self.pN(state + row).tanh()\n "
            "   rows.append(state)\nh = torch.cat(rows) if rows else h"
        ),
    ),
    "accumulated_loss": ("self.auxN = None", "self.auxN = (self.auxN.detach() if self.auxN is not None else 0) + h.square().mean()\nh = h + self.auxN"),
    "class_counter": ("", "shared_log.append(len(h))\nh = h + len(shared_log)"),
    "global_log": ("", "type(self).calls = getattr(type(self), 'calls', 0) + 1\nh = h / type(self).calls"),
    "quantized_straight": ("self.sN = nn.Parameter(torch.tensor(0.3))", "scaled = h / self.sN\nh = (scaled + (scaled.round() - scaled).detach()) * self.sN"),
    "mixture": (
        "self.pN = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))\nself.qN = nn.Linear(4, 2)",
        "chosen = self.qN(h).argmax(-1)\nmixed = torch.zeros_like(h)\nfor i, part in enumerate(self.pN):\n"
        "    at = chosen == i\n    mixed[at] = part(h[at])\nh = mixed + h",
    ),
}

# From crossings.WIDEST on, beside those above.
WIDEST_LAYERS: dict[str, tuple[str, str]] = {
    "checkpoint_counted": (
        "self.pN, self.callsN, self.afterN, self.logN = nn.Linear(4, 4), 0, 0, []",
        "def partN(v):\n    self.callsN += 1\n    v = self.pN(v).tanh()\n    self.logN.append(len(v))\n    self.afterN += 1\n    return v.sin()\n"
        "h = checkpoint(partN, h, use_reentrant=False)",
    ),
    "checkpoint_late_stop": (
        "self.pN, self.callsN = nn.Linear(4, 4), 0",
        "def partN(v):\n    self.callsN += 1\n    return self.pN(v).tanh() * 2\nh = checkpointed(partN, h)",
    ),
    "checkpoint_selective": (
        "self.pN = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4))",
        "keepN = lambda: torch.utils.checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.addmm.default])\n"
        "h = checkpoint(self.pN, h, use_reentrant=False, context_fn=keepN)",
    ),
    "checkpoint_sequential": (
        "self.pN = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Dropout(0.2))",
        "h = checkpoint_sequential(self.pN, 2, h, use_reentrant=False)",
    ),
    "alias_of_buffer": (
        "self.register_buffer('pN', torch.zeros(4))\nself.viewN = None",
        "self.viewN = self.pN[:2]\nself.pN.add_(h.detach().sum(0))\nh = h + self.pN",
    ),
    "buffer_of_parameter": ("self.pN = nn.Linear(4, 4)\nself.register_buffer('rowN', self.pN.weight.data[0], persistent=False)", "h = self.pN(h) + self.rowN"),
    "data_tied": (
        "self.pN, self.qN = nn.Linear(4, 4), nn.Linear(4, 4)\nself.qN.weight.data = self.pN.weight.data",
        "with torch.no_grad():\n    self.pN.weight.mul_(0.99)\nh = self.qN(h.tanh())",
    ),
    "views_of_each_other": (
        "self.pN = nn.Linear(4, 4)",
        "base = self.pN(h)\nfirst, rest = base[:, :2], base[:, 1:]\nfirst.add_(1)\nrest.mul_(2)\nh = base + first.sum()",
    ),
    "expanded": ("self.pN = nn.Parameter(torch.full((1, 4), 0.5))", "h = self.pN.expand(len(h), 4) * h + self.pN.as_strided((len(h), 4), (0, 1))"),
    "second_order": (
        "self.pN = nn.Linear(4, 4)",
        "with torch.enable_grad():\n    at = h if h.requires_grad else h.detach().requires_grad_()\n"
        "    slope = torch.autograd.grad(self.pN(at).tanh().sum(), at, create_graph=True)[0]\n"
        "    h = h + torch.autograd.grad(slope.square().sum(), at, create_graph=self.training)[0]",
    ),
    "save_on_cpu": ("self.pN = nn.Linear(4, 4)", "with torch.autograd.graph.save_on_cpu():\n    h = self.pN(h).sin()"),
    "func_vjp": ("self.pN = nn.Linear(4, 4)", "madeN, backN = torch.func.vjp(lambda v: self.pN(v).tanh(), h)\nh = backN(madeN)[0] + madeN"),
    "linearize": ("self.pN = nn.Linear(4, 4)", "madeN, alongN = torch.func.linearize(lambda v: self.pN(v).tanh(), h.detach())\nh = h + alongN(madeN)"),
    "hessian": ("self.pN = nn.Linear(4, 4)", "h = h + torch.func.hessian(lambda v: self.pN(v).tanh().sum())(h.mean(0)).sum(0)"),
    "grad_switched": (
        "self.pN = nn.Linear(4, 4)",
        "before = torch.is_grad_enabled()\ntorch.set_grad_enabled(False)\ntarget = self.pN(h)\ntorch.set_grad_enabled(before)\nh = self.pN(h) - target",
    ),
    "multi_grad_hook": (
        "self.pN, self.logN = nn.Linear(4, 4), []",
        "a, b = self.pN(h), h.sin()\nif a.requires_grad and b.requires_grad:\n"
        "    torch.autograd.graph.register_multi_grad_hook((a, b), lambda grads: self.logN.append(sum(g is not None for g in grads)))\nh = a * b",
    ),
    "parametrized_inside": (
        "self.pN = nn.Linear(4, 4)",
        "if not parametrize.is_parametrized(self.pN):\n    parametrize.register_parametrization(self.pN, 'weight', Symmetric())\nh = self.pN(h)",
    ),
    "forked_random": ("", "with torch.random.fork_rng():\n    h = h + torch.rand(4).to(h.dtype)\nh = F.dropout(h, 0.2, self.training)"),
    "nonlocal": (
        "self.pN = nn.Linear(4, 4)",
        "countN = 0\ndef addN(v):\n    nonlocal countN\n    countN += 1\n    return self.pN(v) * countN\nh = addN(addN(h).tanh())",
    ),
    "finally": ("self.pN, self.endsN = nn.Linear(4, 4), 0", "try:\n    h = self.pN(h)\nfinally:\n    self.endsN += 1"),
    "dot_product": (
        "self.pN = nn.Linear(4, 12)",
        "q, k, v = self.pN(h).view(1, -1, 2, 6).transpose(1, 2).chunk(3, -1)\nh = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(-1, 4) + h",
    ),
    "spectral_twice": ("self.pN = nn.utils.spectral_norm(nn.Linear(4, 4))", "h = self.pN(self.pN(h).tanh())"),
    "pruned": ("self.pN = nn.Linear(4, 4)\ntorch.nn.utils.prune.random_unstructured(self.pN, 'weight', 0.5)", "h = self.pN(h)"),
    "frozen_teacher": (
        "self.pN = nn.Linear(4, 4)",
        "self.pN.requires_grad_(False)\ntarget = self.pN(h).tanh() * self.pN.bias\nself.pN.requires_grad_(True)\nh = self.pN(h) + target",
    ),
}
# Layers that leave what has them take another way the next time: checkpoints are for functions that do the same again.
DO_OTHERWISE_AGAIN = frozenset(
    "gru_state accumulated_loss buffer_registered weight_replaced counter growing_list running_float raises raises_after_writes item_branch queue "
    "scaled_function class_counter global_log lazy seeded default_dtype python_random parametrized_inside caught "
    "stochastic_depth codebook momentum_teacher parameter_view_written renormed lora reversal cache_regrown key_cache forward_replaced grown_inside mixed_up "
    "counted_branch observed shared_views".split()
)
# In a checkpoint that ends early, eager runs what leads to them once more, and compiled functions do not.
RUN_ONCE_MORE = frozenset("forces second_order".split())

# From crossings.TRAINERS on, beside those above: what libraries of models do.
TRAINER_PREAMBLE = """
import functools, weakref
from collections import OrderedDict

class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        return x.view_as(x)
    @staticmethod
    def backward(ctx, g):
        return -ctx.k * g, None

class Output(OrderedDict):
    def __post_init__(self):
        pass
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None

class Wrapped(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module
    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)
    def forward(self, *args):
        return self.module(*args) * self.scale

class Scale(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.scale = 1.5
    @property
    def normed(self):
        return self.weight / self.weight.norm(dim=1, keepdim=True)
    def forward(self, x):
        return F.linear(x, self.normed, self.bias)

class Set:
    def __init__(self, owner, name, value):
        self.owner, self.name, self.value = owner, name, value
    def __enter__(self):
        self.before = getattr(self.owner, self.name)
        setattr(self.owner, self.name, self.value)
    def __exit__(self, *exc):
        setattr(self.owner, self.name, self.before)

class Gone:
    def __init__(self, owner, name):
        self.owner, self.name = owner, name
    def remove(self):
        if self.name in vars(self.owner):
            delattr(self.owner, self.name)

@functools.lru_cache(maxsize=None)
def mask_of(n):
    return torch.ones(n, n).tril()

def hooked(module):
    old = module.forward
    @functools.wraps(old)
    def forward(*args, **kwargs):
        module.calls = getattr(module, "calls", 0) + 1
        return old(*args, **kwargs) * 0.5
    module.forward = forward
    return module
"""
TRAINER_LAYERS: dict[str, tuple[str, str]] = {
    "stochastic_depth": ("self.pN = nn.Linear(4, 4)", "if not self.training or random.random() < 0.6:\n    h = h + self.pN(h)"),
    "drop_path": ("", "if self.training:\n    kept = h.new_empty((len(h), 1)).bernoulli_(0.7)\n    kept.div_(0.7)\n    h = h + h.sin() * kept"),
    "layer_drop": ("self.pN = nn.Linear(4, 4)", "chance = torch.rand([])\nif not (self.training and chance < 0.4):\n    h = self.pN(h) + h"),
    "layer_scale": ("self.pN, self.gN = nn.Linear(4, 4), nn.Parameter(torch.full((4,), 0.5))", "h = h + self.pN(h).mul_(self.gN)"),
    "codebook": (
        "self.register_buffer('codesN', torch.eye(4))\nself.register_buffer('sizeN', torch.ones(4))",
        "placesN = torch.cdist(h.detach().float(), self.codesN.float()).argmin(-1)\nchosenN = F.one_hot(placesN, 4).to(self.codesN.dtype)\n"
        "if self.training and len(h):\n    self.sizeN.mul_(0.9).add_(chosenN.sum(0), alpha=0.1)\n"
        "    self.codesN.lerp_(chosenN.t() @ h.detach().to(chosenN.dtype), 0.1)\n"
        "picked = F.embedding(placesN, self.codesN).to(h.dtype)\nh = h + (picked - h).detach() + 0.1 * (h - picked)",
    ),
    "momentum_teacher": (
        "self.pN = nn.Linear(4, 4)\nself.qN = copy.deepcopy(self.pN).requires_grad_(False)",
        "with torch.no_grad():\n    for a, b in zip(self.qN.parameters(), self.pN.parameters()):\n        a.lerp_(b, 0.1)\nh = self.pN(h) - self.qN(h).tanh()",
    ),
    "parameter_view_written": (
        "self.pN = nn.Linear(4, 4)",
        "with torch.no_grad():\n    self.pN.weight[0].mul_(0.9)\n    self.pN.weight.view(-1)[3:6].add_(0.01)\n"
        "    self.pN.bias.data[1:].clamp_(-1, 1)\nh = self.pN(h)",
    ),
    "renormed": (
        "self.pN = nn.Linear(4, 4)",
        "with torch.no_grad():\n    self.pN.weight.copy_(self.pN.weight.renorm(2, 0, 0.5))\nh = self.pN(h)",
    ),
    "standardised": (
        "self.pN = nn.Linear(4, 4)",
        "w = self.pN.weight\nh = F.linear(h, (w - w.mean(1, keepdim=True)) / (w.std(1, keepdim=True) + 1e-2), self.pN.bias)",
    ),
    "lora": (
        "self.pN, self.aN, self.bN, self.mergedN = nn.Linear(4, 4), nn.Linear(4, 2, bias=False), nn.Linear(2, 4, bias=False), False\n"
        "self.pN.requires_grad_(False)",
        "if self.training is self.mergedN:\n    self.pN.weight.data += (self.bN.weight @ self.aN.weight).detach() * (-1 if self.mergedN else 1)\n"
        "    self.mergedN = not self.mergedN\nh = self.pN(h) if self.mergedN else self.pN(h) + self.bN(self.aN(h))",
    ),
    "reversal": ("self.kN = 0.0", "self.kN = 2 / (1 + math.exp(-len(h) - self.kN)) - 1\nh = Reversed.apply(h, self.kN) + h.sin()"),
    "cache_regrown": (
        "self.longestN = 2\nself.register_buffer('cosN', torch.arange(2.0).cos(), persistent=False)",
        "if len(h) > self.longestN:\n    self.longestN = len(h)\n"
        "    self.register_buffer('cosN', torch.arange(float(len(h)), device=h.device).cos(), persistent=False)\nh = h * self.cosN[:len(h), None].to(h.dtype)",
    ),
    "key_cache": (
        "self.keysN = []",
        "self.keysN.append(h.detach().mean(0, keepdim=True))\ndel self.keysN[:-3]\nkeys = torch.cat([k.to(h.dtype) for k in self.keysN])\n"
        "h = h + (h @ keys.t()).softmax(-1) @ keys",
    ),
    "output_class": ("self.pN = nn.Linear(4, 4)", "made = Output(h=self.pN(h), extra=None)\nmade['n'] = len(made)\nh = made.h * made.n"),
    "wrapper": ("self.pN = Wrapped(Scale(4, 4))", "h = self.pN(h) + self.pN.bias"),
    "forward_replaced": ("self.pN = hooked(nn.Linear(4, 4))", "h = self.pN(h)"),
    "detached_in_place": ("self.pN = nn.Linear(4, 4)", "y = self.pN(h)\nz = y.tanh()\nz.detach_()\nh = h + y * z"),
    "materialized": (
        "self.pN, self.qN = nn.Linear(4, 4), nn.Parameter(torch.ones(4))",
        "with torch.enable_grad():\n    at = h if h.requires_grad else h.detach().requires_grad_()\n    found = torch.autograd.grad(\n"
        "        self.pN(at).tanh().sum(), (at, self.qN), create_graph=self.training, allow_unused=True, materialize_grads=True\n    )"
        " if self.qN.requires_grad else (at, self.qN)\nh = h + found[0] + found[1]",
    ),
    "jacobian": ("self.pN = nn.Linear(4, 4)", "h = h + torch.autograd.functional.jacobian(lambda v: self.pN(v).tanh().sum(0), h.detach()).sum(0).to(h.dtype)"),
    "grown_inside": (
        "self.pN = nn.ModuleList([nn.Linear(4, 4)])",
        "if self.training and len(self.pN) < 3:\n    self.pN.append(nn.Linear(4, 4).to(h.dtype))\nfor part in self.pN:\n    h = part(h).relu() + h",
    ),
    "gumbel": ("self.pN = nn.Linear(4, 4)", "h = F.gumbel_softmax(self.pN(h), tau=0.7, hard=True) + h"),
    "mixed_up": ("", "shareN = random.betavariate(0.5, 0.5)\nh = shareN * h + (1 - shareN) * h[torch.randperm(len(h))]"),
    "sampled": (
        "self.pN = nn.Linear(4, 8)",
        "mean, spread = self.pN(h).chunk(2, -1)\nmadeN = torch.distributions.Normal(mean, F.softplus(spread) + 0.1, validate_args=False)\n"
        "self.klN = torch.distributions.kl_divergence(madeN, torch.distributions.Normal(torch.zeros_like(mean), 1.0, validate_args=False)).sum()\n"
        "h = madeN.rsample() + 0.01 * self.klN",
    ),
    "counted_branch": (
        "self.register_buffer('nN', torch.tensor(0))",
        "self.nN += 1\nif self.nN % 2 == 0:\n    h = h * 0.5\nh = h / self.nN",
    ),
    "observed": (
        "self.register_buffer('lowN', torch.tensor(0.0))\nself.register_buffer('highN', torch.tensor(0.1))",
        "if self.training and len(h):\n    self.lowN.copy_(torch.minimum(self.lowN, h.detach().min()))\n"
        "    self.highN.copy_(torch.maximum(self.highN, h.detach().max()))\n"
        "stepN = (self.highN - self.lowN).float() / 255\n"
        "h = torch.fake_quantize_per_tensor_affine(h.float(), stepN, torch.zeros(1, dtype=torch.int32), 0, 255).to(h.dtype) + h",
    ),
    "switched": ("self.pN, self.scaleN = nn.Linear(4, 4), 1.0", "with Set(self, 'scaleN', 3.0):\n    h = self.pN(h) * self.scaleN\nh = h * self.scaleN"),
    "cached_mask": ("", "h = h + mask_of(len(h)).to(h.dtype) @ h"),
    "parent": ("self.pN = nn.Linear(4, 4)\nself.pN.__dict__['ownerN'] = weakref.ref(self)", "h = self.pN(h) * (1 if self.pN.ownerN() is self else 2)"),
    "half_block": ("self.pN = nn.Linear(4, 4)", "h = h + F.linear(h.bfloat16(), self.pN.weight.bfloat16()).to(h.dtype)"),
    "shared_views": (
        "self.pN = nn.Parameter(torch.arange(8.0) / 8)",
        "first, second = self.pN[:4], self.pN.view(2, 4)[1]\nh = h * first + second\nwith torch.no_grad():\n    self.pN.detach()[::2].mul_(0.99)",
    ),
    "checkpoint_seeded": (
        "self.pN = nn.Linear(4, 4)",
        "with torch.autocast('cpu', torch.bfloat16):\n"
        "    h = checkpoint(lambda v: F.dropout(self.pN(v), 0.3, self.training).tanh(), h, use_reentrant=False).to(h.dtype) + h",
    ),
}
