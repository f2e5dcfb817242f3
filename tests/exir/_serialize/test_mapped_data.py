"""Constants that aren't copied for a program: mapped from a file, or in one, and written as they were lowered."""

from __future__ import annotations

import gc
import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from torch import nn

cord = pytest.importorskip(
    "executorch.exir._serialize._cord", reason="this executorch has no cords"
)
if not hasattr(cord, "FileBackedData"):
    pytest.skip("this executorch has no data in files", allow_module_level=True)

from executorch.exir._serialize._mapped_data import (  # noqa: E402
    MappedData,
    digest,
    in_file,
    mapped_data,
)

WIDTH = 1024


class Model(nn.Module):
    """A matmul for XNNPACK, and a lookup that ExecuTorch's own kernels make, of 4 MiB each."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(WIDTH, WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = self.linear(self.embedding(tokens))
        return found


def mapped(model: nn.Module, folder: Path) -> nn.Module:
    """Have a model's weights be mapped from files, and return it."""
    for index, weight in enumerate(model.parameters()):
        file = folder / f"{index}.bin"
        file.write_bytes(weight.detach().numpy().tobytes())
        flat = torch.from_file(
            str(file), shared=False, size=weight.numel(), dtype=weight.dtype
        )
        weight.data = flat.view(weight.shape)
    return model


def lowered(model: nn.Module) -> Any:
    one, two = (torch.zeros(1, n, dtype=torch.int64) for n in (1, 2))
    methods = {
        "one": torch.export.export(model.eval(), (one,)),
        "two": torch.export.export(model.eval(), (two,)),
    }
    lists = {name: [XnnpackPartitioner()] for name in methods}
    return to_edge_transform_and_lower(methods, partitioner=lists)


def written(data: Any) -> bytes:
    stream = io.BytesIO()
    data.write_to_file(stream)
    return stream.getvalue()


class Written:
    """A file that knows what it was given: bytes, or views of memory that nobody copied."""

    def __init__(self) -> None:
        self.data, self.viewed = bytearray(), 0

    def write(self, data: Any) -> None:
        self.data += data
        self.viewed += len(data) if isinstance(data, memoryview) else 0


def test_programs_are_the_same_and_nothing_is_copied(tmp_path: Path) -> None:
    copied, made = Written(), Written()
    lowered(Model()).to_executorch().write_to_file(copied)
    lowered(mapped(Model(), tmp_path)).to_executorch().write_to_file(made)
    assert made.data == copied.data
    assert made.viewed == 2 * 4 * WIDTH * WIDTH and not copied.viewed


def test_what_was_written_to_is_not_saved(tmp_path: Path) -> None:
    model = mapped(Model(), tmp_path)
    made = lowered(model).to_executorch()
    with torch.no_grad():
        next(model.parameters()).add_(1)
    target = tmp_path / "model.pte"
    with pytest.raises(RuntimeError, match="was written to after the program was"):
        made.save(str(target))
    assert not target.exists()


def test_any_byte_that_changed_is_found_without_another_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (8 << 20) + (1 << 20) + 13  # two pieces, the second not of whole words
    file = tmp_path / "data"
    file.write_bytes(torch.arange(size).to(torch.uint8).numpy().tobytes())
    tensor = torch.from_file(str(file), shared=False, size=size, dtype=torch.uint8)
    data = mapped_data(tensor)
    assert data is not None
    assert data.sha256() == hashlib.sha256(file.read_bytes()).digest()
    monkeypatch.setattr(hashlib, "sha256", pytest.fail)
    assert written(data) == file.read_bytes()
    for index in (0, 7, (8 << 20) - 1, 8 << 20, size - 14, size - 5, size - 1):
        tensor[index] ^= 128
        with pytest.raises(RuntimeError, match="was written to after the program was"):
            written(data)
        tensor[index] ^= 128
    tensor[:16] = tensor[:16].roll(8)
    with pytest.raises(RuntimeError, match="was written to after the program was"):
        written(data)
    tensor[:16] = tensor[:16].roll(8)
    assert written(data) == file.read_bytes()


def test_methods_have_a_large_constant_in_one_file(tmp_path: Path) -> None:
    tensor = torch.randn(WIDTH, WIDTH)
    one, other = in_file(tensor), in_file(tensor.clone())
    assert one is other and written(one) == tensor.numpy().tobytes()
    (path,) = {Path(one._path)}
    assert path.exists()
    del one, other
    gc.collect()
    assert not path.exists()


def test_a_digest_is_that_of_what_is_there_now() -> None:
    tensor = torch.zeros(WIDTH)
    before = digest(tensor)
    assert before == hashlib.sha256(bytes(4 * WIDTH)).digest() == digest(tensor)
    tensor[0] = 1
    assert digest(tensor) == hashlib.sha256(tensor.numpy().tobytes()).digest()
    assert digest(tensor) != before


def test_only_large_tensors_of_files_stay_mapped(tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(bytes(2 << 20))
    large = torch.from_file(str(file), size=2 << 20, dtype=torch.uint8)
    small = torch.from_file(str(file), size=1 << 10, dtype=torch.uint8)
    shared = torch.empty(2 << 20, dtype=torch.uint8).share_memory_()
    assert mapped_data(large) is not None
    for each in (small, shared, torch.empty(2 << 20, dtype=torch.uint8)):
        assert mapped_data(each) is None


def test_weights_of_cuda_delegates_are_not_written_to_files(tmp_path: Path) -> None:
    from executorch.backends.cuda.cuda_weight_collector import CudaWeightCollector
    from torch.export.pt2_archive._package_weights import TensorProperties

    (tmp_path / "made").mkdir()
    weight = next(mapped(Model(), tmp_path).parameters()).detach()
    weights = {
        "w": (weight, TensorProperties(weight)),
        "b": (b := torch.ones(3), TensorProperties(b)),
    }
    made = CudaWeightCollector().materialize(
        weights, str(tmp_path / "made"), lambda _: 1
    )
    held, small = made.storages.values()
    assert isinstance(held, MappedData) and not isinstance(small, MappedData)
    assert written(held) == weight.numpy().tobytes()
    assert written(small) == torch.ones(3).numpy().tobytes()
    assert len([*(tmp_path / "made").iterdir()]) == 1
