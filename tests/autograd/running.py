"""The runtime contract in plain Python: runs a ForwardBackward on real tensors, and compares it with eager."""

from __future__ import annotations

import torch
from torch.utils import _pytree as pytree

from dynacompile.autograd import differentiate
from dynacompile.config import CompileConfig
from dynacompile.env import Env
from dynacompile.ir.graphs import Constant, ForwardBackward, Fresh, InputItself, Made, ViewOfInput, ViewOfOutput
from dynacompile.runtime import in_stages
from tests.autograd.recording import record


def env_of(**options):
    return Env(CompileConfig(**options), lambda event: None, "test", -1, None)


def differentiable(pair: ForwardBackward):
    """A callable on flat graph inputs that gives the user's flat outputs."""
    contract = pair.contract

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *inputs):
            plain = [i.detach() if isinstance(i, torch.Tensor) else i for i in inputs]
            outputs = list(pair.forward(*plain))
            assert all(isinstance(o, torch.Tensor) for o in outputs)
            ctx.kept = [plain[i] for i in contract.saved_inputs] + [outputs[p] for p in contract.saved_positions]
            ctx.versions = [t._version for t in ctx.kept]
            ctx.geometry = [(o.shape, o.stride(), o.dtype) for o in outputs]
            outputs = [o.detach() for o in outputs]
            ctx.mark_non_differentiable(*(o for p, o in enumerate(outputs) if p not in contract.tangents))
            ctx.set_materialize_grads(False)
            return tuple(outputs)

        @staticmethod
        def backward(ctx, *tangents):
            fitted = []
            for p in contract.tangents:
                shape, stride, dtype = ctx.geometry[p]
                t = torch.empty_strided(shape, stride, dtype=dtype)
                fitted.append(t.zero_() if tangents[p] is None else t.copy_(tangents[p]))
            grads = [None] * contract.inputs
            flags = [torch.tensor(any(tangents[contract.tangents[i]] is not None for i in flag)) for flag in contract.marks.flags]
            args = [*ctx.kept, *fitted, *flags]
            check_geometry(pair.backward, args)
            for i, g in zip(contract.grads, pair.backward(*args), strict=True):
                grads[i] = g
            return tuple(grads)

    def call(*inputs):
        check_geometry(pair.forward, inputs)
        outputs = Node.apply(*inputs) if pair.backward is not None else tuple(o.detach() for o in run_plain(pair, inputs))
        for m in contract.mutations:
            inputs[m.input].copy_(outputs[m.position])
        return [make(row, inputs, outputs) for row in contract.outputs]

    return call


def staged(pair: ForwardBackward):
    """The same where outputs are computed from others: by the native nodes."""

    def checked(module):
        def run(*args):
            check_geometry(module, args)
            return module(*args)

        return run

    return in_stages(checked(pair.forward), [lambda g=g: checked(g) for g in pair.stages], pair.contract)[0]


def run_plain(pair, inputs):
    with torch.no_grad():
        return pair.forward(*inputs)


def check_geometry(module, args):
    """Placeholders' fakes say what the values really are."""
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    for node, arg in zip(placeholders, args, strict=True):
        if isinstance(arg, torch.Tensor):
            fake = node.meta["val"]
            assert (fake.shape, fake.dtype) == (arg.shape, arg.dtype), (node, fake, arg.shape)
            pairs = [(f, s) for f, s, n in zip(fake.stride(), arg.stride(), arg.shape, strict=True) if n > 1]
            assert all(f == s for f, s in pairs), (node, fake.stride(), arg.stride())


def make(row, inputs, outputs):
    match row:
        case Constant(value):
            return value
        case InputItself(i):
            return inputs[i]
        case Fresh(position, differentiable):
            assert outputs[position].requires_grad == differentiable or not torch.is_grad_enabled()
            return outputs[position]
        case ViewOfInput(i, view, lineage):
            return view_of(inputs[i], view, lineage)
        case ViewOfOutput(position, view, lineage):
            return view_of(outputs[position], view, lineage)
    raise AssertionError(row)


def view_of(base, view, lineage):
    with torch.set_grad_enabled(lineage.made in (Made.GRAD, Made.PART)):
        base = detached(base, lineage) if lineage.detached else base
        made = base.as_strided(view.size, view.stride, base.storage_offset() + view.offset)
    return detached(made, lineage) if lineage.made is Made.DETACHED else made


def detached(tensor, lineage):
    return tensor.detach() if lineage.counted else tensor.data


def compiled(fn, args, **options):
    """(pair, callable on args that gives fn's outputs) for the sample args."""
    graph, fakes, spec = record(fn, args)
    pair = differentiate(graph, fakes, env_of(**options))
    pair.verify()
    check_metadata(pair)
    call = differentiable(pair) if not pair.stages else staged(pair)
    return pair, lambda *values: pytree.tree_unflatten(call(*values), spec)


def check_metadata(pair):
    for module in (pair.forward, pair.backward, *pair.stages):
        if module is not None:
            module.graph.lint()
            for node in module.graph.nodes:
                assert node.op == "output" or "val" in node.meta, node
                if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                    assert not node.target._schema.is_mutable or node.target is torch.ops.aten.copy_.default, node


def run(fn, leaves, prepare, seed):
    """Everything that a caller can see of one call: outputs, aliasing, mutated inputs, gradients."""
    leaves = [leaf.detach().clone().requires_grad_(leaf.requires_grad) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    args = prepare(*leaves) if prepare else leaves
    torch.manual_seed(seed)
    out = fn(*args)
    flat = pytree.tree_leaves(out)
    tensors = [o for o in flat if isinstance(o, torch.Tensor)]
    storages = [t.untyped_storage().data_ptr() for t in [*tensors, *(a for a in args if isinstance(a, torch.Tensor))]]
    aliasing = [[a == b for b in storages] for a in storages]
    identity = [[a is b for b in [*tensors, *args]] for a in tensors]
    seen = {
        "outputs": [o.detach().clone() if isinstance(o, torch.Tensor) else o for o in flat],
        "args": [a.detach().clone() if isinstance(a, torch.Tensor) else a for a in args],
        "strides": [t.stride() for t in tensors],
        "requires_grad": [t.requires_grad for t in [*tensors, *(a for a in args if isinstance(a, torch.Tensor))]],
        "aliasing": aliasing,
        "identity": identity,
        "random": torch.rand(3),
    }
    sources = {id(t): t for t in [*tensors, *(a for a in args if isinstance(a, torch.Tensor))] if t.requires_grad and not t.is_leaf}
    generator = torch.Generator().manual_seed(7)
    losses = [(t * torch.randn(t.shape, generator=generator).to(t.dtype)).sum().float() for t in sources.values()]
    if losses:
        sum(losses).backward()
    seen["grads"] = [leaf.grad if isinstance(leaf, torch.Tensor) and leaf.is_leaf else None for leaf in leaves]
    return seen


def compare(fn, leaves, prepare=None, tolerance=None, seed=3, **options):
    """Runs fn eagerly and differentiated ahead of time, and compares all that a caller can see; gives the ForwardBackward."""
    sample = prepare(*leaves) if prepare else leaves
    pair, call = compiled(fn, sample, **options)
    expected, got = run(fn, leaves, prepare, seed), run(call, leaves, prepare, seed)
    for key in ("strides", "requires_grad", "aliasing", "identity"):
        assert got[key] == expected[key], (key, got[key], expected[key])
    limits = {} if tolerance is None else {"rtol": tolerance, "atol": tolerance}
    for key in ("outputs", "args", "grads", "random"):
        for i, (g, e) in enumerate(zip(got[key], expected[key], strict=True)):
            assert type(g) is type(e), (key, i, g, e)
            if isinstance(e, torch.Tensor):
                torch.testing.assert_close(g, e, equal_nan=True, msg=lambda m, key=key, i=i: f"{key}[{i}]: {m}", **limits)
            else:
                assert g == e
    return pair
