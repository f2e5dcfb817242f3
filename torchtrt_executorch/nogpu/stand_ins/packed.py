"""Stand-in weights that the program stores in another form: int4 with two values in a byte, or channels-last."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import torch
from torch.export import ExportedProgram

from torchtrt_executorch.digests import digest_of

CHANNELS_LAST = "channels_last"
_BITS = (1, 2, 4)
_ROWS = 1 << 22  # values that are unpacked at once


def find_packed(
    program: ExportedProgram,
    weights: Mapping[str, torch.Tensor],
    stored: Collection[str],
) -> dict[str, list[Any]]:
    """Return how a program's data has those of ``weights`` that it has packed.

    Args:
        program: A partition of ``CudaBackend``'s, or any other.
        weights: Of the program, by name.
        stored: The digests of what is in the data.

    Returns:
        By name bits, group, least value, and the digest of the packed bytes; or :data:`CHANNELS_LAST` and that of the bytes
        in this order.
    """
    if not stored:
        return {}
    packed: dict[str, list[Any]] = {}
    for name, tensor in weights.items():
        if tensor.ndim == 4 and tensor.is_floating_point():
            digest = digest_of(tensor.detach().permute(0, 2, 3, 1).contiguous()).hex()
            if digest in stored:
                packed[name] = [CHANNELS_LAST, digest]
    integers = {n for n, t in weights.items() if t.dtype in (torch.int8, torch.uint8)}
    if not integers:
        return packed
    try:
        from executorch.backends.cuda.quantized.pack_weights import packings
    except ImportError:  # of no CUDA backend, or one that packs nothing
        return packed
    for name, packing in packings(program).items():
        if name not in integers:
            continue
        data = packing.pack(weights[name]).numpy().data
        digest = hashlib.sha256(data).hexdigest()
        if digest in stored:
            packed[name] = [packing.bits, packing.group, packing.quant_min, digest]
    return packed


def unpack(
    packed: list[Any],
    dtype: torch.dtype,
    sizes: list[int],
    read: Callable[[str], memoryview],
) -> memoryview:
    """Return the bytes of a weight of ``sizes`` that is stored in another form.

    Args:
        packed: As :func:`find_packed` describes it.
        dtype: Of the weight.
        sizes: Its rows and columns; of images, all four.
        read: Returns stored bytes by their digest.

    Raises:
        ValueError: ``packed`` says nothing of the kind, or other bytes are stored.
    """
    if packed[0] == CHANNELS_LAST:
        _, digest = packed
        outputs, channels, *window = sizes
        size = math.prod(sizes) * dtype.itemsize
        if len(data := read(digest)) != size or len(window) != 2:
            raise ValueError(f"{len(data)} bytes for {sizes} of {dtype}")
        # As bytes: no alignment is asked of them.
        stored = torch.frombuffer(data, dtype=torch.uint8)
        images = stored.view(outputs, *window, channels, dtype.itemsize)
        ordered = images.permute(0, 3, 1, 2, 4).contiguous()
        return ordered.numpy().data.cast("B")
    bits, group, quant_min, digest = packed
    rows, columns = sizes
    integers = bits, group, quant_min, rows, columns
    if not all(isinstance(integer, int) for integer in integers) or bits not in _BITS:
        raise ValueError(f"no packing: {packed}")
    parts = 8 // bits
    if min(group, rows, columns) < 1 or group % parts or columns % group:
        raise ValueError(f"a group of {group} in {columns} columns of {bits} bits")
    data = read(digest)
    if len(data) * parts != rows * columns:
        raise ValueError(f"{len(data)} bytes for {rows} rows of {columns}")
    stored = torch.frombuffer(data, dtype=torch.uint8).view(rows, columns // parts)
    values = torch.empty(rows, columns, dtype=torch.uint8)
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8).view(parts, 1)
    count = max(1, _ROWS // columns)
    for some, into in zip(
        torch.split(stored, count), torch.split(values, count), strict=True
    ):
        groups = some.reshape(len(some), -1, 1, group // parts)
        single = (groups >> shifts) & ((1 << bits) - 1)
        into.copy_(single.reshape(into.shape) + quant_min % 256)  # modulo 256
    return values.numpy().data.cast("B")
