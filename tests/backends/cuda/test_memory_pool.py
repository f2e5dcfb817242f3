"""A library has the memory pool of its device keep what its calls free, unless the host has said how much."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.cuda import _memory_pool

from torchtrt_executorch.nogpu.target.gpu_description import own_platform

from ...torchtrt_executorch.nogpu.cross import cross_machines as machines
from .conftest import delegates, needs_compilers, needs_recorder

#: cudaMemPoolAttrReleaseThreshold, and all there is.
RAISED = f"cudaMemPoolSetAttribute attribute=4 value={2**64 - 1}"


@needs_compilers
@pytest.mark.builds
@needs_recorder
def test_the_threshold_is_raised_once_and_a_host_s_own_is_left(
    lower: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.ones(4, 6)
    (delegate,) = delegates(lower(torch.nn.Hardswish(), (x,), gpu="sm_87:16GiB"))
    inputs = (machines.described((4, 6), torch.float32),)
    loaded = machines.Loaded(delegate.library, delegate.weights, inputs)
    said = machines.recorded(own_platform(), loaded).splitlines()
    assert said.count(RAISED) == 1
    assert said.index(RAISED) < said.index("cudaDeviceGetDefaultMemPool 0") + 3
    launches = [i for i, line in enumerate(said) if line.startswith("cuLaunchKernel")]
    assert launches and said.index(RAISED) < launches[0]
    for own in ("1", str(32 << 20)):
        monkeypatch.setenv("RECORDER_THRESHOLD", own)
        said = machines.recorded(own_platform(), loaded).splitlines()
        assert not [line for line in said if "SetAttribute attribute=4" in line]


def test_a_constructor_of_another_form_is_left() -> None:
    text = "Model::Model(std::string device)\n    : Base(1) {\n}\n"
    assert _memory_pool.raising(text) == text
