"""A module is changed between two calls in every way: the compiled module must follow as eager does."""

import types

import pytest
import torch

from tests.programs.test_p07_flips import x3
from tests.scenarios import check_same


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(3, 3)
        self.drop = torch.nn.Dropout(0.5)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.ReLU()])
        self.register_buffer("shift", torch.ones(3))
        self.scale = 2.0
        self.mode = "sum"
        self.extras = []
        self.options = {"power": 2}

    def forward(self, x):
        x = self.drop(self.first(x)) * self.scale + self.shift
        for layer in self.layers:
            x = layer(x)
        for extra in self.extras:
            x = x + extra
        x = x ** self.options["power"]
        return x.sum(-1) if self.mode == "sum" else x.mean(-1)


def set_data(net):
    net.first.weight.data = torch.ones(3, 3)


def set_data_other_dtype(net):
    net.double()


def new_parameter(net):
    net.first.weight = torch.nn.Parameter(torch.full((3, 3), 0.5))


def no_bias(net):
    net.first.bias = None


def freeze(net):
    net.first.weight.requires_grad_(False)


def swap_submodule(net):
    net.first = torch.nn.Linear(3, 3, bias=False)


def swap_kind(net):
    net.first = torch.nn.Identity()


def append_layer(net):
    net.layers.append(torch.nn.Tanh())


def insert_layer(net):
    net.layers.insert(0, torch.nn.Linear(3, 3))


def set_layer(net):
    net.layers[1] = torch.nn.Sigmoid()


def pop_layer(net):
    net.layers.pop(-1)


def evaluate(net):
    net.eval()


def evaluate_part(net):
    net.drop.eval()


def dropout_rate(net):
    net.drop.p = 0.9


def scale(net):
    net.scale = 3


def mode(net):
    net.mode = "mean"


def extra(net):
    net.extras.append(4.0)


def option(net):
    net.options["power"] = 3


def replace_buffer(net):
    net.shift = torch.full((3,), 2.0)


def delete_and_add_buffer(net):
    del net.shift
    net.register_buffer("shift", torch.full((1,), 5.0))


def buffer_in_place(net):
    net.shift.add_(1)


def own_forward(net):
    net.forward = types.MethodType(lambda self, x: x * 100, net)


def submodule_forward(net):
    net.first.forward = lambda x: x * 10


def class_forward(net):
    net.__class__ = type("Net2", (Net,), {"forward": lambda self, x: self.first(x)})


def forward_hook(net):
    net.first.register_forward_hook(lambda m, args, out: out * 3)


def forward_pre_hook(net):
    net.register_forward_pre_hook(lambda m, args: (args[0] + 1,))


def hook_on_top(net):
    net.register_forward_hook(lambda m, args, out: out - 10)


def load_state(net):
    net.load_state_dict({k: v * 2 for k, v in net.state_dict().items()})


def load_state_assign(net):
    net.load_state_dict({k: v * 3 for k, v in net.state_dict().items()}, assign=True)


def tie(net):
    net.layers[0].weight = net.first.weight


NET_FLIPS = [
    set_data,
    set_data_other_dtype,
    new_parameter,
    no_bias,
    freeze,
    swap_submodule,
    swap_kind,
    append_layer,
    insert_layer,
    set_layer,
    pop_layer,
    evaluate,
    evaluate_part,
    dropout_rate,
    scale,
    mode,
    extra,
    option,
    replace_buffer,
    delete_and_add_buffer,
    buffer_in_place,
    own_forward,
    submodule_forward,
    class_forward,
    forward_hook,
    forward_pre_hook,
    hook_on_top,
    load_state,
    load_state_assign,
    tie,
]


@pytest.mark.parametrize("flip", NET_FLIPS, ids=lambda f: f.__name__)
@pytest.mark.parametrize("inplace", [False, True], ids=["twin", "inplace"])
def test_modules(flip, inplace):
    def story(wrap):
        torch.manual_seed(1)
        net = Net()
        run = wrap(net)

        def step():
            torch.manual_seed(2)
            net.zero_grad()
            x = torch.linspace(-1, 1, 6, dtype=net.shift.dtype).reshape(2, 3)
            out = run(x)
            if out.requires_grad:
                out.sum().backward()
            return out, {n: p.grad.clone() for n, p in net.named_parameters() if p.grad is not None}, sorted(net.state_dict())

        yield step()
        yield step()
        torch.manual_seed(3)
        flip(net)
        yield step()
        yield step()

    check_same(story, inplace=inplace, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("changes", ["hook removed", "hook swapped", "hook's state"])
def test_hooks_change(changes):
    def story(wrap):
        net = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.ReLU())
        state = {"factor": 2.0}
        handle = net[0].register_forward_hook(lambda m, a, out: out * state["factor"])
        run = wrap(net)
        yield run(x3())
        if changes == "hook removed":
            handle.remove()
        elif changes == "hook swapped":
            handle.remove()
            net[0].register_forward_hook(lambda m, a, out: out - 7)
        else:
            state["factor"] = -4.0
        yield run(x3())

    check_same(story, least=None)
