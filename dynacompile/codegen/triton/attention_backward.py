"""The two kernels of attention's backward: gradients of queries and of what the functions read, and gradients of keys and values."""

from __future__ import annotations

from dynacompile.codegen.triton.attention_bodies import device_function
from dynacompile.codegen.triton.attention_text import LOG2E, AttentionText, minus_infinity, number
from dynacompile.codegen.triton.attention_tiles import padded


class Backward(AttentionText):
    """What the two kernels of the backward share: scores and weights again, and the gradients of scores."""

    roles = ("query", "key", "value", "grad", "logarithms", "delta")

    def gradient_lines(self, of_weights: str) -> list[str]:
        """Lines that leave the gradients of products of queries and keys, but for the scale, in `grad`."""
        lines = [f"grad = weights * ({of_weights} - delta)"]
        if self.derivative is None:
            return lines
        results = ", ".join(["grad", *self.derivative.sums().values()])
        return [*lines, f"{results} = {self.derivative.call(score='raw')}", *self.counted("grad = tl.where(visible, grad, 0.0)", True)]


class QueryGradient(Backward):
    outputs = ("of_queries",)

    @property
    def kept_names(self) -> list[str]:
        return ["acc", *(self.derivative.sums().values() if self.derivative else ())]

    def walk(self) -> str:
        lines, factor = self.score_lines(self.product("query", "key", f"tl.zeros({self.tile}, tl.float32)"))
        body = [
            *self.step_lines(),
            f"key = {self.loaded('key', 'key_at', turned=True)}",
            f"value = {self.loaded('value', 'value_at', turned=True)}",
            *lines,
            *self.counted(f"score = tl.where(visible, score, {minus_infinity()})"),
            f"weights = tl.exp2(score * {number(factor)} - logarithms)",
            *self.gradient_lines(self.product("of_made", "value", f"tl.zeros({self.tile}, tl.float32)")),
            f"acc = {self.product(self.rounded('grad'), 'tl.trans(key)', 'acc')}",
        ]
        lines = [*self.column_lines(), *self.tile_lines(self.kept), self.loop(), *(f"    {line}" for line in body), f"return {', '.join(self.kept_names)}"]
        return device_function(f"{self.entry}_walk", [*self.kept_names, *self.given, *self.walk_end], lines)

    @property
    def given(self) -> list[str]:
        return ["query", "of_made", "logarithms", "delta", "b", "h", *self.kept_places, "key_at", "value_at", *self.passed]

    def kernel_text(self) -> str:
        group = int(self.heads) // int(self.key_heads)  # type: ignore[call-overload]
        shared = "h" if group == 1 else f"(h // {group})"
        derivative = self.derivative
        lines = [
            *self.head_lines(),
            *self.column_lines(),
            f"query = {self.loaded('query', self.matrices['query'].start('h'))}",
            f"of_made = {self.loaded('grad', self.matrices['grad'].start('h'))}",
            f"logarithms = {self.loaded('logarithms', self.matrices['logarithms'].start('h'))}",
            f"logarithms = tl.where(logarithms == {minus_infinity()}, 0.0, logarithms * {LOG2E})",
            f"delta = {self.loaded('delta', self.matrices['delta'].start('h'))}",
            f"key_at = {self.matrices['key'].start(shared)}",
            f"value_at = {self.matrices['value'].start(shared)}",
            f"acc = tl.zeros([MBLOCK, {padded(int(self.width))}], tl.float32)",
            *(derivative.begin_sums() if derivative is not None else ()),
            *self.walks(self.kept_names, self.given, "h"),
            *self.stored("of_queries", f"acc * {number(self.scale)}"),
        ]
        if derivative is not None and derivative.sums():
            lines += self.tile_lines("m")
            lines.append(f"{derivative.name}_finish({', '.join(derivative.finish_parameters())})")
        return self.kernel_function(lines)


class KeyGradient(Backward):
    across = "nm"
    outputs = ("of_keys", "of_values")

    @property
    def kept_names(self) -> list[str]:
        return [name for name in ("of_keys", "of_values") if name in self.matrices]

    def walk(self) -> str:
        lines, factor = self.score_lines(self.product("key", "query", f"tl.zeros({self.tile}, tl.float32)"))
        body = [
            *self.step_lines(),
            f"query = {self.loaded('query', 'query_at', turned=True)}",
            *lines,
            *self.counted(f"score = tl.where(visible, score, {minus_infinity()})"),
            f"logarithms = {self.loaded('logarithms', 'logarithms_at')}",
            f"logarithms = tl.where(logarithms == {minus_infinity()}, 0.0, logarithms * {LOG2E})",
            f"weights = tl.exp2(score * {number(factor)} - logarithms)",
            f"of_made = {self.loaded('grad', 'grad_at')}",
        ]
        if "of_values" in self.matrices:
            body.append(f"of_values = {self.product(self.rounded('weights'), 'of_made', 'of_values')}")
        if "of_keys" in self.matrices:
            body += [
                f"delta = {self.loaded('delta', 'delta_at')}",
                *self.gradient_lines(self.product("value", "tl.trans(of_made)", f"tl.zeros({self.tile}, tl.float32)")),
                f"of_keys = {self.product(self.rounded('grad'), 'tl.trans(query)', 'of_keys')}",
            ]
        lines = [*self.column_lines(), *self.tile_lines(self.kept), self.loop(), *(f"    {line}" for line in body), f"return {', '.join(self.kept_names)}"]
        return device_function(f"{self.entry}_walk", [*self.kept_names, *self.given, *self.walk_end], lines)

    @property
    def given(self) -> list[str]:
        places = [f"{role}_at" for role in ("query", "grad", "logarithms", "delta")]
        return ["key", "value", "b", "h", *self.kept_places, *places, *self.passed]

    def kernel_text(self) -> str:
        group = int(self.heads) // int(self.key_heads)  # type: ignore[call-overload]
        value = int(self.call.argument("value").size[3])
        widths = {"of_keys": padded(int(self.width)), "of_values": padded(value)}
        lines = [
            *self.head_lines(),
            *self.column_lines(),
            f"key = {self.loaded('key', self.matrices['key'].start('h'))}",
            f"value = {self.loaded('value', self.matrices['value'].start('h'))}",
            *(f"{name} = tl.zeros([NBLOCK, {widths[name]}], tl.float32)" for name in self.kept_names),
        ]
        if group > 1:
            lines.append("shared = h")
        each = [
            *(["h = shared * " + str(group) + " + g"] if group > 1 else []),
            *(f"{role}_at = {self.matrices[role].start('h')}" for role in ("query", "grad", "logarithms", "delta")),
            *self.walks(self.kept_names, self.given, "h"),
        ]
        lines += [f"for g in range({group}):", *(f"    {line}" for line in each)] if group > 1 else each
        head = "h" if group == 1 else "shared"
        lines += self.stored("of_keys", f"of_keys * {number(self.scale)}", head)
        lines += self.stored("of_values", "of_values", head)
        return self.kernel_function(lines)
