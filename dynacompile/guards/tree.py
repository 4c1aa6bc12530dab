"""Sources as paths of native accessors, with shared prefixes."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dynacompile.ir import source as ir
from dynacompile.ir.source import Source

Step = tuple[str, object]  # (accessor, its argument)

# How each source is loaded: from nothing for a root, else from its base.
STEPS: Mapping[type[Source], Callable[..., tuple[Step, ...]]] = {
    ir.Local: lambda s: (("slot", s.slot),),
    ir.Free: lambda s: (("free", s.index),),
    ir.Global: lambda s: (("globals", None), ("dict_item", s.name)),
    ir.Builtin: lambda s: (("builtins", None), ("dict_item", s.name)),
    ir.Constant: lambda s: (("constant", s.value),),
    ir.Attr: lambda s: (("attribute", s.name),),
    ir.DictAttr: lambda s: (("instance_dict", None), ("dict_item", s.name)),
    ir.Registered: lambda s: (("instance_dict", None), ("dict_item", s.table), ("dict_item", s.name)),
    ir.Item: lambda s: (("item", s.key),),
    ir.Entry: lambda s: (("item", s.key),),
    ir.ItemOf: lambda s: (("item", s.key),),
    ir.Remembered: lambda s: (("link", None),),
    ir.Referent: lambda s: (("referent", None),),
    ir.Applied: lambda s: (("applied", s.function),),
    ir.Length: lambda s: (("applied", len),),
    ir.TypeOf: lambda s: (("type", None),),
    ir.ValueAt: lambda s: (("value_at", s.place),),
    ir.ClosureCell: lambda s: (("cell", s.index),),
    ir.DefaultArg: lambda s: (("positional_default" if isinstance(s.key, int) else "keyword_default", s.key),),
}


class Tree:
    """Accessors, checks and relations of one program, as the native core takes them: lists of plain tuples."""

    def __init__(self) -> None:
        self.accessors: list[tuple[str, int, object]] = []
        self.checks: list[tuple[str, int, object, int]] = []
        self.relations: list[tuple[str, tuple[int, ...], int, int, tuple[int, ...]]] = []
        self._known: dict[tuple, int] = {}
        self._asked: set[tuple] = set()
        self._places: dict[Source, tuple[int, Source]] = {}  # with their roots

    def step(self, parent: int, accessor: str, argument: object = None) -> int:
        """The node that `accessor` loads from node `parent` (-1: from the frame); made at the first use."""
        key = (parent, accessor, id(argument)) if accessor == "constant" else (parent, accessor, type(argument), argument)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = len(self.accessors)
            self.accessors.append((accessor, parent, argument))
        return found

    def node(self, source: Source, guard: int) -> int:
        """The node of a source. A builtin counts only while no global hides it, which is checked on behalf of `guard`."""
        found = self._places.get(source)
        place, root = self.place_and_root(source) if found is None else found
        if type(root) is ir.Builtin:
            self.check("dict_has", self.step(-1, "globals"), (root.name, False), guard)
        return place

    def place_and_root(self, source: Source) -> tuple[int, Source]:
        found = self._places.get(source)
        if found is None:
            base = getattr(source, "base", None)
            known, root = (-1, source) if base is None else self.place_and_root(base)
            for accessor, argument in STEPS[type(source)](source):
                known = self.step(known, accessor, argument)
            found = self._places[source] = known, root
        return found

    def check(self, op: str, node: int, argument: object, guard: int) -> None:
        if op == "dict_has":  # asked for each use of a builtin
            key = (op, node, argument, guard)
            if key in self._asked:
                return
            self._asked.add(key)
        self.checks.append((op, node, argument, guard))

    def relate(self, op: str, nodes: tuple[int, ...], guard: int, written: int = 0, program: tuple[int, ...] = ()) -> None:
        """written: for "disjoint", how many of the nodes, from the first, share no memory with any other. program: for "shape"."""
        self.relations.append((op, nodes, guard, written, program))
