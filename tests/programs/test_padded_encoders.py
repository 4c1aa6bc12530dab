"""nn.TransformerEncoder in evaluation: eager packs a batch whose padding is on the right, and gives zeros at padded places."""

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.events import GraphBroke

RIGHT = [[False, False, False, True], [False, True, True, True], [False] * 4]
LEFT = [[True, False, False, False], [False, True, True, True], [False] * 4]
BETWEEN = [[False, True, False, False], [False, True, True, True], [False] * 4]
MASKS = {
    "right": torch.tensor(RIGHT),
    "left": torch.tensor(LEFT),
    "between": torch.tensor(BETWEEN),
    "none padded": torch.zeros(3, 4, dtype=torch.bool),
    "row of padding": torch.tensor([[True] * 4, *RIGHT[1:]]),
    "float": torch.zeros(3, 4).masked_fill(torch.tensor(RIGHT), float("-inf")),
    "float, finite": torch.tensor([[0.0, 0.0, 0.0, -0.5], [0.0, -1.0, -0.5, -0.5], [0.0] * 4]),
    "float, finite, left": torch.tensor([[-0.5, 0.0, 0.0, 0.0], [0.0, -1.0, -0.5, -0.5], [0.0] * 4]),
}


def encoder(norm=None, **options):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    return nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=True, **options)


def both(module, *args, backend="aot_eager", **kwargs):
    """What eager gives and what the compiled module gives, and the breaks."""
    breaks = []
    end = dynacompile.subscribe(lambda e: breaks.append(e) if isinstance(e, GraphBroke) else None)
    compiled = dynacompile.compile(module, backend=backend, isolate_recompiles=True)
    got = compiled(*args, **kwargs)
    end()
    return module(*args, **kwargs), got, breaks


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_padded_places(name, norm):
    module = encoder(nn.LayerNorm(8) if norm else None).eval()
    x = torch.randn(3, 4, 8)
    with torch.no_grad():
        want, got, breaks = both(module, x, src_key_padding_mask=MASKS[name])
    assert not breaks
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5, equal_nan=True)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_one_entry_for_masks_on_either_side():
    module = encoder().eval()
    compiled = dynacompile.compile(module, backend="aot_eager")
    x = torch.randn(3, 4, 8)
    with torch.no_grad():
        for name in ("right", "left", "between", "none padded", "right"):
            torch.testing.assert_close(compiled(x, None, MASKS[name]), module(x, None, MASKS[name]), rtol=1e-4, atol=1e-5)
    assert len(dynacompile.cache_entries(compiled)) == 1


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("state", ["gradients", "training", "slow", "unnested", "mask", "frozen", "subclass of it"])
def test_what_is_not_packed_is_as_before(state, backend):
    module = encoder().eval()
    if state == "training":
        module.train()
        for part in module.modules():
            part.dropout = getattr(part, "dropout", None)
            if isinstance(part, nn.Dropout):
                part.p = 0.0
            if isinstance(part, nn.MultiheadAttention):
                part.dropout = 0.0
    elif state == "unnested":
        module.use_nested_tensor = False
    elif state == "frozen":
        module.requires_grad_(False)
    elif state == "subclass of it":

        class Doubled(nn.TransformerEncoder):
            def forward(self, *args, **kwargs):
                return super().forward(*args, **kwargs) * 2

        module.__class__ = Doubled
    x, mask = torch.randn(3, 4, 8), torch.triu(torch.ones(4, 4, dtype=torch.bool), 1) if state == "mask" else None
    enabled = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(state != "slow")
    try:
        with torch.set_grad_enabled(state in ("gradients", "training", "frozen")):
            want, got, _ = both(module, x, mask, MASKS["right"], backend=backend)
    finally:
        torch.backends.mha.set_fastpath_enabled(enabled)
    torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)
