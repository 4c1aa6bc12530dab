"""Inputs and outputs that share memory, leaves and views written in place, buffers."""

import pytest
import torch

from tests.checking import check
from tests.scenarios import attempt, check_same


def base(n=12):
    return torch.arange(float(n)) / 4 + 0.5


def write_first(x, y):
    x.add_(1)
    return y * 2


def write_second(x, y):
    z = x * 3
    y.mul_(2)
    return z + x, y + x


def write_both(x, y):
    x.add_(1)
    y.mul_(3)
    return x.sum() + y.sum()


def assign_part(x, y):
    x[0] = 9.0
    return y + 1


def copies(x, y):
    y.copy_(x * 2)
    return x + y


OVERLAPS = {
    "view": lambda: (lambda t: (t, t.view(-1)))(base()),
    "tail": lambda: (lambda t: (t, t[1:]))(base()),
    "parts": lambda: (lambda t: (t[:8], t[4:]))(base()),
    "disjoint": lambda: (lambda t: (t[:6], t[6:]))(base()),
    "same": lambda: (lambda t: (t, t))(base()),
    "transposed": lambda: (lambda t: (t, t.t()))(base(9).reshape(3, 3)),
    "strided": lambda: (lambda t: (t[::2], t[1::2]))(base()),
    "detached": lambda: (lambda t: (t, t.detach()))(base()),
    "as_dtype": lambda: (lambda t: (t, t.view(torch.float32)))(base()),
}
SAME_SHAPE = {k: v for k, v in OVERLAPS.items() if k not in ("tail", "transposed")}


@pytest.mark.parametrize("fn", [write_first, write_second, write_both, assign_part, copies])
@pytest.mark.parametrize("kind", sorted(OVERLAPS))
def test_overlap_at_the_first_call(fn, kind):
    def story(wrap):
        run = wrap(fn)
        for _ in range(2):
            x, y = OVERLAPS[kind]()
            yield attempt(run, x, y)
            yield x, y

    check_same(story, least=None)


@pytest.mark.parametrize("fn", [write_first, write_second, write_both, assign_part, copies])
@pytest.mark.parametrize("kind", sorted(OVERLAPS))
def test_overlap_at_a_later_call(fn, kind):
    """The entry is made for inputs apart: it must not serve inputs that overlap, of the same sizes and strides."""

    def story(wrap):
        run = wrap(fn)
        for apart in (True, True, False, True, False):
            x, y = OVERLAPS[kind]()
            if apart:
                y = torch.empty_strided(y.shape, y.stride()).copy_(y)
            yield attempt(run, x, y)
            yield x, y

    check_same(story)


def three(x, y, z):
    z.add_(x)
    return y * z


def test_overlap_among_three():
    def story(wrap):
        run = wrap(three)
        t = base(24)
        apart = [(base(8), base(8), base(8)), (t[:8], t[8:16], t[16:])]
        overlapping = [(t[:8], t[4:12], t[8:16]), (t[4:12], t[4:12], base(8)), (base(8), t[:8], t[4:12])]
        for x, y, z in [*apart, *overlapping]:
            yield run(x, y, z)
            yield x, y, z, t

    check_same(story)


def test_read_only_overlaps_are_compiled():
    def story(wrap):
        run = wrap(lambda x, y: x * 2 + y)
        t = base()
        for x, y in [(t[:8], t[4:]), (t[:8], t[:8]), (base(8), base(8))]:
            yield run(x, y)

    check_same(story)


class Table(torch.nn.Module):
    def __init__(self, cut=False):
        super().__init__()
        self.register_buffer("memory", torch.zeros(8))
        self.register_buffer("window", self.memory[2:6] if cut else torch.zeros(4))

    def forward(self, x):
        self.memory.add_(x)
        return self.window * 2 + 1


@pytest.mark.parametrize("cut", [False, True])
def test_buffers_that_overlap(cut):
    def story(wrap):
        module = Table(cut)
        run = wrap(module)
        for _ in range(3):
            yield run(base(8))
            yield module.memory, module.window

    check_same(story, least=None)


def test_buffers_that_overlap_later():
    def story(wrap):
        module = Table()
        run = wrap(module)
        yield run(base(8))
        module.window = module.memory[2:6]
        yield run(base(8))
        yield module.memory, module.window

    check_same(story)


@pytest.mark.parametrize("grad", [False, True])
def test_expanded_input(grad):
    def story(wrap):
        run = wrap(lambda x: (x * 2, x.sum(0), x.t() + 1))
        row = base(4).requires_grad_(grad)
        x = row.expand(3, 4)
        out = run(x)
        yield out
        if grad:
            sum(o.pow(2).sum() for o in out).backward()
            yield row.grad

    check_same(story)


def test_expanded_input_is_written():
    def story(wrap):
        run = wrap(lambda x: x.add_(1))
        yield attempt(run, base(4).expand(3, 4))
        x = base(4).as_strided((3, 2), (1, 1))
        yield attempt(run, x)

    check_same(story, least=None)


def test_overlapping_strides_read():
    def story(wrap):
        run = wrap(lambda x: (x * 2, x.cumsum(0)))
        yield run(base(6).as_strided((3, 4), (1, 1)))

    check_same(story)


@pytest.mark.parametrize(
    "write",
    [lambda x: x.add_(1), lambda x: x[0].mul_(2), lambda x: x.view(-1)[1:].zero_(), lambda x: x.t().fill_(3)],
    ids="add row view transpose".split(),
)
def test_leaf_that_wants_a_gradient_is_written(write):
    def story(wrap):
        def fn(x):
            write(x)
            return x * 2

        run = wrap(fn)
        for grad in (True, False, True):
            x = base().reshape(3, 4).requires_grad_(grad)
            yield attempt(run, x)
            yield x

    check_same(story, least=None)


@pytest.mark.parametrize(
    "write",
    [lambda x: x.add_(1), lambda x: x[0].mul_(2), lambda x: x.view(-1)[1:].mul_(3), lambda x: x.t().fill_(3)],
    ids="add row view transpose".split(),
)
def test_non_leaf_is_written(write):
    def story(wrap):
        def fn(x):
            write(x)
            return x * 2

        run = wrap(fn)
        for _ in range(2):
            leaf = base().reshape(3, 4).requires_grad_()
            x = leaf * 1.5
            out = run(x)
            yield out, x
            (out.sum() + x.pow(2).sum()).backward()
            yield leaf.grad

    check_same(story)


def test_leaf_is_written_without_grad():
    def story(wrap):
        def fn(p, x):
            with torch.no_grad():
                p.mul_(0.5)
            return p * x

        run = wrap(fn)
        p, x = base().requires_grad_(), base() + 1
        for _ in range(3):
            out = run(p, x)
            out.sum().backward()
            yield out, p, p.grad

    check_same(story)


def test_view_of_leaf_is_written_without_grad():
    def story(wrap):
        def fn(p, x):
            with torch.no_grad():
                p[:4].copy_(x[:4])
            return p * x

        run = wrap(fn)
        p, x = base().requires_grad_(), base() + 1
        for _ in range(2):
            out = run(p, x)
            out.sum().backward()
            yield out, p, p.grad

    check_same(story)


def test_detached_is_written():
    def story(wrap):
        def fn(x):
            y = x.detach()
            y.add_(1)
            return x * 2, y

        run = wrap(fn)
        for grad in (False, True):
            x = base().requires_grad_(grad)
            out = attempt(run, x)
            yield out
            yield x
            if grad:
                out[0].sum().backward()
                yield x.grad

    check_same(story)


def test_detached_is_written_after_use():
    """Eager raises in backward: the value that mul saved has changed."""

    def story(wrap):
        def fn(x):
            y = x * x
            x.detach().add_(1)
            return y

        run = wrap(fn)
        x = base().requires_grad_()
        out = run(x)
        yield out, x
        yield isinstance(attempt(out.sum().backward), RuntimeError)

    check_same(story, least=None)


def test_data_is_written():
    def story(wrap):
        def fn(x):
            x.data.mul_(2)
            return x + 1

        run = wrap(fn)
        x = base().requires_grad_()
        yield run(x)
        yield run(x), x

    check_same(story, least=None)


def test_returned_views_are_written_by_the_caller():
    def story(wrap):
        run = wrap(lambda x: (x[1:3], x.view(-1), x.t(), x))
        x = base().reshape(3, 4)
        row, flat, turned, itself = run(x)
        row.add_(1)
        flat[0] = 7
        turned[1].mul_(3)
        yield x, row, flat, turned, itself is x

    check_same(story, least=None)


def test_returned_views_of_intermediate_are_written_by_the_caller():
    def story(wrap):
        def fn(x):
            y = x * 2
            return y, y[1:], y.t()

        run = wrap(fn)
        for grad in (False, True):
            leaf = base().reshape(3, 4).requires_grad_(grad)
            y, tail, turned = run(leaf)
            tail.add_(1)
            turned.mul_(3)
            yield y, tail, turned
            if grad:
                y.sum().backward()
                yield leaf.grad

    check_same(story)


def test_views_with_gradient_are_written_by_the_caller():
    def story(wrap):
        run = wrap(lambda x: x.view(4, 3)[1:])
        leaf = base().reshape(3, 4).requires_grad_()
        x = leaf * 1
        tail = run(x)
        tail.mul_(3)
        yield x, tail
        x.sum().backward()
        yield leaf.grad

    check_same(story, least=None)


class Stats(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(4))
        self.register_buffer("steps", torch.tensor(0))
        self.count = 0

    def forward(self, x):
        if self.training:
            with torch.no_grad():
                self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
                self.steps += 1
            self.count += 1
        return x - self.mean, self.steps * 2


def test_running_statistics():
    def story(wrap):
        module = Stats()
        run = wrap(module)
        for training in (True, True, False, True):
            module.train(training)
            yield run(base().reshape(3, 4).requires_grad_())
            yield module.mean, module.steps, module.count

    check_same(story)


class Reassigns(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("state", torch.zeros(4))
        self.last = None

    def forward(self, x):
        self.state = self.state * 0.5 + x.sum(0)
        self.last = self.state + 1
        return self.state * 2 + self.last


def test_buffers_are_reassigned():
    def story(wrap):
        module = Reassigns()
        run = wrap(module)
        for _ in range(3):
            out = run(base().reshape(3, 4))
            yield out, module.state, module.last, list(module.state_dict())

    check_same(story)


@pytest.mark.parametrize("mode", ["train", "eval", "no_grad", "train_then_eval"])
def test_batch_norm(mode):
    def story(wrap):
        module = torch.nn.BatchNorm1d(4)
        run = wrap(module)
        for step in range(3):
            module.train(mode in ("train", "no_grad") or mode == "train_then_eval" and step < 2)
            x = (base() * (step + 1)).reshape(3, 4).requires_grad_()
            with torch.set_grad_enabled(mode != "no_grad"):
                out = run(x)
            yield out, module.running_mean, module.running_var, module.num_batches_tracked
            if mode != "no_grad":
                out.pow(2).sum().backward()
                yield x.grad, module.weight.grad

    check_same(story, atol=1e-5, rtol=1e-4)


def test_outputs_share_memory_as_in_eager():
    def story(wrap):
        def fn(x):
            y = x + 1
            return y, y.view(-1), y.detach(), y[0], x, x.detach()

        run = wrap(fn)
        for grad in (False, True):
            out = run(base().reshape(3, 4).requires_grad_(grad))
            yield [[a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr() for a in out] for b in out]
            yield [o.requires_grad for o in out], out

    check_same(story)


def test_constant_tensors_are_fresh_each_call():
    def story(wrap):
        def fn(x):
            return torch.tensor([1.0, 2.0, 3.0]), torch.zeros(3), x + torch.tensor([1.0])

        run = wrap(fn)
        for _ in range(2):
            a, b, c = run(base())
            a.add_(5)
            b.add_(5)
            yield a, b, c

    check_same(story)


def test_global_tensor_is_written():
    state = {"t": torch.zeros(3)}

    def story(wrap):
        state["t"] = torch.zeros(3)

        def fn(x):
            state["t"].add_(x)
            return state["t"] * 2

        run = wrap(fn)
        for _ in range(3):
            yield run(base(3)), state["t"]

    check_same(story)


def test_result_written_twice_through_two_views():
    def story(wrap):
        def fn(x):
            y = x.clone()
            a, b = y[:4], y[2:6]
            a.add_(1)
            b.mul_(2)
            a.sub_(b[0].clone())
            return y, a + b

        run = wrap(fn)
        leaf = base().requires_grad_()
        y, z = run(leaf)
        (y.sum() + z.pow(2).sum()).backward()
        yield y, z, leaf.grad

    check_same(story)


def test_copy_into_itself_shifted():
    def story(wrap):
        def fn(x):
            x[1:] = x[:-1].clone()
            x[:3].copy_(x[3:6])
            return x.flip(0)

        run = wrap(fn)
        x = base()
        yield run(x), x
        yield run(x), x

    check_same(story)


def test_non_contiguous_input_is_written():
    def story(wrap):
        def fn(x):
            x.mul_(2)
            x[0] += 1
            return x.sum(0)

        run = wrap(fn)
        t = base().reshape(3, 4)
        for x in (t.t(), t[:, ::2], t.t()[1:3]):
            yield run(x), t

    check_same(story)


def test_a_list_with_a_tensor_twice_is_written():
    """One after the other, as eager does; parts of one tensor that share nothing stay in the graph."""

    def story(wrap):
        def twice(x, y):
            z = x * 1
            torch._foreach_add_([z, y, z], 1.0)
            torch._foreach_mul_([y, y.view(-1), z[1:]], 3.0)
            return z

        def inputs(xs):
            torch._foreach_add_(xs, 1.0)
            return torch._foreach_mul(xs, 2.0)

        run, parts = wrap(twice), wrap(inputs)
        for _ in range(2):
            x, y = base(4), base(4)
            yield run(x, y), y
            yield parts([x, x]), x
            yield parts([x, y]), x, y

    check_same(story)


def test_parts_of_one_tensor_in_a_list_are_one_graph():
    def parts(x):
        flat = x * 1
        torch._foreach_mul_([flat[:2], flat[2:]], [2.0, 3.0])
        return flat

    check(parts, base(4), graphs=1, breaks=0)


UNSAFE_SPLITS = {
    "unsafe_chunk": lambda t: torch.unsafe_chunk(t, 2),
    "unsafe_chunk, a method": lambda t: t.unsafe_chunk(2, dim=-1),
    "unsafe_split": lambda t: torch.unsafe_split(input=t, split_size=3),
    "unsafe_split, an operator": lambda t: torch.ops.aten.unsafe_split.Tensor(t, 3),
    "unsafe_split_with_sizes": lambda t: torch.unsafe_split_with_sizes(t, [1, 3], 0),
}


@pytest.mark.parametrize("split", UNSAFE_SPLITS.values(), ids=UNSAFE_SPLITS)
def test_parts_that_are_no_views_to_autograd_share_memory(split):
    def parts(x):
        return split(x)[1]

    def writes_a_part(x):
        whole = x * 1
        part = split(whole)[1]
        part.mul_(3)
        return whole * 2, part + 1

    def writes_the_whole(x):
        whole = x * 1
        parts = split(whole)
        whole.mul_(3)
        return whole * 2, [p + 1 for p in parts]

    def writes_an_input(x):
        parts = split(x)
        x.add_(1)
        parts[1].mul_(3)
        return [p + 1 for p in parts]

    for fn in (parts, writes_a_part, writes_the_whole, writes_an_input):
        check(fn, base(16).view(4, 4), options={"backend": "aot_eager"})
    for fn in (writes_a_part, writes_the_whole):
        check(fn, base(16).view(4, 4).requires_grad_(), options={"backend": "aot_eager"})
