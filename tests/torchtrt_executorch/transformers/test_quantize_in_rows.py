"""Weights that are quantized some rows at a time are those that torchao quantizes at once."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

q: Any = pytest.importorskip("torchao.quantization")
pytest.importorskip("transformers")

from torchtrt_executorch.transformers.lowering import (  # noqa: E402
    quantize,
    quantize_in_rows,
)

COLUMNS, ROWS = 128, 70
CONFIGS = {
    "int4": q.IntxWeightOnlyConfig(torch.int4, q.granularity.PerGroup(32)),
    "int8": q.IntxWeightOnlyConfig(torch.int8, q.granularity.PerGroup(64)),
    "asymmetric": q.IntxWeightOnlyConfig(
        torch.int4, q.granularity.PerGroup(32), mapping_type=q.MappingType.ASYMMETRIC
    ),
    "dynamic": q.Int8DynamicActivationIntxWeightConfig(
        torch.int4, q.granularity.PerGroup(32)
    ),
}


def linear() -> torch.nn.Linear:
    torch.manual_seed(0)
    return torch.nn.Linear(COLUMNS, ROWS).bfloat16()


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("rows", [1, 16, 69, 70, 1000])
def test_they_are_the_same(name: str, rows: int) -> None:
    at_once, some = linear(), linear()
    q.quantize_(torch.nn.Sequential(at_once), CONFIGS[name])
    quantize_in_rows(some, CONFIGS[name], COLUMNS * rows)
    wanted, found = at_once.weight, some.weight
    assert type(found.data) is type(wanted.data)
    assert found.__tensor_flatten__() == wanted.__tensor_flatten__()  # type: ignore[attr-defined]
    for part in wanted.__tensor_flatten__()[0]:  # type: ignore[attr-defined]
        assert torch.equal(getattr(found, part), getattr(wanted, part))
    x = torch.randn(3, COLUMNS, dtype=torch.bfloat16)
    assert torch.equal(some(x), at_once(x))
    assert not found.requires_grad


def test_no_more_rows_than_that_are_quantized_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes: list[int] = []
    quantize_ = q.quantize_

    def noted(model: torch.nn.Module, *more: Any) -> None:
        sizes.extend(each.numel() for each in model.parameters())
        quantize_(model, *more)

    monkeypatch.setattr(q, "quantize_", noted)
    quantize_in_rows(linear(), CONFIGS["int4"], COLUMNS * 16)
    assert sizes == [COLUMNS * 16] * 4 + [COLUMNS * 6]


def test_a_model_is_quantized_by_it() -> None:
    model = torch.nn.Sequential(linear(), torch.nn.Linear(ROWS, 8))
    expected = copy.deepcopy(model[0])
    assert quantize(model, "int4", ["cuda"]) == ["1"]
    config = q.IntxWeightOnlyConfig(torch.int4, q.granularity.PerGroup(128))
    q.quantize_(torch.nn.Sequential(expected), config)
    assert torch.equal(model[0].weight.qdata, expected.weight.qdata)  # type: ignore[union-attr,arg-type]
