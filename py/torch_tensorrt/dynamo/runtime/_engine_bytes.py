"""Bytes of a serialized engine, in each form that programs carry them."""

from __future__ import annotations

import binascii
import ctypes
from typing import Any

import numpy
import torch
from torch._subclasses.fake_tensor import is_fake


def engine_bytes(payload: Any) -> bytes | bytearray | memoryview:
    """Return the bytes of a serialized engine, without a copy wherever that can be.

    Args:
        payload: A tensor of any shape and dtype, a buffer, or base64 text. Text is decoded and
            a tensor on a GPU is fetched; of anything else a view is returned.

    Raises:
        RuntimeError: There are no bytes: a fake tensor, an empty engine, or text that isn't
            base64.
    """
    if isinstance(payload, torch.Tensor):
        if is_fake(payload) or payload.is_meta:
            raise RuntimeError("the engine is a fake tensor, without its bytes")
        flat = payload.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        payload = memoryview(flat.numpy())  # type: ignore[arg-type]
    elif isinstance(payload, str):
        payload = _decode(payload)
    if not isinstance(payload, (bytes, bytearray, memoryview)):
        raise RuntimeError(
            f"the engine is {type(payload).__name__}, not a tensor, bytes or text"
        )
    if not memoryview(payload).nbytes:
        raise RuntimeError("the engine is empty")
    return payload


def tensor_of(data: bytes | bytearray | memoryview) -> torch.Tensor:
    """Return bytes, which must not be written, as a uint8 tensor of shape (bytes,), which is a view of them."""
    # PyTorch would warn of read-only ones, and warning filters are the whole process's, so it gets their
    # memory, which keeps them.
    read = numpy.frombuffer(data, numpy.uint8)
    memory = (ctypes.c_uint8 * read.size).from_address(read.ctypes.data)
    memory.bytes = read  # type: ignore[attr-defined]
    return torch.frombuffer(memory, dtype=torch.uint8)


def _decode(text: str) -> bytes:
    # base64.b64decode would make a copy of the text first.
    try:
        decoded = binascii.a2b_base64(text)
    except ValueError as error:
        raise RuntimeError(f"the engine is not base64 text: {error}") from None
    if 4 * len(decoded) != 3 * len(text) - 4 * text.count("=", -2):
        raise RuntimeError(
            "the engine is not base64 text: it has other characters in it"
        )
    return decoded
