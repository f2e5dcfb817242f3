"""Real engines: these tests need TensorRT-RTX, and a host that can't run what it builds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from torchtrt_executorch.nogpu.builder.installed import TENSORRT_RTX, installed_builder


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if installed_builder() is TENSORRT_RTX and not torch.cuda.is_available():
        return
    reason = "needs torch-tensorrt-rtx, and a host without a GPU"
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=reason))
