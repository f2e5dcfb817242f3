"""Engines and libraries from the cache are those that were built, with the stand-ins for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_tensorrt

from torchtrt_executorch import cache
from torchtrt_executorch.cache.libraries import kept_library
from torchtrt_executorch.nogpu import stand_ins
from torchtrt_executorch.nogpu.builder.installed import TENSORRT_RTX, installed_builder

X = torch.randn(2, 8)
real_engines = pytest.mark.skipif(
    installed_builder() is not TENSORRT_RTX or torch.cuda.is_available(),
    reason="needs torch-tensorrt-rtx, and a host without a GPU",
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(cache.SWITCH, str(tmp_path / "kept"))
    return tmp_path / "kept" / "built"


class Model(torch.nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def compiled(model: torch.nn.Module, **settings: Any) -> Any:
    sizes = {"min_shape": (1, 8), "opt_shape": (2, 8), "max_shape": (4, 8)}
    rows = torch_tensorrt.Input(**sizes, dtype=torch.float32)
    return torch_tensorrt.compile(
        model.eval(), ir="dynamo", arg_inputs=[rows], min_block_size=1, **settings
    )


def engine(module: Any) -> bytes:
    every = (getattr(each, "serialized_engine", None) for each in module.modules())
    (found,) = filter(None, every)
    return bytes(found)


@real_engines
def test_an_engine_is_built_once(
    folder: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Model()
    first = compiled(model)
    (entry,) = folder.iterdir()
    stand_ins.forget()
    with caplog.at_level("INFO", "torchtrt_executorch.progress"):
        second = compiled(model)
    assert "the engine: taken from" in caplog.text
    assert engine(first) == engine(second)
    assert stand_ins.find(stand_ins.digest(engine(second))) is not None
    torch.testing.assert_close(second(X), model(X))
    for other in (compiled(Model(1)), compiled(model, optimization_level=0)):
        torch.testing.assert_close(other(X).shape, model(X).shape)
    assert len([*folder.iterdir()]) == 3

    entry.write_bytes(entry.read_bytes()[:-1])
    third = compiled(model)
    torch.testing.assert_close(third(X), model(X))
    assert "is damaged" in caplog.text and len([*folder.iterdir()]) == 3
    monkeypatch.setenv(cache.SWITCH, "0")
    compiled(Model(2))
    assert len([*folder.iterdir()]) == 3


@real_engines
def test_what_converts_otherwise_is_not_taken(folder: Path) -> None:
    """A converter that somebody has registered is not in the key."""
    from ... import fresh  # which this file, run by itself, couldn't import

    code = """
import torch, torch_tensorrt, runpy
from torch_tensorrt.dynamo.conversion import ConverterPriority, dynamo_tensorrt_converter
state = runpy.run_path(FILE)
state["compiled"](state["Model"]())
@dynamo_tensorrt_converter(torch.ops.aten.relu.default, priority=ConverterPriority.HIGH)
def relu(ctx, target, args, kwargs, name):
    return ctx.net.add_identity(args[0]).get_output(0)
state["compiled"](state["Model"]())
""".replace("FILE", repr(__file__))
    done = fresh.run(code, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
    assert "taken from" not in done.stderr
    assert len([*folder.iterdir()]) == 1


def test_a_library_comes_back_as_it_was(folder: Path) -> None:
    """Its result, whatever has compiled it: names, files, alignments and bytes."""
    from executorch.exir._serialize._named_data_store import NamedDataStore
    from executorch.exir.backend.backend_details import CompileSpec, PreprocessResult

    built = []

    def build() -> PreprocessResult:
        store = NamedDataStore()
        store.add_named_data("library", b"\x7fELF" * 100, alignment=64)
        store.add_named_data("weights", bytes(range(256)), 256, "weights.ptd")
        data = store.get_named_data_store_output()
        built.append(PreprocessResult(b"library\nweights", None, data))
        return built[-1]

    program = torch.export.export(Model().eval(), (X,))
    specs = [CompileSpec("method_name", b"forward")]
    results = [kept_library(program, specs, None, build) for _ in range(2)]
    assert len(built) == 1 and results[0] == results[1] == built[0]
    kept_library(program, [CompileSpec("method_name", b"other")], None, build)
    kept_library(program, specs, "sm_90", build)
    assert len(built) == 3
