"""Builds that GPUs share which differ in memory alone, and those that ask for its size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.cuda.tuning.gpu_properties import common_properties

from torchtrt_executorch import cache
from torchtrt_executorch.cache import keys
from torchtrt_executorch.cache.any_memory import get_or_build_for_any_memory
from torchtrt_executorch.nogpu.cross import toolchain
from torchtrt_executorch.nogpu.cuda_backend import DRIVER
from torchtrt_executorch.nogpu.inductor.target_device import target_device_scope
from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription

from ...backends.cuda.conftest import needs_compilers

pytestmark = needs_compilers


def built(text: str, asks: bool) -> int:
    """Return how many bytes the GPU had that it was built for."""
    gpu = common_properties(GpuDescription.parse_list(text))

    def build() -> int:
        with target_device_scope(gpu, toolchain.find(DRIVER.build, None)):
            free = torch.cuda.mem_get_info()[0] if asks else 0
        assert free in (0, gpu.total_memory)
        return gpu.total_memory

    found: int = get_or_build_for_any_memory(
        "it",
        lambda properties: keys.key_for_gpu("it", asks, repr(properties)),
        gpu,
        build,
        lambda size: (size, []),
        lambda size, parts: size,
    )
    return found


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cache.SWITCH, str(tmp_path))


def test_gpus_of_any_memory_share_what_did_not_ask_for_it() -> None:
    first, second = "linux-x86_64:sm_87:16GiB", "linux-x86_64:sm_87:64GiB"
    for gpu in (first, second, first):
        assert built(gpu, False) == 16 << 30


@pytest.mark.parametrize("order", [(16, 64), (64, 16)])
def test_what_asked_is_each_one_s_own(order: Any) -> None:
    for size in (*order, *order):
        assert built(f"linux-x86_64:sm_87:{size}GiB", True) == size << 30


def test_capabilities_and_machines_share_nothing() -> None:
    assert built("linux-x86_64:sm_87:16GiB", False) == 16 << 30
    assert built("linux-x86_64:sm_80:80GiB", False) == 80 << 30
    assert built("linux-aarch64:sm_87:32GiB", False) == 32 << 30
    assert built("linux-x86_64:sm_80:40GiB,sm_90:80GiB", False) == 40 << 30
    assert built("linux-x86_64:sm_80:48GiB,sm_90:60GiB", False) == 40 << 30
