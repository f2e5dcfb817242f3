"""Delegates of another release than the one that is installed."""

from __future__ import annotations

from typing import Any
from unittest import mock

from executorch.exir.passes.streams import device_order

#: Torch-TensorRT's, whose delegates are on streams of their own, and on ExecuTorch's.
DELEGATE_RELEASES = ("2.13.0", "2.14.0")


def own_streams() -> bool:
    """Whether engines are on streams that ExecuTorch knows nothing of, and may be left running there."""
    return device_order.release_of(device_order.TORCH_TENSORRT) < "2.14"


def delegates_of(release: str) -> Any:
    """Scope in which programs are emitted, and judged, for a release of Torch-TensorRT's delegate."""
    installed = device_order.release_of

    def release_of(package: str) -> str:
        return release if package == device_order.TORCH_TENSORRT else installed(package)

    return mock.patch.object(device_order, "release_of", release_of)
