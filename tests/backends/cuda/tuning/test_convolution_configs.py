"""Inductor offers smaller tiles for convolutions than its own, and those that are fastest are taken."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.cuda.tuning import convolution_configs, tile_selection
from executorch.backends.cuda.tuning.cost_model import Tile
from torch._inductor.runtime.triton_heuristics import CachingAutotuner

from ..conftest import needs_compilers, without_gpu

pytestmark = [pytest.mark.builds, needs_compilers, without_gpu]


@pytest.fixture
def tiles(monkeypatch) -> set[Tile]:
    """Those of the convolutions that are compiled."""
    found: set[Tile] = set()
    compile_kernel = CachingAutotuner._precompile_config

    def noted(kernel, config):
        if "KERNEL_W" in kernel.fn.src:
            m, n, k = tile_selection.block_sizes_in(kernel.fn.src)
            found.add(Tile(m, n, k, config.num_stages, config.num_warps))
        return compile_kernel(kernel, config)

    monkeypatch.setattr(CachingAutotuner, "_precompile_config", noted)
    return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_a_convolution_of_few_pixels_has_as_many_tiles_as_there_are_multiprocessors(
    dtype: torch.dtype, lower, tiles
) -> None:
    """Of 196 pixels by 256 channels: Inductor's smallest tile, (64, 64), makes 16 for 132 multiprocessors."""
    model = torch.nn.Conv2d(256, 256, 3, padding=1).to(dtype)
    image = torch.ones(1, 256, 14, 14, dtype=dtype)
    lower(model, (image,), gpu="sm_90:80GiB")
    (tile,) = tiles
    assert tile in convolution_configs.TILES
    assert tile.m * tile.n <= 64 * 32 and tile.warps == 4


def test_before_tensor_cores_inductor_s_own_are_offered(lower, tiles) -> None:
    model = torch.nn.Conv2d(256, 256, 3, padding=1).half()
    lower(model, (torch.ones(1, 256, 14, 14).half(),), gpu="sm_75:8GiB")
    assert tiles and not tiles & {*convolution_configs.TILES}


@pytest.mark.parametrize("gpu", ["sm_80:16GiB", "sm_86:8GiB", "sm_120:24GiB"])
def test_none_is_taken_for_which_there_is_no_shared_memory(
    gpu: str, lower, tiles, caplog
) -> None:
    """8.6 and 12.0 have 99 KiB for a block, and the largest tile takes 120."""
    model = torch.nn.Conv2d(256, 256, 3, padding=1).half()
    with caplog.at_level("INFO", logger=tile_selection.logger.name):
        lower(model, (torch.ones(8, 256, 28, 28).half(),), gpu=gpu)
    assert tiles and "doesn't compile" not in caplog.text
