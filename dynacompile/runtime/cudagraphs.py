"""Modes reduce-overhead and max-autotune: a program is recorded as a CUDA graph after two plain calls, and replayed from then on.

Inputs that stay where they are (parameters, buffers, memory of another recorded graph such as saved activations) are read in place, and
their addresses are checked at each replay; all others are copied into buffers of the graph. Outputs are the graph's memory. What is still
alive of the previous call's outputs when a replay comes is moved out first (see graph_memory.cpp), so nothing that the user or autograd
holds is ever overwritten. A call that does not fit (an address changed, another thread is replaying, the user is capturing) runs plainly.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from dynacompile.env import Env
from dynacompile.events import GraphRecorded
from dynacompile.ir.loops import Extern, root
from dynacompile.ir.schedule import Schedule
from dynacompile.native import core as native_core
from dynacompile.ops.regions import REGION
from dynacompile.private import of_torch
from dynacompile.runtime.link import exact_device, written_inputs

WARM_UP = 2  # plain calls first: libraries set themselves up, and inputs that are the same object again show themselves
MISSES = 2  # calls in a row with a changed address before the graph is recorded anew
READS_BACK = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}
RECORDINGS = 8  # of one program, before we give up

Run = Callable[..., tuple]


@dataclass(frozen=True)
class Capture:
    """A recorded run: `replay()` repeats it into `outputs`."""

    outputs: tuple[torch.Tensor | None, ...]
    replay: Callable[[], None]


def record(program: Run, plan: Schedule, env: Env) -> Run:
    """`program` as a callable that replays a CUDA graph once it is warm; `program` itself, with the reason in an event, where that can't be."""
    reason = refusal(plan)
    if reason:
        env.emit(GraphRecorded(region=env.region, bucket=env.bucket, recorded=False, reason=reason))
        return program
    return Recorder(program, plan, env, capture_cuda)


def refusal(plan: Schedule) -> str:
    """Why a program can't be a CUDA graph, or an empty string."""
    if plan.device.type != "cuda":
        return "no CUDA device: graphs don't apply"
    if not plan.steps:
        return "the program runs nothing"
    if plan.sizes:
        names = ", ".join(s.text() for s in plan.sizes.sources[:4])
        return f"sizes differ from call to call ({names}): compile with dynamic=False for one graph per shape"
    elsewhere = sorted(name for name, b in plan.buffers.items() if b.device.type != "cuda")
    if elsewhere:
        return f"the program works on CPU tensors ({', '.join(elsewhere[:4])})"
    waiting = sorted({str(s.op) for s in plan.steps if isinstance(s, Extern) and (s.op is REGION or READS_BACK & set(s.op.tags))})
    if waiting:
        return f"the host waits for results of {', '.join(waiting)}"
    return ""


def capture_cuda(program: Run, inputs: Sequence[object], device: torch.device) -> Capture:
    """Records `program(*inputs)` on a stream of its own, with a memory pool of its own. Raises RuntimeError where CUDA refuses."""
    graph, pool = torch.cuda.CUDAGraph(), torch.cuda.graph_pool_handle()
    with torch.cuda.device(device):
        recording = torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local")
        try:
            with recording:
                outputs = program(*inputs)
        except BaseException:
            leave_capture(device, pool)
            raise
        # Before it records, torch stores a seed and an offset of 0 on that stream, where a replay stores those of the call.
        assert recording.capture_stream is not None
        torch.cuda.current_stream(device).wait_stream(recording.capture_stream)
    return Capture(outputs, graph.replay)


def leave_capture(device: torch.device, pool: tuple[int, int]) -> None:
    """Ends what torch leaves open when a capture fails: the allocator still serves the pool, and the generator believes in the capture."""
    assert device.index is not None
    with suppress(RuntimeError):  # the pool was closed before the failure
        of_torch.cuda_end_allocate_to_pool(device.index, pool)
    generator = torch.cuda.default_generators[device.index]
    generator.graphsafe_set_state(generator.clone_state())


def root_cause(error: RuntimeError) -> str:
    """First line of the error that made a capture fail; ending a failed capture raises another one."""
    while isinstance(error.__context__, RuntimeError):
        error = error.__context__
    return str(error).strip().splitlines()[0]


class Recorder:
    """A program, its recording, and the decision at each call which of the two runs."""

    def __init__(self, program: Run, plan: Schedule, env: Env, capture: Callable[[Run, Sequence[object], torch.device], Capture]):
        self.program, self.plan, self.env, self.capture = program, plan, env, capture
        self.device = exact_device(plan.device)
        self.tensors = [i for i, name in enumerate(plan.inputs) if name is not None]
        self.written = {i for i in self.tensors if plan.inputs[i] in written_inputs(plan)}
        self.busy = threading.Lock()
        self.seen: list[weakref.ref] = []  # the tensors of the last plain call
        self.moving: set[int] = set()  # inputs whose address was found changed: copied from then on
        self.calls = self.misses = self.recordings = 0
        self.given_up = False
        self.replay: Callable[[], None] | None = None
        self.memory: Any = None
        self.stream: Any = None

    def __call__(self, *inputs: object) -> tuple:
        if self.given_up or native_core().times_steps() or not self.busy.acquire(blocking=False):
            return self.program(*inputs)
        try:
            return self.run(inputs)
        finally:
            self.busy.release()

    def run(self, inputs: tuple) -> tuple:
        if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return self.program(*inputs)
        if self.replay is None:
            if self.calls < WARM_UP:
                return self.warm_up(inputs)
            if not self.record(inputs):
                return self.program(*inputs)
        moved = self.memory.prepare(*inputs)
        if moved >= 0:
            return self.miss(moved, inputs)
        self.misses = 0
        self.follow_stream()
        assert self.replay is not None
        self.replay()
        return self.memory.finish(*inputs)

    def warm_up(self, inputs: tuple) -> tuple:
        self.calls += 1
        self.seen = [weakref.ref(inputs[i]) for i in self.tensors]
        return self.program(*inputs)

    def miss(self, moved: int, inputs: tuple) -> tuple:
        """A plain call, for an input is not where the graph reads it; after MISSES of them in a row the next call records anew."""
        self.misses += 1
        if self.misses >= MISSES:
            self.moving.add(moved)
            self.misses, self.replay, self.memory = 0, None, None
        return self.program(*inputs)

    def stays(self, position: int, tensor: torch.Tensor) -> bool:
        """Whether an input will be at the same address in later calls, as far as one can tell."""
        if isinstance(tensor, torch.nn.Parameter):
            return True
        if self.tensors[position] in self.moving:
            return False
        return native_core().is_graph_memory(tensor) or (position < len(self.seen) and self.seen[position]() is tensor)

    def record(self, inputs: tuple) -> bool:
        """Records the program around these inputs; False, with the reason in an event, where that fails for good."""
        self.recordings += 1
        if self.recordings > RECORDINGS:
            return self.give_up(f"input addresses keep changing: recorded {RECORDINGS} times")
        fixed = [(i, inputs[i]) for k, i in enumerate(self.tensors) if self.stays(k, inputs[i])]
        kept = {i for i, _ in fixed}
        copied = [(i, static_like(inputs[i]), i in self.written) for i in self.tensors if i not in kept]
        arguments = list(inputs)
        for i, buffer, _ in copied:
            arguments[i] = buffer
        try:
            captured = self.capture(self.program, arguments, self.device)  # nothing runs yet, so the buffers need no contents
        except RuntimeError as error:  # torch reports everything that CUDA refuses during a capture as one
            return self.give_up(root_cause(error))
        outputs = tuple(self.output_row(k, t) for k, t in enumerate(captured.outputs))
        self.memory = native_core().make_replay(len(self.plan.inputs), tuple(copied), tuple(fixed), outputs)
        self.replay = captured.replay
        self.seen = []
        self.env.emit(
            GraphRecorded(region=self.env.region, bucket=self.env.bucket, recorded=True, reason=f"{len(fixed)} inputs in place, {len(copied)} copied")
        )
        return True

    def output_row(self, position: int, tensor: torch.Tensor | None) -> object:
        """What a replay hands out at `position`; see read_handed in graph_memory.cpp."""
        name = self.plan.outputs[position]
        if name is None or tensor is None:
            return None
        owner = root(self.plan.buffers, name)
        if self.plan.buffers[owner].kind == "constant":
            return ("held", tensor)
        if self.plan.buffers[owner].kind != "input":
            return tensor
        source = self.plan.inputs.index(owner)
        view = self.plan.buffers[name]
        return ("input", source) if name == owner else ("view", source, tuple(view.size), tuple(view.stride), view.offset, tensor)

    def follow_stream(self) -> None:
        """A replay on another stream than the last one waits for it: both use the graph's memory."""
        if self.device.type != "cuda":
            return
        current = torch.cuda.current_stream(self.device)
        if self.stream is not None and self.stream != current:
            current.wait_stream(self.stream)
        self.stream = current

    def give_up(self, reason: str) -> bool:
        self.given_up, self.replay, self.memory, self.seen = True, None, None, []
        self.env.emit(GraphRecorded(region=self.env.region, bucket=self.env.bucket, recorded=False, reason=reason))
        return False


def static_like(tensor: torch.Tensor) -> torch.Tensor:
    """Uninitialised memory of a tensor's geometry."""
    return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=tensor.device)
