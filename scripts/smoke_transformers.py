"""Compiles tiny models of the transformers package (random weights, nothing is downloaded) and compares with eager.

Usage: python scripts/smoke_transformers.py [-t] [names]

-t: in train mode, with gradients. Prints graphs, breaks, skipped frames and recompiles of each, and the reasons.
"""

from __future__ import annotations

import copy
import sys
import warnings
from typing import Any

import torch
from transformers import AutoConfig, AutoModel

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke, Recompiled

BASE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "vocab_size": 100, "max_position_embeddings": 64}
GPT = {"n_embd": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100, "n_positions": 64}
GROUPED = BASE | {"num_key_value_heads": 2}
BART = {"d_model": 32, "vocab_size": 100, "max_position_embeddings": 64} | {
    f"{part}_{what}": size for part in ("encoder", "decoder") for what, size in (("layers", 2), ("attention_heads", 4), ("ffn_dim", 64))
}
MODELS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("bert", "roberta", "gpt_neox", "phi", "clip_text_model", "mpnet"), BASE),
    **dict.fromkeys(("llama", "qwen2"), GROUPED),
    **dict.fromkeys(("mistral", "gemma", "qwen3"), GROUPED | {"head_dim": 8}),
    "mixtral": GROUPED | {"num_local_experts": 4},
    "gpt2": GPT,
    "gptj": GPT | {"rotary_dim": 4},
    "bloom": {"hidden_size": 32, "n_layer": 2, "n_head": 4, "vocab_size": 100},
    "distilbert": {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64, "vocab_size": 100},
    "t5": {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4, "vocab_size": 100},
    "bart": BART,
    "opt": BASE | {"ffn_dim": 64, "word_embed_proj_dim": 32},
    "electra": BASE | {"embedding_size": 32},
    "albert": BASE | {"embedding_size": 16},
    "vit": {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32, "patch_size": 8},
    "resnet": {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1], "layer_type": "basic"},
}


def make(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    config = AutoConfig.for_model(name, **MODELS[name])
    for token in ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id"):
        if hasattr(config, token):
            setattr(config, token, 0)
    torch.manual_seed(0)
    model = AutoModel.from_config(config)
    if name in ("vit", "resnet"):
        return model, {"pixel_values": torch.randn(2, 3, 32, 32)}
    ids = torch.randint(3, 100, (2, 10))
    return model, {"input_ids": ids} | ({"decoder_input_ids": ids} if name == "t5" else {})


def step(model: Any, inputs: dict[str, torch.Tensor], train: bool) -> torch.Tensor:
    torch.manual_seed(3)
    with torch.set_grad_enabled(train):
        out = model(**inputs).to_tuple()[0]
        if train:
            out.float().square().sum().backward()
    return out.detach()


def smoke(name: str, train: bool) -> None:
    model, inputs = make(name)
    model.train(train)
    other = copy.deepcopy(model)
    dynacompile.reset()
    events: list[Any] = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(model, backend="eager", options={"fallback": "none"})
    torch.testing.assert_close(step(compiled, inputs, train), step(other, inputs, train))
    for got, want in zip(model.parameters(), other.parameters(), strict=True):
        assert (got.grad is None) == (want.grad is None)
        if got.grad is not None:
            torch.testing.assert_close(got.grad, want.grad)
    end()
    graphs = sum(isinstance(e, Compiled) and e.ops > 0 for e in events)
    broke = [f"[{e.code}] {e.reason} at {e.site}" for e in events if isinstance(e, GraphBroke)]
    skipped = [f"{e.reason} at {e.site}" for e in events if isinstance(e, FrameSkipped)]
    print(f"{name}: {graphs} graphs, {len(broke)} breaks, {len(skipped)} skipped, {sum(isinstance(e, Recompiled) for e in events)} recompiles", flush=True)
    for reason in dict.fromkeys(broke + skipped):
        print("   ", reason)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for chosen in [a for a in sys.argv[1:] if a != "-t"] or MODELS:
        smoke(chosen, "-t" in sys.argv)
