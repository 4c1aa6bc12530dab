"""Further statements: returns out of blocks, state of modules, views written in place, classes of the program's own."""

from __future__ import annotations

from tests.fuzz.language.expressions import expression, real, small, word
from tests.fuzz.language.scope import BOOL, BOX, COUNTS, INT, INTS, MAP, STR, TENSOR, TUPLE, Scope


def view_write(g: Scope) -> None:
    """A view that is written, so that its base changes."""
    base, view = g.fresh(TENSOR), g.fresh(TENSOR)
    g.line(f"{base} = {expression(g, TENSOR, 1)}{g.pick.choice(('.clone()', ' * 1.0', '.detach().clone()', ''))}")
    g.declare(base, TENSOR)
    g.line(f"{view} = {base}{g.pick.choice(('[:1]', '[0:]', '.view(-1, 3)', '.t().t()', '.unsqueeze(0)[0]', '.detach()', '[:, :]', '.narrow(0, 0, 1)'))}")
    g.line(
        g.pick.choice(
            (
                f"{view}.add_({real(g)})",
                f"{view}.mul_({expression(g, INT, 1)} % 3)",
                f"{view} += 1",
                f"{view}[0] = {real(g)}",
                f"{view}.zero_()",
                f"{base}.mul_(2)",
                f"torch.add({view}, 1, out={view})" if g.chance(0.3) else f"{view}.copy_({base} * 2)",
            )
        )
    )
    g.declare(view, TENSOR)


def module_state(g: Scope) -> None:
    modules = [m for m in g.modules if "[" not in m]
    if not modules:
        return view_write(g)
    m = g.pick.choice(modules)
    g.line(
        g.pick.choice(
            (
                f"{m}.calls += {expression(g, INT, 1)}",
                f"{m}.seen.add_(1)",
                f"{m}.seen = {m}.seen + 1",
                f"{m}.mean = {expression(g, TENSOR, 1)}.detach().mean(0)",
                f"{m}.history.append({expression(g, INT, 1)})",
                f"{m}.cache[{word(g)}] = {expression(g, INT, 1)}",
                f"{m}.note = {expression(g, STR, 1)}",
                f"{m}.train({expression(g, BOOL, 0)})",
                f"{m}.eval()",
                f"LOG.append({m}.training)",
                f"LOG.append([name for name, _ in {m}.named_buffers()])",
                f"LOG.append(sum(p.numel() for p in {m}.parameters()))",
                f"LOG.append(getattr({m}, 'note', None))",
                f"LOG.append(hasattr({m}, 'note'))",
                f"LOG.append(len({m}.layers))",
                f"LOG.append(isinstance({m}, Net) and {m}.calls)",
            )
        )
    )


def early_return(g: Scope) -> None:
    """A return from the inside of a block, whose end still runs."""
    if not g.returns or g.is_generator:
        return attribute_work(g)
    value = expression(g, g.returns, 1)
    way = g.pick.randrange(4)
    if way == 0:
        g.line("try:")
        g.line(f"    if {expression(g, BOOL, 1)}:")
        g.line(f"        return {value}")
        g.line("finally:")
        g.line(f"    LOG.append({expression(g, INT, 0)})")
    elif way == 1:
        g.line(f"with Noting({word(g)}):")
        g.line(f"    if {expression(g, BOOL, 1)}:")
        g.line(f"        return {value}")
    elif way == 2:
        g.line(f"for _ in range({small(g)}):")
        g.line(f"    with noted({word(g)}):")
        g.line(f"        if {expression(g, BOOL, 1)}:")
        g.line(f"            {g.pick.choice((f'return {value}', 'break', 'continue'))}")
    else:
        g.line(f"for _ in paired({expression(g, INTS, 1)}[:3]):")
        g.line(f"    if {expression(g, BOOL, 1)}:")
        g.line(f"        return {value}")


def attribute_work(g: Scope) -> None:
    box = g.var(BOX)
    if box is None:
        return view_write(g)
    i = expression(g, INT, 1)
    lines = g.pick.choice(
        (
            (f"{box}.extra_note = {i}", f"del {box}.extra_note"),
            (f"setattr({box}, {word(g)}, {i})",),
            (f"LOG.append(getattr({box}, {word(g)}, -1))",),
            (f"LOG.append(sorted(vars({box})))",),
            (f"{box}.items = list({box}.items) + [{i}]",),
            (f"{box}.n, {box}.t = {i}, None",),
            (f"LOG.append({box}.double + {box}.total())",),
            (f"{box} is GBOX and LOG.append('global box')",),
            (f"LOG.append([q for q in {box}][:3])",),
            (f"try: LOG.append({box}[{i}])", "except IndexError: LOG.append('out of range')"),
            (f"LOG.append({box} < GBOX)",),
            (f"LOG.append({box} != GBOX)",),
        )
    )
    for text in lines:
        g.line(text)


def nested_data(g: Scope) -> None:
    """A structure with one object in several places, changed through one of them."""
    xs, d, t = expression(g, INTS, 1), expression(g, COUNTS, 1), expression(g, TENSOR, 1)
    name = f"data{g.names}"
    g.names += 1
    i = expression(g, INT, 1)
    g.line(f"{name} = {{'xs': {xs}, 'd': {d}, 't': ({t}, {i})}}")
    g.line(f"{name}['again'] = [{name}['xs'], {name}['xs'], {name}['d']]")
    g.line(
        g.pick.choice(
            (
                f"{name}['again'][1].append({i})",
                f"{name}['again'][2].update(k={i})",
                f"{name}['xs'] += [{i}]",
                f"{name}['again'].pop(0).append(7)",
                f"{name}['again'][-1]['deep'] = [{i}]",
                f"{name}.setdefault('xs', []).insert(0, {i})",
            )
        )
    )
    g.line(f"LOG.append({name}['again'][0] is {name}['xs'])")
    g.line(f"LOG.append({name}['again'])")
    inner = g.fresh(INTS)
    g.line(f"{inner} = {name}['xs']")
    g.declare(inner, INTS)
    if g.chance(0.5):
        g.line(f"STEPS['data'] = {name}")


def grad_state(g: Scope) -> None:
    x = g.fresh(TENSOR)
    value = expression(g, TENSOR, 1)
    lines = g.pick.choice(
        (
            ("torch.set_grad_enabled(False)", f"{x} = {value}", "torch.set_grad_enabled(True)"),
            (f"{x} = {value}.detach().requires_grad_()",),
            ("with torch.no_grad():", f"    {x} = {value}", f"    {x} *= 2"),
            ("with torch.autocast('cpu', dtype=torch.bfloat16):", f"    {x} = {value} @ torch.ones(3, 3)", f"{x} = {x}.float()"),
            (f"{x} = torch.randn(2, 3).sum(0) + {value}",),
            ("with torch.inference_mode(False):", f"    {x} = {value} + 1"),
        )
    )
    for text in lines:
        g.line(text)
    g.declare(x, TENSOR)


def generated_class(g: Scope, name: str, base: str) -> None:
    """A class at the top level, with attributes and methods over self.n, self.items and self.t."""
    g.line(f"class {name}({base}):")
    with g.block():
        g.line(f"level = {small(g)}")
        g.line("def __init__(self, n, items=None, t=None):")
        with g.function(""):
            g.line("super().__init__(n, items, t)")
            if g.chance(0.6):
                g.line(f"self.n += {small(g)}")
            if g.chance(0.4):
                g.line("self.kept = list(self.items)")
        for method, kind, text in (
            ("total", INT, "super().total()"),
            ("scale", TENSOR, "super().scale(x)"),
            ("push", BOX, "super().push(value)"),
            ("__getitem__", INT, "super().__getitem__(index)"),
            ("__call__", INT, "super().__call__(value)"),
            ("__add__", BOX, "super().__add__(other)"),
            ("__len__", INT, "len(self.items) + 1"),
            ("double", INT, "self.n * 3"),
        ):
            if not g.chance(0.4):
                continue
            parameter = {"scale": ", x", "push": ", value", "__getitem__": ", index", "__call__": ", value", "__add__": ", other"}.get(method, "")
            if method == "double":
                g.line("@property")
            g.line(f"def {method}(self{parameter}):")
            with g.function(kind):
                for attribute, own in (("self.n", INT), ("self.items", INTS), ("self.level", INT)):
                    g.declare(attribute, own, own=attribute == "self.n")
                if method == "scale":
                    g.declare("x", TENSOR)
                if g.chance(0.5):
                    g.line(g.pick.choice((f"self.n += {small(g)}", "LOG.append(self.n)", "self.items.append(self.level)", "type(self).level += 1")))
                if kind == INT and method in ("total", "__call__") and g.chance(0.5):
                    g.line(f"return {text} + {expression(g, INT, 1)} % 7")
                elif kind == TENSOR and g.chance(0.6):
                    g.line(f"return {text} * {real(g)}")
                else:
                    g.line(f"return {text}")
    g.line("")


def function_calls(g: Scope) -> None:
    """Functions taken from containers, partials with keywords, star arguments of all kinds."""
    name, table = g.fresh(INT), f"table{g.names}"
    i, xs, tp = expression(g, INT, 1), expression(g, INTS, 1), expression(g, TUPLE, 1)
    way = g.pick.randrange(6)
    if way == 0:
        g.line(f"{table} = {{'s': spread, 'd': decorated, 'l': lambda p, q=2: p * q}}")
        g.line(f"{name} = {table}[{g.pick.choice(('chr(115)', repr('d'), repr('l')))}]({i})")
    elif way == 1:
        g.line(f"{name} = spread(*{xs}[:2], *{tp}[:1], {i}, **{{'c': 2}}, z=1)")
    elif way == 2:
        g.line(f"{table} = functools.partial(spread, {i}, c=4)")
        g.line(f"{name} = {table}(*{xs}[:3]) + {table}.keywords['c']")
    elif way == 3:
        g.line(f"{name} = max([{i}, *{xs}], key=lambda q, k={small(g)}: (q % 5, k - q))")
    elif way == 4:
        g.line(f"{table} = [lambda k=k: k + {i} for k in range(3)]")
        g.line(f"{name} = sum(f() for f in {table})")
    else:
        g.line(f"{table} = counter({i})")
        g.line(f"{name} = {table}() + {table}(by={small(g)}) * 100")
    g.declare(name, INT)


def tensor_calls(g: Scope) -> None:
    x, y = g.fresh(TENSOR), g.fresh(TENSOR)
    value, other = expression(g, TENSOR, 1), expression(g, TENSOR, 1)
    fn = expression(g, MAP, 1)
    lines = g.pick.choice(
        (
            (f"{x}, {y} = map({fn}, ({value}, {other}))",),
            (f"{x}, {y} = [q.clone() for q in ({value}, {other})]",),
            (f"{x}, {y} = torch.stack([{value}[0], {other}[0]]), {other}", f"{x} = {x}[:1] + {y}"),
            (f"({x}, {y}), *_ = zip([{value}, {other}], [{other}, {value}])",),
            (f"{x} = {y} = {value} + 0", f"{x} += 1"),
            (f"{y} = {value}", f"{x} = {fn}({y}) if {y}.requires_grad else {y}"),
        )
    )
    for text in lines:
        g.line(text)
    g.declare(x, TENSOR)
    g.declare(y, TENSOR)
