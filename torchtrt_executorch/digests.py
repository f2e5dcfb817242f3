"""Digests of tensors, cached until the tensor is written."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.weak import WeakIdKeyDictionary

if TYPE_CHECKING:
    from torch.export import ExportedProgram

_known: Any = WeakIdKeyDictionary()


def digest_of(tensor: torch.Tensor) -> bytes:
    """Return the sha256 of a tensor's elements in their order."""
    if is_whole(tensor) and (digest_storage := _digest_of_storage()) is not None:
        return digest_storage(tensor)  # which is known to what writes the storage
    version = None if tensor.is_inference() else tensor._version
    known, digest = _known.get(tensor, (None, b""))
    if known is None or known != version:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        digest = hashlib.sha256(data.numpy()).digest()  # type: ignore[arg-type]
        _known[tensor] = version, digest
    return bytes(digest)


@functools.cache
def _digest_of_storage() -> Callable[[torch.Tensor], bytes] | None:
    try:
        from executorch.exir._serialize._mapped_data import digest
    except ImportError:
        return None
    return digest


def is_whole(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements, in their order, are all that is in its storage, on the host."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and tensor.is_contiguous()
        and tensor.untyped_storage().nbytes() == tensor.nbytes
    )


def large_tensors(program: ExportedProgram, min_bytes: int) -> dict[str, torch.Tensor]:
    """Return the whole tensors of a program that take ``min_bytes`` bytes or more, by name."""
    tensors = {**program.state_dict, **program.constants}
    return {
        name: tensor
        for name, tensor in tensors.items()
        if isinstance(tensor, torch.Tensor)
        and tensor.nbytes >= min_bytes
        and is_whole(tensor)
    }
