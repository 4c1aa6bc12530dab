"""Random programs of writes in place through views of inputs: views whose elements share memory, metadata that changes in place, writes that follow the call.

From seed COMPUTED on also through views of what is computed from such views alone.

`python -m tests.fuzz.views FIRST LAST [--backends eager,aot_eager,reference] [--show]`
"""

from __future__ import annotations

import random

from tests.fuzz.stories import Story, block, main

BASES = (
    "torch.linspace(-1, 2, 6).view(2, 3).clone()",
    "torch.linspace(-1, 2, 12).view(4, 3).clone()",
    "torch.linspace(-1, 2, 6).view(3, 2).t()",
    "torch.linspace(-1, 2, 3).clone()",
    "torch.arange(6).view(2, 3)",
    "torch.linspace(-1, 2, 6).view(2, 3) > 0",
    "torch.linspace(-1, 2, 3).expand(2, 3)",
    "torch.linspace(-1, 2, 5).as_strided((2, 3), (2, 1))",
    "torch.linspace(-1, 2, 12).view(4, 3)[1:3]",
    "torch.linspace(-1, 2, 6).view(2, 3).clone().requires_grad_()",
    "torch.linspace(-1, 2, 6).view(2, 3).requires_grad_() * 1",
    "(torch.linspace(-1, 2, 6).requires_grad_() * 1).view(2, 3)",
    "torch.linspace(-1, 2, 6, dtype=torch.float64).view(2, 3).clone()",
)
VIEWS = (
    ("{v}.expand(2, *{v}.shape)", 3),
    ("{v}.unsqueeze(0).expand(2, *{v}.shape)", 3),
    ("torch.broadcast_to({v}, (2, *{v}.shape))", 2),
    ("{v}.t()", 1),
    ("{v}[0]", 2),
    ("{v}[..., 1:]", 2),
    ("{v}[:, ::2]", 1),
    ("{v}.diagonal()", 2),
    ("{v}.unfold(-1, 2, 1)", 3),
    ("{v}.unfold(0, 2, 2)", 1),
    ("{v}.as_strided((2, 2), (1, 1))", 3),
    ("{v}.as_strided((2, 2), (2, 1))", 1),
    ("{v}.as_strided((2,), (0,))", 1),
    ("{v}.unsqueeze(-1)", 1),
    ("{v}.unsqueeze(-1).squeeze(-1)", 1),
    ("{v}.flatten()", 1),
    ("{v}.view(-1)", 1),
    ("{v}.narrow(0, 0, 1)", 1),
    ("{v}.select(-1, 0)", 1),
    ("{v}.split(1)[0]", 1),
    ("{v}.unbind()[0]", 1),
    ("{v}.chunk(2)[-1]", 1),
    ("{v}.movedim(0, -1)", 1),
    ("{v}.detach()", 1),
    ("{v}.view_as({v})", 1),
    ("{v}.expand_as({v})", 1),
    ("{v}.transpose(0, -1)", 1),
    ("{v}.data", 1),
    ("{v}.unflatten(0, (-1, 1))", 1),
    ("{v}[None]", 1),
    ("{v}.permute(*reversed(range({v}.dim())))", 1),
    ("{v}.squeeze()", 1),
    ("{v}.contiguous()", 1),
    ("{v}.tile(1)", 1),
    ("{v}[..., None].expand(*{v}.shape, 2)", 2),
)
UNTRACKED = {
    "{v}.split(1)[0]": ("{v}.unsafe_split(1)[0]", "torch.unsafe_split_with_sizes({v}, [1] * len({v}))[0]"),
    "{v}.chunk(2)[-1]": ("{v}.unsafe_chunk(2)[-1]", "torch.unsafe_chunk({v}, 2)[-1]"),
    "{v}.select(-1, 0)": ("{v}.unsafe_split(1, dim=-1)[0]",),
}
"""What shares memory as these views do, and is no view to autograd. It is put in the place of half of them, by other random numbers."""
WRITES = (
    "{v}.zero_()",
    "{v}.fill_(5)",
    "{v}.fill_(2.5)",
    "{v}.fill_(True)",
    "{v}.fill_(torch.tensor(3))",
    "{v}.add_(1)",
    "{v}.add_(1.5)",
    "{v}.mul_(2)",
    "{v}.mul_({w})",
    "{v}.copy_({w})",
    "{v}.add_({w})",
    "{v}[1:].add_({v}[:-1])",
    "{v}[0] = 7",
    "{v}[...] = 4",
    "{v}[0].zero_()",
    "{v}.clamp_(0, 1)",
    "{v}.masked_fill_({v} > 0, 9)",
    "{v}[{v} > 0] = 3",
    "{v}.neg_()",
    "{v}.index_fill_(0, torch.tensor([0]), 6)",
    "{v}.index_add_(0, torch.tensor([0]), {v}[:1])",
    "{v}.index_copy_(0, torch.tensor([0]), {v}[:1] + 1)",
    "{v}.scatter_(0, torch.zeros_like({v}, dtype=torch.int64), 8)",
    "{v}.exp_()",
    "{v}.div_(2)",
    "{v}.pow_(2)",
    "{v}.sub_({v})",
    "{v}.lerp_({v} * 2, 0.5)",
    "{v}.fill_diagonal_(3)",
    "{v}.normal_()",
    "{v}.uniform_()",
    "{v}.bernoulli_()",
    "{v}.random_(5)",
    "torch.add({v}, 1, out={v})",
    "torch.neg({w}, out={v})",
    "{v}.cumsum_(0)",
    "{v}.tril_()",
    "{v}.addcmul_({v}, {v})",
    "{v}.relu_()",
    "{v}.logical_not_()",
    "{v}.swapaxes_(0, -1)",
    "{v}.t_()",
    "{v}.transpose_(0, -1)",
    "{v}.unsqueeze_(0)",
    "{v}.squeeze_()",
    "{v}.swapdims_(0, -1)",
    "{v}.detach_()",
    "{v}.resize_(2, 2)",
    "{v}.as_strided_((2,), (1,))",
    "{v}.set_({w})",
    "{v}.put_(torch.tensor([0]), {v}.flatten()[:1] + 1)",
    "torch.nn.functional.relu({v}, inplace=True)",
    "torch.nn.init.constant_({v}, 2)",
    "{v} += 1",
    "{v} *= {w}",
    "{v}.index_put_((torch.tensor([0, 0]),), {v}[0] + 1, accumulate=True)",
)
METADATA = (".t_", ".transpose_", ".unsqueeze_", ".squeeze_", ".swapdims_", ".swapaxes_", ".detach_", ".resize_", ".as_strided_", ".set_", ".data")
"""What counts as a write to all views of a tensor in eager, and not in a graph; and what does not."""
RESULTS = ("{v} * 2", "{v}.clone()", "{v}.sin()", "{v}.reshape(-1) + 1", "{v}.contiguous().mul(3)", "{v}.cumsum(0)")
COMPUTED = 300000
LIKELY = 8  # the first writes are what eager may accept on any view


class Maker:
    def __init__(self, seed: int):
        self.rng, self.apart = random.Random(seed), random.Random(-1 - seed)
        self.computes = seed >= COMPUTED
        self.names: list[str] = []

    def any(self) -> str:
        return self.rng.choice(self.names)

    def body(self) -> list[str]:
        lines = []
        for i in range(self.rng.randint(4, 8) if self.computes else self.rng.randint(1, 6)):
            if self.computes and i and self.apart.random() < 0.2:
                lines.append(f"v{i} = {self.apart.choice(RESULTS).format(v=self.any())}")
                self.names.append(f"v{i}")
            elif self.rng.random() < 0.5 or i == 0:
                form = self.rng.choices([v for v, _ in VIEWS], [often for _, often in VIEWS])[0]
                if form in UNTRACKED and self.apart.random() < 0.5:
                    form = self.apart.choice(UNTRACKED[form])
                lines.append(f"v{i} = {form.format(v=self.any())}")
                self.names.append(f"v{i}")
            else:
                forms = WRITES[:LIKELY] if self.rng.random() < 0.4 else WRITES
                lines.append(self.rng.choice(forms).format(v=self.rng.choice(self.names[-2:]), w=self.any()))
        return self.quiet(lines)

    def quiet(self, lines: list[str]) -> list[str]:
        start = self.rng.randint(0, len(lines) - 1)
        if self.rng.random() < 0.7:
            return lines
        return [*lines[:start], "with torch.no_grad():", block(lines[start:])]

    def story(self) -> Story:
        inputs = [f"x{i}" for i in range(self.rng.randint(1, 2))]
        makes = [f"{name} = {self.rng.choice(BASES)}" for name in inputs]
        self.names = list(inputs)
        body = self.body()
        made = self.names[len(inputs) :]
        results = [name if self.rng.random() < 0.6 else f"{name} * 1" for name in self.rng.sample(self.names, min(len(self.names), self.rng.randint(1, 3)))]
        given = ", ".join(inputs)
        later = []
        known = f"({given},), versions"
        for _ in range(self.rng.randint(0, 2)):
            action = self.rng.choice(("{t}.add_(1)", "{t}.fill_(3)", "{t}.t_()", "{t}.unsqueeze_(0)", "{t}.squeeze_()", "{t}.zero_()", "{t}[0].mul_(2)"))
            target = self.rng.choice([f"out[{i}]" for i in range(len(results))] + inputs)
            later.append(f"yield str(attempt(lambda: {action.format(t=target)}))[:40]")
        del made
        lines = [
            f"versions = {not any(form in line for line in body for form in METADATA)}",
            f"def frame({given}):",
            block([*body, f"return ({', '.join(results)},)"]),
            "def loss(values):",
            "    return sum((v * (i + 2)).sum() for i, v in enumerate(values) if v.requires_grad)",
            "def story(frame):",
            "    for again in range(2):",
            block([*makes, f"out = attempt(frame, {given})", f"yield told_of(out, {known}), is_told(out) and told_of([{given}], {known})"], 2),
            "        if isinstance(out, str):",
            "            continue",
            block([*later, f"yield told_of(out, ({given},), versions), told_of([{given}], ({given},), versions)"], 2),
            "        if any(t.requires_grad for t in out):",
            "            yield str(attempt(lambda: loss(out).backward()))",
            f"            yield [values_of(t.grad) for t in ({given},) if t.is_leaf]",
        ]
        return Story("\n".join(lines))


def make(seed: int) -> Story:
    """The program of a seed."""
    return Maker(seed).story()


if __name__ == "__main__":
    main(make)
