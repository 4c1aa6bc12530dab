"""Random expressions, by type: `expression(g, kind, depth)` gives the text of one."""

from __future__ import annotations

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
    Make,
    Scope,
    Signature,
    choose,
)

WORDS = ("a", "b", "key", "two", "zz")


def expression(g: Scope, kind: str, depth: int = 2) -> str:
    """Text of an expression of type `kind`, in parentheses where it needs them."""
    name = g.var(kind)
    if name is not None and (depth <= 0 or g.chance(0.3)):
        return name
    if depth <= 0:
        return LEAVES[kind](g, 0)
    if kind in (INT, TENSOR, FLOAT, STR, INTS, TUPLE, COUNTS) and g.chance(0.08):
        found = [s for s in g.signatures if s.returns == kind and not s.is_generator]
        if found:
            return call(g, g.pick.choice(found), depth - 1)
    return choose(g, g.forms[kind], depth - 1)


def form(template: str, *kinds: str) -> Make:
    """A row that fills `template` with expressions of `kinds`, each given by {}."""

    def make(g: Scope, d: int) -> str:
        is_comprehension = " for " in template
        g.no_walrus += is_comprehension
        text = template.format(*(expression(g, k, d) for k in kinds))
        g.no_walrus -= is_comprehension
        return text

    return make


def small(g: Scope, _: int = 0) -> str:
    return str(g.pick.choice((0, 1, 2, 3, 5, 7, -1, -3, 10)))


def word(g: Scope, _: int = 0) -> str:
    return repr(g.pick.choice(WORDS))


def real(g: Scope, _: int = 0) -> str:
    return g.pick.choice(("0.5", "1.5", "-0.25", "2.0", "0.0", "1e-3", "3.25"))


def call(g: Scope, s: Signature, d: int) -> str:
    """A call of a function of the program, in one of the ways to pass its arguments."""
    args = [expression(g, k, d) for k in s.positional]
    if s.star and g.chance(0.5):
        args.append("*" + g.pick.choice((expression(g, INTS, d), expression(g, TUPLE, d))) + "[:3]")
    elif s.star and g.chance(0.5):
        args += [expression(g, INT, d), expression(g, INT, 0)]
    given = [f"{n}={expression(g, k, d)}" for n, k in s.keywords if g.chance(0.5)]
    g.pick.shuffle(given)
    args += given
    if s.stars and g.chance(0.5):
        args.append(f"**{{k + '_': v for k, v in {expression(g, COUNTS, d)}.items()}}" if g.chance(0.5) else f"zeta={expression(g, INT, d)}")
    return f"{s.name}({', '.join(args)})"


def comprehension(kind: str, item: str, brackets: str) -> Make:
    """A comprehension over ints that makes `item`s; sometimes nested, filtered, with a walrus."""

    def make(g: Scope, d: int) -> str:
        g.no_walrus += 1
        source = expression(g, INTS, d) + "[:5]" if g.chance(0.5) else f"range({g.pick.choice(('3', '4', '5'))})"
        inner = f"range({g.pick.choice('123')})" if g.chance(0.5) else expression(g, TUPLE, 0) + "[:2]"
        g.no_walrus -= 1
        with g.local(INT, walrus=True) as n:
            loops = f"for {n} in {source}"
            if g.chance(0.25):
                with g.local(INT, walrus=True) as m:
                    body = expression(g, item, d)
                    return brackets.format(f"{body} {loops} for {m} in {inner}")
            body = expression(g, item, d)
            condition = f" if {expression(g, BOOL, d)}" if g.chance(0.4) else ""
        return brackets.format(f"{body} {loops}{condition}")

    return make


def walrus(g: Scope, d: int) -> str:
    names = [] if g.no_walrus else [n for n in g.assignable(INT) if n.isidentifier()]
    value = expression(g, INT, d)
    return f"({g.pick.choice(names)} := {value})" if names else value


def formatted(g: Scope, d: int) -> str:
    parts = []
    for _ in range(g.pick.randint(1, 3)):
        kind = g.pick.choice((INT, INT, FLOAT, BOOL, STR, INTS, COUNTS, TUPLE, OPT))
        inner = expression(g, kind, d)
        if '"' in inner or "\\" in inner or inner.startswith("{"):
            inner = small(g)
            kind = INT
        spec = {INT: ("", ":>4", ":03d", ":+d", "!r"), FLOAT: (":.2f", "", "!r", ":8.3g"), STR: ("", "!r", ":<5", "!s")}.get(kind, ("", "!r"))
        parts.append(f"{{{inner}{g.pick.choice(spec)}}}")
    return 'f"' + g.pick.choice(("", "v=", "<", "n:")).join([*parts, ""]) + '"'


def lambda_of(parameter: str, result: str) -> Make:
    def make(g: Scope, d: int) -> str:
        default = f", k={expression(g, INT, 0)}" if parameter == INT and g.chance(0.3) else ""
        with g.local(parameter) as name:
            return f"(lambda {name}{default}: {expression(g, result, d)}{' + k' if default else ''})"

    return make


def attribute(names: dict[str, int], on: str) -> Make:
    def make(g: Scope, d: int) -> str:
        return expression(g, on, d) + g.pick.choices(list(names), list(names.values()))[0]

    return make


def ternary(kind: str) -> Make:
    return form("({} if {} else {})", kind, BOOL, kind)


def module_call(g: Scope, d: int) -> str:
    if not g.modules:
        return expression(g, TENSOR, d)
    return f"{g.pick.choice(g.modules)}({expression(g, TENSOR, d)}{g.pick.choice(('', ', 0.5', f', scale={real(g)}'))})"


def method_call(g: Scope, d: int) -> str:
    found = [s for s in g.signatures if s.is_generator]
    return f"list({call(g, g.pick.choice(found), d)})" if found else f"list(count_up({expression(g, INT, d)} % 4))"


def isinstance_check(g: Scope, d: int) -> str:
    value = expression(g, g.pick.choice((INT, BOOL, STR, OPT, INTS, TUPLE, BOX, TENSOR, COUNTS)), d)
    return f"isinstance({value}, {g.pick.choice(('int', 'bool', '(int, str)', 'list', 'Box', 'BigBox', 'torch.Tensor', 'dict | None', 'tuple'))})"


def made_box(g: Scope, d: int) -> str:
    return f"{g.pick.choice(g.classes)}({expression(g, INT, d)}, {expression(g, INTS, d)}, {g.pick.choice(('None', expression(g, TENSOR, d)))})"


def item(of: str, kind: str) -> Make:
    """xs[n] where it can't be out of range."""

    def make(g: Scope, d: int) -> str:
        name = g.var(of)
        if name is None:
            return expression(g, kind, d)
        return f"({name}[{expression(g, INT, d)} % len({name})] if {name} else {expression(g, kind, 0)})"

    return make


LEAVES: dict[str, Make] = {
    INT: small,
    FLOAT: real,
    BOOL: lambda g, d: g.pick.choice(("True", "False")),
    STR: word,
    OPT: lambda g, d: g.pick.choice(("None", "4", "0")),
    TENSOR: lambda g, d: "torch.ones(2, 3)",
    SCALAR: lambda g, d: f"torch.tensor({real(g)})",
    INTS: lambda g, d: g.pick.choice(("[]", "[3, 1, 2]", "[5]", "[0, 4, 4, 1]")),
    TENSORS: lambda g, d: f"[{expression(g, TENSOR, 0)}, {expression(g, TENSOR, 0)}]",
    COUNTS: lambda g, d: g.pick.choice(("{}", "{'a': 1, 'zz': 3}", "{'key': 2}", "dict(b=1, a=2)")),
    SET: lambda g, d: g.pick.choice(("{1, 2, 3}", "set()", "{7}")),
    TUPLE: lambda g, d: g.pick.choice(("()", "(1,)", "(2, 3, 5)", "(4, 4)")),
    TABLE: lambda g, d: f"{{'a': {expression(g, TENSOR, 0)}, 'b': {expression(g, TENSOR, 0)}}}",
    BOX: lambda g, d: f"{g.pick.choice(g.classes)}({small(g)})",
    CALL: lambda g, d: g.pick.choice(("abs", "cached", "decorated", "factorial_of_two", "Box(2)", "counter(1)")).replace("factorial_of_two", "printing"),
    MAP: lambda g, d: g.pick.choice(("torch.tanh", "torch.sin", "torch.relu", "breaking")),
}
