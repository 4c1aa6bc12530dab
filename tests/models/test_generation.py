"""Decoding token by token: a cache of a fixed length that is written in place is one graph for all steps; a growing one is followed, too."""

import copy

import pytest
import torch
from torch import nn

import dynacompile
from dynacompile.events import Compiled, FrameSkipped, GraphBroke, Recompiled


class Cache:
    """Keys and values of each layer: of a fixed length and written in place, or grown by each step."""

    def __init__(self, layers, length, width):
        self.fixed = length is not None
        self.keys = [torch.zeros(1, length or 0, width) for _ in range(layers)]
        self.values = [torch.zeros(1, length or 0, width) for _ in range(layers)]

    def update(self, key, value, layer, position):
        if self.fixed:
            self.keys[layer].index_copy_(1, position, key)
            self.values[layer].index_copy_(1, position, value)
        else:
            self.keys[layer] = torch.cat([self.keys[layer], key], 1)
            self.values[layer] = torch.cat([self.values[layer], value], 1)
        return self.keys[layer], self.values[layer]


class Decoder(nn.Module):
    def __init__(self, layers=2, width=8, vocabulary=20):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)
        self.mix = nn.ModuleList([nn.Linear(width, 3 * width) for _ in range(layers)])

    def forward(self, ids, position, cache):
        x = self.embed(ids)
        for i, mix in enumerate(self.mix):
            query, key, value = mix(x).chunk(3, -1)
            keys, values = cache.update(key, value, i, position)
            scores = query @ keys.mT / keys.shape[-1] ** 0.5
            hidden = torch.arange(keys.shape[1]) > position[:, None]
            x = x + scores.masked_fill(hidden, float("-inf")).softmax(-1) @ values
        return self.head(x)


@torch.no_grad()
def generate(step, prompt, cache, count):
    ids, position = prompt, torch.arange(prompt.shape[1])
    out = [prompt]
    for _ in range(count):
        token = step(ids, position, cache)[:, -1:].argmax(-1)
        out.append(token)
        ids, position = token, position[-1:] + 1
    return torch.cat(out, 1)


def story(length, count=5):
    """Events of a compiled generation that gave eager's tokens."""
    torch.manual_seed(0)
    model, prompt = Decoder().eval(), torch.tensor([[3, 1, 4]])
    dynacompile.reset()
    want = generate(copy.deepcopy(model), prompt, Cache(2, length, 8), count)
    events = []
    end = dynacompile.subscribe(events.append)
    compiled = dynacompile.compile(model, backend="eager", options={"fallback": "none"})
    got = generate(compiled, prompt, Cache(2, length, 8), count)
    end()
    assert torch.equal(got, want)
    assert not [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]
    return events


def test_static_cache():
    events = story(12)
    assert sum(isinstance(e, Compiled) for e in events) == 2  # the prompt, and every other step
    assert sum(isinstance(e, Recompiled) for e in events) == 1


def test_growing_cache():
    events = story(None)
    assert 1 < sum(isinstance(e, Compiled) for e in events) <= 5


@pytest.mark.parametrize(("cache", "entries"), [("static", 2), ("dynamic", 3)])  # the prompt, the steps, and those whose length is a number
def test_a_language_model_of_transformers(cache, entries):
    """Its static caches write with a way around devices that lack an operator, in a clause."""
    transformers = pytest.importorskip("transformers")
    sizes = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 16, "intermediate_size": 32, "vocab_size": 50}
    torch.manual_seed(0)
    model, prompt = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes)).eval(), torch.tensor([[3, 1, 4], [1, 5, 9]])
    asked = {"attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]), "max_new_tokens": 8, "min_new_tokens": 8, "pad_token_id": 0, "cache_implementation": cache}
    want = [copy.deepcopy(model).generate(prompt, do_sample=False, **asked) for _ in range(2)]
    events = []
    end = dynacompile.subscribe(events.append)
    model.forward = dynacompile.compile(model.forward, isolate_recompiles=True, backend="eager", options={"fallback": "none"})
    got = [model.generate(prompt, do_sample=False, **asked) for _ in range(2)]
    end()
    assert all(map(torch.equal, got, want))
    assert not [e for e in events if isinstance(e, (GraphBroke, FrameSkipped))]
    assert sum(isinstance(e, Compiled) for e in events) <= entries
