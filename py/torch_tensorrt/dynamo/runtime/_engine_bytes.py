"""Bytes of a serialized engine, in each form that programs carry them."""

from __future__ import annotations

import binascii
from typing import Any

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
