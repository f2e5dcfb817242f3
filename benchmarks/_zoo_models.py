"""Every architecture that transformers can build, tiny and with random weights; nothing is downloaded.

A configuration's sizes are made small by their names, also those of the configurations within it. What
doesn't build or run like that is nobody's failure, and is left out.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

FAMILIES = ("text", "vision", "audio", "other")

#: By the name of a field that holds one number.
SIZES: Mapping[str, int] = {
    **dict.fromkeys(
        (
            "vocab_size",
            "text_vocab_size",
            "decoder_vocab_size",
            "encoder_vocab_size",
            "src_vocab_size",
            "tgt_vocab_size",
            "vocab_size_per_layer_input",
        ),
        99,
    ),
    **dict.fromkeys(
        (
            "hidden_size",
            "d_model",
            "n_embd",
            "dim",
            "embed_dim",
            "embedding_size",
            "encoder_embed_dim",
            "decoder_embed_dim",
            "emb_dim",
            "word_embed_proj_dim",
            "hidden_dim",
            "attention_hidden_size",
            "decoder_hidden_size",
            "output_hidden_size",
            "encoder_hidden_size",
            "neck_hidden_size",
            "projection_dim",
        ),
        32,
    ),
    **dict.fromkeys(
        (
            "num_hidden_layers",
            "num_layers",
            "n_layer",
            "n_layers",
            "encoder_layers",
            "decoder_layers",
            "num_encoder_layers",
            "num_decoder_layers",
            "depth",
        ),
        2,
    ),
    **dict.fromkeys(
        (
            "num_attention_heads",
            "num_heads",
            "n_head",
            "n_heads",
            "encoder_attention_heads",
            "decoder_attention_heads",
            "num_key_value_heads",
            "num_kv_heads",
        ),
        4,
    ),
    **dict.fromkeys(
        (
            "intermediate_size",
            "encoder_ffn_dim",
            "decoder_ffn_dim",
            "d_ff",
            "ffn_dim",
            "n_inner",
            "ffn_hidden_size",
            "moe_intermediate_size",
            "shared_expert_intermediate_size",
            "mlp_dim",
        ),
        64,
    ),
    **dict.fromkeys(
        (
            "max_position_embeddings",
            "n_positions",
            "max_source_positions",
            "max_target_positions",
        ),
        64,
    ),
    **dict.fromkeys(("d_kv", "head_dim", "attention_head_size"), 8),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_top_k"), 2),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    "image_size": 64,
    "num_queries": 8,
}
#: By the name of a field that holds one number per stage.
STAGES: Mapping[str, int] = {
    "depths": 1,
    "layers": 1,
    "hidden_sizes": 16,
    "embed_dims": 16,
    "num_attention_heads": 2,
    "num_heads": 2,
    "stage_repeats": 1,
}
_TOKENS = 8
_SPECIAL = ("_token_id", "_token_index", "_idx")


@dataclass(frozen=True)
class Zooed:
    """A model and the inputs that it was run on, by keyword."""

    model: torch.nn.Module
    inputs: dict[str, Any]
    outputs: list[torch.Tensor]


def names() -> list[str]:
    """Return the model types that have a base model."""
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    return sorted(MODEL_MAPPING_NAMES)


def make(name: str) -> Zooed:
    """Return the base model of a type, tiny, after a run on inputs of its own.

    Raises:
        Exception: It can't be built from a tiny configuration, or not run on plain inputs.
    """
    from transformers import CONFIG_MAPPING, AutoModel

    torch.manual_seed(0)
    config = tiny(CONFIG_MAPPING[name])
    model = AutoModel.from_config(config).eval()
    inputs = dict(_inputs(model, config))
    with torch.no_grad():
        try:
            outputs = model(**inputs)
        except Exception:
            if not {"input_ids", "pixel_values"} <= inputs.keys():
                raise
            # It wants as many image tokens as there are patches.
            del inputs["pixel_values"]
            outputs = model(**inputs)
    return Zooed(model, inputs, tensors_of(outputs))


def family(model: torch.nn.Module) -> str:
    """Return which of :data:`FAMILIES` a model is of, by its main input."""
    main = str(getattr(model, "main_input_name", ""))
    kinds = {"input_ids": "text", "pixel_values": "vision"}
    return kinds.get(main, "audio" if main.startswith("input_") else "other")


def tensors_of(outputs: Any) -> list[torch.Tensor]:
    """Return the tensors in what a model returns, in order."""
    leaves = torch.utils._pytree.tree_leaves(
        dict(outputs) if isinstance(outputs, Mapping) else outputs
    )
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def tiny(kind: type) -> Any:
    """Return a configuration of ``kind`` with small sizes."""
    default = kind()
    given: dict[str, Any] = {}
    for name, value in default.to_dict().items():
        if name in getattr(kind, "sub_configs", {}):
            inner = getattr(default, name, None)
            if inner is not None and type(inner) is not dict:
                given[name] = tiny(type(inner)).to_dict()
        elif isinstance(value, bool) or value is None:
            continue
        elif isinstance(value, int) and name in SIZES:
            given[name] = min(value, SIZES[name])
        elif isinstance(value, int) and name.endswith(_SPECIAL):
            given[name] = min(value, 2)
        elif isinstance(value, (list, tuple)) and name in STAGES:
            grows = name in ("hidden_sizes", "embed_dims")
            given[name] = [
                min(each, STAGES[name] << i if grows else STAGES[name])
                for i, each in enumerate(value)
            ]
    if "use_cache" in default.to_dict():
        given["use_cache"] = False
    return kind(**given)


def _inputs(model: torch.nn.Module, config: Any) -> Iterator[tuple[str, Any]]:
    taken = inspect.signature(model.forward).parameters
    tokens = torch.randint(3, 90, (1, _TOKENS))
    if "input_ids" in taken:
        yield "input_ids", tokens
        if "attention_mask" in taken:
            yield "attention_mask", torch.ones_like(tokens)
    if "decoder_input_ids" in taken:
        yield "decoder_input_ids", tokens
    if "pixel_values" in taken:
        vision = getattr(config, "vision_config", config)
        size = getattr(vision, "image_size", 64)
        height, width = size if isinstance(size, (list, tuple)) else (size, size)
        channels = getattr(vision, "num_channels", 3)
        yield "pixel_values", torch.rand(1, channels, height, width)
    if "input_values" in taken:
        yield "input_values", torch.rand(1, 4000)
    if "input_features" in taken:
        bins = getattr(config, "num_mel_bins", getattr(config, "feature_size", 80))
        frames = 2 * getattr(config, "max_source_positions", 32)
        yield "input_features", torch.rand(1, bins, frames)
