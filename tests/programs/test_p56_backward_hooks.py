"""Backward hooks of modules are in the graph: their Python runs in each backward pass, on what eager would show it, in eager's order."""

import collections
import functools
import gc
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dynacompile
from dynacompile import backends
from dynacompile.events import FrameSkipped, GraphBroke, Recompiled
from tests.scenarios import attempt, check_same

BACKENDS = ["eager", "aot_eager", "default"]


def names(events, kind):
    return [e for e in events if isinstance(e, kind)]


def check_one_graph(story, backend, recompiles=0, **options):
    events = check_same(story, backend=backend, rtol=1e-4, atol=1e-5, fullgraph=True, **options)
    assert not names(events, GraphBroke) and not names(events, FrameSkipped)
    assert len(names(events, Recompiled)) == recompiles


def numbers(count=12, scale=1.0):
    return (torch.linspace(-1, 1, count).reshape(-1, 4) * scale).requires_grad_()


def network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 3), nn.Sigmoid()))


def noted(log, name):
    def hook(module, *grads):
        log.append((name, type(module).__name__, [[None if g is None else g.clone() for g in part] for part in grads]))

    return hook


def trained(register, model=network, calls=2):
    """What training steps show with hooks that `register(model, log)` puts on."""

    def story(wrap):
        log: list = []
        net = model()
        handles = register(net, log)
        run = wrap(lambda x: net(x * 2) + 1)
        try:
            for call in range(calls):
                x = numbers(scale=1.0 + call)
                run(x).sin().sum().backward()
                yield x.grad, [p.grad for p in net.parameters()], list(log)
        finally:
            for handle in handles or ():
                handle.remove()

    return story


def observed(model, log):
    return [m.register_full_backward_hook(noted(log, "back")) for m in model.modules()] + [
        m.register_full_backward_pre_hook(noted(log, "pre")) for m in model.modules()
    ]


def replaced(model, log):
    def scaled(module, grads, results):
        log.append([g.norm() for g in (*grads, *results)])
        return tuple(g * 2 for g in grads)

    def shifted(module, results):
        return tuple(g + 1 for g in results)

    def clipped(module, grads, results):
        return (grads[0].clamp(-0.1, 0.1),)

    last = model[3]
    return [
        model[0].register_full_backward_hook(scaled),
        model[2].register_full_backward_pre_hook(shifted),
        model[2].register_full_backward_hook(scaled),
        last.register_full_backward_hook(scaled),
        last.register_full_backward_hook(clipped),
        last.register_full_backward_hook(noted(log, "after")),
        model.register_full_backward_hook(scaled, prepend=True),
    ]


def counted(model, log):
    model.passes, model[0].seen = 0, []

    def count(module, grads, results):
        model.passes += 1
        module.seen.append(round(float(grads[0].sum()), 4))
        print("backward of", type(module).__name__)
        log.append((model.passes, tuple(module.seen)))
        if grads[0].abs().max().item() > 1e-3:
            return (grads[0] / 2,)

    return [model[0].register_full_backward_hook(count)]


class Watch:
    def __init__(self, log):
        self.log = log

    def seen(self, factor, module, grads, results):
        self.log.append(factor * grads[0].sum())
        grads[0].mul_(factor)


def methods(model, log):
    return [model[1].register_full_backward_hook(functools.partial(Watch(log).seen, 2)), model[0].register_full_backward_hook(hook=noted(log, "x"))]


def for_all_modules(model, log):
    register = nn.modules.module
    return [
        register.register_module_forward_pre_hook(lambda module, args: log.append(type(module).__name__)),
        register.register_module_forward_hook(lambda module, args, result: result * 2),
        register.register_module_full_backward_hook(noted(log, "all")),
        register.register_module_full_backward_pre_hook(noted(log, "pre all")),
        *observed(model, log),
    ]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("register", [observed, replaced, counted, methods, for_all_modules])
def test_run_in_each_backward(register, backend):
    check_one_graph(trained(register), backend)


Pair = collections.namedtuple("Pair", "left right")


class Mixed(nn.Module):
    """Several inputs and results, and some that are no tensors or need no gradient."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))

    def forward(self, x, name, places, y, *, bias, as_pair=False):
        left, right = x * self.scale + bias, y.cos() * x
        return Pair(left, right) if as_pair else (left[:, places], name, right, None, x.detach(), 3)


def mixed(as_pair):
    def story(wrap):
        log: list = []
        module = Mixed()
        module.register_full_backward_hook(noted(log, "back"))
        module.register_full_backward_hook(lambda m, grads, results: tuple(None if g is None else g * 3 for g in grads))
        module.register_full_backward_pre_hook(noted(log, "pre"))

        def run(x, y, bias):
            found = module(x, "name", torch.tensor([0, 2]), y, bias=bias, as_pair=as_pair)
            assert type(found) is (Pair if as_pair else tuple)
            return (found.left * found.right).sum() if as_pair else (found[0].sum() + found[2].sin().sum() * found[5]) * found[4].sum()

        run = wrap(run)
        for grads in ((True, True, True), (True, False, False), (False, True, False)):
            x, y, bias = (numbers().detach().requires_grad_(g) for g in grads)
            run(x, y, bias).backward()
            yield x.grad, y.grad, bias.grad, module.scale.grad, list(log)

    return story


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("as_pair", [False, True])
def test_several_inputs_and_results(as_pair, backend):
    check_one_graph(mixed(as_pair), backend, recompiles=2)


def without_input_gradients(wrap):
    """They fire where the gradients of the results are known, with a warning, and may replace nothing."""
    log: list = []
    model = network()
    model.register_full_backward_hook(noted(log, "back"))
    model.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 2,))
    run = wrap(lambda x: model(x))
    for _ in range(2):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            run(numbers().detach()).sum().backward()
        told = [str(w.message).split(".")[0] for w in seen]
        yield [p.grad for p in model.parameters()], list(log), told
    model.register_full_backward_hook(lambda module, grads, results: (results[0],))
    yield attempt(lambda: run(numbers().detach()).sum().backward())


def without_gradients(wrap):
    log: list = []
    model = network().eval()
    observed(model, log)
    run = wrap(lambda x: model(x) * 2)
    with torch.no_grad():
        yield run(numbers()), list(log)
    yield run(numbers()), list(log)
    with torch.inference_mode():
        yield run(numbers().detach()), list(log)


def called_twice(wrap):
    log: list = []
    layer = nn.Linear(4, 4)
    nn.init.eye_(layer.weight)
    layer.register_full_backward_hook(noted(log, "back"))
    layer.register_full_backward_pre_hook(lambda module, grads: (grads[0] + 1,))
    run = wrap(lambda x: layer(layer(x).sin()).cos() + layer(x))
    x = numbers()
    out = run(x)
    out.sum().backward(retain_graph=True)
    yield x.grad, layer.weight.grad, list(log)
    out.sum().backward()
    yield x.grad, layer.weight.grad, list(log)


def branches(wrap):
    """Of two results one alone is differentiated: the hooks on the way to the other stay silent."""
    log: list = []
    first, second, both = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)
    for name, layer in (("first", first), ("second", second), ("both", both)):
        nn.init.eye_(layer.weight)
        layer.register_full_backward_hook(noted(log, name))
        layer.register_full_backward_pre_hook(lambda module, grads: tuple(g + 1 for g in grads))

    def compute(x):
        x = both(x)
        return first(x).sin(), second(x).cos()

    run = wrap(compute)
    for picked in (0, 1, None):
        x = numbers()
        out = run(x)
        (out[0] + out[1] if picked is None else out[picked]).sum().backward()
        yield x.grad, [p.grad for m in (first, second, both) for p in m.parameters()], list(log)


class Two(nn.Module):
    def forward(self, x):
        return x * 2, x.sin()


def one_result_of_two(wrap):
    """The gradient of the result that was not used is None for the hooks."""
    log: list = []
    module = Two()
    module.register_full_backward_hook(noted(log, "back"))
    module.register_full_backward_pre_hook(noted(log, "pre"))
    run = wrap(lambda x: module(x))
    for picked in (0, 1):
        x = numbers()
        run(x)[picked].sum().backward()
        yield x.grad, list(log)


def gradients_of_some(wrap):
    """Hooks run on the way to what is asked for, and nowhere else."""
    log: list = []
    model = network()
    observed(model, log)
    run = wrap(lambda x: model(x))
    for wanted in ([model[3][0].weight], [model[2].bias, model[3][0].bias], [model[0].weight]):
        yield torch.autograd.grad(run(numbers()).sum(), wanted), list(log)
    x = numbers()
    yield torch.autograd.grad(run(x).sum(), x), list(log)


def hooks_that_differentiate(wrap):
    """A hook runs a compiled function, and its backward."""
    log: list = []
    layer = nn.Linear(4, 4)
    nn.init.eye_(layer.weight)
    inner = wrap(lambda x: (x * 3).sin())

    def hook(module, grads, results):
        given = results[0].detach().requires_grad_()
        with torch.enable_grad():
            inner(given).sum().backward()
        log.append(given.grad)
        return (grads[0] + given.grad.mean(),)

    layer.register_full_backward_hook(hook)
    run = wrap(lambda x: layer(x).tanh())
    x = numbers()
    run(x).sum().backward()
    yield x.grad, list(log)


class Leaking(nn.Module):
    def forward(self, x, aside):
        aside.append(x.cos())
        return x.sin()


def around_the_module(wrap):
    """Gradients that reach what the module is given and not by what it gives."""
    log: list = []
    module = Leaking()
    module.register_full_backward_hook(noted(log, "back"))
    module.register_full_backward_pre_hook(noted(log, "pre"))

    def compute(x):
        aside: list = []
        return module(x * 2, aside), aside[0]

    run = wrap(compute)
    for picked in (0, 1):
        x = numbers()
        run(x)[picked].sum().backward()
        yield x.grad, list(log)


def kept(wrap):
    """Gradients that a hook keeps, and those that it gives, are its own."""
    seen: list = []
    model = network()

    def hook(module, grads, results):
        seen.extend(g for g in (*grads, *results) if g is not None)
        made = grads[0] * 2
        seen.append(made)
        return (made,)

    for module in model.modules():
        module.register_full_backward_hook(hook)
    run = wrap(lambda x: model(x).sin())
    for scale in (1.0, 5.0):
        run(numbers(scale=scale)).sum().backward()
        yield [s.clone() for s in seen]
    yield [(s.requires_grad, s.is_leaf) for s in seen]


def changes_the_module(wrap):
    """What a hook reads is read when it runs, not when the forward pass did."""
    model = nn.Linear(4, 4)
    nn.init.eye_(model.weight)
    model.factor = 2.0
    model.register_buffer("gain", torch.ones(4))
    model.register_full_backward_hook(lambda module, grads, results: (grads[0] * module.factor * module.gain,))
    run = wrap(lambda x: model(x).sin())
    x = numbers()
    out = run(x)
    model.factor = 5.0
    model.gain.mul_(3)
    out.sum().backward()
    yield x.grad


def raises(wrap):
    model = network()

    def hook(module, grads, results):
        raise KeyError("no such gradient")

    handle = model[2].register_full_backward_hook(hook)
    run = wrap(lambda x: model(x))
    yield attempt(lambda: run(numbers()).sum().backward())
    handle.remove()
    model[2].register_full_backward_hook(lambda module, grads, results: (None, None))
    yield attempt(lambda: run(numbers()).sum().backward())
    model[1].register_full_backward_pre_hook(lambda module, grads: ())
    yield attempt(lambda: run(numbers()).sum().backward())


def removed_before_the_backward_pass(wrap):
    log: list = []
    model = network()
    handles = observed(model, log)
    run = wrap(lambda x: model(x))
    out = run(numbers())
    for handle in handles:
        handle.remove()
    out.sum().backward()
    yield list(log)
    run(numbers()).sum().backward()
    yield list(log)


def saved_elsewhere(wrap):
    log: list = []
    model = network()
    observed(model, log)
    run = wrap(lambda x: model(x))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):
        out = run(numbers())
    out.sum().backward()
    yield list(log)


def recomputed(wrap):
    log: list = []
    model = network()
    observed(model, log)
    run = wrap(lambda x: checkpoint(model, x * 2, use_reentrant=False).sin())
    x = numbers()
    run(x).sum().backward()
    yield x.grad, list(log)


def blocks(wrap):
    """Modules that are alike, each with a hook of its own."""
    log: list = []
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4), nn.LayerNorm(4), nn.GELU()) for _ in range(4)))
    for i, block in enumerate(model):
        block.register_full_backward_hook(noted(log, i))
    run = wrap(lambda x: model(x))
    for _ in range(2):
        run(numbers()).sum().backward()
        yield list(log), [p.grad for p in model.parameters()]


STORIES = [
    without_input_gradients,
    called_twice,
    branches,
    one_result_of_two,
    around_the_module,
    kept,
    changes_the_module,
    raises,
    saved_elsewhere,
    recomputed,
    blocks,
    gradients_of_some,
    hooks_that_differentiate,
]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("story", STORIES)
def test_as_eager(story, backend):
    check_one_graph(story, backend, recompiles={without_input_gradients: 1, raises: 2}.get(story, 0))


@pytest.mark.parametrize("backend", BACKENDS)
def test_without_gradients_nothing_runs(backend):
    check_one_graph(without_gradients, backend, recompiles=2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_handle_is_removed(backend):
    check_one_graph(removed_before_the_backward_pass, backend, recompiles=1)


def with_varying_sizes(wrap):
    log: list = []
    model = network()
    observed(model, log)
    run = wrap(lambda x: model(x))
    for count in (8, 12, 16, 20):
        run(numbers(count)).sum().backward()
        yield list(log)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_vary(backend):
    check_one_graph(with_varying_sizes, backend, recompiles=1)


class Named(nn.Module):
    def forward(self, x):
        return {"result": x * 2}


def gives_a_dict(model, log):
    return [model.append(Named())[-1].register_full_backward_hook(noted(log, "back"))]


def legacy(model, log):
    return [model[0].register_backward_hook(lambda module, grads, results: log.append(len(grads)))]


def test_what_is_no_graph_breaks_by_name():
    for module, register in ((Named(), "register_full_backward_hook"), (nn.Linear(4, 4), "register_backward_hook")):
        getattr(module, register)(lambda *_: None)
        with pytest.raises(dynacompile.exc.Unsupported) as raised:
            dynacompile.compile(lambda x, module=module: module(x), backend="eager", fullgraph=True, isolate_recompiles=True)(numbers())
        assert raised.value.code == "hooks"


@pytest.mark.parametrize("backend", ["eager", "default"])
def test_legacy_hooks_are_pythons(backend):
    check_same(trained(legacy), backend=backend, least=None, rtol=1e-4, atol=1e-5)


def gradients_inside(wrap):
    log: list = []
    model = network()
    observed(model, log)

    def compute(x):
        (grad,) = torch.autograd.grad(model(x).sum(), x)
        return grad * 2

    run = wrap(compute)
    for _ in range(2):
        yield run(numbers()), list(log)


def written_in_place(wrap):
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU(inplace=True))
    model[1].register_full_backward_hook(lambda *_: None)
    run = wrap(lambda x: model(x))
    yield type(attempt(run, numbers()))


def registered_inside(wrap):
    log: list = []
    layer = nn.Linear(4, 4)
    nn.init.eye_(layer.weight)

    def compute(x):
        handle = layer.register_full_backward_hook(noted(log, "back"))
        out = layer(x * 2)
        handle.remove()
        return out

    run = wrap(compute)
    for _ in range(2):
        run(numbers()).sum().backward()
        yield list(log), len(layer._backward_hooks)


@pytest.mark.parametrize("backend", ["eager", "default"])
@pytest.mark.parametrize("story", [gradients_inside, written_in_place, registered_inside])
def test_where_graphs_break(story, backend):
    check_same(story, backend=backend, least=None, rtol=1e-4, atol=1e-5)


def test_a_backend_that_differentiates_is_refused(monkeypatch):
    monkeypatch.setattr(backends, "inductor_call", lambda graph, fakes: graph.forward)  # for the frames inside, which have no hooks
    model = network()
    observed(model, [])
    events = []
    end = dynacompile.subscribe(events.append)
    try:
        run = dynacompile.compile(lambda x: model(x), backend="inductor", isolate_recompiles=True)
        torch.testing.assert_close(run(numbers()), model(numbers()))
    finally:
        end()
    assert [e.reason for e in names(events, FrameSkipped) if e.reason.startswith("[hooks]")]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_hook_that_gives_no_gradient_of_that_form_is_told(backend):
    model = nn.Linear(4, 4)
    model.register_full_backward_hook(lambda module, grads, results: (grads[0].double(),))
    run = dynacompile.compile(lambda x: model(x).sin(), backend=backend, isolate_recompiles=True)
    with pytest.raises(RuntimeError, match="changed the type of value" if backend == "eager" else "gave torch.float64 of .* for a gradient of torch.float32"):
        run(numbers()).sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_nothing_keeps_the_module(backend):
    model = network()
    observed(model, [])
    run = dynacompile.compile(model, backend=backend, isolate_recompiles=True)
    run(numbers()).sum().backward()
    gone = weakref.ref(model[0])
    del model, run
    gc.collect()
    assert gone() is None
