"""Programs lowered by the real ``CudaBackend``, on whatever host this is."""

from __future__ import annotations

import copy
import importlib.util
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Iterator

import pytest
import torch
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch.export import export

from torchtrt_executorch.nogpu.target.gpu_description import own_platform
from torchtrt_executorch.payloads import cuda_payload

from ...lowering import cuda_partitioner
from ...lowering import delegates as all_delegates

needs_compilers = pytest.mark.skipif(
    not (importlib.util.find_spec("triton") and shutil.which("g++")),
    reason="CUDA delegates are compiled by Triton and g++: pip install torchtrt-executorch[cuda]",
)
needs_recorder = pytest.mark.skipif(
    own_platform() != "linux-x86_64", reason="the recorder is compiled for Linux here"
)

without_gpu = pytest.mark.skipif(
    torch.cuda.is_available(), reason="this host has a GPU"
)


def compiles_delegates(test: Callable[..., None]) -> Any:
    """Mark a test that compiles delegates without a GPU."""
    return pytest.mark.builds(needs_compilers(without_gpu(test)))


@dataclass(frozen=True)
class Delegate:
    """A CUDA delegate: its module, its library (ELF) and its weights, in bytes."""

    module: LoweredBackendModule
    library: bytes
    weights: bytes


def delegates(manager: EdgeProgramManager, method: str = "forward") -> list[Delegate]:
    """Return the CUDA delegates of a method, in the order in which they run."""
    found = []
    for module in all_delegates(manager, method):
        if module.backend_id == "CudaBackend":
            store = module.named_data_store_output
            entries = dict(store.pte_data)
            for external in store.external_data.values():
                entries.update(external)
            keys = cuda_payload.read(module.processed_bytes).keys
            files = [_bytes(store.buffers[entries[key].buffer_index]) for key in keys]
            found.append(Delegate(module, files[0], b"".join(files[1:])))
    return found


def _bytes(data: Any) -> bytes:
    """From executorch 1.5 on weights are in files."""
    return data.to_bytes() if hasattr(data, "to_bytes") else bytes(data)


@pytest.fixture(scope="session")
def lower() -> Callable[..., EdgeProgramManager]:
    """Lower a module as users do, with more compile specs if there are any."""

    def lower(
        module: torch.nn.Module,
        inputs: tuple[Any, ...],
        dynamic_shapes: Any = None,
        **specs: str,
    ) -> EdgeProgramManager:
        program = export(
            copy.deepcopy(module).eval(), inputs, dynamic_shapes=dynamic_shapes
        )
        partitioners = [cuda_partitioner(**specs)]
        return to_edge_transform_and_lower(program, partitioner=partitioners)

    return lower


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the files that compilers are started with, in their order."""
    names: list[str] = []
    start = subprocess.Popen.__init__

    def noted(self: Any, args: Any, *others: Any, **kwargs: Any) -> None:
        words = [args] if isinstance(args, str) else [str(each) for each in args]
        names.extend(Path(each).name for each in words if each.endswith(".cpp"))
        start(self, args, *others, **kwargs)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    return names


@pytest.fixture
def ask_precision() -> Iterator[Callable[..., None]]:
    """Ask PyTorch for a precision of float32 matmuls, and of convolutions, for this test."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.fp32_precision

    def ask(of_matmul: str, of_convolution: str = "tf32") -> None:
        matmul.fp32_precision = of_matmul
        # Of cuDNN's convolutions alone torch.export refuses it: recurrent networks have to agree. IEEE arithmetic is
        # asked of all that CUDA computes, but for what is asked of matmuls.
        cudnn.allow_tf32 = of_convolution == "tf32"
        cudnn.fp32_precision = "ieee" if of_convolution == "ieee" else "none"

    yield ask
    ask(before)
