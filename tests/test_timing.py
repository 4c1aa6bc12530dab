"""What compiled programs do with their time, step by step."""

import torch

import dynacompile
from dynacompile.events import Generated, ProgramTimed, Scheduled
from dynacompile.timing import roof_of


def net() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(64, 512), torch.nn.GELU(), torch.nn.Linear(512, 64))


def compiled_loss(model, **options):
    @dynacompile.compile(**options)
    def loss(x):
        return model(x).square().mean()

    return loss


def test_each_kernel_and_call_of_forward_and_backward_has_its_time_bytes_and_operations():
    loss, x, events = compiled_loss(net()), torch.randn(256, 64), []
    end = dynacompile.subscribe(events.append)
    loss(x).backward()
    with dynacompile.kernel_times() as times:
        for _ in range(3):
            loss(x).backward()
    end()
    scheduled = [event for event in events if isinstance(event, Scheduled)]
    assert [event.part for event in scheduled] == ["forward", "backward"] == [event.part for event in times]
    assert [event for event in events if isinstance(event, ProgramTimed)] == times
    for plan, timed in zip(scheduled, times):
        assert (timed.number, timed.region, timed.runs, timed.device) == (plan.number, plan.region, 3, "cpu")
        launched = {name: count for name, count, *_ in plan.kernels} | dict(plan.calls)
        assert {name: count for name, count, *_ in timed.steps} == launched
        assert all(us > 0 and bytes > 0 for _, _, us, bytes, _ in timed.steps) and timed.bandwidth > 1e8 and timed.flops > 1e8
    products = sum(flops for timed in times for _, _, _, _, flops in timed.steps)
    assert products >= 2 * 256 * 64 * 512 * 5  # two forward, three backward


def test_a_call_of_which_not_all_results_are_asked_for_has_its_operations():
    """The first convolution of a network gets gradients of its weight, and none of its input."""
    conv = torch.nn.Conv1d(2, 8, 3)
    loss, x = compiled_loss(conv), torch.randn(4, 2, 34)
    loss(x).backward()
    with dynacompile.kernel_times() as times:
        loss(x).backward()
    forward = 2 * 4 * 32 * 8 * 2 * 3
    counted = [[flops for name, *_, flops in timed.steps if "conv" in name] for timed in times]
    assert [event.part for event in times] == ["forward", "backward"] and counted == [[forward], [forward]]


def test_the_times_are_those_of_the_block_alone():
    loss, x = compiled_loss(net()), torch.randn(8, 64)
    loss(x)
    with dynacompile.kernel_times() as first:
        loss(x)
    loss(x)
    with dynacompile.kernel_times() as second:
        pass
    assert [event.runs for event in first] == [1] and second == []


def test_sizes_of_the_last_call_decide_on_bytes_and_operations():
    @dynacompile.compile(dynamic=True)
    def doubled(x):
        return x.sin() * 2

    def bytes_of(rows):
        with dynacompile.kernel_times() as times:
            doubled(torch.randn(rows, 32))
        ((_, _, _, bytes, flops),) = times[0].steps
        return bytes, flops

    doubled(torch.randn(4, 32))
    small, large = bytes_of(4), bytes_of(400)
    assert large == (100 * small[0], 100 * small[1]) and small[0] == 2 * 4 * 32 * 4


def test_what_an_optimizer_reads_and_writes_is_counted_twice():
    parameters = [torch.nn.Parameter(torch.randn(1000)) for _ in range(3)]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    for parameter in parameters:
        parameter.grad = torch.ones(1000)
    step = dynacompile.compile(optimizer.step)
    step()
    step()
    with dynacompile.kernel_times() as times:
        step()
    (steps,) = [event.steps for event in times]
    assert sum(bytes for *_, bytes, _ in steps) >= 3 * 3 * 4000  # a parameter read and written, its gradient read


def test_timing_draws_no_random_numbers():
    roof_of.cache_clear()
    torch.manual_seed(0)
    before = torch.get_rng_state()
    loss = compiled_loss(net())
    loss(torch.zeros(8, 64))
    torch.set_rng_state(before)
    with dynacompile.kernel_times():
        loss(torch.zeros(8, 64))
    assert torch.equal(torch.get_rng_state(), before)


def test_code_of_each_kernel_is_told():
    events = []
    end = dynacompile.subscribe(events.append)
    compiled_loss(net())(torch.randn(16, 64)).backward()
    end()
    plans = {event.number: {name for name, *_ in event.kernels} for event in events if isinstance(event, Scheduled)}
    texts = {event.number: {name: text for name, _, text in event.kernels} for event in events if isinstance(event, Generated)}
    assert {number: set(told) for number, told in texts.items()} == plans
    assert all(name in text for told in texts.values() for name, text in told.items())
