"""Tensors of other layouts and kinds than the usual one, which refuse questions in ways of their own, beside and after usual ones: as in eager."""

import pytest
import torch

import dynacompile
from tests.scenarios import attempt

ODD = {
    "coo": lambda: torch.eye(4).to_sparse(),
    "csr": lambda: torch.eye(4).to_sparse_csr(),
    "csc": lambda: torch.eye(4).to_sparse_csc(),
    "bsr": lambda: torch.eye(4).to_sparse_bsr((2, 2)),
    "mkldnn": lambda: torch.eye(4).to_mkldnn(),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "jagged": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged),
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.qint8),
    "meta": lambda: torch.ones(4, 4, device="meta"),
    "conj": lambda: torch.ones(4, 4, dtype=torch.complex64).conj(),
    "negative": lambda: torch.ones(4, 4, dtype=torch.complex64).conj().imag,
    "inference": lambda: inference(),
}
USUAL = (
    torch.ones(4, 4),
    torch.ones(5, 4),
    torch.ones(4, 4, requires_grad=True),
    torch.ones(2),
    torch.ones(2, 3, 4),
    torch.ones(4, 4, dtype=torch.int64),
    None,
)


def inference():
    with torch.inference_mode():
        return torch.ones(4, 4).clone()


def computed(x):
    return None if x is None or x.is_quantized else x.sin()


def asked(x):
    return None if x is None else (x.layout, x.dtype, x.device.type, x.is_nested, x.is_sparse, x.is_quantized, x.dim(), x.requires_grad)


def in_place(x):
    return None if x is None or x.is_quantized or x.requires_grad else x.mul_(2)


def made_like(x):
    return None if x is None else (x.new_ones(3), x.new_tensor([1.5, 2.0]), torch.tensor([1.0], device=x.device))


def told(value):
    if isinstance(value, (list, tuple)):
        return [told(item) for item in value]
    if not isinstance(value, torch.Tensor):
        return f"{type(value).__name__}: {value}" if not isinstance(value, Exception) else type(value).__name__
    facts = [type(value).__name__, str(value.dtype), str(value.layout), value.device.type, value.is_inference(), value.requires_grad, value.is_nested]
    if value.device.type == "meta":
        return [*facts, tuple(value.shape)]
    parts = value.detach().unbind() if value.is_nested else [value.detach()]
    return [*facts, [(p.dequantize() if p.is_quantized else p.to_dense() if p.layout is not torch.strided else p).resolve_conj().tolist() for p in parts]]


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "default"])
@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("function", [computed, asked, in_place, made_like], ids=lambda f: f.__name__)
def test_beside_usual_ones(function, name, backend):
    if name == "meta" and backend == "default":
        pytest.skip("the reference interpreter runs programs on CPUs alone")
    options = {} if backend == "default" else {"backend": backend}
    for usual in USUAL:
        dynacompile.reset()
        compiled = dynacompile.compile(function, **options, options={"reference": True})
        for make in (None, ODD[name], ODD[name], None, lambda: torch.ones(7, 4), ODD[name]):
            given, same = (copy_of(usual), copy_of(usual)) if make is None else (make(), make())
            assert told(attempt(compiled, given)) == told(attempt(function, same)), usual if usual is None else (usual.shape, usual.dtype)


def copy_of(tensor):
    return None if tensor is None else tensor.detach().clone().requires_grad_(tensor.requires_grad)
