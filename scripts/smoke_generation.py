"""generate() of tiny models of the transformers package with a compiled forward pass, against eager: tokens, how far logits are off, and how many entries
it made.

Usage: python scripts/smoke_generation.py [--tokens N] [--backend eager|reference|kernels] [names]
"""

from __future__ import annotations

import argparse
import copy
import warnings
from dataclasses import replace
from typing import Any

import torch
import transformer_models
import transformers
from smoke_transformers import OPTIONS
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke, LimitHit

NAMES = ("llama", "gpt2", "mistral", "gemma3_text", "t5", "bart")
CACHES: dict[str, dict[str, Any]] = {"static": {"cache_implementation": "static"}, "growing": {}}


def generator(name: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model with its head, and its prompt."""
    row = transformer_models.MODELS[name]
    head = AutoModelForCausalLM if row.auto is AutoModelForCausalLM else AutoModelForSeq2SeqLM
    transformer_models.MODELS[name] = replace(row, auto=head)
    model, inputs = transformer_models.make(name)
    model.generation_config.pad_token_id = 1
    model.generation_config.decoder_start_token_id = 2
    model.generation_config.eos_token_id = None  # all of them run to the end
    return model.eval(), {"input_ids": inputs["input_ids"], "attention_mask": torch.ones_like(inputs["input_ids"])}


def smoke(name: str, cache: str, tokens: int, backend: str) -> str:
    model, prompt = generator(name)
    length = {"max_new_tokens": tokens, "min_new_tokens": tokens}
    told = {"return_dict_in_generate": True, "output_logits": True}
    options = {**length, **told, "do_sample": False, "disable_compile": True, **CACHES[cache]}
    want = copy.deepcopy(model).generate(**prompt, **options)
    dynacompile.reset()
    events: list[Any] = []
    end = dynacompile.subscribe(events.append)
    dynacompile.compile(model, inplace=True, **OPTIONS[backend])
    got = model.generate(**prompt, **options)
    end()
    made = sum(isinstance(e, Compiled) and e.ops > 0 for e in events)
    others = {kind.__name__: sum(isinstance(e, kind) for e in events) for kind in (GraphBroke, FrameSkipped, LimitHit)}
    ended = "".join(f", {count} {kind}" for kind, count in others.items() if count)
    off = max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got.logits, want.logits, strict=True))
    same = "equal" if torch.equal(got.sequences, want.sequences) else "DIFFER"
    return f"{name}, {cache} cache: tokens {same}, logits off by {off:.0e} of the largest, {made} graphs{ended}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--tokens", type=int, default=12)
    parser.add_argument("--backend", choices=OPTIONS, default="eager")
    chosen = parser.parse_args()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    for name in chosen.names:
        for cache in CACHES:
            print(smoke(name, cache, chosen.tokens, chosen.backend), flush=True)


if __name__ == "__main__":
    main()
