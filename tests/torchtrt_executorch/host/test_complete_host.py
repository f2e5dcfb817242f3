"""Where a GPU and TensorRT are both there, nothing is touched."""

from __future__ import annotations

import os
import types

import pytest
import torch

from torchtrt_executorch.host import building, cuda_queries, present, python_only


@pytest.fixture(autouse=True)
def complete(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own predicates, which everything else asks."""
    monkeypatch.setattr(present, "cuda_device", lambda: True)
    monkeypatch.setattr(present, "tensorrt_libraries", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 9))
    monkeypatch.setattr(python_only, "runtime_is_loaded", lambda: True)


@pytest.fixture
def module() -> types.ModuleType:
    """Has every name that an amendment could replace."""
    module = types.ModuleType(next(iter(building.ENTRY_POINTS)))
    names = ["torch", "to_torch_device", "is_platform_supported_for_trtllm"]
    for name in (*names, *building.ENTRY_POINTS[module.__name__]):
        setattr(module, name, torch)
    for name in building.BINDINGS_CLASSES:
        setattr(module, name, type(name, (), {}))
    return module


@pytest.mark.parametrize(
    "amend",
    [
        cuda_queries.apply,
        cuda_queries.apply_to_utils,
        python_only.apply,
    ],
    ids=lambda amend: f"{amend.__module__}.{amend.__name__}",
)
def test_amendments_do_nothing(amend, module: types.ModuleType) -> None:
    before = dict(vars(module))
    amend(module)
    assert vars(module) == before


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
    before = dict(vars(module))
    inits = [getattr(module, name).__init__ for name in building.BINDINGS_CLASSES]
    outside = (
        os.path.isfile,
        torch.library.register_fake,
        torch._library.register_fake_class,
    )
    with scope(module):
        assert outside == (
            os.path.isfile,
            torch.library.register_fake,
            torch._library.register_fake_class,
        )
    assert vars(module) == before
    assert inits == [
        getattr(module, name).__init__ for name in building.BINDINGS_CLASSES
    ]
