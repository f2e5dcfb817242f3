"""Quantize a linear's weight by torchao, a block of rows at a time, into a file that is mapped.

torchao quantizes a weight with float32 temporaries of its shape, and stores each low-bit value in a byte of its own.
Schemes with scales per row, or per group of a row, give the same result by blocks of rows. The values are mapped from
a temporary file, so that neither has to fit into memory, and the program's data are written from there.
"""

from __future__ import annotations

import mmap
import tempfile
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

#: Bytes from which on a weight is quantized by blocks, and a part of the result is mapped from a file.
LARGE = 1 << 20
BLOCK = 1 << 22  # elements


def quantize_by_rows(
    linear: nn.Linear, config: Any, dtype: torch.dtype | None = None
) -> None:
    """Quantize the weight of ``linear`` in place, as ``torchao.quantization.quantize_`` does.

    Args:
        linear: Its weight is (rows, features), in floating point. One that is on a GPU, or of less than a megabyte, is
            quantized whole, as is one that the scheme doesn't scale by rows.
        config: torchao's.
        dtype: What it is converted to before, if it isn't of that.

    Raises:
        OSError: There is no room for the values in the folder of temporary files.
    """
    from torchao.quantization import quantize_

    weight = linear.weight.detach()
    if weight.device.type == "cpu" and weight.nbytes >= LARGE:
        quantized = _by_blocks(weight, config, dtype or weight.dtype)
        if quantized is not None:
            linear.weight = nn.Parameter(quantized, requires_grad=False)
            _page_out(weight)
            return
    if dtype is not None:
        linear.weight = nn.Parameter(weight.to(dtype), requires_grad=False)
    quantize_(linear, config)


def _by_blocks(weight: Tensor, config: Any, dtype: torch.dtype) -> Tensor | None:
    """Return ``weight`` quantized by blocks of rows; None if it isn't scaled by rows."""
    rows, features = weight.shape
    step = max(1, BLOCK // features)
    parts: dict[str, _Rows] = {}
    kind, settings = None, None
    for start in range(0, rows, step):
        block = _quantized(weight[start : start + step].to(dtype), config)
        if not hasattr(block, "__tensor_flatten__"):
            return None
        names, attributes = block.__tensor_flatten__()
        if start == 0:
            kind, settings = type(block), attributes
            parts = {name: _Rows(rows, getattr(block, name)) for name in names}
        tensors = {name: getattr(block, name) for name in names}
        by_rows = all(t.shape[:1] == (len(block),) for t in tensors.values())
        # What is scaled as a whole has all rows of a block in its settings.
        if not by_rows or (kind, settings) != (type(block), attributes):
            return None
        if start == 0 and step < rows and _mentions(attributes, len(block)):
            return None
        for name, tensor in tensors.items():
            parts[name].add(tensor)
    whole = {name: part.take() for name, part in parts.items()}
    made: Any = kind
    result: Tensor = made.__tensor_unflatten__(
        whole, settings, weight.shape, weight.stride()
    )
    return result


def _quantized(block: Tensor, config: Any) -> Any:
    from torchao.quantization import quantize_

    part = nn.Linear(block.shape[1], len(block), bias=False, device="meta")
    part.weight = nn.Parameter(block, requires_grad=False)
    quantize_(part, config)
    result = part.weight.detach()
    # torchao has the module refer to itself: what it holds would stay until cycles are collected.
    part.register_parameter("weight", None)
    return result


def _mentions(settings: Any, rows: int) -> bool:
    return rows in settings.get("block_size", ())[:1]


class _Rows:
    """A tensor that is written by blocks of rows, to a file if it is large."""

    def __init__(self, rows: int, block: Tensor) -> None:
        self._shape = rows, *block.shape[1:]
        self._dtype = block.dtype
        self._file: BinaryIO | None = None
        if block.nbytes // len(block) * rows >= LARGE:
            # Closed once all of it is there.
            self._file = tempfile.TemporaryFile(prefix=".quantized_")  # noqa: SIM115
        else:
            # Blocks that stay between temporaries would keep the heap from shrinking.
            self._whole = torch.empty(self._shape, dtype=block.dtype)
        self._written = 0

    def add(self, block: Tensor) -> None:
        if self._file is None:
            self._whole[self._written : self._written + len(block)] = block
            self._written += len(block)
        else:
            self._file.write(block.contiguous().view(torch.uint8).numpy().data)

    def take(self) -> Tensor:
        """Return all rows."""
        if self._file is None:
            return self._whole
        with self._file as file:
            file.flush()
            # Operators that write to it have their own copy.
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        return torch.frombuffer(mapped, dtype=self._dtype).view(self._shape)


def _page_out(weight: Tensor) -> None:
    try:
        from executorch.exir._memory_pages import mapped_files, page_out
    except ImportError:  # the patch that brings it is left out
        return
    page_out(weight, mapped_files())
