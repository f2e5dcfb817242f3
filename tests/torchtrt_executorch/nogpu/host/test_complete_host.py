"""Where a GPU and TensorRT are both there, nothing is touched."""

from __future__ import annotations

import os
import types
from types import SimpleNamespace

import pytest
import torch

from torchtrt_executorch.nogpu.host import (
    building,
    cuda_queries,
    gpu_needed,
    present,
    python_only,
)


@pytest.fixture(autouse=True)
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own predicates, which everything else asks."""
    monkeypatch.setattr(present, "cuda_device", lambda: True)
    monkeypatch.setattr(present, "tensorrt_libraries", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    monkeypatch.setattr(python_only, "runtime_is_loaded", lambda: True)


@pytest.fixture
def module() -> types.ModuleType:
    """Has every name that a scope could replace."""
    module = types.ModuleType("module")
    for name in ("torch", "is_platform_supported_for_trtllm"):
        setattr(module, name, torch)
    for name in building.BINDINGS_CLASSES:
        setattr(module, name, type(name, (), {}))
    return module


def test_what_edits_call_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python_only, "import_module", None)
    python_only.register_fake_kernels()
    cuda_queries.described_torch.cache_clear()
    assert cuda_queries.described_torch() is torch
    cuda_queries.described_torch.cache_clear()
    gpu_needed.check_can_run("nothing")
    gpu_needed.check_can_build_refittable(SimpleNamespace(immutable_weights=False))
    options = {"immutable_weights": False}
    assert gpu_needed.compile_for_refit(dict, {}, **options) == options


@pytest.mark.parametrize(
    "scope",
    [
        building.bindings_without_libraries,
        cuda_queries.nccl_plugin_unsupported,
        python_only.runtime_libraries_hidden,
        python_only.runtime_registrations_skipped,
    ],
    ids=lambda scope: scope.__name__,
)
def test_scopes_do_nothing(scope, module: types.ModuleType) -> None:
    def outside() -> list[object]:
        fakes = torch.library.register_fake, torch._library.register_fake_class
        return [os.path.isfile, *fakes]

    def inside() -> list[object]:
        classes = [getattr(module, name) for name in building.BINDINGS_CLASSES]
        return [dict(vars(module)), [each.__init__ for each in classes]]

    before = outside(), inside()
    with scope(module):
        assert outside() == before[0]
    assert inside() == before[1]
