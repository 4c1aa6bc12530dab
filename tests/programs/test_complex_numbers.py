"""Complex numbers whose type follows from the default type, and views that are conjugated or negated where they are read: as in eager."""

import pytest
import torch

import dynacompile

NUMBERS = torch.tensor([[1 + 2j, 3 - 1j], [0.5j, -1 + 1j]])
FILLED = {
    "full": lambda x: torch.full((2,), 1j),
    "full of a symbolic size": lambda x: torch.full((x.shape[0],), 1 + 2j),
    "linspace to a number": lambda x: torch.linspace(0, 1j, 3),
    "linspace to a tensor": lambda x: torch.linspace(0, torch.tensor(1j, dtype=torch.complex64), 3),
    "linspace of tensors": lambda x: torch.linspace(torch.tensor(0.0), torch.tensor(1j, dtype=torch.complex128), 3),
    "logspace from a tensor": lambda x: torch.logspace(torch.tensor(1j, dtype=torch.complex64), 2, 3),
    "tensor": lambda x: torch.tensor([1j]) * x,
}


def outcome(function, *args):
    try:
        made = function(*args)
    except Exception as error:  # noqa: BLE001  (the point is to compare it)
        return type(error), str(error).removeprefix("dynacompile: ").splitlines()[0]
    return made.dtype, torch.view_as_real(made).tolist()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("backend", ["eager", None], ids=["eager", "default"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", FILLED)
def test_the_type_that_follows_from_the_default(name, dtype, backend):
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        compiled = dynacompile.compile(FILLED[name], **({"backend": backend} if backend else {}))
        for x in (torch.ones(2), torch.ones(3)):
            assert outcome(compiled, x) == outcome(FILLED[name], x)
    finally:
        torch.set_default_dtype(before)


ASKED = {
    "the bits": lambda x: (x.is_conj(), x.is_neg(), x.conj().is_conj(), x.conj().imag.is_neg()),
    "a branch": lambda x: x + 1 if x.is_conj() else x - 1,
    "the view itself": lambda x: (x.conj() is x, x.resolve_conj() is x, x.resolve_neg() is x),
    "views of the view": lambda x: (x.conj()[1:], x.conj().t(), x.mH, x.conj().imag),
    "resolved": lambda x: (x.resolve_conj(), x.resolve_neg(), x.conj_physical(), x.conj().resolve_conj()),
    "written through": lambda x: (x.conj().mul_(2j), x),
    "behind a break": lambda x: broken(x.conj()),
}


def broken(view):
    dynacompile.graph_break()
    return view, view.is_conj(), view.imag, view + 1


def told(value):
    if isinstance(value, tuple):
        return [told(part) for part in value]
    if not isinstance(value, torch.Tensor):
        return value
    return value.dtype, value.stride(), value.is_conj(), value.is_neg(), value._is_view(), value.resolve_conj().resolve_neg().tolist()


KINDS = {
    "plain": lambda: NUMBERS.clone(),
    "conjugate": lambda: NUMBERS.clone().conj(),
    "negated": lambda: torch._neg_view(NUMBERS.clone()),
    "negated conjugate": lambda: torch._neg_view(NUMBERS.clone().conj()),
}


@pytest.mark.filterwarnings("ignore:.*compiled in name only")
@pytest.mark.parametrize("backend", ["eager", None], ids=["eager", "default"])
@pytest.mark.parametrize("order", [1, -1], ids=["plain first", "plain last"])
@pytest.mark.parametrize("name", ASKED)
def test_views_that_are_conjugated_or_negated_where_they_are_read(name, order, backend):
    compiled = dynacompile.compile(ASKED[name], **({"backend": backend} if backend else {}))
    for kind in list(KINDS)[::order]:
        mine, eagers = KINDS[kind](), KINDS[kind]()
        assert [told(compiled(mine)), told(mine)] == [told(ASKED[name](eagers)), told(eagers)], kind
