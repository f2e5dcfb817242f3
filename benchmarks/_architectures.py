"""Small models of many architectures, from transformers' and torchvision's own classes.

Weights are random and nothing is downloaded. torchvision is not among what `make` installs: put a
release for this PyTorch beside it with `pip install --no-deps torchvision`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

PIXELS = 64
TOKENS = 16
VOCABULARY = 99

# TensorRT-RTX 1.5 refuses attention behind one product with a bias for queries, keys and values, in
# words of its optimizer's ("logical memory size (384) should be equal to non-opaque payload size"):
# GPT-2 and BLOOM leave the operator that takes it apart to PyTorch.

#: What most of transformers' text models call their sizes.
TEXT = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
DECODER = TEXT | {"num_key_value_heads": 2, "use_cache": False, "head_dim": 8}
VISION = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": PIXELS,
    "patch_size": 16,
}
GPT = {
    "vocab_size": VOCABULARY,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "use_cache": False,
}


@dataclass(frozen=True)
class Architecture:
    """A way to make a model, and what it is run on.

    Attributes:
        kind: Which family it belongs to.
        make: Makes the model; it takes tensors in order and returns tensors.
        inputs: Makes its inputs.
        refused: Operators that TensorRT-RTX's builder refuses here, left to PyTorch.
    """

    kind: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], tuple[Tensor, ...]]
    refused: frozenset[str] = frozenset()


class _Called(nn.Module):
    """A transformers model that takes its inputs in order and returns named tensors in a tuple."""

    def __init__(
        self, model: nn.Module, takes: tuple[str, ...], returns: tuple[str, ...]
    ) -> None:
        super().__init__()
        self.model, self._takes, self._returns = model, takes, returns

    def forward(
        self, first: Tensor, second: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        given = [each for each in (first, second) if each is not None]
        answer = self.model(**dict(zip(self._takes, given, strict=True)))
        return tuple(answer[name] for name in self._returns)


class _Segmented(nn.Module):
    """A torchvision segmentation model, which returns a dictionary."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> Tensor:
        out: Tensor = self.model(image)["out"]
        return out


def image() -> tuple[Tensor, ...]:
    return (torch.rand(1, 3, PIXELS, PIXELS),)


def tokens() -> tuple[Tensor, ...]:
    return (torch.randint(0, VOCABULARY, (1, TOKENS)),)


def source_and_target() -> tuple[Tensor, ...]:
    return tokens() + tokens()


def spectrogram_and_target() -> tuple[Tensor, ...]:
    return (torch.rand(1, 16, 2 * TOKENS), *tokens())


def waveform() -> tuple[Tensor, ...]:
    return (torch.rand(1, 2000),)


@dataclass(frozen=True)
class _Transformers:
    name: str
    config: str
    sizes: Mapping[str, Any]
    takes: tuple[str, ...] = ("input_ids",)
    returns: tuple[str, ...] = ("logits",)

    def __call__(self) -> nn.Module:
        transformers = import_module("transformers")
        config = getattr(transformers, self.config)(**self.sizes)
        model = getattr(transformers, self.name)(config)
        return _Called(model, self.takes, self.returns)


def _text(name: str, sizes: Mapping[str, Any], **named: Any) -> _Transformers:
    prefix = name.partition("For")[0].removesuffix("Model").removesuffix("LMHead")
    return _Transformers(name, f"{prefix}Config", sizes, **named)


def _vision(name: str, sizes: Mapping[str, Any], **named: Any) -> _Transformers:
    prefix = name.partition("For")[0].removesuffix("Model")
    return _Transformers(name, f"{prefix}Config", sizes, ("pixel_values",), **named)


def _torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        models = import_module("torchvision.models")
        return models.get_model(name, weights=None, **options)  # type: ignore[no-any-return]

    return make


def _segmentation(name: str) -> Callable[[], nn.Module]:
    model = _torchvision(name, weights_backbone=None, num_classes=5)
    return lambda: _Segmented(model())


@functools.cache
def declare_torchvision() -> None:
    """Let torchvision's CUDA build be imported beside a CPU build of PyTorch.

    It can't load its own operators then, and asks for two of them by name while it is imported,
    which transformers does, too.
    """
    if torch.version.cuda is None and find_spec("torchvision") is not None:
        schema = "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", schema)


_BOXES = ("logits", "pred_boxes")
_ENCODER_DECODER = ("input_ids", "decoder_input_ids")

ARCHITECTURES: dict[str, Architecture] = {
    # Convolutional
    "ResNet": Architecture(
        "convolutional",
        _vision(
            "ResNetForImageClassification",
            {
                "embedding_size": 16,
                "hidden_sizes": [16, 32],
                "depths": [1, 1],
                "layer_type": "basic",
            },
        ),
        image,
    ),
    "ConvNext": Architecture(
        "convolutional",
        _vision(
            "ConvNextForImageClassification",
            {"hidden_sizes": [16, 24, 32, 40], "depths": [1, 1, 1, 1]},
        ),
        image,
    ),
    "MobileNetV2": Architecture(
        "convolutional",
        _vision(
            "MobileNetV2ForImageClassification",
            {"image_size": PIXELS, "depth_multiplier": 0.35},
        ),
        image,
    ),
    "RegNet": Architecture(
        "convolutional",
        _vision(
            "RegNetForImageClassification",
            {
                "embedding_size": 16,
                "hidden_sizes": [16, 24, 32, 40],
                "depths": [1, 1, 1, 1],
                "groups_width": 8,
            },
        ),
        image,
    ),
    "EfficientNet": Architecture(
        "convolutional",
        _torchvision("efficientnet_b0"),
        image,
    ),
    "MobileNetV3": Architecture(
        "convolutional", _torchvision("mobilenet_v3_small"), image
    ),
    "ShuffleNet": Architecture(
        "convolutional", _torchvision("shufflenet_v2_x0_5"), image
    ),
    "SqueezeNet": Architecture("convolutional", _torchvision("squeezenet1_1"), image),
    "DenseNet": Architecture("convolutional", _torchvision("densenet121"), image),
    # Vision transformers
    "ViT": Architecture(
        "vision transformer", _vision("ViTForImageClassification", VISION), image
    ),
    "DeiT": Architecture(
        "vision transformer", _vision("DeiTForImageClassification", VISION), image
    ),
    "DINOv2": Architecture(
        "vision transformer", _vision("Dinov2ForImageClassification", VISION), image
    ),
    "Swin": Architecture(
        "vision transformer",
        _vision(
            "SwinForImageClassification",
            {
                "image_size": PIXELS,
                "patch_size": 4,
                "embed_dim": 16,
                "depths": [1, 1],
                "num_heads": [2, 4],
                "window_size": 4,
            },
        ),
        image,
    ),
    "SegFormer": Architecture(
        "vision transformer",
        _vision(
            "SegformerForSemanticSegmentation",
            {
                "num_encoder_blocks": 2,
                "depths": [1, 1],
                "hidden_sizes": [16, 32],
                "sr_ratios": [2, 1],
                "patch_sizes": [7, 3],
                "strides": [4, 2],
                "num_attention_heads": [1, 2],
                "mlp_ratios": [2, 2],
                "decoder_hidden_size": 32,
            },
        ),
        image,
    ),
    # Detection and segmentation
    "YOLOS": Architecture(
        "detection",
        _vision(
            "YolosForObjectDetection",
            VISION | {"image_size": [PIXELS, PIXELS], "num_detection_tokens": 10},
            returns=_BOXES,
        ),
        image,
    ),
    "LR-ASPP": Architecture(
        "segmentation", _segmentation("lraspp_mobilenet_v3_large"), image
    ),
    # Encoders
    "BERT": Architecture("encoder", _text("BertForMaskedLM", TEXT), tokens),
    "RoBERTa": Architecture(
        "encoder", _text("RobertaForMaskedLM", TEXT | {"pad_token_id": 1}), tokens
    ),
    "DistilBERT": Architecture(
        "encoder",
        _text(
            "DistilBertForMaskedLM",
            {
                "vocab_size": VOCABULARY,
                "dim": 32,
                "n_layers": 2,
                "n_heads": 4,
                "hidden_dim": 64,
                "max_position_embeddings": 64,
            },
        ),
        tokens,
    ),
    "ALBERT": Architecture(
        "encoder",
        _text("AlbertForMaskedLM", TEXT | {"embedding_size": 16}),
        tokens,
    ),
    "ELECTRA": Architecture(
        "encoder",
        _text("ElectraForMaskedLM", TEXT | {"embedding_size": 16}),
        tokens,
    ),
    "MPNet": Architecture("encoder", _text("MPNetForMaskedLM", TEXT), tokens),
    "Wav2Vec2": Architecture(
        "encoder",
        _Transformers(
            "Wav2Vec2ForCTC",
            "Wav2Vec2Config",
            {
                **{name: TEXT[name] for name in list(TEXT)[:5]},
                "conv_dim": [16, 16, 16],
                "conv_stride": [5, 4, 4],
                "conv_kernel": [10, 3, 3],
                "num_feat_extract_layers": 3,
                "num_conv_pos_embeddings": 16,
                "num_conv_pos_embedding_groups": 4,
            },
            ("input_values",),
        ),
        waveform,
    ),
    # Decoders
    "GPT-2": Architecture(
        "decoder",
        _Transformers("GPT2LMHeadModel", "GPT2Config", GPT),
        tokens,
        refused=frozenset({"torch.ops.aten.split.Tensor"}),
    ),
    "Llama": Architecture("decoder", _text("LlamaForCausalLM", DECODER), tokens),
    "Mistral": Architecture(
        "decoder", _text("MistralForCausalLM", DECODER | {"sliding_window": 8}), tokens
    ),
    "Qwen2": Architecture("decoder", _text("Qwen2ForCausalLM", DECODER), tokens),
    "Gemma": Architecture("decoder", _text("GemmaForCausalLM", DECODER), tokens),
    "Phi": Architecture("decoder", _text("PhiForCausalLM", DECODER), tokens),
    "OPT": Architecture(
        "decoder",
        _text(
            "OPTForCausalLM",
            TEXT | {"ffn_dim": 64, "word_embed_proj_dim": 32, "use_cache": False},
        ),
        tokens,
    ),
    "BLOOM": Architecture(
        "decoder",
        _text(
            "BloomForCausalLM",
            {
                "vocab_size": VOCABULARY,
                "hidden_size": 32,
                "n_layer": 2,
                "n_head": 4,
                "use_cache": False,
            },
        ),
        tokens,
        refused=frozenset({"torch.ops.aten.select.int"}),
    ),
    # Encoders with decoders
    "T5": Architecture(
        "encoder-decoder",
        _text(
            "T5ForConditionalGeneration",
            {
                "vocab_size": VOCABULARY,
                "d_model": 32,
                "d_kv": 8,
                "d_ff": 64,
                "num_layers": 2,
                "num_heads": 4,
                "use_cache": False,
            },
            takes=_ENCODER_DECODER,
        ),
        source_and_target,
    ),
    "BART": Architecture(
        "encoder-decoder",
        _text(
            "BartForConditionalGeneration",
            {
                "vocab_size": VOCABULARY,
                "d_model": 32,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "max_position_embeddings": 64,
                "use_cache": False,
            },
            takes=_ENCODER_DECODER,
        ),
        source_and_target,
    ),
    "Whisper": Architecture(
        "encoder-decoder",
        _text(
            "WhisperForConditionalGeneration",
            {
                "vocab_size": VOCABULARY,
                "num_mel_bins": 16,
                "d_model": 32,
                "encoder_layers": 2,
                "decoder_layers": 2,
                "encoder_attention_heads": 4,
                "decoder_attention_heads": 4,
                "encoder_ffn_dim": 64,
                "decoder_ffn_dim": 64,
                "max_source_positions": TOKENS,
                "max_target_positions": 64,
                "pad_token_id": 0,
                "bos_token_id": 1,
                "eos_token_id": 2,
                "decoder_start_token_id": 1,
                "use_cache": False,
            },
            takes=("input_features", "decoder_input_ids"),
        ),
        spectrogram_and_target,
    ),
    # State space, mixture of experts
    "Mamba": Architecture(
        "state space",
        _text(
            "MambaForCausalLM",
            {
                "vocab_size": VOCABULARY,
                "hidden_size": 32,
                "num_hidden_layers": 2,
                "state_size": 8,
                "use_cache": False,
            },
        ),
        tokens,
    ),
    "Mixtral": Architecture(
        "mixture of experts",
        _text(
            "MixtralForCausalLM",
            # The default's operator is transformers' own, and ExecuTorch has no kernel for it.
            DECODER
            | {
                "num_local_experts": 4,
                "sliding_window": None,
                "experts_implementation": "batched_mm",
            },
        ),
        tokens,
    ),
}
