"""Random expressions, by type: `expression(g, kind, depth)` gives the text of one."""

from __future__ import annotations

from collections.abc import Callable

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
    return choose(g, ROWS[kind], depth - 1)


def e(kind: str) -> Callable[[Scope, int], str]:
    return lambda g, d: expression(g, kind, d)


integer, number, truth, text, optional = e(INT), e(FLOAT), e(BOOL), e(STR), e(OPT)
tensor, scalar, ints, tensors, counts, numbers, tup, table, box = e(TENSOR), e(SCALAR), e(INTS), e(TENSORS), e(COUNTS), e(SET), e(TUPLE), e(TABLE), e(BOX)


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

ROWS: dict[str, list[tuple[float, Make]]] = {
    INT: [
        (2, small),
        (3, form("({} + {})", INT, INT)),
        (2, form("({} - {})", INT, INT)),
        (1, form("({} * {} % 1009)", INT, INT)),
        (1, form("({} // 3)", INT)),
        (1, form("({} % 7)", INT)),
        (0.5, form("(-{})", INT)),
        (0.5, form("({} & {})", INT, INT)),
        (0.3, form("({} ^ {} | 1)", INT, INT)),
        (0.3, form("(1 << {} % 5)", INT)),
        (0.5, form("abs({})", INT)),
        (0.7, form("max({}, {})", INT, INT)),
        (0.5, form("min({}, {}, key=abs)", INT, INT)),
        (1, form("len({})", INTS)),
        (0.5, form("len({})", STR)),
        (0.5, form("len({})", COUNTS)),
        (0.4, form("len({})", SET)),
        (1, form("sum({})", INTS)),
        (0.5, form("max({}, default={})", INTS, INT)),
        (0.3, form("sorted({}, reverse=True).index(9) if 9 in {} else {}", INTS, INTS, INT)),
        (0.7, form("{}.count({})", INTS, INT)),
        (0.5, form("int({})", BOOL)),
        (0.5, form("int({})", FLOAT)),
        (0.7, form("{}.shape[0]", TENSOR)),
        (0.3, form("{}.dim()", TENSOR)),
        (0.3, form("{}.numel()", TENSOR)),
        (0.8, form("{}.get({}, {})", COUNTS, STR, INT)),
        (0.4, form("next(iter({}), {})", INTS, INT)),
        (0.4, form("functools.reduce(lambda p, q: p * 2 - q, {}, {})", INTS, INT)),
        (0.5, form("({} or 0)", OPT)),
        (0.5, form("(0 if {} is None else 5)", OPT)),
        (0.8, ternary(INT)),
        (1, item(INTS, INT)),
        (0.7, item(TUPLE, INT)),
        (0.8, walrus),
        (1, comprehension(INT, INT, "sum({})")),
        (1.2, form("{}({})", CALL, INT)),
        (1, attribute({".n": 4, ".double": 2, ".total()": 3, ".made": 1, ".helper(5)": 1, ".helper(2, b=3)": 1}, BOX)),
        (0.3, form("len({})", BOX)),
        (0.3, form("{}({})", BOX, INT)),
        (0.5, form("spread({}, *{}[:3], c={})", INT, INTS, INT)),
        (0.4, form("spread({}, **{{'c': {}, 'k': 1}})", INT, INT)),
        (0.4, form("apply(spread, {}, b={})", INT, INT)),
        (0.4, form("apply(lambda *a, **k: len(a) + len(k), *{}, key={})", TUPLE, INT)),
        (0.3, form("factorial({} % 5)", INT)),
        (0.3, form("cached({} % 5)", INT)),
        (0.3, form("Pair({}, 2).first", INT)),
        (0.3, form("Point({}).norm()", INT)),
        (0.3, form("dataclasses.replace(Point(1), x={}).x", INT)),
        (0.2, form("BigBox({}).dyn_name", INT)),
        (0.2, form("round({} / 3)", INT)),
        (0.2, form("divmod({}, 4)[1]", INT)),
        (0.2, form("ord({}[:1] or 'q')", STR)),
        (0.2, form("hash({}) % 11", INT)),
        (0.2, form("STEPS['calls'] + {}", INT)),
    ],
    FLOAT: [
        (2, real),
        (2, form("({} + {})", FLOAT, FLOAT)),
        (1, form("({} * 0.5)", FLOAT)),
        (1, form("({} / 4)", INT)),
        (0.5, form("float({})", INT)),
        (0.5, form("round({}, 2)", FLOAT)),
        (0.5, form("max({}, {})", FLOAT, INT)),
        (0.5, form("abs({})", FLOAT)),
        (0.4, form("(-{})", FLOAT)),
        (0.5, ternary(FLOAT)),
        (0.3, form("sum(({}, {}))", FLOAT, INT)),
        (0.15, form("{}.item()", SCALAR)),
    ],
    BOOL: [
        (1, LEAVES[BOOL]),
        (3, form("({} < {})", INT, INT)),
        (1, form("({} == {})", INT, INT)),
        (1, form("({} <= {} < {})", INT, INT, INT)),
        (0.5, form("({} != {} > {} == {})", INT, INT, INT, INT)),
        (0.7, form("(not {})", BOOL)),
        (1, form("({} and {})", BOOL, BOOL)),
        (1, form("({} or {})", BOOL, BOOL)),
        (1, form("({} in {})", INT, INTS)),
        (0.5, form("({} not in {})", STR, COUNTS)),
        (0.5, form("({} in {})", INT, SET)),
        (0.7, form("({} is None)", OPT)),
        (0.5, form("({} is not None)", OPT)),
        (0.7, form("({} == {})", INTS, INTS)),
        (0.4, form("({} == {})", STR, STR)),
        (0.4, form("({} < {})", TUPLE, TUPLE)),
        (0.4, form("({} == {})", COUNTS, COUNTS)),
        (0.3, form("({} <= {})", SET, SET)),
        (0.5, form("bool({})", INTS)),
        (0.5, comprehension(BOOL, BOOL, "any({})")),
        (0.5, comprehension(BOOL, BOOL, "all({})")),
        (0.7, isinstance_check),
        (0.3, form("hasattr({}, 'extra')", BOX)),
        (0.3, form("({} == {})", BOX, BOX)),
        (0.3, form("({} in {})", INT, BOX)),
        (0.4, form("({} is {})", INTS, INTS)),
        (0.3, form("({} is {})", TENSOR, TENSOR)),
        (0.3, form("callable({})", CALL)),
        (0.3, form("{}.requires_grad", TENSOR)),
        (0.2, form("({} > 0.5)", FLOAT)),
        (0.2, form("{}.startswith('a')", STR)),
        (0.2, form("torch.is_grad_enabled() and {}", BOOL)),
    ],
    STR: [
        (2, word),
        (2, formatted),
        (1, form("({} + {})[:20]", STR, STR)),
        (0.5, form("str({})", INT)),
        (0.5, form("repr({})", INTS)),
        (0.4, form("{}.upper()", STR)),
        (0.4, form("{}[:2]", STR)),
        (0.4, form("'-'.join(str(q) for q in {})", INTS)),
        (0.4, form("({} * 2)[:12]", STR)),
        (0.3, form("type({}).__name__", BOX)),
        (0.3, form("'%d|%s' % ({}, {})", INT, STR)),
        (0.3, form("'{{}}:{{n}}'.format({}, n={})", INT, INT)),
        (0.3, form("{}.replace('a', 'b')", STR)),
        (0.3, ternary(STR)),
        (0.2, form("repr({})", BOX)),
        (0.2, form("str({}.dtype)", TENSOR)),
        (0.2, form("min({}, default='none')", COUNTS)),
    ],
    OPT: [(1, LEAVES[OPT]), (2, form("(None if {} else {})", BOOL, INT)), (1, form("{}.get({})", COUNTS, STR)), (0.5, form("next(iter({}), None)", INTS))],
    TENSOR: [
        (2, form("({} + {})", TENSOR, TENSOR)),
        (2, form("({} * 0.5)", TENSOR)),
        (1, form("({} - {})", TENSOR, TENSOR)),
        (1, form("({} * {})", TENSOR, SCALAR)),
        (1, form("({} + {} % 3)", TENSOR, INT)),
        (1, form("({} * {})", TENSOR, FLOAT)),
        (1.5, form("torch.tanh({})", TENSOR)),
        (1, form("{}.sin()", TENSOR)),
        (0.5, form("torch.relu({})", TENSOR)),
        (0.5, form("torch.where({} > 0, {}, 0.1)", TENSOR, TENSOR)),
        (0.4, form("{}.clamp(-1, max=1)", TENSOR)),
        (0.4, form("torch.stack({} or [torch.ones(2, 3)]).sum(0)", TENSORS)),
        (0.4, form("sum({}, torch.zeros(3))", TENSORS)),
        (0.4, form("{}.t().contiguous().t()", TENSOR)),
        (0.4, form("{}[:, [2, 0, 1]]", TENSOR)),
        (0.3, form("{}.flip(0)", TENSOR)),
        (0.3, form("{}.unsqueeze(0)[0]", TENSOR)),
        (0.3, form("{}.cumsum(1)", TENSOR)),
        (0.3, form("{}.view(-1).view(-1, 3)", TENSOR)),
        (0.4, form("{}.clone()", TENSOR)),
        (0.3, form("{}.detach()", TENSOR)),
        (0.3, form("torch.rand_like({})", TENSOR)),
        (0.3, form("torch.nn.functional.dropout({}, 0.5)", TENSOR)),
        (0.3, form("torch.full_like({}, {})", TENSOR, FLOAT)),
        (0.3, form("(-{})", TENSOR)),
        (0.3, form("{}.softmax(dim=-1)", TENSOR)),
        (0.3, form("torch.cat([{}[:1], {}[1:]])", TENSOR, TENSOR)),
        (0.3, form("{}.chunk(1, dim=0)[0]", TENSOR)),
        (0.3, form("torch.nn.functional.layer_norm({}, (3,))", TENSOR)),
        (0.7, ternary(TENSOR)),
        (0.8, form("{}({})", MAP, TENSOR)),
        (1.5, module_call),
        (0.5, form("{}.scale({})", BOX, TENSOR)),
        (0.8, item(TENSORS, TENSOR)),
        (0.4, form("{}.get({}, {})", TABLE, STR, TENSOR)),
        (0.15, form("breaking({})", TENSOR)),
        (0.15, form("opaque({})", TENSOR)),
        (0.2, form("Pair(first=1, second={}).second", TENSOR)),
    ],
    SCALAR: [
        (2, form("{}.sum()", TENSOR)),
        (1, form("{}.mean()", TENSOR)),
        (0.5, form("{}.amax()", TENSOR)),
        (1, form("({} * 0.5)", SCALAR)),
        (0.5, form("({} + {})", SCALAR, INT)),
        (0.3, form("torch.tensor({})", FLOAT)),
        (0.3, form("{}[0, 1]", TENSOR)),
        (0.3, ternary(SCALAR)),
    ],
    INTS: [
        (1, LEAVES[INTS]),
        (2, form("[{}, {}]", INT, INT)),
        (1, form("[*{}, {}]", INTS, INT)),
        (3, comprehension(INTS, INT, "[{}]")),
        (0.5, comprehension(INTS, INT, "list({})")),
        (0.5, form("sorted({})", INTS)),
        (0.4, form("sorted({}, key=lambda q: -q)", INTS)),
        (0.4, form("list(range({} % 5))", INT)),
        (0.5, form("({} + {})[:8]", INTS, INTS)),
        (0.5, form("{}[1:]", INTS)),
        (0.4, form("{}[::-1]", INTS)),
        (0.4, form("list(map({}, {}[:4]))", CALL, INTS)),
        (0.4, form("list(filter(lambda q: q % 2, {}))", INTS)),
        (0.4, form("list({}.values())", COUNTS)),
        (0.4, form("[q + p for p, q in enumerate({})]", INTS)),
        (0.4, form("[p * q for p, q in zip({}, {})]", INTS, TUPLE)),
        (0.3, form("list(chained({}[:3]))", INTS)),
        (0.3, form("list(paired({}[:3]))", TUPLE)),
        (0.4, method_call),
        (0.3, form("{}.copy()", INTS)),
        (0.3, form("list({})", TUPLE)),
        (0.3, form("sorted({})", SET)),
        (0.2, form("{}.items", BOX)),
        (0.2, form("list({})", BOX)),
        (0.3, form("[len(q) for q in {}]", COUNTS)),
        (0.2, form("opaque({})", INTS)),
        (0.3, ternary(INTS)),
        (0.2, form("list(reversed({}))", INTS)),
        (0.2, form("[v for row in [[{}], {}] for v in row][:6]", INT, INTS)),
    ],
    TENSORS: [
        (1, LEAVES[TENSORS]),
        (1, form("[{}]", TENSOR)),
        (1, comprehension(TENSORS, TENSOR, "[{}]")),
        (0.5, form("[q * 2 for q in {}[:3]]", TENSORS)),
        (0.5, form("[{}, *{}[:2]]", TENSOR, TENSORS)),
        (0.4, form("list({}.values())", TABLE)),
        (0.3, form("list(map({}, {}[:3]))", MAP, TENSORS)),
        (0.3, form("(list({}.split(1, dim=1))[:1] and [{}])", TENSOR, TENSOR)),
    ],
    COUNTS: [
        (1, LEAVES[COUNTS]),
        (1, form("{{'a': {}, {}: {}}}", INT, STR, INT)),
        (1, form("{{k: v + 1 for k, v in {}.items()}}", COUNTS)),
        (0.7, form("{{**{}, 'b': {}}}", COUNTS, INT)),
        (0.5, form("({} | {})", COUNTS, COUNTS)),
        (0.4, form("dict(zip('abc', {}))", INTS)),
        (0.4, form("dict(sorted({}.items()))", COUNTS)),
        (0.4, form("{{str(q): q for q in {}}}", INTS)),
        (0.3, form("{}.copy()", COUNTS)),
        (0.3, form("dict({}, a={})", COUNTS, INT)),
        (0.3, form("collections.Counter(str({}))", INT)),
    ],
    SET: [
        (1, LEAVES[SET]),
        (1, form("set({})", INTS)),
        (1, comprehension(SET, INT, "{{{}}}")),
        (0.5, form("({} | {})", SET, SET)),
        (0.4, form("({} & {})", SET, SET)),
        (0.4, form("({} - {})", SET, SET)),
        (0.4, form("{{{}, *{}}}", INT, INTS)),
    ],
    TUPLE: [
        (1, LEAVES[TUPLE]),
        (1, form("({}, {})", INT, INT)),
        (0.5, form("(*{}, {})", TUPLE, INT)),
        (0.5, comprehension(TUPLE, INT, "tuple({})")),
        (0.4, form("({} + {})[:6]", TUPLE, TUPLE)),
        (0.4, form("tuple({})", INTS)),
        (0.4, form("{}[::-1]", TUPLE)),
        (0.2, form("tuple({}.shape)", TENSOR)),
        (0.2, form("Pair({}, {})", INT, INT)),
        (0.2, form("keyword_only(low={}, high=2)", INT)),
        (0.2, form("divmod({}, 5)", INT)),
    ],
    TABLE: [(1, LEAVES[TABLE]), (1, form("{{'a': {}, **{}}}", TENSOR, TABLE)), (1, form("{{k: v * 2 for k, v in {}.items()}}", TABLE))],
    BOX: [
        (1, LEAVES[BOX]),
        (1, form("Box({}, {})", INT, INTS)),
        (1, made_box),
        (1, form("BigBox({}, {}, {})", INT, INTS, TENSOR)),
        (0.5, form("SlotBox({}, items={})", INT, INTS)),
        (0.5, form("Box.of({})", INT)),
        (0.5, form("({} + {})", BOX, INT)),
        (0.3, form("{}.push({})", BOX, INT)),
        (0.3, form("max({}, {})", BOX, BOX)),
    ],
    CALL: [
        (1, LEAVES[CALL]),
        (3, lambda_of(INT, INT)),
        (0.5, form("functools.partial(spread, {})", INT)),
        (0.5, form("functools.partial(spread, c={})", INT)),
        (0.5, form("counter({})", INT)),
        (0.5, form("{}.__call__", BOX)),
        (0.3, form("traced({})", CALL)),
        (0.3, form("{}.count", INTS)),
    ],
    MAP: [(1, LEAVES[MAP]), (3, lambda_of(TENSOR, TENSOR)), (0.7, form("{}.scale", BOX)), (0.3, form("functools.partial(torch.add, {})", TENSOR))],
}
