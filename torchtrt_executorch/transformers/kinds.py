"""Load a model from a folder as its exportable class, by the model type in its configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import transformers

from torchtrt_executorch.transformers.exportable import Exportable, Form
from torchtrt_executorch.transformers.language_model import LanguageModel, tiny
from torchtrt_executorch.transformers.multimodal import Gemma3, Voxtral
from torchtrt_executorch.transformers.speech import (
    Parakeet,
    SileroNetwork,
    SileroVAD,
    Whisper,
)
from torchtrt_executorch.transformers.vision import Dinov2

#: Tolerance of outputs compared with transformers', relative to the largest, by dtype; and the addition for an int8 cache.
_TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.05, torch.float16: 0.02}
_OF_INT8_CACHE = 0.03

#: By model type, the class that loads the model, and the exportable class.
KINDS: Mapping[str, tuple[str, type[Exportable]]] = {
    "dinov2": ("AutoModelForImageClassification", Dinov2),
    "gemma3": ("AutoModelForImageTextToText", Gemma3),
    "parakeet_tdt": ("AutoModelForTDT", Parakeet),
    "voxtral": ("AutoModelForSeq2SeqLM", Voxtral),
    "whisper": ("AutoModelForSpeechSeq2Seq", Whisper),
}

SILERO = "silero_vad.jit"
"""The weights of Silero VAD, in its package's folder ``data``, which has no configuration."""


def load(folder: Path | None, form: Form) -> Exportable:
    """Return a model as it was saved.

    Args:
        folder: As transformers saves one: weights are random without ``*.safetensors``. Or the folder ``data`` of the
            package ``silero_vad``. None for a tiny Qwen3.
        form: Form of its export.

    Raises:
        ValueError: It is none, or of a type that isn't known here.
    """
    torch.manual_seed(0)
    if folder is None:
        return LanguageModel(tiny(), form)
    silero = (folder / SILERO).exists()
    auto, kind = ("", SileroVAD) if silero else _kind(folder)
    if form.int8_cache and not issubclass(kind, (Gemma3, LanguageModel, Voxtral)):
        raise ValueError(
            f"{folder} has a model without a static cache to keep in int8: leave out --cache"
        )
    if silero:
        return SileroVAD(SileroNetwork.load(folder / SILERO), form)
    try:
        loader: Any = getattr(transformers, auto)
        if list(folder.glob("*.safetensors")):
            made = loader.from_pretrained(folder, local_files_only=True)
        else:
            config = transformers.AutoConfig.from_pretrained(
                folder, local_files_only=True
            )
            made = loader.from_config(config)
    except Exception as error:  # of a dozen classes
        raise _none(folder, error) from None
    exportable = kind(made, form)
    exportable.folder = folder
    return exportable


def tolerance(model: Exportable) -> float:
    """Return how far outputs may be from transformers', as a part of the largest."""
    of_type = _TOLERANCE.get(model.dtype, max(_TOLERANCE.values()))
    return of_type + _OF_INT8_CACHE * model.form.int8_cache


def _kind(folder: Path) -> tuple[str, type[Exportable]]:
    """Return what loads the model of a folder, and what it is exported as."""
    try:
        config = json.loads((folder / "config.json").read_text())
        model_type, architectures = config["model_type"], config.get("architectures")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _none(folder, error) from None
    if model_type in KINDS:
        return KINDS[model_type]
    known = transformers.models.auto.modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    causal = known.get(model_type)
    if causal is None or not set(architectures or [causal]) <= {causal}:
        what = ", ".join(architectures or [model_type])
        raise ValueError(
            f"{folder} has a model of type {model_type} ({what}); exported are those of type "
            f"{', '.join(KINDS)}, causal language models such as Qwen3ForCausalLM, and Silero VAD"
        )
    return "AutoModelForCausalLM", LanguageModel


def _none(folder: Path, error: Exception) -> ValueError:
    reason, *_ = str(error).splitlines() or [type(error).__name__]
    return ValueError(
        f"{folder} is no folder of a model's, as transformers saves one: {reason}"
    )
