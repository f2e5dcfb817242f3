"""Weights that are quantized by blocks of rows: torchao's own, in a mapped file, without a float copy."""

from __future__ import annotations

import copy
import resource
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from torchtrt_executorch.transformers import row_quantization
from torchtrt_executorch.transformers.row_quantization import quantize_by_rows

q = pytest.importorskip("torchao.quantization")

CONFIGS = {
    "int4": lambda: q.IntxWeightOnlyConfig(torch.int4, q.granularity.PerGroup(128)),
    "int4 with activations": lambda: q.Int8DynamicActivationIntxWeightConfig(torch.int4, q.granularity.PerGroup(32)),
    "int8": q.Int8WeightOnlyConfig,
    "int8 with activations": lambda: q.Int8DynamicActivationIntxWeightConfig(torch.int8, q.granularity.PerAxis(0)),
    "float8": q.Float8WeightOnlyConfig,
    "float8 by tensor": lambda: q.Float8WeightOnlyConfig(granularity=q.granularity.PerTensor()),
}  # fmt: skip


def linear(rows: int = 1500, dtype: torch.dtype = torch.bfloat16) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(1024, rows, dtype=dtype).requires_grad_(False)


def parts(weight: Any) -> tuple[type, Any, list[Tensor]]:
    names, settings = weight.__tensor_flatten__()
    return type(weight), settings, [getattr(weight, name) for name in names]


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_quantization, "BLOCK", 1 << 18)  # 256 rows


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
@pytest.mark.parametrize("rows", [8, 1500])
def test_it_is_what_torchao_makes(config: Any, rows: int, small_blocks: None) -> None:
    ours, theirs = linear(rows), linear(rows)
    quantize_by_rows(ours, config())
    q.quantize_(theirs, config())
    found, wanted = parts(ours.weight), parts(theirs.weight)
    assert found[:2] == wanted[:2] and ours.weight.shape == theirs.weight.shape
    for one, other in zip(found[2], wanted[2], strict=True):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        assert torch.equal(one.float(), other.float())
    x = torch.randn(2, 1024, dtype=torch.bfloat16)
    torch.testing.assert_close(ours(x), theirs(x))


@pytest.mark.parametrize("config", [*CONFIGS.values()][:5], ids=[*CONFIGS][:5])
def test_large_values_are_written_from_a_file(config: Any, small_blocks: None) -> None:
    mapped_data = pytest.importorskip(
        "executorch.exir._serialize._mapped_data",
        reason="this executorch has no cords",
    )
    layer = linear()
    quantize_by_rows(layer, config())
    values, *scales = parts(layer.weight)[2]
    assert mapped_data.mapped_data(values) is not None
    assert all(mapped_data.mapped_data(each) is None for each in scales)


def test_a_tied_embedding_stays_as_it_is(small_blocks: None) -> None:
    layer, embedding = linear(), nn.Embedding(1500, 1024, dtype=torch.bfloat16)
    embedding.weight = layer.weight
    before = copy.deepcopy(embedding.weight)
    quantize_by_rows(layer, CONFIGS["int4"]())
    assert type(embedding.weight) is nn.Parameter
    assert torch.equal(embedding.weight, before)


def test_no_room_for_the_values_is_an_error(
    small_blocks: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    layer = linear()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            quantize_by_rows(layer, CONFIGS["int4"]())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert type(layer.weight) is nn.Parameter and not [*tmp_path.iterdir()]
