"""Export language models that see or hear, by the methods that ExecuTorch's ``MultimodalRunner`` calls.

``vision_encoder`` or ``audio_encoder`` and ``token_embedding`` return embeddings (1, n, hidden). ``text_decoder``
takes them and their positions (n,), has the cache, and returns the logits of the last one. It is causal, as
upstream's is: the tokens of an image don't attend to those after them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from torch.export import Dim, ExportedProgram

from torchtrt_executorch.generation import constant_methods
from torchtrt_executorch.generation.multimodal import generate
from torchtrt_executorch.runtime.program import Program
from torchtrt_executorch.transformers.exportable import (
    Form,
    Method,
    WithMethods,
    difference,
    noise,
)
from torchtrt_executorch.transformers.language_model import (
    FEW_TOKENS,
    cached,
    with_cache,
)


class _Multimodal(WithMethods):
    """Methods beside the encoder's, which subclasses have."""

    #: The encoder's name, and that of its input in transformers.
    encoder: str
    input: str

    def __init__(self, module: Any, form: Form) -> None:
        super().__init__(with_cache(module, form.length), form)

    @property
    def encoding(self) -> Method:
        """The encoder's method."""
        raise NotImplementedError

    @property
    def placeholder(self) -> int:
        """The token that stands for an embedding of the encoder's."""
        raise NotImplementedError

    @cached_property
    def methods(self) -> dict[str, Method]:
        """Its encoder, its table of tokens, and its decoder."""
        most = self.form.longest
        axis = Dim("tokens", min=1, max=most) if most > 1 else None
        count = min(most, FEW_TOKENS)
        hidden = self.module.config.get_text_config().hidden_size
        tokens, positions = torch.ones(1, count, dtype=torch.int64), torch.arange(count)
        return {
            self.encoder: self.encoding,
            "token_embedding": Method(
                _Embedding(self.module.get_input_embeddings()),
                (tokens,),
                ({1: axis},),
                repeated=True,
            ),
            "text_decoder": Method(
                _Decoder(cached(self.module, self.form)),
                (noise(self, 1, count, hidden), positions),
                ({1: axis}, {0: axis}),
                repeated=True,
            ),
        }

    def constants(self, programs: Mapping[str, ExportedProgram]) -> dict[str, Any]:
        """Return what a language model has."""
        return constant_methods(
            {"forward": programs["text_decoder"]},
            self.form.length,
            generation_config=self.module.generation_config,
        )

    def compared(self, program: Program, count: int) -> tuple[list[int], float]:
        """Return tokens after one of text, what the encoder makes of noise, and three of text."""
        (value,) = self.encoding.inputs
        with torch.no_grad():
            encoded = self.encoding.module(value).shape[1]
        before, after = [1], [3, 5, 2]
        prompt = [*before, *[self.placeholder] * encoded, *after]
        count = min(count, self.form.length - len(prompt) + 1)
        if count < 1:
            raise ValueError(
                f"{self.encoder} makes {encoded} embeddings, and the cache has room for {self.form.length}: give it "
                f"a length of {len(prompt)} or more"
            )
        parts = [
            ("token_embedding", torch.tensor([before])),
            (self.encoder, value),
            ("token_embedding", torch.tensor([after])),
        ]
        made, ours = generate(program, parts, count)
        whole = torch.tensor([prompt + made[:-1]])
        inputs = {"input_ids": whole, self.input: value, "use_cache": False}
        with torch.no_grad():
            theirs = self.module(**inputs).logits[0, len(prompt) - 1 :].float()
        return made, difference(ours, theirs)


class Gemma3(_Multimodal):
    """``vision_encoder``: an image (1, 3, size, size)."""

    encoder, input = "vision_encoder", "pixel_values"

    @property
    def encoding(self) -> Method:
        """The vision tower, and its projection."""
        config = self.module.config.vision_config
        pixels = noise(self, 1, config.num_channels, *2 * (config.image_size,))
        return Method(_Vision(self.module), (pixels,))

    @property
    def placeholder(self) -> int:
        """The token that stands for a part of an image."""
        return int(self.module.config.image_token_id)


class Voxtral(_Multimodal):
    """``audio_encoder``: features (pieces, mels, frames) of 30 seconds each."""

    encoder, input = "audio_encoder", "input_features"

    @property
    def encoding(self) -> Method:
        """The audio tower, and its projection."""
        config = self.module.config.audio_config
        features = noise(self, 1, config.num_mel_bins, 2 * config.max_source_positions)
        return Method(_Audio(self.module), (features,))

    @property
    def placeholder(self) -> int:
        """The token that stands for a part of sound."""
        return int(self.module.config.audio_token_id)


class _Vision(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixel_values: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.model.get_image_features(
            pixel_values
        ).pooler_output
        return features


class _Audio(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.model.get_audio_features(
            input_features
        ).pooler_output
        return features[None]


class _Embedding(torch.nn.Module):
    def __init__(self, table: torch.nn.Module) -> None:
        super().__init__()
        self.table = table

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        embeddings: torch.Tensor = self.table(input_ids)
        return embeddings


class _Decoder(torch.nn.Module):
    """transformers' exportable module, as one that takes embeddings and positions by their places."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, inputs_embeds: torch.Tensor, cache_position: torch.Tensor) -> Any:
        return self.module(inputs_embeds=inputs_embeds, cache_position=cache_position)
