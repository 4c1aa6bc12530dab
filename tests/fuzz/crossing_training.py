"""What the training of crossings.py is made of, each a feature of PyTorch: parts of a step, optimizers, calls of compiled modules, and events between calls.

The text of a step may use net, opt, x, out and loss; that of an event what the function `story` of a program has.
"""

from __future__ import annotations

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

# From crossings.TRAINERS on, beside those above: what trainers and libraries of models do.
TRAINER_STEPS: dict[str, dict[str, str]] = {
    "swapped_average": {
        "after": (
            "if s.target is None:\n    s.target = [p.detach().clone() for p in net.parameters()]\nkept = [p.data for p in net.parameters()]\n"
            "for p, a in zip(net.parameters(), s.target):\n    if p.shape == a.shape and p.dtype == a.dtype:\n"
            "        a.lerp_(p.data, 0.2)\n        p.data = a\n"
            "with torch.no_grad():\n    s.score = net(x).sum()\nfor p, own in zip(net.parameters(), kept):\n    p.data = own"
        )
    },
    "foreach_average": {
        "after": (
            "own = [p.data for p in net.parameters() if p.dtype is torch.float32]\nif len(own) == len(s.average) and [p.shape for p in own] == "
            "[a.shape for a in s.average]:\n    torch._foreach_mul_(s.average, 0.9)\n    torch._foreach_add_(s.average, own, alpha=0.1)"
        )
    },
    "sharpness": {
        "grads": (
            "moved = [(p, p.grad.to_dense() * 0.05) for p in net.parameters() if p.grad is not None and p.grad.dtype == p.dtype]\nwith torch.no_grad():\n"
            "    for p, e in moved:\n        p.add_(e)\nopt.zero_grad()\nagain = net(x.detach()).square().mean()\n"
            "if again.requires_grad:\n    again.backward()\n"
            "with torch.no_grad():\n    for p, e in moved:\n        p.sub_(e)"
        )
    },
    "adversarial": {
        "before": (
            "x = x.detach().clone().requires_grad_()\nwith torch.enable_grad():\n    worse = net(x).square().sum()\n"
            "    pushed, = torch.autograd.grad(worse, x, allow_unused=True) if worse.requires_grad else (None,)\n"
            "x = x.detach() if pushed is None else (x + 0.1 * pushed.sign()).detach()"
        )
    },
    "materialized": {
        "backward": (
            "asked = [p for p in net.parameters() if p.requires_grad]\nunused = torch.ones(2, requires_grad=True)\n"
            "for p, g in zip(asked, torch.autograd.grad(\n"
            "        loss, [*asked, unused], allow_unused=True, materialize_grads=True)):\n    p.grad = g"
        )
    },
    "detached_in_place": {"loss": "s.last = out * 1\ns.last.detach_()"},
    "micro_batches": {"backward": "loss.backward()\nfor part in x.detach().split(2):\n    (net(part).square().mean() / 2).backward()"},
    "kept_gradient": {
        "loss": "if out.requires_grad:\n    out.retain_grad()",
        "after": "if out.requires_grad and out.grad is not None:\n    s.norms.append(float(out.grad.float().norm()))",
    },
    "clamped_gradient": {"loss": "if out.requires_grad:\n    out.register_hook(lambda g: g.clamp(-0.1, 0.1))"},
    "switched": {"around": "Set(net, 'flag', True)"},
    "decorated": {"before": "@torch.no_grad()\ndef score(v):\n    return net(v).sum()\ns.score = score(x)"},
    "lookahead": {
        "after": (
            "s.tried += 1\nif s.target is None:\n    s.target = [p.detach().clone() for p in net.parameters()]\nelif s.tried % 2 == 0:\n"
            "    for slow, p in zip(s.target, net.parameters()):\n        if slow.shape == p.shape and slow.dtype == p.dtype:\n"
            "            slow.add_(p.data - slow, alpha=0.5)\n            p.data.copy_(slow)"
        )
    },
    "centralised": {
        "grads": (
            "for p in net.parameters():\n    if p.grad is not None and p.dim() > 1 and not p.grad.is_sparse:\n"
            "        p.grad.sub_(p.grad.mean(dim=tuple(range(1, p.dim())), keepdim=True))"
        )
    },
    "noisy_gradients": {
        "grads": "for p in net.parameters():\n    if p.grad is not None and not p.grad.is_sparse:\n        p.grad.add_(torch.randn_like(p.grad), alpha=0.01)"
    },
    "finite_gradients": {
        "grads": (
            "found = [p.grad for p in net.parameters() if p.grad is not None and not p.grad.is_sparse]\n"
            "if found and not all(torch.isfinite(g).all() for g in found):\n    s.skipped += 1\n    for g in found:\n        g.zero_()"
        )
    },
    "scaler": {
        "before": "if s.target is None:\n    s.target = torch.amp.GradScaler('cpu', init_scale=8.0, growth_interval=2)",
        "backward": "s.target.scale(loss).backward()\ns.target.unscale_(opt)\ns.target.step(opt)\ns.target.update()",
    },
    "vector_penalty": {"loss": "loss = loss + 0.01 * torch.nn.utils.parameters_to_vector([p.abs() for p in net.parameters()]).norm()"},
    "consistency": {
        "loss": (
            "with torch.no_grad():\n    smooth = {k: v * 0.9 if v.is_floating_point() else v.clone() for k, v in net.state_dict().items()}\n"
            "    wanted = torch.func.functional_call(net, smooth, (x,), strict=False)\nloss = loss + F.mse_loss(out, wanted.detach())"
        )
    },
    "frozen_step": {"before": "for k, p in net.named_parameters():\n    p.requires_grad_((len(k) + s.tried) % 2 == 0)\ns.tried += 1"},
    "total_norm": {"grads": "s.norms.append(float(torch.nn.utils.get_total_norm([p.grad.to_dense() for p in net.parameters() if p.grad is not None])))"},
}
TRAINER_UPDATES = {
    "closure": (
        "def closure():\n    opt.zero_grad()\n    again = net(x.detach()).square().mean()\n    if again.requires_grad:\n"
        "        again.backward()\n    return again\n"
        "opt.step(closure)"
    ),
    "set_by_hand": (
        "with torch.no_grad():\n    for p in net.parameters():\n        if p.grad is not None:\n"
        "            p.copy_(p - 0.05 * p.grad.to_dense())\n            p.grad = None"
    ),
}
TRAINER_OPTIMIZERS = (
    "Adagrad(P, lr=0.05, eps=0.01)",
    "NAdam(P, lr=0.01, eps=0.01)",
    "Rprop(P, lr=0.01)",
    "SGD(P, lr=0.05, maximize=True, weight_decay=0.01, foreach=False)",
    "Adam([{'params': [p], 'lr': 0.01 * (1 + k % 2)} for k, p in enumerate(net.parameters()) if not isinstance(p, "
    "nn.parameter.UninitializedTensorMixin)], eps=0.01, amsgrad=True)",
)
TRAINER_EVENTS = {
    "loaded_in_part": "net.load_state_dict({k: v * 0.5 for k, v in list(net.state_dict().items())[::2] if v.is_floating_point()}, strict=False)",
    "assigned_in_part": "net.load_state_dict({k: v.clone() for k, v in list(net.state_dict().items())[::2]}, strict=False, assign=True)\nopt = make_opt()",
    "buffers_replaced": (
        "for part in net.modules():\n    for key, value in list(part._buffers.items()):\n        if value is not None:\n"
        "            setattr(part, key, value.clone())"
    ),
    "head_appended": "net.head = nn.Sequential(net.head, nn.Linear(4, 4).to(dtype))",
    "layer_inserted": "net.late = nn.Linear(4, 4).to(dtype)\nhandles.append(net.head.register_forward_pre_hook(lambda m, a: (net.late(a[0]),)))",
    "hooks_everywhere": "handles.extend(part.register_forward_hook(lambda m, a, o: sums.append(1.0)) for part in net.modules())",
    "state_hook": "handles.append(net.register_state_dict_post_hook(lambda m, state, prefix, meta: sums.append(2.0)))",
    "copied_beside": (
        "other = copy.deepcopy(net)\nnote.attempt('beside', lambda: (other(torch.ones(2, 4, dtype=dtype)), net(torch.ones(2, 4, dtype=dtype))), other)"
    ),
    "copied_while_training": "other = copy.deepcopy((net, opt, s))\nnote.attempt('copies', lambda: other[0](torch.ones(2, 4, dtype=dtype)), *other[:2])",
    "group_added": "net.extra = nn.Parameter(torch.ones(4, dtype=dtype))\nopt.add_param_group({'params': [net.extra], 'lr': 0.1})",
    "optimizer_cleared": "opt.state.clear()",
    "optimizer_hook": "handles.append(opt.register_step_post_hook(lambda o, a, k: sums.append(3.0)))",
    "optimizer_pre_hook": (
        "handles.append(opt.register_step_pre_hook(lambda o, a, k: [p.grad.mul_(0.5) for p in net.parameters() if p.grad is not None] and None))"
    ),
    "gradients_in_one": (
        "own = [p for p in net.parameters() if not isinstance(p, nn.parameter.UninitializedTensorMixin) and p.requires_grad]\n"
        "flat = torch.zeros(sum(p.numel() for p in own), dtype=dtype)\nat = 0\nfor p in own:\n    if p.dtype is dtype:\n"
        "        p.grad = flat[at:at + p.numel()].view(p.shape)\n        at += p.numel()"
    ),
    "parameters_in_one": (
        "own = [p for p in net.parameters() if not isinstance(p, nn.parameter.UninitializedTensorMixin) and p.dtype is dtype]\n"
        "flat = torch.cat([p.detach().reshape(-1) for p in own])\nat = 0\nfor p in own:\n"
        "    p.data = flat[at:at + p.numel()].view(p.shape)\n    at += p.numel()"
    ),
    "norms_frozen": "for part in net.modules():\n    if 'Norm' in type(part).__name__:\n        part.eval()\n        part.requires_grad_(False)",
    "rates_of_layers": (
        "for part in net.modules():\n    if hasattr(part, 'momentum') and part.momentum:\n        part.momentum = 0.3\n"
        "    if isinstance(part, nn.Dropout):\n        part.p = 0.7"
    ),
    "initialised": "torch.manual_seed(i)\nnet.apply(lambda part: part.reset_parameters() if type(part) is nn.Linear else None)",
    "number_of_class": "net.__dict__.pop('number', None)\nhandles.append(Gone(type(net), 'number'))\ntype(net).number = 2.0",
    "number_is_tensor": "net.number = torch.tensor(1.5, dtype=dtype)",
    "number_is_parameter": "net.__dict__.pop('number', None)\nnet.number = nn.Parameter(torch.tensor(1.5, dtype=dtype))",
    "call_of_class": (
        "class Called(type(net)):\n    def forward(self, *a, **k):\n        return super().forward(*a, **k) * 2\n"
        "if type(net).__name__ == 'Net' and not held:\n    net.__class__ = Called"
    ),
    "autocasts_nested": (
        "@contextlib.contextmanager\ndef around():\n"
        "    with torch.autocast('cpu', torch.bfloat16), torch.autocast('cpu', torch.float16, enabled=i % 2 == 0):\n        yield\n"
        "note.loose = True"
    ),
    "device_call": "around = lambda: torch.device('cpu')",
    "saved_hooks_call": "around = lambda: torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t)",
    "saved_on_cpu_call": "around = torch.autograd.graph.save_on_cpu",
    "written_before_backward": (
        "kept = note.attempt('early', lambda: net(torch.ones(2, 4, dtype=dtype)))\nwith torch.no_grad():\n    net.head.weight.mul_(1.1)\n"
        "if kept is not None and kept.requires_grad:\n    note.attempt('late', lambda: kept.sum().backward(), net)"
    ),
    "backward_later": (
        "if s.last is not None and s.last.requires_grad:\n    note.attempt('later', lambda: s.last.sum().backward(), net)\n"
        "s.last = note.attempt('kept', lambda: net(torch.ones(2, 4, dtype=dtype)))"
    ),
    "backward_twice": (
        "kept = note.attempt('first', lambda: net(torch.ones(2, 4, dtype=dtype)))\nif kept is not None and kept.requires_grad:\n"
        "    note.attempt('once', lambda: kept.sum().backward(), net)\n    note.attempt('twice', lambda: kept.sum().backward(), net)"
    ),
    "stem_compiled": "net.stem = wrap(net.stem, dynamic=True)",
    "compiled_again": "call = wrap(call, dynamic=i % 2 == 0)",
    "shared_twin": (
        "other = type(net)()\nother.load_state_dict(net.state_dict(), assign=True, strict=False)\n"
        "note.attempt('shared', lambda: other(torch.ones(2, 4, dtype=dtype)).sum().backward(), net, other)"
    ),
    "swapped_by_conversion": (
        "torch.__future__.set_swap_module_params_on_conversion(True)\nnote.attempt('swapped', lambda: net.double().float() and None)\n"
        "torch.__future__.set_swap_module_params_on_conversion(False)\nnet.to(dtype)"
    ),
    "overwritten_by_conversion": (
        "torch.__future__.set_overwrite_module_params_on_conversion(True)\nnet.double().to(dtype)\n"
        "torch.__future__.set_overwrite_module_params_on_conversion(False)\nopt = make_opt()"
    ),
    "subclass_parameter": "net.stem.weight = nn.Parameter(net.stem.weight.detach().as_subclass(Plain))\nopt = make_opt()",
    "ensemble": (
        "parts = [net, copy.deepcopy(net)]\nnote.attempt('ensemble', lambda: torch.func.vmap(lambda p, b: torch.func.functional_call(\n"
        "    net, (p, b), (torch.ones(2, 4, dtype=dtype),)), randomness='different')(*torch.func.stack_module_state(parts)))"
    ),
    "gradient_of_parameters": (
        "note.attempt('of parameters', lambda: torch.func.grad(lambda p: torch.func.functional_call(\n"
        "    net, p, (torch.ones(2, 4, dtype=dtype),)).square().mean())({k: v.detach() for k, v in net.named_parameters()}))"
    ),
    "curvature": "note.attempt('curvature', lambda: torch.autograd.functional.hvp(lambda v: net(v).square().sum(), *[torch.ones(2, 4, dtype=dtype)] * 2))",
    "frozen_by_turns": "for k, p in enumerate(net.parameters()):\n    p.requires_grad_((k + i) % 2 == 0)",
    "weight_is_view": "net.stem.weight = nn.Parameter(torch.eye(8, dtype=dtype)[2:6, 1:5])\nopt = make_opt()",
    "module_moved": "part = net.stem\ndel net.stem\nnet.stem = part",
    "everything_thrown_away": "net = type(net)().to(dtype)\nopt = make_opt()\ncall = build()",
}
