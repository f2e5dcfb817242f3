"""Real ``.pte`` files of small models, by the name of what is to be seen in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import fields
from functools import cache
from typing import Any

import pytest
import torch
import torch_tensorrt  # noqa: F401  # without it there is no emulated engine
from executorch.exir import EdgeCompileConfig, ExecutorchBackendConfig, to_edge
from torch import Tensor
from torch.export import export

from torchtrt_executorch.runtime.reading.files import read_program

from ...loading import load_benchmark
from ...lowering import Function, delegates, lower_emulated

#: Its partitioner makes each addition a delegate on a device.
bench = load_benchmark("propagate_device_pass")
repeated = load_benchmark("inspection").repeated


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
    payload = None if engine is None else (backend, engine)
    return delegated(Function(function), devices, size, size, payload=payload, **config)


def delegated(
    model: torch.nn.Module,
    devices: Sequence[str | None],
    *sizes: int,
    payload: tuple[str, bytes] | None = None,
    **config: Any,
) -> bytes:
    """The program of a model of square matrices whose additions are delegates on ``devices``."""
    known = {field.name for field in fields(ExecutorchBackendConfig)}
    if lacking := set(config) - known:
        pytest.skip(f"this executorch has no {', '.join(lacking)}")
    inputs = tuple(torch.randn(size, size) for size in sizes)
    unchecked = EdgeCompileConfig(_check_ir_validity=False)
    edge = to_edge(export(model, inputs), compile_config=unchecked)
    additions = (bench.EDGE.add.Tensor,)
    edge = edge.to_backend(bench.EachAlone(additions, devices, own_constants=False))
    for lowered in delegates(edge) if payload else ():
        lowered._backend_id, lowered._processed_bytes = payload
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

    def above(x: Tensor) -> tuple[Tensor, Tensor]:
        a = torch.relu(x) * 2
        return torch.sin(a) * 3, torch.nonzero(a > 1)

    edge = lower_emulated(above, [torch.randn(4, 8)], use_fast_partitioner=True)
    return bytes(edge.to_executorch().buffer)


@cache
def engine_blob() -> bytes:
    """The blob of a delegate of :func:`emulated`."""
    file = read_program(emulated())
    return bytes(file.delegate_blob(file.program.execution_plan[0].delegates[0]))
