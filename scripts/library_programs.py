# ruff: noqa: PLC0415
"""Small programs over libraries of the PyTorch ecosystem, written as their users write them, for `smoke_libraries.py`.

A program is a function that imports its library and returns a module and `call(module, turn)`, whose result is made of tensors: what requires gradients is
trained on. Nothing is downloaded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Program = Callable[[], tuple[nn.Module, Callable[[Any, int], Any]]]
PROGRAMS: dict[str, Program] = {}
WITHOUT_TRAINING: set[str] = set()
LLAMA = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": 32, "intermediate_size": 64, "vocab_size": 100}
UNET = {
    "sample_size": 16,
    "layers_per_block": 1,
    "block_out_channels": (16, 32),
    "norm_num_groups": 4,
    "attention_head_dim": 8,
}


def program(library: str, trains: bool = True) -> Callable[[Program], Program]:
    def add(make: Program) -> Program:
        name = f"{library}: {make.__name__.replace('_', ' ')}"
        PROGRAMS[name] = make
        if not trains:
            WITHOUT_TRAINING.add(name)
        return make

    return add


# diffusers


def unet() -> Any:
    import diffusers

    blocks = {"down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}
    return diffusers.UNet2DModel(in_channels=3, out_channels=3, **blocks, **UNET)


@program("diffusers")
def noise_predicted_by_a_unet() -> Any:
    import diffusers

    scheduler, x = diffusers.DDPMScheduler(num_train_timesteps=100), torch.randn(2, 3, 16, 16)

    def call(m: Any, turn: int) -> Any:
        noise, steps = torch.randn_like(x), torch.randint(0, 100, (2,))
        return F.mse_loss(m(scheduler.add_noise(x, noise, steps), steps).sample, noise)

    return unet(), call


@program("diffusers", trains=False)
def samples_of_ddim() -> Any:
    import diffusers

    scheduler = diffusers.DDIMScheduler(num_train_timesteps=100)

    @torch.no_grad()
    def call(m: Any, turn: int) -> Any:
        scheduler.set_timesteps(4)
        x = torch.randn(1, 3, 16, 16)
        for step in scheduler.timesteps:
            x = scheduler.step(m(x, step).sample, step, x).prev_sample
        return x

    return unet().eval(), call


@program("diffusers")
def conditioned_unet() -> Any:
    import diffusers

    blocks = {"down_block_types": ("CrossAttnDownBlock2D", "DownBlock2D"), "up_block_types": ("UpBlock2D", "CrossAttnUpBlock2D")}
    x, text = torch.randn(2, 4, 8, 8), torch.randn(2, 5, 16)
    module = diffusers.UNet2DConditionModel(in_channels=4, out_channels=4, cross_attention_dim=16, **blocks, **UNET)
    return module, lambda m, turn: m(x, torch.tensor([3, 7]), text).sample


@program("diffusers")
def autoencoder() -> Any:
    import diffusers

    x = torch.randn(2, 3, 16, 16)

    def call(m: Any, turn: int) -> Any:
        latent = m.encode(x).latent_dist
        return m.decode(latent.sample()).sample, latent.kl().mean()

    return diffusers.AutoencoderKL(block_out_channels=(16,), norm_num_groups=4, latent_channels=4), call


@program("diffusers")
def transformer_of_patches() -> Any:
    import diffusers

    x, sizes = torch.randn(2, 4, 8, 8), {"num_attention_heads": 2, "attention_head_dim": 8, "in_channels": 4, "num_layers": 2}
    module = diffusers.DiTTransformer2DModel(sample_size=8, patch_size=2, num_embeds_ada_norm=10, norm_num_groups=4, **sizes)
    return module, lambda m, turn: m(x, timestep=torch.tensor([1, 2]), class_labels=torch.tensor([1, 2])).sample


# peft, transformers


@program("peft")
def lora_of_llama() -> Any:
    import peft
    import transformers

    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**LLAMA))
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    ids = torch.randint(0, 100, (2, 9))
    return peft.get_peft_model(module, config), lambda m, turn: m(input_ids=ids, labels=ids).loss


def gpt2() -> Any:
    import transformers

    return transformers.GPT2LMHeadModel(transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=100, bos_token_id=0, eos_token_id=0))


@program("peft")
def dora_of_gpt2() -> Any:
    import peft

    ids = torch.randint(0, 100, (2, 9))
    module = peft.get_peft_model(gpt2(), peft.LoraConfig(r=4, use_dora=True, target_modules=["c_attn"], fan_in_fan_out=True))
    return module, lambda m, turn: m(input_ids=ids, labels=ids).loss


@program("peft")
def prefixes_of_gpt2() -> Any:
    import peft

    ids = torch.randint(0, 100, (2, 9))
    module = peft.get_peft_model(gpt2(), peft.PrefixTuningConfig(num_virtual_tokens=4, task_type="CAUSAL_LM"))
    return module, lambda m, turn: m(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids).loss


@program("transformers")
def checkpointed_llama() -> Any:
    import transformers

    module = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False, **LLAMA))
    module.gradient_checkpointing_enable()
    ids = torch.randint(0, 100, (2, 9))
    return module.train(), lambda m, turn: m(input_ids=ids, labels=ids).loss


# einops and what is built on it


@program("einops")
def attention_by_patterns() -> Any:
    from einops import einsum, rearrange, reduce

    def call(m: Any, turn: int) -> Any:
        query, key, value = rearrange(m(torch.randn(2, 5 + turn, 8)), "b n (three h d) -> three b h n d", three=3, h=2)
        scores = einsum(query, key, "b h i d, b h j d -> b h i j").softmax(-1)
        return reduce(einsum(scores, value, "b h i j, b h j d -> b h i d"), "b h n d -> b n", "sum")

    return nn.Linear(8, 24), call


@program("einops")
def layers_by_patterns() -> Any:
    from einops.layers.torch import EinMix, Rearrange, Reduce

    x, mix = torch.randn(2, 3, 8, 8), EinMix("b n c -> b n d", weight_shape="c d", bias_shape="d", c=16, d=8)
    return nn.Sequential(Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4), nn.Linear(48, 16), mix, Reduce("b n d -> b d", "mean")), lambda m, turn: m(
        x
    )


@program("vit-pytorch")
def image_transformer() -> Any:
    from vit_pytorch import ViT

    x = torch.randn(2, 3, 16, 16)
    return ViT(image_size=16, patch_size=4, num_classes=5, dim=32, depth=2, heads=2, mlp_dim=32, dropout=0.1, emb_dropout=0.1), lambda m, turn: m(x)


@program("rotary-embedding-torch")
def learned_rotations() -> Any:
    from rotary_embedding_torch import RotaryEmbedding

    module, x = nn.ModuleDict({"turned": RotaryEmbedding(dim=8, learned_freq=True), "query": nn.Linear(16, 16)}), torch.randn(2, 2, 6, 16)
    return module, lambda m, turn: m["turned"].rotate_queries_or_keys(m["query"](x)) @ m["turned"].rotate_queries_or_keys(x).mT


@program("x-transformers")
def rotary_decoder() -> Any:
    from x_transformers import AutoregressiveWrapper, Decoder, TransformerWrapper

    ids = torch.randint(0, 50, (2, 16))
    layers = Decoder(dim=32, depth=2, heads=2, rotary_pos_emb=True, ff_glu=True, use_rmsnorm=True)
    return AutoregressiveWrapper(TransformerWrapper(num_tokens=50, max_seq_len=32, attn_layers=layers)), lambda m, turn: m(ids)


@program("local-attention")
def windows_of_attention() -> Any:
    from local_attention import LocalTransformer

    ids = torch.randint(0, 50, (1, 32))
    module = LocalTransformer(num_tokens=50, dim=32, depth=2, max_seq_len=32, heads=2, local_attn_window_size=8, causal=True)
    return module, lambda m, turn: m(ids, return_loss=True)


@program("vector-quantize-pytorch")
def vector_quantizer() -> Any:
    from vector_quantize_pytorch import VectorQuantize

    x = torch.randn(2, 10, 16)
    return VectorQuantize(dim=16, codebook_size=8, decay=0.8, commitment_weight=1.0), lambda m, turn: m(x)


@program("vector-quantize-pytorch")
def scalar_quantizer() -> Any:
    from vector_quantize_pytorch import FSQ

    x = torch.randn(2, 10, 4)
    return nn.Sequential(nn.Linear(4, 4), FSQ([8, 5, 5, 5])), lambda m, turn: m(x)


@program("entmax")
def sparse_weights() -> Any:
    from entmax import entmax15, sparsemax

    x = torch.randn(3, 5)
    return nn.Linear(5, 6), lambda m, turn: (entmax15(m(x), dim=-1), sparsemax(m(x), dim=-1))


@program("pytorch-tabnet")
def steps_over_features() -> Any:
    from pytorch_tabnet.tab_network import TabNet

    x = torch.randn(8, 4)
    return TabNet(4, 2, n_d=4, n_a=4, n_steps=2, group_attention_matrix=torch.eye(4)), lambda m, turn: m(x)


@program("nystrom-attention")
def attention_by_landmarks() -> Any:
    from nystrom_attention import NystromAttention

    x, mask = torch.randn(1, 9, 16), torch.ones(1, 9).bool()
    return NystromAttention(dim=16, dim_head=8, heads=2, num_landmarks=4, pinv_iterations=2), lambda m, turn: m(x, mask=mask)


@program("normflows")
def coupled_flow() -> Any:
    import normflows

    x, parts = torch.randn(4, 2), normflows.nets.MLP([1, 8, 2], init_zeros=True)
    flows = [normflows.flows.AffineCouplingBlock(parts), normflows.flows.Permute(2, mode="swap")]
    return normflows.NormalizingFlow(normflows.distributions.base.DiagGaussian(2), flows), lambda m, turn: (m.forward_kld(x), m.sample(3)[0])


@program("denoising-diffusion-pytorch")
def gaussian_diffusion() -> Any:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    x = torch.rand(2, 3, 16, 16)
    return GaussianDiffusion(Unet(dim=16, dim_mults=(1, 2)), image_size=16, timesteps=10), lambda m, turn: m(x)


# images and metrics


@program("timm")
def convnext_with_dropped_paths() -> Any:
    import timm

    x = torch.randn(2, 3, 64, 64)
    return timm.create_model("convnext_atto", num_classes=5, drop_path_rate=0.2), lambda m, turn: m(x)


@program("timm")
def checkpointed_image_transformer() -> Any:
    import timm

    module, x = timm.create_model("vit_tiny_patch16_224", img_size=32, num_classes=5, depth=2, drop_path_rate=0.1), torch.randn(2, 3, 32, 32)
    module.set_grad_checkpointing()
    return module, lambda m, turn: m(x)


@program("kornia")
def filters_and_colors() -> Any:
    import kornia

    x = torch.rand(2, 3, 16, 16)
    blur = kornia.filters.gaussian_blur2d
    return nn.Conv2d(3, 3, 3, padding=1), lambda m, turn: (blur(m(x), (3, 3), (1.0, 1.0)), kornia.color.rgb_to_hsv(x), kornia.losses.ssim_loss(m(x), x, 5))


@program("kornia")
def rotations_and_losses() -> Any:
    import kornia

    x, wanted = torch.rand(2, 3, 16, 16), torch.randint(0, 3, (2, 16, 16))

    def call(m: Any, turn: int) -> Any:
        y = m(x)
        warped = kornia.geometry.warp_perspective(y, torch.eye(3)[None].repeat(2, 1, 1), (16, 16))
        losses = kornia.losses.tversky_loss(y, wanted, 0.3, 0.7), kornia.losses.lovasz_softmax_loss(y, wanted), kornia.losses.total_variation(y)
        return kornia.geometry.rotate(y, torch.tensor([10.0, 20.0])), warped, kornia.color.rgb_to_lab(y.sigmoid()), losses

    return nn.Conv2d(3, 3, 3, padding=1), call


@program("kornia", trains=False)
def augmented_images_and_masks() -> Any:
    import kornia.augmentation as augmentation

    flip, turn_round = augmentation.RandomHorizontalFlip(p=0.5), augmentation.RandomAffine(10.0, p=1.0)
    images, masks = torch.rand(2, 3, 16, 16), torch.ones(2, 1, 16, 16)
    return augmentation.AugmentationSequential(flip, turn_round, data_keys=["input", "mask"]), lambda m, turn: m(images, masks)


@program("monai")
def dice_of_a_unet() -> Any:
    from monai.losses import DiceCELoss
    from monai.networks.nets import UNet

    x, wanted, loss = torch.rand(2, 1, 16, 16), torch.randint(0, 2, (2, 1, 16, 16)), DiceCELoss(to_onehot_y=True, softmax=True)
    module = UNet(spatial_dims=2, in_channels=1, out_channels=2, channels=(4, 8, 16), strides=(2, 2), num_res_units=1)
    return module, lambda m, turn: loss(m(x), wanted)


@program("segmentation-models-pytorch")
def dice_of_a_pretrained_encoder() -> Any:
    import segmentation_models_pytorch as models

    x, wanted, loss = torch.randn(2, 3, 32, 32), torch.zeros(2, 32, 32, dtype=torch.long), models.losses.DiceLoss("multiclass")
    return models.Unet("resnet18", encoder_weights=None, classes=2), lambda m, turn: loss(m(x), wanted)


@program("segmentation-models-pytorch")
def pyramid_and_losses() -> Any:
    import segmentation_models_pytorch as models

    x, wanted = torch.randn(2, 3, 32, 32), torch.randint(0, 2, (2, 1, 32, 32))
    losses = [getattr(models.losses, name)("binary") for name in ("FocalLoss", "TverskyLoss", "JaccardLoss", "LovaszLoss")]
    return models.FPN("resnet18", encoder_weights=None, classes=1), lambda m, turn: [loss(m(x), wanted) for loss in losses]


@program("torchmetrics")
def accuracy_and_f1() -> Any:
    import torchmetrics

    kinds = {"task": "multiclass", "num_classes": 3}
    metrics = torchmetrics.MetricCollection([torchmetrics.Accuracy(**kinds), torchmetrics.F1Score(average="macro", **kinds)])
    x, wanted = torch.randn(6, 4), torch.randint(0, 3, (6,))

    def call(m: Any, turn: int) -> Any:
        metrics.reset()
        out = m(x)
        return F.cross_entropy(out, wanted), metrics(out, wanted)

    return nn.Linear(4, 3), call


@program("pytorch-metric-learning")
def contrast_of_pairs() -> Any:
    from pytorch_metric_learning import losses

    x, classes, loss = torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), losses.NTXentLoss()
    return nn.Linear(4, 8), lambda m, turn: loss(m(x), classes)


@program("lightly")
def losses_without_labels() -> Any:
    from lightly.loss import BarlowTwinsLoss, NTXentLoss, VICRegLoss

    x, losses = torch.randn(8, 4), [NTXentLoss(), BarlowTwinsLoss(), VICRegLoss()]
    return nn.Linear(4, 8), lambda m, turn: [loss(m(x), m(x + 0.1)) for loss in losses]


@program("lightly")
def contrast_with_a_memory() -> Any:
    from lightly.loss import NTXentLoss

    x, module = torch.randn(8, 4), nn.ModuleDict({"layer": nn.Linear(4, 8), "loss": NTXentLoss(memory_bank_size=(16, 8))})
    return module, lambda m, turn: m["loss"](m["layer"](x), m["layer"](x + 0.1))


@program("roma")
def rotations() -> Any:
    import roma

    x = torch.randn(5, 6)
    return nn.Linear(6, 6), lambda m, turn: (roma.special_gramschmidt(m(x).view(5, 3, 2)), roma.rotvec_to_rotmat(m(x)[:, :3]))
