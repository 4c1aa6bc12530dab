"""The options of one compile, typed. A field says what it affects: the code made, how it runs, or what is reported.

Only fields with affects="code" enter cache keys.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from dynacompile.errors import ConfigError, nearest


@dataclass(frozen=True)
class Bounds:
    """The values that a symbolic size or int may have, both ends included. None: as far as sizes or ints go."""

    low: int | None = None
    high: int | None = None


def check_dynamic(dynamic: object) -> None:
    """Raises ConfigError for what is no bool, None or {name: {dimension: None or {min, max}}}."""
    if dynamic is None or isinstance(dynamic, bool):
        return
    if not isinstance(dynamic, Mapping):
        raise ConfigError(f"dynamic must be True, False, None or {{name: {{dimension: {{min, max}}}}}}, not {dynamic!r}")
    if not dynamic:
        raise ConfigError("dynamic={} names no tensor: leave it out (None), or name one: {name: {dimension: {min, max}}}")
    for name, dims in dynamic.items():
        if not isinstance(name, str):
            raise ConfigError(f"dynamic must map names of tensors to dimensions, and {name!r} is no name")
        if not dims:
            raise ConfigError(f"dynamic[{name!r}] names no dimension: {{dimension: {{min, max}}}}, or {{dimension: None}} for any size")
        if not isinstance(dims, Mapping):
            raise ConfigError(f"dynamic[{name!r}] must map dimensions to {{min, max}}, not {dims!r}")
        for dim, given in dims.items():
            if not str(dim).isdigit():
                raise ConfigError(f"dynamic[{name!r}]: {dim!r} is no dimension: 0, 1, ...")
            if given is not None and not isinstance(given, Mapping):
                raise ConfigError(f"dynamic[{name!r}][{dim}] must be {{min, max}}, or None for any size, not {given!r}")
            for key in given or {}:
                if key not in ("min", "max"):
                    raise ConfigError(f"dynamic[{name!r}][{dim}]: unknown key {key!r}: {nearest(str(key), ('min', 'max'))}")
            low, high = (None if given is None else given.get(key) for key in ("min", "max"))
            if any(b is not None and (not isinstance(b, int) or isinstance(b, bool) or b < 0) for b in (low, high)) or (high is not None and high < (low or 0)):
                raise ConfigError(f"dynamic[{name!r}][{dim}]: min and max are ints >= 0, min <= max, not {dict(given or {})}")


PLAIN_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "bool": ((bool,), "a bool"),
    "int": ((int,), "an int"),
    "float": ((float, int), "a float"),
    "str": ((str,), "a str"),
    "bool | None": ((bool, type(None)), "a bool or null"),
}
"""Annotations of options that are checked: what a value may be, and how that is said."""


LARGEST = 2**63 - 1
"""The largest number that the native core takes."""


def check_types(settings: Any, prefix: str = "") -> None:
    """Raises ConfigError for a field of a dataclass that is annotated with one of PLAIN_TYPES and holds something else, or more than 64 bits."""
    for field_ in dataclasses.fields(settings):
        wanted, said = PLAIN_TYPES.get(str(field_.type), ((object,), ""))
        value = getattr(settings, field_.name)
        if not isinstance(value, wanted) or (said and isinstance(value, bool) and bool not in wanted):
            raise ConfigError(f"{prefix}{field_.name} must be {said}, not {value!r}")
        if isinstance(value, int) and value > LARGEST:
            raise ConfigError(f"{prefix}{field_.name} must be at most {LARGEST}, not {value!r}")


def one_of(name: str, value: object, valid: Sequence[object]) -> None:
    """Raises ConfigError where an option is none of its values, with the nearest; True and 1 are not the same."""
    if not any(value is known if isinstance(known, bool) else isinstance(value, str) and value == known for known in valid):
        said = ", ".join(f'"{known}"' if isinstance(known, str) else repr(known) for known in valid)
        words = [known for known in valid if isinstance(known, str)]
        hint = f": {near}" if isinstance(value, str) and (near := nearest(value, words)).startswith("did you mean") else ""
        raise ConfigError(f"{name} must be {'one of ' if len(valid) > 1 else ''}{said}, not {value!r}{hint}")


Mode = Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"]
MODES: tuple[str, ...] = get_args(Mode)
KEYWORDS = ("backend", "mode", "fullgraph", "dynamic", "isolate_recompiles", "recompile_limit", "fallback")
"""The options that are parameters of compile(); it takes the others in `options`."""
BACKENDS = ("default", "eager", "aot_eager", "inductor")


def option(default: Any, affects: Literal["code", "runtime", "report"], doc: str) -> Any:
    return field(default=default, metadata={"affects": affects, "doc": doc})


@dataclass(frozen=True, kw_only=True)
class CompileConfig:
    """Everything that `compile()` takes; `options={...}` sets the fields below `options`."""

    backend: str | Callable = option("default", "code", "default | eager | aot_eager | inductor | (GraphModule, example_inputs) -> callable")
    mode: str = option("default", "code", " | ".join(MODES))
    fullgraph: bool = option(False, "runtime", "a graph break is an error")
    dynamic: bool | None | Mapping = option(
        None, "code", "None: static first, then what changed is symbolic; True: all sizes are symbolic; False: none; {name: {dim: {min: 1, max: 4096}}}"
    )
    isolate_recompiles: bool | str = option(False, "runtime", 'False | "class" | "instance" (= True): who shares this compile\'s bucket of entries')
    recompile_limit: int = option(8, "runtime", "entries per code object in this bucket; at the limit this region runs eagerly")
    accumulated_recompile_limit: int = option(256, "runtime", "entries per code object over all buckets")
    fallback: str = option("default", "runtime", '"default": look into bucket -1 too, read-only; "none": own bucket only')
    fail_on_recompile_limit_hit: bool = option(False, "runtime", "reaching recompile_limit is an error, rather than a warning and eager calls")
    max_entries: int = option(0, "runtime", "entries per code object in this bucket that are kept: the least recently used gives way; 0: no such bound")
    max_bytes: int = option(0, "runtime", "estimated bytes of this bucket's entries that are kept, likewise; 0: no such bound")
    error_on_recompile: bool = option(False, "runtime", "a recompile is an error")
    # options
    specialize_int: bool = option(False, "code", "an entry for each value of an int, also after the int has changed")
    specialize_float: bool = option(False, "code", "an entry for each value of a float, also after the float has changed; so it is under backend=inductor")
    specialize_zero_one: bool = option(
        True, "code", "an entry for size 1 beside that for other sizes; False: one for both where the program allows. Size 0 has its own"
    )
    varying: tuple[str, ...] = option(
        (), "code", "ints and floats that vary, which one entry serves from the first on: names of arguments, or the ends of paths such as model.steps_seen, lr"
    )
    capture_values: bool | None = option(
        None,
        "code",
        "ints read from tensors (.item()), and sizes that depend on values (nonzero, masks), end no graph; null: where that leaves no break; false: never",
    )
    background: bool = option(False, "runtime", "calls that no entry serves run eagerly, and do not wait for the compile, which has a thread of its own")
    trace_limit: int = option(
        30_000, "runtime", "operations that are traced in one frame, and 32 times as many instructions: a frame with more is left to Python; 0: no limit"
    )
    rng: str = option("eager", "code", '"eager": random numbers equal eager\'s')
    reports: str = option("replay", "code", '"replay": calls of logging and warnings are made after the graph; "break": they end it')
    memory_budget: float = option(
        1.0, "code", "share of the default cut's saved bytes that may be kept for backward, and of `logits_bytes`' default; less recomputes more"
    )
    logits_bytes: int = option(
        0, "code", "bytes of a linear layer's results that a cross entropy holds, computing more in chunks of rows; 0: 1 GiB on GPUs, 64 MiB on CPUs; -1: all"
    )
    gradient_bytes: int = option(
        1 << 20, "code", "bytes of gradients that leave a backward together, before its end, where processes reduce them; 0: all leave at its end"
    )
    collective_bytes: int = option(
        0, "code", "bytes that collectives of one kind may have together to be one call: every process has to run compiled programs then; 0: each is a call"
    )
    flight_bytes: int = option(
        1 << 30, "code", "bytes that collectives under way may hold together: what they read and give until they are waited for; 0: one at a time"
    )
    regather: bool = option(
        False, "code", "parameters that the graph gathers are not kept for backward, which gathers them again: every process has to run compiled programs then"
    )
    attention_scores: int = option(
        0, "code", "scores of one head from which hand-written attention becomes torch's operator; 0: from where that is faster, as measured; -1: never"
    )
    freeze: bool = option(
        False,
        "code",
        "CPU: where no gradient is needed, parameters of products are packed once, and again when they are seen to change: writes through .data are not seen",
    )
    precise: bool = option(
        False, "code", "round every result of float16 and bfloat16 to its dtype, as eager does; False: fused ops compute in float32 and round once"
    )
    fuse: bool = option(True, "code", "fuse loop nests (False: one kernel per op, for debugging)")
    reference: bool = option(False, "code", "run kernels through the reference interpreter instead of C++/Triton (the oracle; slow)")
    cpp_flags: str = option("", "code", "further flags for the C++ compiler; from a config they need DYNACOMPILE_ALLOW_CPP_FLAGS=1")
    threads: int = option(0, "code", "threads of a CPU kernel; 0: torch.get_num_threads()")
    workers: int = option(0, "runtime", "kernel build processes; 0: chosen from the cores")
    verify: bool = option(False, "report", "verify every hand-off between stages")

    def __post_init__(self) -> None:
        check_types(self)
        if isinstance(self.varying, str) or not isinstance(self.varying, Sequence) or not all(isinstance(name, str) for name in self.varying):
            raise ConfigError(f"varying must list names of numbers, for example [batch_idx, lr], not {self.varying!r}")
        object.__setattr__(self, "varying", tuple(self.varying))
        if isinstance(self.backend, str) and self.backend not in BACKENDS:
            raise ConfigError(f"unknown backend {self.backend!r}: {nearest(self.backend, BACKENDS)}")
        if not isinstance(self.backend, str) and not callable(self.backend):
            raise ConfigError(f"backend must be a name or a callable (GraphModule, example_inputs) -> callable, not {type(self.backend).__name__}")
        if self.mode not in MODES:
            raise ConfigError(f"unknown mode {self.mode!r}: {nearest(str(self.mode), MODES)}")
        one_of("isolate_recompiles", self.isolate_recompiles, (False, True, "class", "instance"))
        one_of("fallback", self.fallback, ("default", "none"))
        one_of("rng", self.rng, ("eager",))
        one_of("reports", self.reports, ("replay", "break"))
        for name in ("recompile_limit", "accumulated_recompile_limit"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ConfigError(f"{name} must be an int >= 1, not {value!r}")
        if not isinstance(self.background, bool):
            raise ConfigError(f"background must be True or False, not {self.background!r}")
        check_dynamic(self.dynamic)
        for name in ("threads", "workers"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(f"{name} must be an int >= 0 (0: chosen from the machine), not {value!r}")
        for name in ("max_entries", "max_bytes", "trace_limit", "gradient_bytes", "collective_bytes", "flight_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 0:
                raise ConfigError(f"{name} must be an int >= 0, not {value!r}")
        if not isinstance(self.logits_bytes, int) or isinstance(self.logits_bytes, bool) or self.logits_bytes < -1:
            raise ConfigError(f"logits_bytes must be an int >= 0, or -1 (no bound), not {self.logits_bytes!r}")
        if not isinstance(self.attention_scores, int) or isinstance(self.attention_scores, bool) or self.attention_scores < -1:
            raise ConfigError(f"attention_scores must be an int >= 0, or -1 (never), not {self.attention_scores!r}")
        if not 0.0 <= self.memory_budget <= 1.0:
            raise ConfigError(f"memory_budget must be between 0 and 1, not {self.memory_budget!r}")

    @classmethod
    def names(cls) -> tuple[str, ...]:
        return tuple(f.name for f in dataclasses.fields(cls))

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> CompileConfig:
        """A config from a mapping; None means the default; an unknown key is an error with the nearest name."""
        for key in values:
            if key not in cls.names():
                raise ConfigError(f"unknown compile option {key!r}: {nearest(key, cls.names())}")
        given = {k: v for k, v in values.items() if v is not None or k == "dynamic"}
        if isinstance(given.get("mode"), str):
            given["mode"] = given["mode"].replace("_", "-")
        return cls(**given)

    def declared_shapes(self) -> dict[str, dict[int, Bounds]]:
        """The dimensions that `dynamic` names, by the user's name for the tensor."""
        if not isinstance(self.dynamic, Mapping):
            return {}
        return {
            str(n): {int(d): Bounds(*(None if r is None else r.get(k) for k in ("min", "max"))) for d, r in dims.items()} for n, dims in self.dynamic.items()
        }

    @property
    def float_symbols(self) -> bool:
        """Whether a float that varies can be a symbol. Inductor takes it for a constant, or fails, where torch's own capture does not prepare the graph."""
        return not self.specialize_float and self.backend != "inductor"

    @property
    def autotune(self) -> bool:
        return self.mode.startswith("max-autotune")

    @property
    def cudagraphs(self) -> bool:
        return self.mode in ("reduce-overhead", "max-autotune")

    def code_key(self) -> str:
        """Digest of the fields that affect the emitted code."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata["affects"] == "code"}
        parts = [f"{name}={value!r}" for name, value in values.items() if not callable(value)]
        return hashlib.sha256(";".join(parts).encode()).hexdigest()[:16]

    def kind(self) -> int:
        """Tells compiles apart that can't share entries: other code, another backend object, or another promise about graph breaks."""
        backend = self.backend if isinstance(self.backend, str) else id(self.backend)
        return hash((self.code_key(), backend, self.fullgraph)) >> 1
