"""What was chosen untimed and doesn't compile is passed over for the next choice."""

from __future__ import annotations

import logging
import math
from collections import Counter, defaultdict
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executorch.backends.cuda.tuning import kernel_configs, tile_selection
from executorch.backends.cuda.tuning.cost_model import Matmul, Tile
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from torchtrt_executorch.nogpu.inductor import fat_binaries
from torchtrt_executorch.payloads import cuda_library

from ..conftest import delegates, needs_compilers, without_gpu

pytestmark = [pytest.mark.builds, needs_compilers, without_gpu]

LOGGER = tile_selection.logger.name


def test_a_tile_that_does_not_fit_is_passed_over(
    lower, monkeypatch, caplog, ask_precision
) -> None:
    """What the GPU has no shared memory for first, and then the smallest, which compile in least time."""
    ask_precision("ieee")
    room = 99 << 10

    def too_large(matmul: Matmul, tile: Tile, gpu: Any) -> float:
        needed = (tile.m + tile.n) * tile.k * 4
        return -math.inf if needed > room else needed

    monkeypatch.setattr(tile_selection, "cost", too_large)
    monkeypatch.setattr(tile_selection, "least_shared_memory", lambda *of: 0)
    with caplog.at_level(logging.INFO, logger=LOGGER):
        edge = lower(
            torch.nn.Linear(256, 256), (torch.ones(256, 256),), gpu="sm_86:8GiB"
        )
    (delegate,) = delegates(edge)
    assert delegate.library.startswith(b"\x7fELF")
    said = [each.message for each in caplog.records if each.name == LOGGER]
    assert said and len(said) == len(set(said))
    assert all("doesn't compile with tiles of (" in each for each in said)


def test_without_another_the_compiler_s_error_is_raised(
    lower, monkeypatch, ask_precision
) -> None:
    """Here none is known to have failed before."""
    ask_precision("ieee")

    def largest(matmul: Matmul, tile: Tile, gpu: Any) -> float:
        return -float((tile.m + tile.n) * tile.k * tile.stages)

    monkeypatch.setattr(tile_selection, "cost", largest)
    monkeypatch.setattr(tile_selection, "least_shared_memory", lambda *of: 0)
    monkeypatch.setattr(tile_selection, "block_sizes", lambda tile: None)
    with pytest.raises(Exception, match="tiles of (.*): out of resource"):
        lower(torch.nn.Linear(256, 256), (torch.ones(256, 256),), gpu="sm_86:8GiB")


@pytest.mark.parametrize(
    ("kind", "tile", "capability", "expected"),
    [
        # What Triton 3.8 took for 8.6 and 9.0, in bfloat16.
        ("product float16", (64, 128, 64, 3, 4), (8, 6), 49_152),
        ("product float16", (64, 64, 128, 5, 4), (9, 0), 131_072),
        ("product float16", (64, 64, 128, 5, 4), (7, 5), 0),
        ("product float32", (64, 64, 32, 5, 4), (9, 0), 0),
        ("convolution float16", (64, 64, 128, 5, 4), (9, 0), 131_072),
        ("convolution float32 tf32", (64, 64, 64, 4, 4), (7, 5), 0),
    ],
)
def test_a_tile_takes_no_less_shared_memory(
    kind: str, tile: tuple[int, ...], capability: tuple[int, int], expected: int
) -> None:
    matmul = Matmul(kind, 128, 4096, 4096)
    found = tile_selection.least_shared_memory(matmul, Tile(*tile), capability, 2)
    assert found == expected
    ragged = matmul._replace(aligned=False)
    assert not tile_selection.least_shared_memory(ragged, Tile(*tile), capability, 2)


class Both(torch.nn.Module):
    """A convolution and a product of what it gives."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(16, 32, 3, padding=1)
        self.product = torch.nn.Linear(32, 64)

    def forward(self, x):
        return self.product(self.convolution(x).relu().permute(0, 2, 3, 1))


def test_a_convolution_that_spills_keeps_its_warps(lower, monkeypatch) -> None:
    """With more of them its loop gives wrong values; a product has twice as many."""
    warps: dict[bool, set[int]] = {}
    compile_kernel = CachingAutotuner._precompile_config

    def noted(kernel, config):
        if "_tem_" in kernel.fn.__name__:
            windowed = "KERNEL_W" in kernel.fn.src
            warps.setdefault(windowed, set()).add(config.num_warps)
        return compile_kernel(kernel, config)

    monkeypatch.setattr(CachingAutotuner, "_precompile_config", noted)
    monkeypatch.setattr(kernel_configs, "FRAME", -1)  # as if each spilled
    lower(Both().half(), (torch.ones(8, 16, 16, 16).half(),), gpu="sm_80:40GiB")
    assert len(warps[True]) == 1 and len(warps[False]) == 2, warps


class Attention(torch.nn.Module):
    """As an encoder's, decomposed: (batch, length, 384) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(384, 1536), torch.nn.Linear(1536, 384)

    def forward(self, x):
        weights = torch.softmax(x @ x.mT, -1)
        return self.down(torch.nn.functional.gelu(self.up(weights @ x)))


def test_each_listed_gpu_has_machine_code_that_does_not_spill(
    lower, monkeypatch
) -> None:
    """Of a kernel for all, or of its own; later GPUs translate what tensor cores compute.

    Triton has none for 7.5, where a tile for tensor cores has kilobytes a thread in memory, and takes less shared memory
    than it does on GPUs that load ahead.
    """
    listed = {75, 86, 90}
    for_unlisted = fat_binaries.for_unlisted

    def as_if_large(*arguments):
        """For a kernel that takes more shared memory where it is translated than where it is machine code."""
        for kernel in for_unlisted(*arguments):
            metadata = kernel.metadata._replace(shared=60 << 10)
            yield SimpleNamespace(metadata=metadata, asm=kernel.asm)

    monkeypatch.setattr(fat_binaries, "for_unlisted", as_if_large)
    x = torch.ones(8, 256, 384).half()
    edge = lower(Attention().half(), (x,), gpu="sm_75:8GiB,sm_86:8GiB,sm_90:80GiB")
    tiled = [
        kernel
        for kernel in cuda_library.kernels(bytes(edge.to_executorch().buffer))
        if "_tem_" in kernel.name
    ]
    served: dict[str, Counter[int]] = defaultdict(Counter)
    for_all: Counter[str] = Counter()
    for kernel in tiled:
        code = {image.gpu for image in kernel.images if not image.is_ptx}
        ptx = {image.gpu for image in kernel.images if image.is_ptx}
        name = kernel.name.rstrip("0123456789")  # which matmuls of one kind share
        if ptx:  # one for all, beside those for a GPU alone
            assert ptx == {75, 86}
            assert kernel.shared == 60 << 10
            for_all[name] += 1
        served[name].update(code)
        frames = [each.frame for image in kernel.images for each in image.kernels]
        assert max(frames) < 512, (kernel.name, frames)
    assert for_all.total() == 4, tiled
    assert served == {
        name: dict.fromkeys(listed, count) for name, count in for_all.items()
    }
