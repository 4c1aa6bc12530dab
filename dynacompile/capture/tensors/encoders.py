"""The row of `torch.nn.TransformerEncoder`, which packs rows by the values of their mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from dynacompile.capture.polyfills.encoders import packs, with_zeros
from dynacompile.capture.values.base import Value
from dynacompile.capture.values.functions import call_polyfill
from dynacompile.capture.values.rows import handles

if TYPE_CHECKING:
    from dynacompile.capture.values.context import Context


@handles(torch.nn.TransformerEncoder.forward, frames=True)
def encode(cx: Context, args: list[Value], kwargs: dict[str, Value]) -> Value:
    does = call_polyfill(cx, packs, args, kwargs).truth(cx)
    return call_polyfill(cx, with_zeros if does else torch.nn.TransformerEncoder.forward, args, kwargs)
