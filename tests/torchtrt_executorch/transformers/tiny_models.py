"""Models of transformers' of the kinds that ``torchtrt-executorch export`` takes: full structure, small, random weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

HIDDEN = 64
TEXT = {
    "vocab_size": 128,
    "hidden_size": HIDDEN,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,  # else random weights say the same token again
}
#: A token that no text has.
PLACEHOLDER = 127
LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
FEATURES = {"num_mel_bins": 16, "max_source_positions": 16}
CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen3": ("Qwen3Config", TEXT),
    "gemma3": (
        "Gemma3Config",
        {
            "text_config": {
                **TEXT,
                "sliding_window": 16,
                "sliding_window_pattern": 2,
                "query_pre_attn_scalar": 16,
            },
            "vision_config": {
                **LAYERS,
                "hidden_size": HIDDEN,
                "image_size": 32,
                "patch_size": 8,
            },
            "mm_tokens_per_image": 4,
            "tie_word_embeddings": False,
            "image_token_id": PLACEHOLDER,
        },
    ),
    "voxtral": (
        "VoxtralConfig",
        {
            "text_config": {**TEXT, "model_type": "llama"},
            "audio_config": {**LAYERS, **FEATURES, "hidden_size": 32},
            "audio_token_id": PLACEHOLDER,
        },
    ),
    "whisper": (
        "WhisperConfig",
        {
            **FEATURES,
            "vocab_size": 128,
            "tie_word_embeddings": False,
            "d_model": HIDDEN,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 4,
            "decoder_attention_heads": 4,
            "encoder_ffn_dim": 128,
            "decoder_ffn_dim": 128,
            "max_target_positions": 32,
            "decoder_start_token_id": 1,
            "bos_token_id": 2,
            "eos_token_id": 2,
            "pad_token_id": 0,
            "suppress_tokens": None,
            "begin_suppress_tokens": None,
        },
    ),
    "parakeet_tdt": (
        "ParakeetTDTConfig",
        {
            "vocab_size": 33,
            "blank_token_id": 32,
            "decoder_hidden_size": HIDDEN,
            "encoder_config": {
                **LAYERS,
                "hidden_size": HIDDEN,
                "num_mel_bins": 16,
                "subsampling_conv_channels": 8,
                "max_position_embeddings": 200,
            },
        },
    ),
    "dinov2": (
        "Dinov2Config",
        {
            "hidden_size": HIDDEN,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "image_size": 28,
            "patch_size": 14,
            "num_labels": 10,
        },
    ),
}


def saved(name: str, folder: Path, seed: int = 1) -> Path:
    """Save a model as transformers does, with weights that make tokens differ from one another."""
    import transformers

    from torchtrt_executorch.transformers.kinds import KINDS

    torch.manual_seed(seed)
    config_class, settings = CONFIGS[name]
    config = getattr(transformers, config_class)(**settings)
    auto, _ = KINDS.get(name, ("AutoModelForCausalLM", None))
    model = getattr(transformers, auto).from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=1.5 * weight[0].numel() ** -0.5)
    model.save_pretrained(folder)
    return folder


def silero(folder: Path, seed: int = 0) -> Path:
    """Save Silero VAD's network as its package does, with random weights."""
    from torchtrt_executorch.transformers import kinds, speech

    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    package = torch.nn.Module()
    for name, value in speech.SileroNetwork().state_dict().items():
        module = package
        *path, last = f"_model.{speech.SILERO_NAMES[name]}".split(".")
        for each in path:
            if each not in module._modules:
                module.add_module(each, torch.nn.Module())
            module = module._modules[each]
        module.register_buffer(last, value)
    torch.jit.script(package).save(folder / kinds.SILERO)
    return folder


#: The tokens around what an encoder makes of an image, or of sound.
BEFORE, AFTER = [1], [3, 5, 2]


@torch.no_grad()
def tokens_of_transformers(
    name: str, model: Any, value: torch.Tensor, count: int
) -> list[int]:
    """Return the likeliest tokens by transformers alone, without any cache.

    Args:
        value: What the encoder takes.
    """
    if name == "parakeet_tdt":
        mask = torch.ones(1, value.shape[-1], dtype=torch.int64)
        blank = model.config.blank_token_id
        joint_size = model.joint.head.out_features
        made = model.generate(
            input_features=value.transpose(1, 2),
            attention_mask=mask,
            decoder_start_token_id=blank,
            suppress_tokens=[*range(model.config.vocab_size, joint_size)],
        )
        return [each for each in made.sequences[0].tolist() if each != blank]
    given, inputs = [1], {"input_features": value}
    key = "decoder_input_ids" if name == "whisper" else "input_ids"
    if name == "gemma3":
        inputs, encoded = {"pixel_values": value}, model.config.mm_tokens_per_image
    elif name == "voxtral":
        encoded = model.get_audio_features(value).pooler_output.shape[0]
    if name in ("gemma3", "voxtral"):
        given = [*BEFORE, *[PLACEHOLDER] * encoded, *AFTER]
    return tokens_after(model, given, count, key, **inputs)


@torch.no_grad()
def tokens_after(
    model: Any, given: list[int], count: int, key: str = "input_ids", **inputs: Any
) -> list[int]:
    """Return the likeliest tokens after those that are given, without any cache."""
    made = [*given]
    for _ in range(count):
        found = model(**inputs, **{key: torch.tensor([made])}, use_cache=False)
        made.append(int(found.logits[0, -1].argmax()))
    return made[len(given) :]
