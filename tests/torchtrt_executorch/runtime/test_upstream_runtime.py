"""Our files in Torch-TensorRT's own Python runtime, ``torch-tensorrt-executorch-runtime``.

Lane 2.14 has it. Its loader, CPU kernels and XNNPACK run anywhere; its CUDA and TensorRT delegates need a GPU,
and say so.
"""

from __future__ import annotations

import json
import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    to_edge_transform_and_lower,
)

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.overlay.upstream import distribution_release
from torchtrt_executorch.runtime import load

from ... import fresh

RUNTIME = "torch-tensorrt-executorch-runtime"
_RELEASES = distribution_release("torch-tensorrt"), distribution_release("executorch")
pytestmark = pytest.mark.skipif(
    find_spec(RUNTIME.replace("-", "_")) is None,
    reason=f"{RUNTIME} is "
    + (
        "pinned on lane 2.14, but couldn't be installed"
        if _RELEASES == ("2.14.0", "1.4.1")
        else "not installed"
    ),
)

X = torch.linspace(-1, 2, 16).reshape(2, 8)

#: Upstream's loads a program for good, or refuses where there is no GPU; so by the extension under it.
RUN = """
import json, pathlib, sys
import torch, torch_tensorrt  # whose link stubs stand in for TensorRT's libraries
import torch_tensorrt_executorch_runtime
native = torch_tensorrt_executorch_runtime.activate()
data = pathlib.Path({path!r}).read_bytes()  # which it doesn't copy
module = native._load_for_executorch_from_buffer(data)
found = {{"backends": native._get_registered_backend_names(), "methods": sorted(module.method_names())}}
try:
    runs = [module.run_method("forward", (torch.tensor({inputs!r}),)) for _ in range(3)]
    found["outputs"] = [each.tolist() for (each,) in runs]
except RuntimeError as error:
    found["error"] = str(error)
print(json.dumps(found))
"""


def upstreams(edge: EdgeProgramManager, folder: Path) -> dict[str, Any]:
    """Return what upstream's runtime makes of three calls of a program, and ours of the same file."""
    path = folder / "model.pte"
    # Memory that is planned on a GPU it asks the driver for, and ends the process where there is none.
    config = ExecutorchBackendConfig(enable_non_cpu_memory_planning=False)
    edge.to_executorch(config).save(str(path))
    code = RUN.format(path=str(path), inputs=X.tolist())
    done = fresh.run(code, env=dict(os.environ))
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    found["log"] = done.stderr
    program = load(path, emulated_engines=True)
    found["ours"] = [program.run(X)[0] for _ in range(3)]
    return found


class Stateful(torch.nn.Module):
    """Linears for XNNPACK, a branch, and a count that outlives a call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)
        self.register_buffer("count", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        y = torch.cond(x.sum() > 0, torch.sin, torch.cos, (self.linear(x),))
        return y * self.count


def test_a_program_of_xnnpack_and_kernels(tmp_path: Path) -> None:
    torch.manual_seed(0)
    eager = Stateful().eval()
    program = torch.export.export(eager, (X,))
    edge = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    found = upstreams(edge, tmp_path)
    assert found["methods"] == ["forward"]
    with torch.no_grad():
        expected = [eager(X) for _ in range(3)]
    torch.testing.assert_close(torch.tensor(found["outputs"]), torch.stack(expected))
    torch.testing.assert_close(torch.stack(found["ours"]), torch.stack(expected))


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_an_engine_needs_a_gpu(tmp_path: Path) -> None:
    """The program is read; its delegate, which is there, can't be."""
    from torch_tensorrt.executorch import TensorRTPartitioner

    program = torch.export.export(torch.nn.ReLU(), (X,))
    tensorrt = TensorRTPartitioner(compile_settings={"min_block_size": 1})
    with emulated_engines():
        edge = to_edge_transform_and_lower(program, partitioner=[tensorrt])
    found = upstreams(edge, tmp_path)
    assert found["methods"] == ["forward"] and "outputs" not in found
    # Its is_available() asks for a CUDA device: the file isn't at fault, nor is a delegate missing.
    assert "Backend TensorRTBackend is not available" in found["log"]
    assert found["error"].endswith("0x20")  # Error::NotFound
    assert {"CudaBackend", "TensorRTBackend", "XnnpackBackend"} <= {*found["backends"]}
    torch.testing.assert_close(found["ours"][0], X.relu())
