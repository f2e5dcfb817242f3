"""Large weights of stand-ins: each once in their file, or not at all where the program's data has them."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from torchtrt_executorch.nogpu.stand_ins.file import StandInFile, write
from torchtrt_executorch.nogpu.stand_ins.program import StandIn

WIDTH = 600
ONE, OTHER = "1" * 64, "2" * 64


class Model(torch.nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = torch.nn.Linear(WIDTH, WIDTH)
        self.register_buffer("cache", torch.zeros(WIDTH, WIDTH, dtype=torch.bfloat16))
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.cache.add_(1)
        found: torch.Tensor = self.linear(x) * self.scale + self.cache[0, 0]
        return found


def stand_in(scale: float) -> StandIn:
    program = torch.export.export(Model(scale).eval(), (torch.ones(1, WIDTH),))
    return StandIn(program.run_decompositions({}))


@pytest.fixture
def both() -> dict[str, StandIn]:
    return {ONE: stand_in(1.0), OTHER: stand_in(2.0)}


def names(path: Path) -> list[str]:
    with zipfile.ZipFile(path) as file:
        return [each.filename for each in file.infolist()]


def weight_of(found: StandIn) -> torch.Tensor:
    (weight,) = (
        t for t in found.tensors.values() if t.dtype == torch.float32 and t.ndim == 2
    )
    return weight


def test_two_that_have_a_weight_have_it_once(
    both: dict[str, StandIn], tmp_path: Path
) -> None:
    write(tmp_path / "file", both)
    assert sum(name.endswith(".weight") for name in names(tmp_path / "file")) == 1
    assert (tmp_path / "file").stat().st_size < 1.5 * weight_of(
        both[ONE]
    ).nbytes + 2 * (WIDTH * WIDTH * 2)
    x = torch.randn(1, WIDTH)
    for payload, kept in both.items():
        found = StandInFile(tmp_path / "file").find(payload)
        assert found is not None
        for _ in range(2):  # which writes to its cache
            assert torch.equal(found([x])[0], kept([x])[0])
        again = StandInFile(tmp_path / "file").find(payload)
        assert again is not None and not torch.equal(again([x])[0], kept([x])[0])


def test_what_the_program_has_is_not_in_the_file(
    both: dict[str, StandIn], tmp_path: Path
) -> None:
    data = weight_of(both[ONE]).detach().numpy().tobytes()
    digest = hashlib.sha256(data).hexdigest()
    stored = {digest: SimpleNamespace(file_bytes=memoryview(bytearray(data)))}
    write(tmp_path / "file", both, stored)
    assert not any(name.endswith(".weight") for name in names(tmp_path / "file"))
    found = StandInFile(tmp_path / "file", stored).find(ONE)
    assert found is not None
    x = torch.randn(1, WIDTH)
    assert torch.equal(found([x])[0], both[ONE]([x])[0])
    with pytest.raises(ValueError, match="neither in it nor in the program's data"):
        StandInFile(tmp_path / "file").find(ONE)
    stored[digest].file_bytes[0] ^= 1
    with pytest.raises(ValueError, match="isn't what was written"):
        StandInFile(tmp_path / "file", stored).find(ONE)


def test_an_instance_shares_what_is_not_written(both: dict[str, StandIn]) -> None:
    instance = both[ONE].instance()
    assert instance is not both[ONE]
    assert weight_of(instance).data_ptr() == weight_of(both[ONE]).data_ptr()


def test_a_damaged_weight(both: dict[str, StandIn], tmp_path: Path) -> None:
    path = tmp_path / "file"
    write(path, both)
    data = bytearray(path.read_bytes())
    data[data.index(weight_of(both[ONE]).detach().numpy().tobytes()) + 5] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="is damaged: .*isn't what was written"):
        StandInFile(path).find(ONE)
