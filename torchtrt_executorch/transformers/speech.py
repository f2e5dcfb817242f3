"""Export models of speech, by the methods that ExecuTorch's runners call: Whisper, Parakeet, Silero VAD.

``Seq2SeqRunner`` calls Whisper's ``encoder`` and ``text_decoder``, ``TransducerRunner`` Parakeet's ``preprocessor``,
``encoder``, ``decoder_step`` and ``joint``; Silero VAD has ``forward``.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from functools import cached_property
from inspect import signature
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.export import Dim, ExportedProgram
from transformers import ParakeetFeatureExtractor, StaticCache
from transformers.cache_utils import DynamicCache, EncoderDecoderCache

from torchtrt_executorch.generation.metadata import special_tokens
from torchtrt_executorch.generation.multimodal import transcribe, transduce
from torchtrt_executorch.runtime.program import Program
from torchtrt_executorch.transformers.exportable import (
    Method,
    WithMethods,
    difference,
    noise,
)


class Whisper(WithMethods):
    """``encoder``: features (1, mels, frames); ``text_decoder``: a token (1, 1), what that returns, a position (1,)."""

    @cached_property
    def methods(self) -> dict[str, Method]:
        """Its encoder, and its decoder, which has a cache for what it has said."""
        config = self.module.config
        frames = 2 * config.max_source_positions
        features = noise(self, 1, config.num_mel_bins, frames)
        encoded = noise(self, 1, config.max_source_positions, config.d_model)
        token, position = torch.ones(1, 1, dtype=torch.int64), torch.zeros(1).long()
        decoder = _WhisperDecoder(self.module, self._length)
        return {
            "encoder": Method(_WhisperEncoder(self.module), (features,)),
            "text_decoder": Method(decoder, (token, encoded, position), repeated=True),
        }

    def constants(self, programs: Mapping[str, ExportedProgram]) -> dict[str, Any]:
        """Return the tokens that a transcript begins and ends with, and how many there are."""
        config = self.module.config
        return {
            "get_vocab_size": config.vocab_size,
            "decoder_start_token_id": config.decoder_start_token_id,
            **special_tokens(self.module.generation_config),
        }

    def compared(self, program: Program, count: int) -> tuple[list[int], float]:
        """Return what is said of noise."""
        features, *_ = self.methods["encoder"].inputs
        start = [self.module.config.decoder_start_token_id]
        count = min(count, self._length)
        made, ours = transcribe(program, features, start, count)
        whole = torch.tensor([start + made[:-1]])
        with torch.no_grad():
            theirs = self.module(input_features=features, decoder_input_ids=whole)
        return made, difference(ours, theirs.logits[0].float())

    @property
    def _length(self) -> int:
        """The tokens that the cache has room for."""
        return min(self.form.length, int(self.module.config.max_target_positions))


class _WhisperEncoder(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.encoder = model.get_encoder()

    def forward(self, input_features: torch.Tensor) -> torch.Tensor:
        states: torch.Tensor = self.encoder(input_features).last_hidden_state
        return states


class _WhisperDecoder(nn.Module):
    def __init__(self, model: Any, length: int) -> None:
        super().__init__()
        self.decoder, self.head = model.get_decoder(), model.proj_out
        config = copy.deepcopy(model.config)
        config.num_hidden_layers = config.decoder_layers  # else the encoder's
        heads = config.decoder_attention_heads
        self.config = config
        self.cache = StaticCache(config=config, max_cache_len=length)
        self.cache.early_initialization(
            1, heads, config.d_model // heads, model.dtype, model.device
        )
        for index, layer in enumerate(self.cache.layers):
            for name in ("keys", "values", "cumulative_length"):
                value = getattr(layer, name)
                self.register_buffer(f"{name}_{index}", value, persistent=False)
        # transformers 5.23 calls it so, and 5.24 "cache".
        known = signature(self.decoder.forward).parameters
        self.argument = "past_key_values" if "past_key_values" in known else "cache"

    def forward(
        self,
        decoder_input_ids: torch.Tensor,
        encoder_hidden_states: torch.Tensor,
        cache_position: torch.Tensor,
    ) -> torch.Tensor:
        layer: Any
        for layer in self.cache.layers:
            layer.cumulative_length.copy_(cache_position[0])
        cache = EncoderDecoderCache(self.cache, DynamicCache(config=self.config))
        decoded = self.decoder(
            input_ids=decoder_input_ids,
            encoder_hidden_states=encoder_hidden_states,
            position_ids=cache_position[None],
            use_cache=True,
            **{self.argument: cache},
        )
        logits: torch.Tensor = self.head(decoded.last_hidden_state)
        return logits


class Parakeet(WithMethods):
    """A token-and-duration transducer.

    ``preprocessor``: sound (n,) and how much of it counts (1,) to features (1, mels, frames) and their number (1,);
    ``encoder``: those to frames (1, n, hidden) and their number (1,); ``decoder_step``: a symbol (1, 1) and state
    (layers, 1, hidden) twice to (1, 1, hidden) and state; ``joint``: a frame and that to a symbol and the index of a
    duration.
    """

    @cached_property
    def methods(self) -> dict[str, Method]:
        """All four."""
        config = self.module.config
        extractor = self._extractor
        seconds = extractor.sampling_rate
        positions = config.encoder_config.max_position_embeddings
        longest = positions * extractor.hop_length
        mels, frames = config.encoder_config.num_mel_bins, 64
        hidden = config.decoder_hidden_size
        # Apart: torch.export takes two inputs that are one tensor for the same in all calls.
        states = noise(self, 2, config.num_decoder_layers, 1, hidden).unbind()
        vectors = noise(self, 2, 1, 1, hidden).unbind()
        samples = noise(self, seconds).float()
        return {
            "preprocessor": Method(
                _LogMel(extractor, self.dtype),
                (samples, torch.tensor([seconds])),
                ({0: Dim("samples", min=seconds // 10, max=longest)}, None),
            ),
            "encoder": Method(
                _FrameEncoder(self.module),
                (noise(self, 1, mels, frames), torch.tensor([frames])),
                ({2: Dim.AUTO(max=positions + 1)}, None),
            ),
            "decoder_step": Method(
                _DecoderStep(self.module),
                (torch.zeros(1, 1).long(), *states),
                repeated=True,
            ),
            "joint": Method(_Joint(self.module), vectors, repeated=True),
        }

    def constants(self, programs: Mapping[str, ExportedProgram]) -> dict[str, Any]:
        """Return what ``TransducerRunner`` reads, and upstream's example says."""
        config, extractor = self.module.config, self._extractor
        return {
            "num_rnn_layers": config.num_decoder_layers,
            "pred_hidden": config.decoder_hidden_size,
            "joint_hidden": config.decoder_hidden_size,
            "vocab_size": config.vocab_size - 1,  # beside the blank
            "blank_id": config.blank_token_id,
            "sample_rate": extractor.sampling_rate,
            "window_stride": extractor.hop_length / extractor.sampling_rate,
            "encoder_subsampling_factor": config.encoder_config.subsampling_factor,
        }

    def compared(self, program: Program, count: int) -> tuple[list[int], float]:
        """Return what is said of noise, and the largest difference of any method's outputs."""
        samples, length = self.methods["preprocessor"].inputs
        features, frames = program.method("preprocessor")(samples, length)
        durations = self.module.config.durations
        symbols = transduce(program, features.clone(), int(frames), durations)
        return symbols[:count], super().compared(program, count)[1]

    @property
    def _extractor(self) -> Any:
        auto: Any = ParakeetFeatureExtractor
        if self.folder and (self.folder / "preprocessor_config.json").exists():
            return auto.from_pretrained(self.folder, local_files_only=True)
        return auto(feature_size=self.module.config.encoder_config.num_mel_bins)


class _LogMel(nn.Module):
    """Log-mel features as ``ParakeetFeatureExtractor`` computes them, the Fourier transform as a convolution."""

    def __init__(self, extractor: Any, dtype: torch.dtype) -> None:
        super().__init__()
        size, window = extractor.n_fft, extractor.win_length
        self.hop, self.pad, self.dtype = extractor.hop_length, size // 2, dtype
        self.preemphasis = extractor.preemphasis
        weights = torch.zeros(size, dtype=torch.float64)
        first = (size - window) // 2
        weights[first : first + window] = torch.hann_window(
            window, periodic=False, dtype=torch.float64
        )
        turns = torch.arange(size // 2 + 1)[:, None] * torch.arange(size)[None] % size
        angles = turns * (2 * math.pi / size)
        basis = torch.cat([angles.cos(), angles.sin()]) * weights
        self.register_buffer("basis", basis.float()[:, None])
        self.register_buffer("mels", extractor.mel_filters.float())

    def forward(
        self, audio: torch.Tensor, length: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        counts = torch.arange(audio.shape[0]) < length
        audio = torch.cat([audio[:1], audio[1:] - self.preemphasis * audio[:-1]])
        audio = nn.functional.pad(torch.where(counts, audio, 0.0), (self.pad, self.pad))
        waves = nn.functional.conv1d(audio[None, None], self.basis, stride=self.hop)  # type: ignore[arg-type]
        real, imaginary = waves.square().chunk(2, 1)
        features = torch.log(self.mels @ (real + imaginary) + 2**-24)  # type: ignore[operator]
        frames = torch.div(length, self.hop, rounding_mode="floor")
        valid = torch.arange(features.shape[-1]) < frames
        features = torch.where(valid, features, 0.0)
        mean = features.sum(-1, keepdim=True) / frames
        spread = torch.where(valid, features - mean, 0.0)
        deviation = (spread.square().sum(-1, keepdim=True) / (frames - 1)).sqrt()
        return (spread / (deviation + 1e-5)).to(self.dtype), frames


class _FrameEncoder(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, audio_signal: torch.Tensor, length: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        mask = torch.arange(audio_signal.shape[-1])[None] < length[:, None]
        features = self.model.get_audio_features(audio_signal.transpose(1, 2), mask)
        return features.pooler_output, features.attention_mask.sum(-1)


class _DecoderStep(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(
        self, token: torch.Tensor, h: torch.Tensor, c: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        made, (h, c) = self.decoder.lstm(self.decoder.embedding(token), (h, c))
        return self.decoder.decoder_projector(made), h, c


class _Joint(nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.joint, self.count = model.joint, model.config.vocab_size

    def forward(
        self, f: torch.Tensor, g: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self.joint(g, f).flatten()
        return logits[: self.count].argmax(), logits[self.count :].argmax()


class SileroVAD(WithMethods):
    """``forward``: 64 samples from before and 512, at 16 kHz (1, 576), and state (2, 1, 128) to a probability and state."""

    @cached_property
    def methods(self) -> dict[str, Method]:
        """Its only one."""
        return {
            "forward": Method(
                self.module, (noise(self, 1, 576), torch.zeros(2, 1, 128))
            )
        }

    def constants(self, programs: Mapping[str, ExportedProgram]) -> dict[str, Any]:
        """Return what upstream's example says."""
        return {"sample_rate": 16000, "window_size": 512, "context_size": 64}


SILERO_NAMES = {
    "stft_conv.weight": "stft.forward_basis_buffer",
    **{
        f"conv{index + 1}.{kind}": f"encoder.{index}.reparam_conv.{kind}"
        for index in range(4)
        for kind in ("weight", "bias")
    },
    **{
        f"lstm_cell.{kind}": f"decoder.rnn.{kind}"
        for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    },
    "final_conv.weight": "decoder.decoder.2.weight",
    "final_conv.bias": "decoder.decoder.2.bias",
}
"""Each weight's name in the package's TorchScript."""


class SileroNetwork(nn.Module):
    """Silero VAD at 16 kHz, as its package's TorchScript, which isn't exported: STFT, convolutions, an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.stft_conv = nn.Conv1d(1, 258, 256, stride=128, bias=False)
        self.conv1 = nn.Conv1d(129, 128, 3, padding=1)
        self.conv2 = nn.Conv1d(128, 64, 3, stride=2, padding=1)
        self.conv3 = nn.Conv1d(64, 64, 3, stride=2, padding=1)
        self.conv4 = nn.Conv1d(64, 128, 3, padding=1)
        self.lstm_cell = nn.LSTMCell(128, 128)
        self.final_conv = nn.Conv1d(128, 1, 1)

    @classmethod
    def load(cls, file: Path) -> SileroNetwork:
        """Return it with the weights of the package's ``silero_vad.jit``."""
        read: Any = torch.jit.load
        weights = read(file, map_location="cpu")._model.state_dict()
        made = cls()
        made.load_state_dict(
            {ours: weights[theirs] for ours, theirs in SILERO_NAMES.items()}
        )
        return made

    def forward(
        self, x: torch.Tensor, state: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the probability of speech (1, 1), and the state after it."""
        # The last 64 samples once more, backwards: what reflection pads with, of which XNNPACK has none.
        x = torch.cat([x, x[:, -65:-1].flip(1)], 1)
        real, imaginary = self.stft_conv(x[:, None]).square().chunk(2, 1)
        x = (real + imaginary).sqrt()
        for layer in (self.conv1, self.conv2, self.conv3, self.conv4):
            x = layer(x).relu()
        h, c = self.lstm_cell(x[:, :, 0], (state[0], state[1]))
        spoken = self.final_conv(h.relu()[:, :, None]).sigmoid()
        return spoken[:, :, 0], torch.stack([h, c])
