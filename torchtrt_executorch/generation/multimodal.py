"""Greedy decoding with encoders and a decoder, by the methods that ExecuTorch's runners call.

``generate`` calls the methods that ``MultimodalRunner`` calls (``extension/llm/runner``), ``transcribe`` and ``transduce``
those of ``Seq2SeqRunner`` and ``TransducerRunner`` (``extension/asr/runner``).
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch

from torchtrt_executorch.runtime import Program

#: Tokens, and the logits that each is the largest of: (tokens, vocabulary), float32.
Greedy = tuple[list[int], torch.Tensor]


def generate(
    program: Program, parts: Sequence[tuple[str, torch.Tensor]], count: int
) -> Greedy:
    """Return ``count`` tokens after a prompt of text, images and sound.

    Args:
        parts: In their order, the method that embeds each and its input: ``token_embedding`` tokens (1, n), int64,
            ``vision_encoder`` an image (1, 3, height, width), ``audio_encoder`` features (chunks, mels, frames).
    """
    decoder = program.method("text_decoder")
    most: int = decoder.inputs[0].shape[1]  # type: ignore[index,assignment]
    position = 0
    rows: list[torch.Tensor] = []
    tokens: list[int] = []

    def decode(method: str, value: torch.Tensor) -> torch.Tensor:
        nonlocal position
        (embedded,) = program.method(method)(value)
        for chunk in embedded.split(most, 1):
            end = position + chunk.shape[1]
            (logits,) = decoder(chunk, torch.arange(position, end))
            position = end
        return _last(logits)

    for part in parts:
        logits = decode(*part)
    while True:
        tokens.append(int(logits.argmax()))
        rows.append(logits)
        if len(tokens) == count:
            return tokens, torch.stack(rows)
        logits = decode("token_embedding", torch.tensor([tokens[-1:]]))


def transcribe(
    program: Program, features: torch.Tensor, start: Sequence[int], count: int
) -> Greedy:
    """Return ``count`` tokens of speech, after those that a transcript starts with.

    Args:
        features: (1, mels, frames).
    """
    (encoded,) = program.method("encoder")(features)
    encoded = encoded.clone()
    decoder = program.method("text_decoder")
    tokens = [*start]
    rows: list[torch.Tensor] = []
    for position in itertools.count():
        token = torch.tensor([tokens[position : position + 1]])
        (logits,) = decoder(token, encoded, torch.tensor([position]))
        if position + 1 < len(start):
            continue
        rows.append(_last(logits))
        tokens.append(int(rows[-1].argmax()))
        if len(rows) == count:
            break
    return tokens[len(start) :], torch.stack(rows)


def transduce(
    program: Program,
    features: torch.Tensor,
    length: int,
    durations: Sequence[int],
    most: int = 10,
) -> list[int]:
    """Return the symbols of speech, of a token-and-duration transducer.

    Args:
        features: (1, mels, frames), of which ``length`` are speech.
        durations: Frames, by the index that ``joint`` returns.
        most: Symbols of one frame.
    """
    blank, layers, hidden = (
        int(program.method(name)()[0])  # type: ignore[call-overload]
        for name in ("blank_id", "num_rnn_layers", "pred_hidden")
    )
    encoded, count = program.method("encoder")(features, torch.tensor([length]))
    encoded, joint = encoded.clone(), program.method("joint")
    step = program.method("decoder_step")
    zeros = torch.zeros(layers, 1, hidden, dtype=encoded.dtype)

    def decode(symbol: int, *state: torch.Tensor) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in step(torch.tensor([[symbol]]), *state)]

    decoded, *state = decode(blank, zeros, zeros)
    symbols: list[int] = []
    frame = here = 0
    while frame < int(count):
        symbol, index = map(int, joint(encoded[:, frame : frame + 1], decoded))
        if symbol != blank:
            symbols.append(symbol)
            decoded, *state = decode(symbol, *state)
        here += 1
        if symbol == blank or here == most:
            moved = max(durations[index], 1)
        else:
            moved = durations[index]
        frame += moved
        here = 0 if moved else here
    return symbols


def _last(logits: torch.Tensor) -> torch.Tensor:
    return logits.reshape(-1, logits.shape[-1])[-1].float().cpu()
