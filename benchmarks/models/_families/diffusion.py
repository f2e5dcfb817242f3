"""Networks of diffusers, from small configurations."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.models._model import Network, batches


class Plain(nn.Module):
    """One of diffusers' models, which returns a tuple."""

    def __init__(self, name: str, names: tuple[str, ...], **options: Any) -> None:
        super().__init__()
        self.model = getattr(import_module("diffusers"), name)(**options)
        self.names = names

    def forward(self, *inputs: Tensor) -> Any:
        given = dict(zip(self.names, inputs, strict=True))
        return self.model(**given, return_dict=False)


class Decoder(nn.Module):
    """The half of an autoencoder that makes the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.model = import_module("diffusers").AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            block_out_channels=(16, 32),
            norm_num_groups=8,
        )

    def forward(self, latents: Tensor) -> Tensor:
        return self.model.decode(latents, return_dict=False)[0]  # type: ignore[no-any-return]


_UNET = {
    "sample_size": 16,
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    "block_out_channels": (16, 32),
    "layers_per_block": 1,
    "norm_num_groups": 8,
    "cross_attention_dim": 32,
    "attention_head_dim": 8,
}
_DIT = {
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "in_channels": 4,
    "num_layers": 2,
    "sample_size": 8,
    "num_embeds_ada_norm": 10,
}
_FLUX = {
    "in_channels": 16,
    "num_layers": 1,
    "num_single_layers": 1,
    "attention_head_dim": 16,
    "num_attention_heads": 2,
    "joint_attention_dim": 32,
    "pooled_projection_dim": 32,
    "axes_dims_rope": (4, 4, 8),
}


def _of_unet() -> tuple[Tensor, ...]:
    return torch.randn(1, 4, 16, 16), torch.tensor([7]), torch.randn(1, 8, 32)


def _of_dit() -> tuple[Tensor, ...]:
    return torch.randn(1, 4, 8, 8), torch.tensor([7]), torch.tensor([3])


def _of_flux() -> tuple[Tensor, ...]:
    hidden, text, pooled = (torch.randn(1, *s) for s in ((16, 16), (8, 32), (32,)))
    places = torch.cat([torch.zeros(16, 1), torch.rand(16, 2).mul(8).floor()], 1)
    return hidden, text, pooled, torch.tensor([0.5]), places, torch.zeros(8, 3)


NETWORKS = {
    "UNet2DCondition": Network(
        partial(
            Plain,
            "UNet2DConditionModel",
            ("sample", "timestep", "encoder_hidden_states"),
            **_UNET,
        ),
        _of_unet,
    ),
    "VAE decoder": Network(Decoder, batches(4, 8, 8), dynamic=(0,), sizes=(1, 2, 4)),
    "DiT": Network(
        partial(
            Plain,
            "DiTTransformer2DModel",
            ("hidden_states", "timestep", "class_labels"),
            **_DIT,
        ),
        _of_dit,
    ),
    "Flux": Network(
        partial(
            Plain,
            "FluxTransformer2DModel",
            (
                "hidden_states",
                "encoder_hidden_states",
                "pooled_projections",
                "timestep",
                "img_ids",
                "txt_ids",
            ),
            **_FLUX,
        ),
        _of_flux,
    ),
}
