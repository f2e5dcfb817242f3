"""Answer Torch-TensorRT's CUDA queries from the GPU description, where there is no device.

Torch-TensorRT asks PyTorch for the current device, its capability and its memory while it is
imported and while it compiles. Only its own modules get an answer: in each of them the name
``torch`` becomes :func:`described_torch`, whose ``cuda`` answers, and ``torch.cuda`` itself stays as it is.

Nothing can be moved to a device that isn't there, so the one function through which upstream
decides where models and inputs go answers the CPU.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from types import ModuleType
from typing import Any
from unittest import mock

import torch
import wrapt

from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.target.gpu_description import (
    GpuDescription,
    configured_gpu,
)


class _TargetCuda(wrapt.ObjectProxy):  # type: ignore[misc]
    """``torch.cuda`` that answers queries for a described GPU.

    Every device index is such a GPU: a program may place engines on several. ``is_available``
    keeps saying that none is there.
    """

    def __init__(self) -> None:
        super().__init__(torch.cuda)

    def current_device(self) -> int:
        return 0

    def get_device_capability(self, device: Any = None) -> tuple[int, int]:
        return configured_gpu().capability

    def get_device_properties(self, device: Any = None) -> GpuDescription:
        return configured_gpu()

    def mem_get_info(self, device: Any = None) -> tuple[int, int]:
        total = configured_gpu().total_memory
        return total, total

    def default_stream(self, device: Any = None) -> torch.Stream:
        return torch.Stream(device="cpu")


class _TargetTorch(wrapt.ObjectProxy):  # type: ignore[misc]
    """``torch`` with :class:`_TargetCuda`, and ``torch.device(0)`` as on a CUDA host."""

    def __init__(self) -> None:
        super().__init__(torch)
        self._self_cuda = _TargetCuda()
        self._self_device = wrapt.FunctionWrapper(torch.device, _cuda_by_index)

    @property
    def cuda(self) -> _TargetCuda:
        return self._self_cuda

    @property
    def device(self) -> wrapt.FunctionWrapper:
        # A wrapper rather than a function: upstream also uses the name in isinstance().
        return self._self_device


def _cuda_by_index(
    device: Any, _instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    match args:
        case (int(index),):
            return device("cuda", index)
    return device(*args, **kwargs)


@functools.cache
def described_torch() -> Any:
    """Return ``torch`` as upstream's modules have it: its CUDA queries are answered for the described GPU.

    It is ``torch`` itself where there is a CUDA device.
    """
    return torch if present.cuda_device() else _TargetTorch()


@contextlib.contextmanager
def device_properties_name(utils: ModuleType) -> Iterator[None]:
    """Scope of ``torch_tensorrt.runtime._utils``, which names ``_CudaDeviceProperties``.

    A CPU build of PyTorch has no such class, and the annotations are evaluated as functions
    are defined. The name is gone again afterwards: others test for it.
    """
    name, known = "_CudaDeviceProperties", torch._C
    there = getattr(known, name, GpuDescription)
    with mock.patch.object(known, name, there, create=True):
        yield


@contextlib.contextmanager
def nccl_plugin_unsupported(utils: ModuleType) -> Iterator[None]:
    """Scope of ``torch_tensorrt._utils``: a host without a GPU has no use for the NCCL plugin.

    Upstream comes to the same answer, over an error that asks for PyTorch to be reinstalled
    with CUDA.
    """
    yield
    if not present.cuda_device():
        utils.is_platform_supported_for_trtllm = lambda: False  # type: ignore[attr-defined]
