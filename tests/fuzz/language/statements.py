"""Random statements, blocks, functions and generators."""

from __future__ import annotations

from collections.abc import Callable

from tests.fuzz.language.expressions import expression, real, small, word
from tests.fuzz.language.more import attribute_work, early_return, function_calls, grad_state, module_state, nested_data, tensor_calls, view_write
from tests.fuzz.language.scope import (
    BOOL,
    BOX,
    CALL,
    COUNTS,
    FLOAT,
    INT,
    INTS,
    MAP,
    OPT,
    SCALAR,
    SET,
    STR,
    TABLE,
    TENSOR,
    TENSORS,
    TUPLE,
    TYPES,
    Scope,
    Signature,
)

Statement = Callable[[Scope], None]
ASSIGNED = (INT, INT, INT, TENSOR, TENSOR, TENSOR, FLOAT, BOOL, STR, OPT, SCALAR, INTS, INTS, TENSORS, COUNTS, SET, TUPLE, TABLE, BOX, CALL, MAP)
ERRORS = ("Wrong", "KeyError", "(IndexError, KeyError)", "Exception", "ZeroDivisionError", "LookupError", "ArithmeticError", "Worse", "ValueError")


def block(g: Scope, most: int = 4) -> None:
    with g.block():
        body(g, g.pick.randint(1, most))


def body(g: Scope, count: int) -> None:
    for _ in range(count):
        if g.budget <= 0:
            return
        g.budget -= 1
        rows = ROWS if g.indent < 5 else SIMPLE
        g.pick.choices([r[1] for r in rows], [r[0] for r in rows])[0](g)


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


def branch(g: Scope) -> None:
    condition = expression(g, BOOL, 2) if not g.chance(0.08) else f"({expression(g, SCALAR, 1)} > 0)"
    g.line(f"if {condition}:")
    block(g)
    while g.chance(0.25):
        g.line(f"elif {expression(g, g.pick.choice((BOOL, BOOL, INTS, OPT, STR)), 2)}:")
        block(g, 3)
    if g.chance(0.5):
        g.line("else:")
        block(g, 3)


def loop(g: Scope) -> None:
    if g.loops >= 2:
        return branch(g)
    way = g.pick.randrange(9)
    targets: list[tuple[str, str]]
    n, m = g.fresh(INT), g.fresh(INT)
    if way == 0:
        targets, head = [(n, INT)], f"{n} in range({expression(g, INT, 1)} % 5)"
    elif way == 1:
        targets, head = [(n, INT)], f"{n} in {expression(g, INTS, 1)}[:4]"
    elif way == 2:
        targets, head = [(n, INT), (m, INT)], f"{n}, {m} in enumerate({expression(g, INTS, 1)}[:4], start={small(g)})"
    elif way == 3:
        s = g.fresh(STR)
        targets, head = [(s, STR), (m, INT)], f"{s}, {m} in list({expression(g, COUNTS, 1)}.items())[:4]"
    elif way == 4:
        t = g.fresh(TENSOR)
        targets, head = [(n, INT), (t, TENSOR)], f"{n}, {t} in zip({expression(g, INTS, 1)}, {expression(g, TENSORS, 1)}[:3])"
    elif way == 5:
        targets, head = [(n, INT)], f"{n} in count_up({expression(g, INT, 1)} % 4, {small(g)})"
    elif way == 6:
        targets, head = [(n, INT)], f"{n} in reversed({expression(g, TUPLE, 1)}[:4])"
    elif way == 7:
        s = g.fresh(STR)
        targets, head = [(s, STR)], f"{s} in {expression(g, COUNTS, 0)}"
    else:
        targets, head = [(n, INT)], f"{n} in paired({expression(g, INTS, 1)}[:3])"
    g.line(f"for {head}:")
    with g.block():
        for name, kind in targets:
            g.declare(name, kind)
        inside(g)
    loop_end(g)


def inside(g: Scope) -> None:
    g.in_loop += 1
    g.loops += 1
    body(g, g.pick.randint(1, 3))
    if g.chance(0.35):
        g.line(f"if {expression(g, BOOL, 1)}:")
        with g.block():
            body(g, 1)
            g.line(g.pick.choice(("break", "continue")))
        body(g, 1)
    g.in_loop -= 1
    g.loops -= 1


def loop_end(g: Scope) -> None:
    if g.chance(0.2):
        g.line("else:")
        block(g, 2)


def while_loop(g: Scope) -> None:
    if g.loops >= 2:
        return branch(g)
    name = g.fresh(INT)
    g.line(f"{name} = {g.pick.choice('01')}")
    g.declare(name, INT)
    g.fixed.add(name)
    more = f" and {expression(g, BOOL, 1)}" if g.chance(0.3) else ""
    g.line(f"while {name} < {g.pick.choice('234')}{more}:")
    with g.block():
        g.line(f"{name} += 1")
        inside(g)
    loop_end(g)


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


def attempt(g: Scope) -> None:
    g.line("try:")
    with g.block():
        body(g, g.pick.randint(0, 2))
        if g.chance(0.75):
            risky(g)
        body(g, g.pick.randint(0, 2))
    only_finally = g.chance(0.15)
    last = None
    for _ in range(0 if only_finally else g.pick.choice((1, 1, 2))):
        kind = g.pick.choice(ERRORS)
        if kind == last:
            continue
        last = kind
        name = f"e{g.names}" if g.chance(0.6) else ""
        g.names += 1
        g.line(f"except {kind} as {name}:" if name else f"except {kind}:")
        with g.block():
            if name and g.chance(0.7):
                s = g.fresh(STR)
                g.line(f"{s} = {g.pick.choice((f'str({name})', f'type({name}).__name__', f'repr({name}.args)', f'repr({name})'))}")
                g.declare(s, STR)
                if g.chance(0.4):
                    g.line(f"LOG.append({s})")
            body(g, g.pick.randint(0, 2))
            if g.chance(0.2):
                g.line(g.pick.choice((["raise", f"raise Worse('again') from {name}", f"raise {name}"] if name else ["raise"]) + ["raise RuntimeError('new')"]))
    if not only_finally and not g.chance(0.15) and last != "Exception":
        g.line("except Exception as error:")
        with g.block():
            g.line("LOG.append(repr(error))")
            body(g, 1)
    if not only_finally and g.chance(0.25):
        g.line("else:")
        block(g, 2)
    if only_finally or g.chance(0.25):
        g.line("finally:")
        with g.block():
            saved, g.in_loop = g.in_loop, 0
            body(g, g.pick.randint(1, 2))
            g.in_loop = saved


def manage(g: Scope) -> None:
    name = g.fresh(INT)
    label = word(g)
    rows = [
        (f"Noting({label})", ""),
        (f"Noting({label}) as m{g.names}", ""),
        (f"Noting({label}, {g.pick.choice(('Wrong', 'KeyError', '(Exception,)', 'LookupError'))})", "swallows"),
        (f"contextlib.suppress({g.pick.choice(('Wrong', 'KeyError', 'Exception', 'LookupError, ArithmeticError'))})", "swallows"),
        (f"caught({g.pick.choice(('Wrong', 'Exception', 'KeyError, Wrong'))})", "swallows"),
        (f"noted({label}, {expression(g, INT, 1)}) as {name}", "binds"),
        (f"noted({label})", ""),
        (f"contextlib.nullcontext({expression(g, INT, 1)}) as {name}", "binds"),
        ("torch.no_grad()", ""),
        ("torch.enable_grad()", ""),
        ("torch.set_grad_enabled(False)", ""),
        (f"Noting({label}), torch.no_grad()", ""),
        (f"noted({label}, 4) as {name}, Noting('second')", "binds"),
    ]
    text, kind = g.pick.choice(rows)
    g.line(f"with {text}:")
    with g.block():
        if kind == "binds":
            g.declare(name, INT)
        body(g, g.pick.randint(1, 3))
        if kind == "swallows" and g.chance(0.7):
            risky(g)
            body(g, g.pick.randint(0, 1))
        elif g.chance(0.08):
            risky(g)


def emit_break(g: Scope) -> None:
    """A graph break, or what is likely to be one."""
    i, x = expression(g, INT, 1), expression(g, TENSOR, 1)
    way = g.pick.randrange(8)
    if way == 0:
        g.line(f"print({expression(g, STR, 1)}, {i})")
    elif way == 1:
        g.line("dynacompile.graph_break()")
    elif way == 2:
        name = g.fresh(FLOAT)
        g.line(f"{name} = {x}.sum().item()")
        g.declare(name, FLOAT)
    elif way == 3:
        g.line(f"if {x}.sum() > {real(g)}:")
        block(g, 2)
        if g.chance(0.4):
            g.line("else:")
            block(g, 2)
    elif way == 4:
        name = g.fresh(TENSOR)
        g.line(f"{name} = opaque({x}, {i})")
        g.declare(name, TENSOR)
    elif way == 5:
        name = g.fresh(TENSOR)
        g.line(f"{name} = breaking({x})")
        g.declare(name, TENSOR)
    elif way == 6:
        name = g.fresh(INT)
        g.line(f"{name} = printing({i})")
        g.declare(name, INT)
    else:
        g.line(f"opaque({expression(g, INTS, 1)}, {i})")


def leave(g: Scope) -> None:
    """An early return, or the end of an iteration."""
    if g.chance(0.5):
        return assign(g)
    g.line(f"if {expression(g, BOOL, 2)}:")
    with g.block():
        if g.is_generator:
            g.line("return")
        elif g.in_loop and g.chance(0.6):
            g.line(g.pick.choice(("break", "continue")))
        elif g.returns:
            g.line(f"return {expression(g, g.returns, 1)}")


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


def match(g: Scope) -> None:
    subject = g.pick.choice((INT, TUPLE, COUNTS, BOX, OPT, STR, INTS))
    g.line(f"match {expression(g, subject, 1)}:")
    n = g.fresh(INT)
    rest = g.fresh(INTS)
    patterns: dict[str, tuple[tuple[str, str], ...]] = {
        INT: (("0 | 1", ""), ("-3", ""), (f"int({n}) if {expression(g, BOOL, 1)}", INT)),
        TUPLE: ((f"({n},)", INT), (f"({n}, _)", INT), (f"({n}, *{rest})", INTS), ("()", "")),
        INTS: (("[]", ""), (f"[{n}]", INT), (f"[{n}, *{rest}]", INTS), (f"[*_, {n}]", INT)),
        COUNTS: ((f"{{'a': {n}, **_rest}}".replace("**_rest", f"**k{n}"), INT), (f"{{'b': {n}}}", INT), ("{}", "")),
        BOX: ((f"BigBox(n={n})", INT), (f"Box(n={n}, items=[])", INT), (f"Box(items=[_, *{rest}])", "")),
        OPT: (("None", ""), (f"{n}", INT)),
        STR: (("'a' | 'b'", ""), ("str() as text", "")),
    }
    with g.block():
        for text, binds in patterns[subject]:
            if g.chance(0.25):
                continue
            g.line(f"case {text}:")
            with g.block():
                if binds:
                    g.declare(n, INT)
                if binds == INTS:
                    g.declare(rest, INTS)
                body(g, g.pick.randint(1, 2))
            if text == n:
                return
        if g.chance(0.6):
            g.line("case _:")
            block(g, 2)
        else:
            g.line("case 12345:")
            block(g, 1)


def define(g: Scope) -> None:
    """A nested function that reads, and maybe writes, variables around it."""
    if g.functions > 2 or g.loops > 1:
        return assign(g)
    kind = g.pick.choice((INT, INT, TENSOR))
    name, parameter = g.fresh(CALL if kind == INT else MAP), g.fresh(kind)
    outer = [n for n in g.assignable(INT) if n.isidentifier() and n != "GINT"]
    outer_tensors = [n for n in g.assignable(TENSOR) if n.isidentifier()]
    default = f", k{g.names}={expression(g, INT, 0)}" if g.chance(0.2) else ""
    g.line(f"def {name}({parameter}{default}):")
    with g.function(kind):
        if outer and g.chance(0.5) and g.functions > 1:
            written = g.pick.choice(outer)
            g.line(f"nonlocal {written}")
            g.own.add(written)
            g.line(f"{written} += {small(g)}")
        if outer_tensors and g.chance(0.2) and g.functions > 1:
            written = g.pick.choice(outer_tensors)
            g.line(f"nonlocal {written}")
            g.own.add(written)
            g.line(f"{written} = {written} * 0.5")
        g.declare(parameter, kind)
        body(g, g.pick.randint(0, 3))
        g.line(f"return {expression(g, kind, 2)}")
    g.declare(name, CALL if kind == INT else MAP)


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


SIMPLE: list[tuple[float, Statement]] = [
    (8, assign),
    (3, augment),
    (1.5, unpack),
    (5, mutate),
    (0.3, maybe_risky),
    (1.2, outer_write),
    (0.6, emit_break),
]
ROWS: list[tuple[float, Statement]] = [
    *SIMPLE,
    (3, branch),
    (2.5, loop),
    (1, while_loop),
    (2, attempt),
    (1.5, manage),
    (0.8, leave),
    (0.4, remove),
    (0.8, match),
    (1.2, define),
    (0.8, emit),
    (0.2, drive),
    (0.8, view_write),
    (0.8, module_state),
    (0.8, early_return),
    (0.8, attribute_work),
    (0.6, nested_data),
    (0.5, grad_state),
    (0.8, function_calls),
    (0.8, tensor_calls),
]


def function(g: Scope, name: str, budget: int) -> Signature:
    """A function at the top level of the program."""
    is_generator = g.chance(0.2)
    returns = INT if is_generator else g.pick.choice((INT, INT, TENSOR, TENSOR, INTS, COUNTS, TUPLE, FLOAT, STR))
    positional = tuple(g.pick.choice(TYPES) for _ in range(g.pick.randint(1, 3)))
    keywords = tuple((f"{name}_k{i}", g.pick.choice((INT, FLOAT, BOOL, STR))) for i in range(g.pick.randint(0, 2)))
    s = Signature(name, positional, keywords, g.chance(0.25), g.chance(0.2), returns, is_generator)
    names = [g.fresh(k) for k in positional]
    star, stars = g.fresh(TUPLE), g.fresh(COUNTS)
    parameters = [*names, *([f"*{star}"] if s.star else []), *(f"{n}={expression(g, k, 0)}" for n, k in keywords), *([f"**{stars}"] if s.stars else [])]
    g.line(f"def {name}({', '.join(parameters)}):")
    g.budget, saved = budget, g.budget
    with g.function(returns, is_generator):
        for parameter, kind in [*zip(names, positional, strict=True), *keywords]:
            g.declare(parameter, kind)
        if s.star:
            g.declare(star, TUPLE)
        if s.stars:
            g.declare(stars, COUNTS)
        body(g, g.pick.randint(2, 6))
        if is_generator:
            g.line(f"yield {expression(g, INT, 1)}")
        else:
            g.line(f"return {expression(g, returns, 2)}")
    g.budget = saved
    g.line("")
    g.signatures.append(s)
    return s
