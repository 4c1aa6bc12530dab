"""Questions to torch about itself: whether something is on, available, built in. Functions that only answer are asked while capture follows, with their
answer guarded. Their names say which they are: `torch.cuda.is_available`, `torch._C._get_cpu_capability`, `torch._C._autograd._profiler_enabled`.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

from dynacompile.capture.breaks import NotConstant, unsupported
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import is_constant_object
from dynacompile.capture.values.rows import Row

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

WORDS = re.compile(r"[A-Z]?[a-z0-9]+|[A-Z]+(?![a-z])")
ASKS = frozenset("is has have are can get current enabled available supported initialized built peek".split())
ACTS = frozenset(
    "set init reset clear push pop enter exit begin end start stop lock unlock add remove delete register make create new next enable disable".split()
)
ACTIONS = frozenset({"collective", "random-state", "autograd-function"})  # codes of modules whose functions do more than answer


def is_question(real: Any, code: str) -> bool:
    module = getattr(real, "__module__", None) or ""
    if code in ACTIONS or module.partition(".")[0] not in ("torch", "pybind11_builtins"):
        return False
    words = {word.lower() for word in WORDS.findall(real.__name__)}
    return not ASKS.isdisjoint(words) and ACTS.isdisjoint(words)


def question_row(real: Any, code: str) -> Row:
    """code: of the break where an argument is not known, or the answer is an object."""

    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        try:
            read = functools.partial(real, *(a.constant() for a in args), **{k: v.constant() for k, v in kwargs.items()})
        except NotConstant as reason:
            raise unsupported(code, f"{real.__name__} of a {reason}") from reason
        answer = cx.guarded_call(read, [], {})
        if not is_constant_object(answer):
            raise unsupported(code, real.__name__)
        return cx.flag(f"{real.__name__}()", read, answer)

    return row
