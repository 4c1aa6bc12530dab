"""Random statements with blocks: branches, loops, handlers, managers, patterns, nested functions."""

from __future__ import annotations

from tests.fuzz.language.expressions import expression, real, small, word
from tests.fuzz.language.scope import BOOL, BOX, CALL, COUNTS, FLOAT, INT, INTS, MAP, OPT, SCALAR, STR, TENSOR, TENSORS, TUPLE, Scope, block, body
from tests.fuzz.language.statements import assign, risky

ERRORS = ("Wrong", "KeyError", "(IndexError, KeyError)", "Exception", "ZeroDivisionError", "LookupError", "ArithmeticError", "Worse", "ValueError")


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
