"""Sines of positions are computed once for all heads and layers, where there are many."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from executorch.backends.cuda.tuning.realized_values import is_slow_and_broadcast
from torch import Tensor, nn
from torch.export import Dim
from torch.fx.experimental.proxy_tensor import make_fx

from torchtrt_executorch.cache import SWITCH

from ..conftest import compiles_delegates, delegates

prims = torch.ops.prims


class Rotated(nn.Module):
    """Two layers' heads (1, 4, tokens, 128), turned by positions (1, tokens) as transformers does."""

    def forward(self, heads: Tensor, positions: Tensor) -> Tensor:
        frequencies = 1e4 ** (-torch.arange(0, 128, 2) / 128)
        angles = positions[:, :, None].float() * frequencies
        angles = torch.cat((angles, angles), -1)
        cos, sin = angles.cos() * 1.5, angles.sin() * 1.5
        cos, sin = (each.bfloat16()[:, None] for each in (cos, sin))
        for _ in range(2):
            first, second = heads.chunk(2, -1)
            turned = torch.cat((-second, first), -1)
            heads = (heads * cos + turned * sin).softmax(-1)
        return heads


def slow(tokens: int) -> list[str]:
    """What is realized of a graph with so many tokens, by the operators' names."""
    inputs = torch.randn(1, 4, tokens, 128).bfloat16(), torch.arange(tokens)[None]
    decomposed = {
        torch.ops.aten._to_copy.default: lambda x, *, dtype: prims.convert_element_type(
            x, dtype
        )
    }
    graph = make_fx(Rotated(), decomposed, tracing_mode="fake")(*inputs).graph
    return [node.name for node in graph.nodes if is_slow_and_broadcast(node)]


def test_the_last_of_what_is_not_larger() -> None:
    """The cast behind each, not the sine before it; and of one token, none."""
    found = slow(64)
    assert len(found) == 2
    assert all(name.startswith("convert_element_type") for name in found)
    assert not slow(1)


@compiles_delegates
@pytest.mark.parametrize(
    ("tokens", "dynamic"), [(64, False), (3, True), (1, False)], ids=str
)
def test_kernels_compute_sines_once(
    lower, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, tokens: int, dynamic: bool
) -> None:
    """In one kernel, for a fixed number of tokens or any; for one token, where they are read."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv(SWITCH, "0")
    heads = torch.randn(1, 4, tokens, 128).bfloat16()
    count = Dim("tokens", max=512)
    edge = lower(
        Rotated(),
        (heads, torch.arange(tokens)[None]),
        gpu="sm_90:80GiB",
        dynamic_shapes=({2: count}, {1: count}) if dynamic else None,
    )
    assert len(delegates(edge)) == 1
    sources = {file.read_text() for file in tmp_path.rglob("*.py")}
    computing = [text for text in sources if re.search(r"\.(sin|cos)\(", text)]
    of_layers = [text for text in computing if "max2(" in text]  # the softmax's
    assert computing
    assert bool(of_layers) == (tokens == 1)
