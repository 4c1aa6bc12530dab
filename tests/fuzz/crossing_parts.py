"""What the programs of crossings.py are made of: layers, parts of a training step, and events between calls, each a feature of PyTorch.

A layer takes `h` of (rows, 4) and gives it again; `N` is its number in the module. The text of a step may use net, opt, x, out and loss.
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

# Parts of a step: where they stand, and their lines.
STEPS: dict[str, dict[str, str]] = {
    "clip": {"grads": "torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)"},
    "clip_value": {"grads": "torch.nn.utils.clip_grad_value_(net.parameters(), 0.1)"},
    "grads_scaled": {"grads": "for p in net.parameters():\n    if p.grad is not None:\n        p.grad.mul_(0.5)"},
    "grads_replaced": {"grads": "for p in net.parameters():\n    if p.grad is not None:\n        p.grad = p.grad.detach().clone() + 0.01"},
    "grads_read": {"grads": "s.norms.append([None if p.grad is None else float(p.grad.to_dense().abs().float().sum()) for p in net.parameters()])"},
    "one_grad_gone": {"grads": "next(iter(net.parameters())).grad = None"},
    "penalty": {
        "before": "x = x.detach().clone().requires_grad_()",
        "loss": (
            "slope, = torch.autograd.grad(out.sum(), x, create_graph=True, allow_unused=True)\nif slope is not None:\n    "
            "loss = loss + (slope.norm(dim=-1) - 1).square().sum()"
        ),
    },
    "regularised": {"loss": "loss = loss + 0.01 * sum(p.abs().square().sum() for p in net.parameters())"},
    "loss_dict": {"loss": "s.losses['loss'] = loss.detach()\ns.losses.setdefault('all', []).append(loss.item())"},
    "loss_mean": {"loss": "s.mean = loss.item() if s.mean is None else 0.9 * s.mean + 0.1 * loss.item()"},
    "skip_infinite": {"loss": "if not torch.isfinite(loss):\n    s.skipped += 1\n    return loss.detach()"},
    "input_written": {"before": "x = x * 1\nx[:, 0].add_(1)"},
    "noise": {"before": "x = x + 0.1 * torch.randn_like(x)"},
    "ema": {
        "after": (
            "with torch.no_grad():\n    for a, b in zip(s.average, net.parameters()):\n        if a.shape == b.shape:\n    "
            "        a.mul_(0.9).add_(b.detach().to(a.dtype), alpha=0.1)"
        )
    },
    "ema_lerp": {
        "after": ("for a, b in zip(s.average, net.parameters()):\n    if a.dtype == b.dtype and a.shape == b.shape:\n        a.data.lerp_(b.data, 0.1)")
    },
    "manual_update": {
        "after": (
            "with torch.no_grad():\n    for p in net.parameters():\n        if p.grad is not None and not p.grad.is_sparse:\n            p -= 0.01 * p.grad"
        )
    },
    "data_update": {"after": "for p in net.parameters():\n    if p.grad is not None:\n        p.data = p.data * 0.99"},
    "twice": {"loss": "other = net(x + 1).square().mean()\nloss = loss + other"},
    "retained_graph": {"backward": "loss.backward(retain_graph=True)\n(loss * 2).backward()"},
    "by_autograd_grad": {
        "backward": (
            "params = [p for p in net.parameters() if p.requires_grad]\nfor p, g in zip(params, torch.autograd.grad(loss, "
            "params, allow_unused=True)):\n    if g is not None:\n        p.grad = g if p.grad is None else p.grad + g"
        )
    },
    "two_backwards": {"backward": "loss.backward()\nnet(x).sum().backward()"},
    "anomaly": {"around": "torch.autograd.set_detect_anomaly(True, check_nan=False)"},
    "autocast_step": {"around": "torch.autocast('cpu', torch.bfloat16)"},
    "teacher": {"before": "with torch.no_grad():\n    s.target = net(x).detach().mean()", "loss": "loss = loss + (out - s.target).square().mean()"},
    "history": {"after": "s.history.append(loss.detach())\ns.last = out"},
    "schedule": {"after": "for group in opt.param_groups:\n    group['lr'] *= 0.9"},
    "seeded_step": {"before": "torch.manual_seed(5)"},
    "try_step": {
        "before": "s.tried += 1",
        "loss": (
            "try:\n    if s.tried % 3 == 0:\n        raise RuntimeError('third')\nexcept RuntimeError as error:\n    "
            "s.message = str(error)\n    loss = loss * 2"
        ),
    },
    "eval_inside": {"loss": "net.eval()\nwith torch.no_grad():\n    s.score = net(x).sum()\nnet.train()"},
    "post_accumulate": {},
}

UPDATES = {
    "zero_none": "opt.step()\nopt.zero_grad()",
    "zero_kept": "opt.step()\nopt.zero_grad(set_to_none=False)",
    "zero_first": "opt.step()",
    "every_second": "s.steps += 1\nif s.steps % 2 == 0:\n    opt.step()\n    opt.zero_grad()",
    "partial": "opt.step()\nfor i, p in enumerate(net.parameters()):\n    if i % 2:\n        p.grad = None",
    "none": "",
}
# Gradients that are 0 but for rounding, as of a bias before a norm, stay small by eps.
OPTIMIZERS = (
    "SGD(P, lr=0.05)",
    "SGD(P, lr=0.05, momentum=0.9, nesterov=True)",
    "Adam(P, lr=0.01, eps=0.01)",
    "AdamW(P, lr=0.01, eps=0.01, foreach=True)",
    "RMSprop(P, lr=0.01, eps=0.01)",
)

EVENTS: dict[str, str] = {
    "nothing": "",
    "freeze": "for p in list(net.parameters())[::2]:\n    p.requires_grad_(False)",
    "freeze_all": "net.requires_grad_(False)",
    "unfreeze": "net.requires_grad_(True)",
    "eval": "net.eval()",
    "train": "net.train()",
    "part_eval": "list(net.children())[0].eval()",
    "load": "net.load_state_dict({k: v * 1.1 if v.is_floating_point() else v for k, v in net.state_dict().items()})",
    "load_assigned": "net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()}, assign=True)\nopt = make_opt()",
    "deepcopy": "net = copy.deepcopy(net)\nopt = make_opt()\ncall = build()",
    "saved": "kept = io.BytesIO()\ntorch.save(net.state_dict(), kept)\nkept.seek(0)\nnet.load_state_dict(torch.load(kept))",
    "double": "net.double()\ndtype = torch.float64",
    "float": "net.float()\ndtype = torch.float32",
    "bfloat16": "net.bfloat16()\ndtype = torch.bfloat16\nnote.loose = True",
    "replaced": "net.head = nn.Linear(4, 4).to(dtype)",
    "sequential_head": "net.head = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2)).to(dtype)",
    "identity_head": "net.head = nn.Identity()",
    "parameter_set": "net.extra = nn.Parameter(torch.ones(4, dtype=dtype))",
    "parameter_gone": "net.extra = None",
    "bias_gone": "net.stem.bias = None",
    "bias_back": "net.stem.bias = nn.Parameter(torch.ones(4, dtype=dtype))",
    "retied": "net.head = net.stem",
    "forward_hook": "handles.append(net.stem.register_forward_hook(lambda m, i, o: o + 1))",
    "pre_hook": "handles.append(net.stem.register_forward_pre_hook(lambda m, i: (i[0] * 0.5,)))",
    "kwarg_hook": "handles.append(net.register_forward_pre_hook(lambda m, a, k: (a, {**k, 'shift': 2.0}), with_kwargs=True))",
    "backward_hook": "handles.append(net.stem.register_full_backward_hook(lambda m, gi, go: tuple(None if g is None else g * 2 for g in gi)))",
    "backward_pre_hook": "handles.append(net.head.register_full_backward_pre_hook(lambda m, go: tuple(None if g is None else g * 0.5 for g in go)))",
    "parameter_hook": "handles.append(net.stem.weight.register_hook(lambda g: g * 3))",
    "post_hook": (
        "handles.append(next(iter(net.parameters())).register_post_accumulate_grad_hook(lambda p: sums.append(float(p.grad.to_dense().abs().float().sum()))))"
    ),
    "hooks_gone": "for handle in handles:\n    handle.remove()\nhandles.clear()",
    "global_hook": "handles.append(nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 2 if m is net.stem else None))",
    "no_grad_call": "around = torch.no_grad",
    "inference_call": "around = torch.inference_mode",
    "autocast_call": "around = lambda: torch.autocast('cpu', torch.bfloat16)\nnote.loose = True",
    "autocast_half_call": "around = lambda: torch.autocast('cpu', torch.float16)\nnote.loose = True",
    "anomaly_call": "around = lambda: torch.autograd.set_detect_anomaly(True, check_nan=False)",
    "plain_call": "around = contextlib.nullcontext",
    "default_dtype": "torch.set_default_dtype(torch.float64 if torch.get_default_dtype() is torch.float32 else torch.float32)",
    "deterministic": "torch.use_deterministic_algorithms(True)",
    "rows": "rows = [5, 1, 2, 7, 0, 4][i % 6]",
    "one_row": "rows = 1",
    "two_rows": "rows = 2",
    "no_rows": "rows = 0",
    "input_gradient": "needs = not needs",
    "wrong_width": "width = 5",
    "right_width": "width = 4",
    "nan": "poison = float('nan')",
    "no_nan": "poison = 1.0",
    "layout": "layout = random.choice(['t', 'expand', 'slice', ''])",
    "subclass_input": "layout = 'subclass'",
    "inference_input": "layout, around = 'inference', torch.no_grad",
    "extra_argument": "extra = (torch.ones(2),) if not extra else ()",
    "parameter_scaled": "with torch.no_grad():\n    net.stem.weight.mul_(1.1)",
    "parameter_data": "net.stem.weight.data = torch.eye(4, dtype=dtype) * 0.5",
    "parameter_swapped": "net.stem.weight = nn.Parameter(net.stem.weight.detach().clone().t())",
    "parameter_vector": "torch.nn.utils.vector_to_parameters(torch.nn.utils.parameters_to_vector(net.parameters()).detach() * 0.9, net.parameters())",
    "zero": "net.zero_grad(set_to_none=i % 2 == 0)",
    "gradients_set": "for p in net.parameters():\n    p.grad = torch.ones_like(p)",
    "rate": "for group in opt.param_groups:\n    group['lr'] = 0.02 * (i + 1)",
    "optimizer_loaded": "opt.load_state_dict(copy.deepcopy(opt.state_dict()))",
    "optimizer_new": "opt = make_opt()",
    "parametrized": "parametrizations.weight_norm(net.stem)\nopt = make_opt()",
    "parametrization_gone": "if parametrize.is_parametrized(net.stem):\n    parametrize.remove_parametrizations(net.stem, 'weight')\n    opt = make_opt()",
    "patched_forward": "net.head.forward = lambda h: h * 2",
    "unpatched": "net.head.__dict__.pop('forward', None)",
    "class_forward": (
        "class Other(type(net.stem)):\n    def forward(self, h):\n        return super().forward(h) + 1\nif "
        "type(net.stem) is nn.Linear:\n    net.stem.__class__ = Other"
    ),
    "seeded": "torch.manual_seed(i)",
    "flag": "net.flag = not net.flag",
    "number": "net.number += 0.5",
    "channels_last": "net.to(memory_format=torch.channels_last)",
    "reset": "wrap.reset()",
    "averaged": "average = AveragedModel(net, use_buffers=True)\nnote.attempt('average', lambda: average(torch.ones(3, 4, dtype=dtype)), average)",
    "sum_of_two": "calls = 2",
    "rebuilt": "call = build()",
    "state_kept": "net.load_state_dict(first_state, strict=False)",
    "meta_gradients": "net.stem.weight.grad = torch.zeros(4, 4, dtype=dtype).t()",
    "share_memory": "net.stem.weight.data = net.stem.weight.data.clone()",
}

# Of programs that hold a module `held[0]`, which is compiled as itself. What calls it is eager.
CALLS_OF_TWINS = {
    "checkpointed": "checkpointed(held[0], *args)",
    "checkpointed_reentrant": "checkpoint(held[0], *args, use_reentrant=True)",
    "functional": "torch.func.functional_call(held[0], {k: v * 0.9 for k, v in held[0].named_parameters()}, args)",
    "vmapped": "torch.func.vmap(lambda row: held[0](row[None])[0], randomness='different')(args[0])",
    "grad_of": "torch.func.grad(lambda v: held[0](v, *args[1:]).square().mean())(args[0])",
    "jvp_of": "torch.func.jvp(lambda v: held[0](v, *args[1:]), (args[0],), (args[0].detach().cos(),))[1]",
}
# Layers that leave what has them take another way the next time: checkpoints are for functions that do the same again.
DO_OTHERWISE_AGAIN = frozenset(
    "gru_state accumulated_loss buffer_registered weight_replaced counter growing_list running_float raises raises_after_writes item_branch queue "
    "scaled_function class_counter global_log lazy seeded default_dtype python_random parametrized_inside caught".split()
)
WIDER_EVENTS = {
    "twin_deepcopied": "if held:\n    held[:] = [copy.deepcopy(held[0])]\n    net = held[0]\n    opt = make_opt()",
    "twin_copied": "if held:\n    held[:] = [copy.copy(held[0])]\n    net = held[0]\n    net.number, net.flag = net.number + 1, True",
    "twin_pickled": (
        "if held:\n    held[:] = [note.attempt('pickled', lambda: pickle.loads(pickle.dumps(held[0]))) or held[0]]\n    net = held[0]\n    opt = make_opt()"
    ),
    "twin_made_again": "if held:\n    held[:] = [type(held[0])().to(dtype)]\n    net = held[0]\n    opt = make_opt()",
    "twin_is_net": "net = held[0] if held else net",
    "net_copied": "net = copy.deepcopy(net)\nopt = make_opt()",
    "net_pickled": "net = note.attempt('pickled', lambda: pickle.loads(pickle.dumps(net))) or net\nopt = make_opt()",
    "twin_of_twin": "if held:\n    held[:] = [wrap(held[0])]",
    "module_is_argument": "if held:\n    note.attempt('argument', lambda: (lambda m, v: m(v))(held[0], torch.ones(2, 4, dtype=dtype)))",
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
WIDEST_STEPS: dict[str, dict[str, str]] = {
    "gradient_norm": {
        "loss": (
            "asked = [p for p in net.parameters() if p.requires_grad]\nif loss.requires_grad and asked:\n"
            "    made = torch.autograd.grad(loss, asked, create_graph=True, allow_unused=True)\n"
            "    loss = loss + 0.01 * sum(g.to_dense().abs().square().sum() for g in made if g is not None)"
        )
    },
    "inner_step": {
        "loss": (
            "named = {k: p for k, p in net.named_parameters() if p.requires_grad}\nif loss.requires_grad and named:\n"
            "    made = torch.autograd.grad(loss, list(named.values()), create_graph=True, allow_unused=True)\n"
            "    fast = {k: p if g is None else p - 0.1 * g for (k, p), g in zip(named.items(), made)}\n"
            "    loss = loss + torch.func.functional_call(net, fast, (x,)).square().mean()"
        )
    },
    "per_sample": {
        "loss": (
            "values = {k: p.detach() for k, p in net.named_parameters()}\n"
            "one = lambda p, r: torch.func.functional_call(net, p, (r[None],)).square().mean()\n"
            "found = torch.func.vmap(torch.func.grad(one), (None, 0), randomness='different')(values, x.detach())\n"
            "s.score = sum(g.abs().square().sum() for g in found.values())"
        )
    },
    "halves": {"backward": "(loss / 2).backward(retain_graph=True)\n(loss / 2).backward()"},
    "grad_then_backward": {
        "backward": (
            "asked = [p for p in net.parameters() if p.requires_grad]\n"
            "s.norms.append([None if g is None else float(g.to_dense().abs().float().sum()) for g in torch.autograd.grad(loss, asked, retain_graph=True, "
            "allow_unused=True)])\nloss.backward()"
        )
    },
    "averaged_model": {
        "after": (
            "if s.target is None:\n    s.target = AveragedModel(net, multi_avg_fn=get_ema_multi_avg_fn(0.9))\n"
            "if len(list(s.target.parameters())) == len(list(net.parameters())) + 0:\n    s.target.update_parameters(net)"
        )
    },
    "frozen_for_target": {
        "before": "net.requires_grad_(False)\ns.score = net(x).mean()\nnet.requires_grad_(True)",
        "loss": "loss = loss + (out - s.score).square().mean()",
    },
    "frozen_after": {
        "loss": "frozen = [p for p in net.parameters() if p.requires_grad][::2]\nfor p in frozen:\n    p.requires_grad_(False)",
        "after": "net.requires_grad_(True)",
    },
    "overlapping_writes": {"before": "x = x * 1\na, b = x[:, :2], x[:, 1:3]\na.add_(1)\nb.mul_(2)"},
    "scored_in_inference": {"before": "with torch.inference_mode():\n    s.score = net(x).sum().item()"},
    "deterministic_step": {"before": "torch.use_deterministic_algorithms(True)", "after": "torch.use_deterministic_algorithms(False)"},
    "hook_of_step": {"before": "s.hook = net.stem.register_forward_hook(lambda m, i, o: o * 1.1)", "after": "s.__dict__.pop('hook').remove()"},
    "one_thread": {"around": "torch.autograd.set_multithreading_enabled(False)"},
    "double_step": {"before": "torch.set_default_dtype(torch.float64)\nx = x + torch.ones(x.shape[-1]).to(x.dtype)\ntorch.set_default_dtype(torch.float32)"},
}
WIDEST_EVENTS = {
    "weight_tied": "if type(net.head) is type(net.stem) is nn.Linear:\n    net.head.weight = net.stem.weight\n    opt = make_opt()",
    "weight_untied": "if type(net.head) is nn.Linear:\n    net.head.weight = nn.Parameter(net.head.weight.detach().clone())\n    opt = make_opt()",
    "data_tied": "if isinstance(net.head, nn.Linear):\n    net.head.weight.data = net.stem.weight.data",
    "spectral": "parametrizations.spectral_norm(net.stem)\nopt = make_opt()",
    "orthogonal": "note.attempt('orthogonal', lambda: parametrizations.orthogonal(net.stem) and None)\nopt = make_opt()",
    "pruned": "note.attempt('pruned', lambda: torch.nn.utils.prune.l1_unstructured(net.stem, 'weight', 0.5) and None)\nopt = make_opt()",
    "assigned_behind": "net.load_state_dict({k: v.clone() for k, v in net.state_dict().items()}, assign=True)",
    "swapped_tensor": "note.attempt('swapped', lambda: torch.utils.swap_tensors(net.stem.weight, nn.Parameter(torch.eye(4, dtype=dtype) * 0.5)))",
    "swapped_in": "net.stem, net.head = net.head, net.stem",
    "biases_alone": "for key, p in net.named_parameters():\n    p.requires_grad_('bias' in key)",
    "grad_switched": "torch.set_grad_enabled(not torch.is_grad_enabled())",
    "autocast_switched": "torch.set_autocast_cache_enabled(False)\ntorch.set_autocast_enabled('cpu', not torch.is_autocast_enabled('cpu'))\nnote.loose = True",
    "autocast_uncached": "around = lambda: torch.autocast('cpu', torch.bfloat16, cache_enabled=False)\nnote.loose = True",
    "warn_only": "torch.use_deterministic_algorithms(True, warn_only=True)",
    "not_deterministic": "torch.use_deterministic_algorithms(False)",
    "inference_between": "with torch.inference_mode():\n    note.attempt('inference', lambda: net(torch.ones(2, 4, dtype=dtype)), net)",
    "overlapping_input": "layout = 'overlap'",
    "column_input": "layout = 'column'",
    "narrow_input": "layout = 'narrow'",
    "offset_input": "layout = 'offset'",
    "global_backward_hook": (
        "handles.append(nn.modules.module.register_module_full_backward_hook(\n"
        "    lambda m, gi, go: tuple(None if g is None else g * 2 for g in gi) if m is net.stem else None))"
    ),
    "always_hook": "handles.append(net.register_forward_hook(lambda m, i, o: sums.append(0.0), always_call=True))",
    "first_hook": "handles.append(net.stem.register_forward_hook(lambda m, i, o: o.tanh(), prepend=True))",
    "one_hook_gone": "if handles:\n    handles.pop(0).remove()",
    "grad_hook_of_bias": (
        "if net.stem.bias is not None and net.stem.bias.requires_grad:\n    handles.append(net.stem.bias.register_hook(lambda g: None if i % 2 else -g))"
    ),
    "class_patched": (
        "handles.append(Undo(type(net), 'forward', type(net).forward))\n"
        "type(net).forward = (lambda f: lambda self, *a, **k: f(self, *a, **k) + 1)(type(net).forward)"
    ),
    "training_attribute": "net.training = not net.training",
    "strided_parameter": "net.stem.weight.data = torch.ones(4, 8, dtype=dtype)[:, ::2] * net.stem.weight.detach()",
    "expanded_parameter": "if net.stem.bias is not None:\n    net.stem.bias = nn.Parameter(torch.zeros(1, dtype=dtype).expand(4), requires_grad=False)",
    "replica": "other = net._replicate_for_data_parallel()\nother.number = 5.0\nnote.attempt('replica', lambda: other(torch.ones(2, 4, dtype=dtype)), vars(s))",
    "dict_copied": (
        "other = object.__new__(type(net))\nother.__dict__ = {**net.__dict__, 'number': 7.0}\n"
        "note.attempt('bare', lambda: other(torch.ones(2, 4, dtype=dtype)), vars(s))"
    ),
    "stateless": (
        "note.attempt('stateless', lambda: torch.func.functional_call(\n"
        "    net, {k: v * 0.5 for k, v in net.named_parameters()}, (torch.ones(2, 4, dtype=dtype),)))"
    ),
    "penalised": (
        "probe = torch.ones(2, 4, dtype=dtype).requires_grad_()\n"
        "note.attempt('penalty', lambda: torch.autograd.grad(net(probe).square().sum(), probe, create_graph=True)[0].square().sum().backward(), net)"
    ),
    "thawed_between": (
        "net.requires_grad_(False)\nprobe = torch.ones(2, 4, dtype=dtype).requires_grad_()\nkept = note.attempt('frozen', lambda: net(probe))\n"
        "net.requires_grad_(True)\nif kept is not None and kept.requires_grad:\n"
        "    note.attempt('thawed', lambda: torch.autograd.grad(kept.square().sum(), probe, create_graph=True)[0].square().sum().backward(), net)"
    ),
    "frozen_between": (
        "probe = torch.ones(2, 4, dtype=dtype).requires_grad_()\nkept = note.attempt('trained', lambda: net(probe))\n"
        "net.requires_grad_(False)\nif kept is not None and kept.requires_grad:\n"
        "    note.attempt('frozen', lambda: torch.autograd.grad(kept.square().sum(), probe, create_graph=True)[0].square().sum().backward(), net)\n"
        "net.requires_grad_(True)"
    ),
}
WIDEST_CALLS = {
    "checkpointed_early": "checkpoint(held[0], *args, use_reentrant=False)",
    "checkpointed_step": "checkpoint(held[0].__call__, *args, use_reentrant=False)",
}
CHECKPOINTS = {"checkpointed", *WIDEST_CALLS}
# In a checkpoint that ends early, eager runs what leads to them once more, and compiled functions do not.
RUN_ONCE_MORE = frozenset("forces second_order".split())
