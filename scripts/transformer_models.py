"""Tiny models of the transformers package: configurations and inputs, random weights, nothing is downloaded.

`MODELS` has a row for each model type: what differs from `SMALL`, which is applied wherever a configuration (or one inside it) has the field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, PretrainedConfig

VOCABULARY, LENGTH = 100, 8
SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "word_embed_proj_dim", "embed_dim", "width"), 32),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "d_inner", "hidden_dim", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size"), 64),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "max_source_positions", "max_target_positions"), 64),
    **dict.fromkeys(("num_local_experts", "num_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_experts_per_tok"), 2),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_size"), 8),
    "d_head": 8,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "embedding_size": 16,
    "projection_dim": 16,
    "image_size": 32,
    "patch_size": 8,
    "vocab_size": VOCABULARY,
}
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "decoder_start_token_id", "sep_token_id", "cls_token_id")


@dataclass(frozen=True)
class Row:
    """One model: its inputs' kind, the auto class that builds it, what its configuration has other than `SMALL`, and the type of its parameters."""

    inputs: str = "text"
    auto: Any = AutoModel
    config: dict[str, Any] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32


def text(**config: Any) -> Row:
    return Row("text", AutoModel, config)


def language(**config: Any) -> Row:
    """A causal language model with labels: its loss is part of the graph."""
    return Row("labels", AutoModelForCausalLM, config)


def pairs(**config: Any) -> Row:
    return Row("pairs", AutoModel, config)


def image(**config: Any) -> Row:
    return Row("image", AutoModel, config)


def deep_norms(**config: Any) -> Row:
    """Batch norms of a few numbers, one behind the other: in float32 rounding decides their signs, and with them the gradients."""
    return Row("image", AutoModel, config, torch.float64)


def wave(**config: Any) -> Row:
    return Row("wave", AutoModel, config)


WAVE = {
    "conv_dim": [16, 16],
    "conv_kernel": [10, 3],
    "conv_stride": [5, 2],
    "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8,
    "num_conv_pos_embedding_groups": 2,
    "mask_time_prob": 0.0,
}
STAGES = {"hidden_sizes": [8, 16], "depths": [1, 1], "embedding_size": 8}

MODELS: dict[str, Row] = {
    # encoders
    **{name: text() for name in ("bert", "roberta", "camembert", "mpnet", "ernie", "megatron-bert", "rembert", "roformer", "splinter", "data2vec-text")},
    **{name: text() for name in ("distilbert", "albert", "electra", "layoutlm", "bert-generation", "nomic_bert", "roberta-prelayernorm")},
    "lilt": text(hidden_size=48, num_attention_heads=4),
    "deberta": text(relative_attention=True, pos_att_type=["c2p", "p2c"]),
    "deberta-v2": text(relative_attention=True, pos_att_type=["c2p", "p2c"], position_buckets=8, norm_rel_ebd="layer_norm", share_att_key=True),
    "mobilebert": text(embedding_size=16, intra_bottleneck_size=16, true_hidden_size=16),
    "longformer": text(attention_window=[4, 4]),
    "big_bird": text(attention_type="original_full"),
    "funnel": text(architectures=["FunnelModel"], block_sizes=[1, 1], num_decoder_layers=1),
    "convbert": text(head_ratio=2, num_groups=1),
    "squeezebert": text(embedding_size=32, q_groups=2, k_groups=2, v_groups=2, post_attention_groups=1, intermediate_groups=2, output_groups=2),
    "fnet": text(tpu_short_seq_length=16),
    "nystromformer": text(num_landmarks=8, segment_means_seq_len=8),
    "modernbert": text(pad_token_id=0),
    "xlnet": text(),
    "xlm": text(),
    "flaubert": text(),
    "canine": text(max_position_embeddings=256, local_transformer_stride=64, num_hash_buckets=64),
    "yoso": text(use_expectation=True),
    "ibert": text(),
    "esm": text(vocab_size=VOCABULARY, mask_token_id=2, pad_token_id=1),
    "xmod": text(languages=["en_XX"], default_language="en_XX"),
    "luke": text(entity_vocab_size=10, entity_emb_size=16),
    # decoders, with a language modelling loss
    **{name: language() for name in ("gpt2", "gpt_neox", "gpt_bigcode", "openai-gpt", "biogpt", "opt", "bloom", "mpt", "falcon", "xglm", "ctrl")},
    "gptj": language(rotary_dim=4),
    "codegen": language(rotary_dim=4),
    "gpt_neo": language(attention_types=[[["global", "local"], 1]], window_size=4),
    **{name: language() for name in ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "phi", "phi3", "olmo", "olmo2", "stablelm", "starcoder2")},
    **{name: language() for name in ("granite", "cohere", "cohere2", "persimmon", "glm", "glm4", "helium", "smollm3", "exaone4", "arcee", "diffllama")},
    **{name: language() for name in ("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "granitemoe", "phimoe", "jetmoe", "gpt_oss")},
    "nemotron": language(num_key_value_heads=4),
    "dots1": language(num_experts_per_tok=2, n_shared_experts=1, n_routed_experts=4, n_group=1, topk_group=1, num_key_value_heads=4),
    "gemma3_text": language(sliding_window=8),
    "dbrx": language(
        attn_config={"kv_n_heads": 2, "clip_qkv": 8.0, "rope_theta": 10000.0},
        ffn_config={"ffn_hidden_size": 64, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
    ),
    "deepseek_v3": language(
        kv_lora_rank=8,
        q_lora_rank=16,
        qk_rope_head_dim=8,
        qk_nope_head_dim=8,
        v_head_dim=8,
        n_group=2,
        topk_group=1,
        first_k_dense_replace=1,
        num_key_value_heads=4,
    ),
    "mamba": language(state_size=4),
    "mamba2": language(state_size=4, num_heads=8, head_dim=8, n_groups=1, chunk_size=4),
    "rwkv": language(attention_hidden_size=32, context_length=64),
    "recurrent_gemma": language(lru_width=32, attention_window_size=8, block_types=["recurrent", "attention"]),
    "jamba": language(attn_layer_offset=1, attn_layer_period=2, mamba_d_state=4, use_mamba_kernels=False, expert_layer_period=2, expert_layer_offset=1),
    "bamba": language(mamba_n_heads=8, mamba_d_head=8, mamba_d_state=4, mamba_chunk_size=4, attn_layer_indices=[1]),
    "lfm2": language(layer_types=["conv", "full_attention"]),
    # encoder-decoders
    **{name: pairs() for name in ("t5", "mt5", "umt5", "switch_transformers", "bart", "mbart", "pegasus", "blenderbot", "blenderbot-small")},
    **{name: pairs() for name in ("m2m_100", "plbart", "prophetnet", "marian", "mvp")},
    "led": pairs(attention_window=4, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
    "longt5": pairs(local_radius=4),
    # images
    **{name: image() for name in ("vit", "deit", "beit", "dinov2", "vit_msn", "ijepa", "data2vec-vision", "siglip_vision_model", "clip_vision_model")},
    "yolos": image(image_size=[32, 32], num_detection_tokens=4),
    "vit_mae": image(decoder_hidden_size=16, decoder_num_hidden_layers=1, decoder_num_attention_heads=2, decoder_intermediate_size=32),
    "swin": image(embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=2, patch_size=4),
    "swinv2": image(embed_dim=16, depths=[1, 1], num_heads=[2, 2], window_size=2, patch_size=4),
    "convnext": image(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=4),
    "convnextv2": image(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2, patch_size=4),
    "resnet": image(**STAGES, layer_type="basic"),
    "regnet": image(**STAGES, groups_width=8),
    "bit": image(**STAGES, num_groups=2),
    "mobilenet_v1": deep_norms(depth_multiplier=0.25),
    "mobilenet_v2": deep_norms(depth_multiplier=0.25),
    "mobilevit": image(hidden_sizes=[16, 16, 16], neck_hidden_sizes=[8, 8, 8, 8, 8, 8, 16], patch_size=2, image_size=64),
    "efficientnet": image(width_coefficient=0.25, depth_coefficient=0.25, hidden_dim=320),
    "segformer": image(
        hidden_sizes=[8, 16], depths=[1, 1], num_attention_heads=[1, 2], num_encoder_blocks=2, sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2]
    ),
    "poolformer": image(hidden_sizes=[8, 16], depths=[1, 1], num_encoder_blocks=2, patch_sizes=[7, 3], strides=[4, 2], padding=[2, 1], mlp_ratios=[2.0, 2.0]),
    "levit": deep_norms(hidden_sizes=[16, 32, 48], num_attention_heads=[2, 2, 2], depths=[1, 1, 1], key_dim=[8, 8, 8], image_size=64, patch_size=16),
    "pvt": image(
        hidden_sizes=[8, 16],
        depths=[1, 1],
        num_attention_heads=[1, 2],
        num_encoder_blocks=2,
        sequence_reduction_ratios=[2, 1],
        patch_sizes=[4, 2],
        strides=[4, 2],
    ),
    "cvt": image(embed_dim=[8, 16, 16], num_heads=[1, 2, 2], depth=[1, 2, 3]),
    "focalnet": image(embed_dim=16, depths=[1, 1], patch_size=4, focal_levels=[1, 1], focal_windows=[3, 3]),
    "hiera": image(
        embed_dim=16,
        depths=[1, 1],
        num_heads=[1, 2],
        embed_dim_multiplier=2.0,
        patch_stride=[4, 4],
        patch_padding=[3, 3],
        num_query_pool=1,
        image_size=[32, 32],
        masked_unit_size=[4, 4],
    ),
    "dpt": image(is_hybrid=False, backbone_out_indices=[0, 1], neck_hidden_sizes=[8, 8]),
    "glpn": image(hidden_sizes=[8, 16], depths=[1, 1], num_attention_heads=[1, 2], num_encoder_blocks=2, sr_ratios=[2, 1], patch_sizes=[7, 3], strides=[4, 2]),
    # text and images
    **{name: Row("clip") for name in ("clip", "siglip", "blip", "chinese_clip", "clipseg", "altclip", "metaclip_2")},
    # sound
    **{name: wave(**WAVE) for name in ("wav2vec2", "hubert", "wavlm", "unispeech", "unispeech-sat", "data2vec-audio", "sew")},
    "wav2vec2-conformer": wave(**WAVE, position_embeddings_type="relative"),
    "whisper": Row("features", AutoModel, {"num_mel_bins": 8, "max_source_positions": 10}),
    "speech_to_text": Row("features", AutoModel, {"input_feat_per_channel": 8, "conv_channels": 16, "max_source_positions": 64}),
    "audio-spectrogram-transformer": Row("spectrogram", AutoModel, {"num_mel_bins": 16, "max_length": 32}),
    # series
    "patchtst": Row("series", AutoModel, {"context_length": 16, "num_input_channels": 2, "patch_length": 4, "patch_stride": 4}),
    "patchtsmixer": Row("series", AutoModel, {"context_length": 16, "num_input_channels": 2, "patch_length": 4, "patch_stride": 4}),
}


def small(config: PretrainedConfig, special: dict[str, Any]) -> dict[str, Any]:
    """Arguments that make a configuration like `config` tiny."""
    fields = vars(config)
    chosen: dict[str, Any] = {}
    for name, value in SMALL.items():
        target = config.attribute_map.get(name, name)
        if type(fields.get(target)) is int and (target == name or target not in SMALL):
            chosen[target] = value
    for name, value in fields.items():
        if isinstance(value, PretrainedConfig):
            chosen[name] = small(value, {})
        elif name in TOKENS and type(value) is int:
            chosen[name] = 1
    return chosen | special


def make(name: str) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The model and its inputs, the same for each call."""
    row = MODELS[name]
    config = AutoConfig.for_model(name, **small(AutoConfig.for_model(name), row.config))
    torch.manual_seed(0)
    model = row.auto.from_config(config).to(row.dtype)
    return model, {key: value.to(row.dtype) if value.is_floating_point() else value for key, value in INPUTS[row.inputs](config).items()}


def resized(inputs: dict[str, torch.Tensor], batch: int, length: int) -> dict[str, torch.Tensor]:
    """Inputs of the same kind of another batch size and, where they are text, of another length; the end of the first text is masked."""
    torch.manual_seed(100 * batch + length)
    made = {}
    for key, value in inputs.items():
        shape = (batch, length) if value.shape == (2, LENGTH) else (batch, *value.shape[1:])
        if value.is_floating_point():
            made[key] = torch.randn(shape, dtype=value.dtype)
        elif key.endswith("mask"):
            made[key] = torch.ones(shape, dtype=value.dtype)
            made[key][0, -2:] = 0
        else:
            made[key] = torch.randint(3, VOCABULARY, shape)
    return made


def tokens(config: Any) -> torch.Tensor:
    return torch.randint(3, VOCABULARY, (2, LENGTH))


def masks(*names: str) -> dict[str, torch.Tensor]:
    return {name: torch.ones(2, LENGTH, dtype=torch.long) for name in names}


def pixels(config: Any) -> torch.Tensor:
    size = config.image_size if isinstance(getattr(config, "image_size", None), int) else 32
    return torch.randn(2, 3, size, size)


INPUTS: dict[str, Callable[[Any], dict[str, torch.Tensor]]] = {
    "text": lambda config: {"input_ids": tokens(config)} | masks("attention_mask"),
    "labels": lambda config: {"input_ids": tokens(config), "labels": tokens(config)},
    "pairs": lambda config: {"input_ids": tokens(config), "decoder_input_ids": tokens(config)} | masks("attention_mask", "decoder_attention_mask"),
    "image": lambda config: {"pixel_values": pixels(config)},
    "clip": lambda config: {"input_ids": tokens(config), "pixel_values": pixels(config.vision_config)},
    "wave": lambda config: {"input_values": torch.randn(2, 400)},
    "features": lambda config: {"input_features": torch.randn(2, *FEATURES[config.model_type]), "decoder_input_ids": tokens(config)},
    "spectrogram": lambda config: {"input_values": torch.randn(2, 32, 16)},
    "series": lambda config: {"past_values": torch.randn(2, 16, 2)},
}
FEATURES = {"whisper": (8, 20), "speech_to_text": (20, 8)}
