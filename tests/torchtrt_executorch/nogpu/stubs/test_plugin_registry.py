"""The plugin registry where TensorRT's libraries are missing, and upstream's uses of it."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.host.building import TensorRTUnavailableError
from torchtrt_executorch.nogpu.stubs.plugin_registry import PluginRegistry

from ....lowering import compile_emulated

needs_stubs = pytest.mark.skipif(
    present.tensorrt_libraries(), reason="TensorRT's own registry is there"
)


USE = re.compile(r"(?:get_plugin_registry\(\)|\bpl\w*_registry)\.(\w+)", re.IGNORECASE)


def uses_of_registries() -> set[str]:
    """Return what upstream's sources, and those of the bindings, ask of a plugin registry."""
    found: set[str] = set()
    for package in ("torch_tensorrt", "tensorrt", "tensorrt_bindings"):
        for folder in importlib.import_module(package).__path__:
            for file in Path(folder).rglob("*.py"):
                found |= {*USE.findall(file.read_text())}
    return found


@needs_stubs
def test_it_answers_whatever_upstream_asks() -> None:
    import tensorrt

    asked = uses_of_registries()
    assert {"get_creator", "register_creator"} <= asked
    for registry in (
        tensorrt.get_plugin_registry(),
        tensorrt.get_builder_plugin_registry(tensorrt.EngineCapability.STANDARD),
    ):
        for name in asked:
            assert getattr(registry, name) is not None, name


def test_creators_in_python() -> None:
    registry = PluginRegistry(TensorRTUnavailableError)
    creator = SimpleNamespace(name="Add", plugin_version="1")
    assert registry.get_creator("Add", "1", "mine") is None
    assert registry.register_creator(creator, "mine")
    assert not registry.register_creator(SimpleNamespace(**vars(creator)), "mine")
    assert registry.get_creator("Add", "1", "mine") is creator
    assert registry.get_creator("Add", "1") is None
    assert registry.all_creators == registry.all_creators_recursive == [creator]
    assert registry.deregister_creator(creator)
    assert not registry.deregister_creator(creator)
    with pytest.raises(TensorRTUnavailableError):
        registry.load_library("plugins.so")


class Scattered(torch.nn.Module):
    """What adds into places given by indices becomes ``index_put`` with ``accumulate``."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def forward(
        self, x: torch.Tensor, index: torch.Tensor, values: torch.Tensor
    ) -> torch.Tensor:
        x = x.sin()
        if self.kind == "index_put":
            x = x.index_put((index,), values, accumulate=True)
        elif self.kind == "index_add":
            x = x.index_add(0, index, values)
        elif self.kind == "scatter_add":
            x = x.scatter_add(0, index[:, None].expand(-1, x.shape[1]), values)
        else:
            x = x.index_reduce(0, index, values, "amax")
        return x.cos()


@pytest.mark.parametrize(
    "kind", ["index_put", "index_add", "scatter_add", "index_reduce"]
)
def test_adding_into_places_compiles_and_runs(kind: str) -> None:
    inputs = (torch.randn(5, 3), torch.tensor([0, 3, 3, 1]), torch.randn(4, 3))
    compiled = compile_emulated(Scattered(kind), inputs)
    torch.testing.assert_close(compiled(*inputs), Scattered(kind)(*inputs))
