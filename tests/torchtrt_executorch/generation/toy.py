"""A language model of one attention layer with a KV cache, whose tokens depend on all that came before."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import torch
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge,
)
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.export import Dim, ExportedProgram, export

from torchtrt_executorch.generation import constant_methods

#: The vocabulary is of the characters from ``!`` on.
CAPACITY, VOCABULARY = 96, 94
#: Of weights with which 64 tokens are of many kinds, and none ends the text.
SEED = 18
PROMPT = [3, 14, 15, 9, 26, 5, 35, 60, 61, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 1]


class Attention(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(CAPACITY, width)
        self.value, self.head = nn.Linear(width, width), nn.Linear(width, VOCABULARY)
        self.register_buffer("keys", torch.zeros(CAPACITY, width))
        self.register_buffer("values", torch.zeros(CAPACITY, width))
        self.eval().requires_grad_(False)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens[0]) + self.position(positions)
        self.keys.index_copy_(0, positions, x)
        self.values.index_copy_(0, positions, self.value(x))
        later = torch.arange(CAPACITY) > positions[:, None]
        scores = (x @ self.keys.T / 30).masked_fill(later, float("-inf"))
        mixed = scores.softmax(-1) @ self.values
        logits: torch.Tensor = self.head(mixed * 30 + x / 10)
        return logits[None]


class Last(nn.Module):
    """The logits of the last token alone."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(tokens, positions)
        return logits[:, -1:]


@cache
def logits_of(tokens: tuple[int, ...]) -> torch.Tensor:
    """The logits (vocabulary,) of what comes after ``tokens``, in eager mode."""
    logits: torch.Tensor = Attention()(
        torch.tensor([tokens]), torch.arange(len(tokens))
    )
    return logits[0, -1]


def eager(prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens, by the whole sequence each time."""
    tokens = [*prompt]
    for _ in range(count):
        tokens.append(int(logits_of((*tokens,)).argmax()))
    return tokens[len(prompt) :]


def exported(
    most: int, fewest: int = 1, model: nn.Module | None = None
) -> ExportedProgram:
    """A method that takes ``fewest`` to ``most`` tokens."""
    count = most if fewest == most else min(most, fewest + 2)
    length = Dim("length", min=fewest, max=most) if fewest < most else None
    shapes = ({1: length}, {0: length}) if length else None
    given = torch.ones(1, count, dtype=torch.int64), torch.arange(count)
    return export(model or Attention(), given, dynamic_shapes=shapes)


#: A character for each token; those of a prompt have to be of a byte each.
CHARACTERS = [
    *map(chr, range(ord("!"), ord("~") + 1)),
    *map(chr, range(0x4E00, 0x4F00)),
]


def text(tokens: list[int]) -> str:
    return "".join(CHARACTERS[each] for each in tokens)


def tokens_of(text: str) -> list[int]:
    return [*map(CHARACTERS.index, text)]


def save_tokenizer(path: Path, vocabulary: int = VOCABULARY) -> None:
    """A tokenizer.json of a token for each character, which ExecuTorch's runners take, too."""
    by_bytes = {"add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    letters = {CHARACTERS[each]: each for each in range(vocabulary)}
    described = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": {"type": "ByteLevel", **by_bytes},
        "decoder": {"type": "ByteLevel", **by_bytes},
        "model": {"type": "BPE", "vocab": letters, "merges": []},
    }
    path.write_text(json.dumps(described))


@cache
def saved(
    form: str = "forward", last_logits: bool = False, chunk: int = CAPACITY
) -> bytes:
    """A program of CPU kernels: of one method, or with ``"decode"`` of two."""
    model = Attention()
    if last_logits:
        model = Last(model)
    methods = {"forward": exported(chunk, min(chunk, 1), model)}
    if form == "decode":
        methods = {"prefill": methods["forward"], "decode": exported(1, 1, model)}
    edge = to_edge(methods, constant_methods=constant_methods(methods, CAPACITY))
    return bytes(emitted(edge, shared=form == "decode").buffer)


def emitted(edge: EdgeProgramManager, shared: bool) -> ExecutorchProgramManager:
    """A program whose methods share their buffers, or don't."""
    planning = MemoryPlanningPass(share_mutable_buffers=shared)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    return edge.to_executorch(config)
