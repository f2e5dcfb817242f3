"""Register a CUDA device guard for fake CUDA tensors, which CPU builds of PyTorch lack.

Indexing a tensor and tracking its gradient ask the guard of its device, also for a fake tensor. In a
CUDA build without a device PyTorch puts one there that does nothing, when a fake mode is entered
(``torch._C._ensureCUDADeviceGuardSet``). A CPU build only has that kind for meta tensors, so this
lends it to CUDA's.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from pathlib import Path

import torch

# c10::DeviceType
_CUDA, _META = 1, 14
_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"


@contextlib.contextmanager
def lent_to_cuda() -> Iterator[None]:
    """Scope within which CUDA has a guard, if it had none. Global: only CUDA tensors ask for it."""
    if torch.cuda._is_compiled():
        yield
        return
    guards = _guards()
    before = guards[_CUDA]
    if before is None:
        guards[_CUDA] = guards[_META]
    try:
        yield
    finally:
        guards[_CUDA] = before


def _guards() -> ctypes.Array[ctypes.c_void_p]:
    """``c10::impl::device_guard_impl_registry``: a pointer for each type of device.

    Raises:
        NotImplementedError: The installed PyTorch doesn't export it.
    """
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libc10.so"))
    try:
        return (ctypes.c_void_p * (_META + 1)).in_dll(library, _REGISTRY)
    except ValueError as error:
        raise NotImplementedError(
            f"PyTorch {torch.__version__} doesn't let fake CUDA tensors have a device guard, which "
            "compiling without a GPU takes: use a CUDA build of it"
        ) from error
