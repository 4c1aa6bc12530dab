"""Rows of recurrent layers, which are one operation but where torch's rules for symbolic sizes would compute something else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from dynacompile.capture.polyfills.recurrent import over_packed, over_sequences
from dynacompile.capture.tensors.torch_functions import TorchFunction
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.constant import ConstantValue
from dynacompile.capture.values.functions import call_polyfill
from dynacompile.capture.values.rows import handles
from dynacompile.capture.values.sequence import SequenceValue

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context

ARGUMENTS = 9


def recurrent(real: Any) -> None:
    @handles(real)
    def row(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if cx.symbols is not None and len(args) == ARGUMENTS and not kwargs and not cx.overrides.is_watched():
            is_packed = isinstance(args[3], SequenceValue)
            count, p, train = (a.value if isinstance(a, ConstantValue) else None for a in args[4 + is_packed : 7 + is_packed])
            if train and p and count != 1:
                return call_polyfill(cx, over_packed if is_packed else over_sequences, [TorchFunction(real), *args])  # type: ignore[arg-type]
        return TorchFunction(real).call(cx, args, kwargs)


for _layer in (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu):
    recurrent(_layer)
