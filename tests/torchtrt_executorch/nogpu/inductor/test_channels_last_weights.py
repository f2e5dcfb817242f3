"""Weights of convolutions are stored as Inductor's convolutions read them."""

from __future__ import annotations

import importlib.metadata
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from packaging.version import Version
from torch import Tensor, nn
from torch.export import Dim

from torchtrt_executorch.cache import SWITCH
from torchtrt_executorch.payloads import cuda_payload
from torchtrt_executorch.runtime import load, save_stand_ins

from ....backends.cuda.conftest import delegates, needs_compilers
from ....lowering import cuda_partitioner

pytestmark = [
    pytest.mark.builds,
    needs_compilers,
    pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU"),
    pytest.mark.skipif(
        Version(importlib.metadata.version("executorch")) < Version("1.5"),
        reason="executorch 1.4 has a blob of weights for each delegate",
    ),
]


class Images(nn.Module):
    """Convolutions with a window, without one, of a channel a group, and one whose weight is read otherwise, too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Conv2d(16, 256, 3, padding=1)
        self.second = nn.Conv2d(256, 256, 3, padding=1)
        self.point = nn.Conv2d(256, 32, 1)
        self.depth = nn.Conv2d(32, 32, 3, groups=32)
        self.scaled = nn.Conv2d(32, 16, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.second(torch.relu(self.first(x)))
        y = self.scaled(self.depth(self.point(y)))
        return y * self.scaled.weight.mean((1, 2, 3))[:, None, None]


def made(folder: Path, dynamic: bool) -> Any:
    """Two methods over one set of weights, the second for any batch if asked."""
    model = Images().eval()
    inputs = (torch.randn(2, 16, 12, 12),)
    shapes = ({0: Dim("batch", min=2, max=8)},) if dynamic else None
    methods = {
        "forward": torch.export.export(model, inputs),
        "other": torch.export.export(model, inputs, dynamic_shapes=shapes),
    }
    gpu = "sm_90:80GiB"
    partitioners = {name: [cuda_partitioner(name, gpu=gpu)] for name in methods}
    return to_edge_transform_and_lower(methods, partitioner=partitioners)


def strides(edge: Any, method: str) -> dict[str, tuple[int, ...]]:
    (delegate,) = delegates(edge, method)
    read = cuda_payload.read(delegate.module.processed_bytes)
    return {each.name: each.strides for each in read.weights}


@pytest.mark.parametrize("dynamic", [False, True])
def test_weights_are_stored_as_convolutions_read_them(
    dynamic: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Under another name, as methods share weights by name; stand-ins have none of their own."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    monkeypatch.setenv(SWITCH, "0")
    edge = made(tmp_path, dynamic)
    stored = strides(edge, "forward")
    assert stored["first.weight.channels_last"] == (144, 1, 48, 16)
    assert stored["second.weight.channels_last"] == (2304, 1, 768, 256)
    assert stored["scaled.weight"] == (288, 9, 3, 1)
    assert not {"first.weight", "second.weight"} & {*stored}
    assert "point.weight" in stored and "depth.weight" in stored
    path, beside = tmp_path / "model.pte", tmp_path / "model.stand_ins"
    edge.to_executorch().save(str(path))
    save_stand_ins(path, beside)
    with zipfile.ZipFile(beside) as file:
        kept = [each for each in file.namelist() if each.endswith(".weight")]
    assert not kept
    x = torch.randn(2, 16, 12, 12)
    program, wanted = load(path, stand_ins=beside), Images().eval()(x)
    for name in ("forward", "other"):
        torch.testing.assert_close(program.method(name)(x)[0], wanted)
