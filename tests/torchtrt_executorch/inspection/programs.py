"""Real ``.pte`` files of small models, by the name of what is to be seen in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch
import torch_tensorrt
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from executorch.exir.lowered_backend_module import LoweredBackendModule
from torch import Tensor, nn
from torch.export import export

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime.reading.files import read_program

from ...loading import load_benchmark

#: Its partitioner makes each addition a delegate on a device.
bench = load_benchmark("propagate_device_pass")
repeated = load_benchmark("inspection").repeated


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor, y: Tensor) -> Any:
        return self.function(x, y)


def two_gpus(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Four additions, on cuda:0 and cuda:1 in turn, with kernels of the host between them."""
    a = x + y
    c = torch.sigmoid(a) + x
    d = torch.relu(c) * 2
    return d + a + y, d


def there_and_back(x: Tensor, y: Tensor) -> Tensor:
    """An addition's result goes through one kernel of the host to the next addition."""
    return torch.sigmoid(x + y) + y


def straight(x: Tensor, y: Tensor) -> Tensor:
    return ((x + y) + y) + y


def pte(
    function: Callable[..., Any],
    devices: Sequence[str | None] = ("cuda:0",),
    size: int = 16,
    engine: bytes | None = None,
    backend: str = "TensorRTBackend",
    **config: Any,
) -> bytes:
    """The program of a function of two matrices whose additions are delegates on ``devices``.

    With ``engine`` they are ``backend``'s, and that is the payload of each.
    """
    known = {field.name for field in fields(ExecutorchBackendConfig)}
    if lacking := set(config) - known:
        pytest.skip(f"this executorch has no {', '.join(lacking)}")
    inputs = torch.randn(size, size), torch.randn(size, size)
    edge = to_edge(
        export(Function(function), inputs),
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    ).to_backend(
        bench.EachAlone((bench.EDGE.add.Tensor,), devices, own_constants=False)
    )
    for lowered in edge.exported_program().graph_module.children():
        if engine is not None and isinstance(lowered, LoweredBackendModule):
            lowered._backend_id, lowered._processed_bytes = backend, engine
    return bytes(edge.to_executorch(ExecutorchBackendConfig(**config)).buffer)


@cache
def planned() -> bytes:
    """On two GPUs, each with planned memory."""
    devices = ("cuda:0", "cuda:1")
    return pte(two_gpus, devices, enable_non_cpu_memory_planning=True)


@cache
def unplanned() -> bytes:
    """The same with all memory on the host: delegates stage for themselves."""
    devices = ("cuda:0", "cuda:1")
    return pte(two_gpus, devices, enable_non_cpu_memory_planning=False)


@cache
def emulated() -> bytes:
    """An emulated engine, and a kernel of the host."""

    class Above(nn.Module):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
            a = torch.relu(x) * 2
            return torch.sin(a) * 3, torch.nonzero(a > 1)

    return _compiled(Above())


@cache
def engine_blob() -> bytes:
    """The blob of a delegate of :func:`emulated`."""
    file = read_program(emulated())
    return bytes(file.delegate_blob(file.program.execution_plan[0].delegates[0]))


def _compiled(model: nn.Module) -> bytes:
    x = torch.randn(4, 8)
    with emulated_engines():
        compiled = torch_tensorrt.compile(
            model.eval(),
            ir="dynamo",
            arg_inputs=[x],
            min_block_size=1,
            use_fast_partitioner=True,
            target_executorch=True,
        )
    edge = torch_tensorrt.executorch.export(compiled, arg_inputs=[x])
    return bytes(edge.to_executorch().buffer)
