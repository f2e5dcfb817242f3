"""Weights of stand-ins that the program's data has in another form: several values in a byte, or channels-last."""

from __future__ import annotations

import hashlib
import importlib.metadata
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from packaging.version import Version
from torch import Tensor, nn

from torchtrt_executorch.nogpu.stand_ins.packed import unpack
from torchtrt_executorch.runtime import load, save_stand_ins

from ....backends.cuda.conftest import needs_compilers
from ....lowering import cuda_partitioner

packed_weights = pytest.importorskip(
    "executorch.backends.cuda.quantized.packed_weights",
    reason="this executorch has no packed weights",
)
WIDTH = 1024


def packed(weight: Tensor, bits: int, group: int, least: int) -> Tensor:
    found: Tensor = packed_weights.Packed(bits, group, least).pack(weight)
    return found


@pytest.mark.parametrize("bits", [1, 2, 4])
@pytest.mark.parametrize(
    ("dtype", "least"), [(torch.int8, -1), (torch.int8, -8), (torch.uint8, 0)]
)
@pytest.mark.parametrize("group", [32, 96])
def test_what_was_packed_is_unpacked(
    bits: int, dtype: torch.dtype, least: int, group: int
) -> None:
    values = torch.randint(0, 1 << bits, (50, 96)) + least
    weight = values.to(dtype)
    data = packed(weight, bits, group, least).numpy().data.cast("B")
    stored = {"digest": data}
    found = unpack([bits, group, least, "digest"], dtype, [50, 96], stored.__getitem__)
    assert torch.equal(torch.frombuffer(found, dtype=dtype).view(50, 96), weight)


def test_many_rows_are_unpacked_some_at_a_time() -> None:
    rows, columns = 50_000, 96
    weight = (torch.randint(0, 16, (rows, columns)) - 8).to(torch.int8)
    data = packed(weight, 4, 32, -8).numpy().data.cast("B")
    found = unpack([4, 32, -8, ""], torch.int8, [rows, columns], lambda _: data)
    assert torch.equal(torch.frombuffer(found, dtype=torch.int8), weight.flatten())


@pytest.mark.parametrize(
    "row",
    [
        *([3, 32, -8, ""], [4, 0, -8, ""], [4, 33, -8, ""], [4, 64, -8, ""]),
        *([4, 32, "-8", ""], [4.0, 32, -8, ""], [4, 32, -8], [2, 32, -8, ""]),
    ],
)
def test_what_is_no_packing_is_refused(row: list[Any]) -> None:
    data = memoryview(bytearray(50 * 48))
    with pytest.raises(ValueError):
        unpack(row, torch.int8, [50, 96], lambda _: data)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_what_is_channels_last_is_put_in_order(dtype: torch.dtype) -> None:
    weight = torch.randn(5, 7, 3, 2).to(dtype)
    data = weight.permute(0, 2, 3, 1).contiguous().view(-1).view(torch.uint8).numpy()
    row = ["channels_last", "digest"]
    found = unpack(row, dtype, [5, 7, 3, 2], {"digest": data.data}.__getitem__)
    assert torch.equal(torch.frombuffer(found, dtype=dtype).view_as(weight), weight)


@pytest.mark.parametrize("sizes", [[5, 7, 3, 3], [5, 42], [210], [5, 7, 3, 2, 1]])
def test_what_is_not_of_images_is_not_channels_last(sizes: list[int]) -> None:
    data = memoryview(bytearray(5 * 7 * 6 * 4))
    with pytest.raises(ValueError):
        unpack(["channels_last", ""], torch.float32, sizes, lambda _: data)


@needs_compilers
def test_stand_ins_of_int4_refer_to_the_data(tmp_path: Path) -> None:
    q = pytest.importorskip("torchao.quantization")
    torch.manual_seed(0)
    layers = [nn.Linear(WIDTH, size, bias=False) for size in (WIDTH, 2 * WIDTH)]
    model = nn.Sequential(*layers).to(torch.bfloat16).eval()
    config = q.IntxWeightOnlyConfig(torch.int4, q.granularity.PerGroup(32))
    q.quantize_(model, config)
    methods, partitioners = {}, {}
    for name, rows in (("prefill", 7), ("decode", 1)):
        x = torch.ones(rows, WIDTH, dtype=torch.bfloat16)
        methods[name] = torch.export.export(model, (x,))
        partitioners[name] = [cuda_partitioner(name, gpu="sm_90:80GiB")]
    made = to_edge_transform_and_lower(methods, partitioner=partitioners)
    path = tmp_path / "model.pte"
    made.to_executorch().save(str(path))
    beside = tmp_path / "model.stand_ins"
    save_stand_ins(path, beside)
    with zipfile.ZipFile(beside) as file:
        own = [each for each in file.namelist() if each.endswith(".weight")]
    if Version(importlib.metadata.version("executorch")) < Version("1.5"):
        assert len(own) == 2  # the data has a blob for each delegate, and no weights
    else:
        assert not own
        assert beside.stat().st_size < WIDTH * WIDTH
    program = load(path, stand_ins=beside)
    x = torch.randn(7, WIDTH, dtype=torch.bfloat16)
    (found,) = program.method("prefill")(x)
    (wanted,) = load(path, stand_ins=None).method("prefill")(x)
    eager = model(x)
    assert torch.equal(found, wanted)
    torch.testing.assert_close(found, eager, rtol=2e-2, atol=2e-2)
    with zipfile.ZipFile(beside) as file:
        names = (each for each in file.namelist() if each.endswith(".json"))
        tables = b"".join(map(file.read, names))
    for layer in model:
        values: Any = layer.weight.qdata  # type: ignore[union-attr]
        assert hashlib.sha256(values.numpy()).hexdigest().encode() in tables
