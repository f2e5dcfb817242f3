"""Large weights of cached CUDA libraries: those of the partition aren't kept, and no other is read into memory."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.exir._serialize import _cord
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir.backend.backend_details import PreprocessResult

from torchtrt_executorch import cache
from torchtrt_executorch.cache.libraries import kept_library

pytestmark = pytest.mark.skipif(
    not hasattr(_cord, "FileBackedData"),
    reason="this executorch has no data in files",
)
WIDTH = 1024


def bytes_of(data: Any) -> bytes:
    stream = io.BytesIO()
    data.write_to_file(stream)
    return stream.getvalue()


def test_the_partition_s_weights_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from executorch.exir._serialize._mapped_data import in_file

    monkeypatch.setenv(cache.SWITCH, str(tmp_path / "kept"))
    torch.manual_seed(0)
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False).eval()
    packed = torch.randint(0, 256, (WIDTH, WIDTH + 1), dtype=torch.uint8)
    built: list[PreprocessResult] = []

    def build() -> PreprocessResult:
        store = NamedDataStore()
        store.add_named_data("library", b"\x7fELF" * 100)
        for name, tensor in (("weight", model.weight.detach()), ("packed", packed)):
            store.add_named_data(name, in_file(tensor), 1, "weights")
        result = PreprocessResult(b"x", None, store.get_named_data_store_output())
        built.append(result)
        return result

    program = torch.export.export(model, (torch.ones(1, WIDTH),))
    kept_library(program, [], None, build)
    found = kept_library(program, [], None, build)
    assert len(built) == 1
    files = (tmp_path / "kept" / "built").iterdir()
    entry, part = sorted(file.stat().st_size for file in files)
    assert entry < 4096 and part == packed.nbytes
    before, after = built[0].data_store_output, found.data_store_output
    assert before is not None and after is not None
    assert before.external_data == after.external_data
    for one, other in zip(before.buffers, after.buffers, strict=True):
        data = one if isinstance(one, bytes) else bytes_of(one)
        assert data == (other if isinstance(other, bytes) else bytes_of(other))
    large = [each for each in after.buffers if not isinstance(each, bytes)]
    assert len(large) == 2
    for each in large:
        assert each.sha256() == hashlib.sha256(bytes_of(each)).digest()

    with torch.no_grad():
        model.weight.add_(1)  # another partition
    kept_library(program, [], None, build)
    assert len(built) == 2
