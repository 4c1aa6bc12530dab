"""Random statements of one line or a few."""

from __future__ import annotations

from tests.fuzz.language.expressions import expression, small, word
from tests.fuzz.language.scope import BOOL, BOX, CALL, COUNTS, FLOAT, INT, INTS, MAP, OPT, SCALAR, SET, STR, TABLE, TENSOR, TENSORS, TUPLE, Scope

ASSIGNED = (INT, INT, INT, TENSOR, TENSOR, TENSOR, FLOAT, BOOL, STR, OPT, SCALAR, INTS, INTS, TENSORS, COUNTS, SET, TUPLE, TABLE, BOX, CALL, MAP)


def assign(g: Scope) -> None:
    kind = g.pick.choice(ASSIGNED)
    names = [] if kind in (CALL, MAP) else g.assignable(kind)
    value = expression(g, kind, g.pick.choice((1, 2, 2, 3)))
    if names and g.chance(0.5):
        g.line(f"{g.pick.choice(names)} = {value}")
        return
    name = g.fresh(kind)
    if g.chance(0.08) and kind not in (CALL, MAP):
        other = g.fresh(kind)
        g.line(f"{name} = {other} = {value}")
        g.declare(other, kind)
    else:
        g.line(f"{name} = {value}")
    g.declare(name, kind)


def augment(g: Scope) -> None:
    kind = g.pick.choice((INT, INT, FLOAT, STR, TENSOR, TENSOR, INTS, SET, COUNTS))
    names = g.assignable(kind)
    if not names:
        return assign(g)
    name = g.pick.choice(names)
    operator = g.pick.choice({INT: "+ - ^ |", FLOAT: "+ -", STR: "+", TENSOR: "+ - *", INTS: "+", SET: "| & -", COUNTS: "|"}[kind].split())
    value = expression(g, kind, 1)
    if kind in (INTS, STR):
        value = f"{value}[:3]"
    g.line(f"{name} {operator}= {value}")


def unpack(g: Scope) -> None:
    way = g.pick.randrange(6)
    a, b = g.fresh(INT), g.fresh(INT)
    if way == 0:
        rest = g.fresh(INTS)
        g.line(f"{a}, *{rest} = [{expression(g, INT, 1)}, *{expression(g, INTS, 1)}]")
        g.declare(rest, INTS)
    elif way == 1:
        rest = g.fresh(INTS)
        g.line(f"*{rest}, {a} = ({expression(g, INT, 1)}, {expression(g, INT, 1)}, {expression(g, INT, 1)})")
        g.declare(rest, INTS)
    elif way == 2:
        names = g.assignable(INT)
        if len(names) >= 2:
            first, second = g.pick.sample(names, 2)
            g.line(f"{first}, {second} = {second}, {first} + 1")
        return
    elif way == 3:
        t = g.fresh(TENSOR)
        g.line(f"{a}, ({t}, {b}) = {expression(g, INT, 1)}, ({expression(g, TENSOR, 1)}, {expression(g, INT, 1)})")
        g.declare(t, TENSOR)
        g.declare(b, INT)
    elif way == 4:
        g.line(f"{a}, {b} = divmod({expression(g, INT, 1)}, 4)")
        g.declare(b, INT)
    else:
        first, second = g.fresh(SCALAR), g.fresh(SCALAR)
        g.line(f"{a}, ({first}, {second}) = {expression(g, INT, 1)}, {expression(g, TENSOR, 1)}[0, :2]")
        g.declare(first, SCALAR)
        g.declare(second, SCALAR)
    g.declare(a, INT)


def mutate(g: Scope) -> None:
    kind = g.pick.choice((INTS, INTS, INTS, COUNTS, COUNTS, SET, TENSORS, TABLE, BOX, BOX, TENSOR, TENSOR))
    name = g.var(kind)
    if name is None:
        return assign(g)
    i, j = expression(g, INT, 1), expression(g, INT, 1)
    rows = {
        INTS: (
            f"{name}.append({i})",
            f"{name}.append({i})",
            f"{name}.extend({expression(g, INTS, 1)}[:3])",
            f"{name}.insert({small(g)}, {i})",
            f"{name} and {name}.pop()",
            f"{name}.sort()",
            f"{name}.sort(key=lambda q: (q % 3, q), reverse={expression(g, BOOL, 0)})",
            f"{name}.reverse()",
            f"{name}[:1] = [{i}, {j}]",
            f"del {name}[1:2]",
            f"{name}.clear()",
            f"{name}[len({name}):] = {expression(g, TUPLE, 1)}[:2]",
        ),
        COUNTS: (
            f"{name}[{word(g)}] = {i}",
            f"{name}[{expression(g, STR, 1)}] = {i}",
            f"{name}.update({expression(g, COUNTS, 1)})",
            f"{name}.update(a={i})",
            f"{name}.setdefault({word(g)}, {i})",
            f"{name}.pop({word(g)}, None)",
            f"{name}[{word(g)}] = {name}.get({word(g)}, 0) + 1",
            f"{name}.clear()",
            f"{name} and {name}.popitem()",
        ),
        SET: (f"{name}.add({i})", f"{name}.discard({i})", f"{name}.update({expression(g, INTS, 1)})", f"{name}.clear()"),
        TENSORS: (f"{name}.append({expression(g, TENSOR, 1)})", f"{name}.reverse()", f"{name}[:1] = [{expression(g, TENSOR, 1)}]", f"del {name}[2:]"),
        TABLE: (f"{name}[{word(g)}] = {expression(g, TENSOR, 1)}", f"{name}.pop({word(g)}, None)", f"{name}.setdefault({word(g)}, {expression(g, TENSOR, 0)})"),
        BOX: (
            f"{name}.n = {i}",
            f"{name}.n += {i}",
            f"{name}.double = {i}",
            f"{name}.items.append({i})",
            f"{name}.push({i}).push({j})",
            f"{name}.t = {expression(g, TENSOR, 1)}",
            f"{name}.t = None",
            f"{name}.items = {expression(g, INTS, 1)}",
            f"setattr({name}, 'n', {i})",
            f"{name}.note = {expression(g, STR, 1)}",
            f"if {name}.items: {name}[0] = {i}",
            f"Box.made += {i}",
        ),
        TENSOR: (
            f"{name} = {name}.clone(); {name}.mul_(0.5)",
            f"{name} = {name}.clone(); {name}[0] = {expression(g, FLOAT, 1)}",
            f"{name} = {name}.clone(); {name}[:, 1] += {expression(g, SCALAR, 1)}",
            f"{name} = {name}.clone(); {name}.t().add_(1)",
            f"{name}.add_({expression(g, FLOAT, 1)})",
            f"{name}[0, 0] = {expression(g, FLOAT, 0)}",
            f"{name} = {name} + 0; {name}.copy_({expression(g, TENSOR, 1)})",
        ),
    }
    texts = rows[kind] if kind != TENSOR or name in g.own else rows[kind][4:6]
    for part in g.pick.choice(texts).split("; "):
        g.line(part)


def risky(g: Scope) -> None:
    """Something that may raise."""
    i = expression(g, INT, 1)
    xs, d = g.var(INTS), g.var(COUNTS)
    rows = [
        f"raise Wrong({expression(g, STR, 1)}, {i})",
        "raise Worse('worse')",
        f"raise KeyError({word(g)})",
        "raise ValueError",
        f"if {expression(g, BOOL, 1)}: raise IndexError({i})",
        f"assert {expression(g, BOOL, 1)}, {expression(g, STR, 1)}",
        f"{g.fresh(INT)} = 7 // ({i} % 3)",
        f"{g.fresh(INT)} = failing({i})",
        f"failing({i})",
        f"int({expression(g, STR, 1)})",
        f"{g.fresh(INT)} = next(count_up({i} % 2))",
        f"Box({i}).missing",
        f"BigBox({i}).absent",
        f"None + {i}",
        f"opaque({i}, *{expression(g, INTS, 1)}[:2])[{i}]",
        f"(1, 2)[{i}]",
        f"{g.fresh(TENSOR)} = {expression(g, TENSOR, 0)} @ torch.ones(2, 2)",
        f"print({i}); raise Wrong('printed')",
    ]
    if xs:
        rows += [f"{xs}[{i}]", f"del {xs}[{small(g)}]", f"{xs}.remove({i})", f"{xs}.pop({small(g)})", f"[a, b] = {xs}"]
    if d:
        rows += [f"{d}[{word(g)}]", f"del {d}[{word(g)}]", f"{d}.pop({word(g)})"]
    for part in g.pick.choice(rows).split("; "):
        g.line(part)


def maybe_risky(g: Scope) -> None:
    if g.chance(0.05):
        risky(g)
    else:
        mutate(g)


def outer_write(g: Scope) -> None:
    way = g.pick.randrange(5)
    if way == 0:
        g.line(f"LOG.append({expression(g, g.pick.choice((INT, STR, TUPLE)), 1)})")
    elif way == 1:
        g.line("STEPS['calls'] += 1")
    elif way == 2:
        g.line(f"GLIST.append({expression(g, INT, 1)})")
    elif way == 3:
        g.line(f"GDICT[{word(g)}] = {expression(g, INT, 1)}")
    else:
        g.line(f"GBOX.n = {expression(g, INT, 1)}")


def remove(g: Scope) -> None:
    names = [n for k in (INT, STR, INTS, TENSOR) for n in g.assignable(k) if n.isidentifier()]
    if len(names) < 6 or g.loops or g.functions > 1:
        return assign(g)
    name = g.pick.choice(names)
    g.line(f"del {name}")
    g.forget(name)


def emit(g: Scope) -> None:
    if not g.is_generator:
        return assign(g)
    if g.chance(0.2):
        g.line(f"yield from {expression(g, INTS, 1)}[:3]")
    else:
        g.line(f"yield {expression(g, INT, 2)}")


def drive(g: Scope) -> None:
    """A generator that is sent values."""
    name, got = f"gen{g.names}", g.fresh(INT)
    g.line(f"{name} = running()")
    g.line(f"next({name})")
    g.line(f"{name}.send({expression(g, INT, 1)})")
    g.line(f"{got} = {name}.send({expression(g, INT, 1)})")
    if g.chance(0.3):
        g.line(f"{name}.close()")
    g.declare(got, INT)
