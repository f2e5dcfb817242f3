"""The target of CUDA delegates where there is a GPU: the one that is here, unless a partitioner names another."""

from __future__ import annotations

import importlib.util
import shutil
from pathlib import Path

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec

from torchtrt_executorch.inspection.model.reading import read
from torchtrt_executorch.runtime import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs an NVIDIA GPU"),
    pytest.mark.skipif(
        not (importlib.util.find_spec("triton") and shutil.which("g++")),
        reason="CUDA delegates are compiled by Triton and g++: pip install torchtrt-executorch[cuda]",
    ),
]

X = torch.linspace(-1, 1, 8).reshape(2, 4)


class Model(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.sigmoid(x) * 2


def here() -> str:
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def another() -> str:
    return "sm_86" if here() != "sm_86" else "sm_80"


def lower(file: Path, *targets: str) -> list[str]:
    """Write a program with a partitioner per target, none for ``""``; return what its delegate runs on."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    name = CudaBackend.generate_method_name_compile_spec("forward")
    partitioners = [
        CudaPartitioner([name, *([CompileSpec("gpu", each.encode())] if each else [])])
        for each in targets
    ]
    program = torch.export.export(Model(), (X,))
    edge = to_edge_transform_and_lower(program, partitioner=partitioners)
    edge.to_executorch().save(str(file))
    (method,) = read(str(file)).methods
    (delegate,) = method.delegates
    return [*delegate.gpus]


@pytest.mark.parametrize("variable", ["", "sm_75:8GiB"])
def test_by_default_it_is_the_gpu_that_is_here(
    tmp_path: Path, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``TORCHTRT_GPU`` describes the GPU of a machine that has none."""
    monkeypatch.setenv("TORCHTRT_GPU", variable)
    file = tmp_path / "model.pte"
    assert here() in lower(file, "")
    (found,) = load(file).run(X)
    torch.testing.assert_close(found.cpu(), Model()(X))


@pytest.mark.parametrize("partitioners", [1, 2])
def test_another_is_compiled_for_if_a_partitioner_names_it(
    tmp_path: Path, partitioners: int
) -> None:
    """By one that names it; and by one that doesn't, beside another that does."""
    targets = ["", f"{another()}:24GiB"][-partitioners:]
    found = lower(tmp_path / "model.pte", *targets)
    assert another() in found
    assert here() not in found


def test_two_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="are two targets") as raised:
        lower(tmp_path / "model.pte", f"{here()}:24GiB", f"{another()}:24GiB")
    assert here() in str(raised.value)
    assert another() in str(raised.value)
