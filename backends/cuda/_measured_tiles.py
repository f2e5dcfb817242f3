"""What a matrix product costs in tiles of each size, by times that were measured on a GPU.

``torchtrt-executorch tune`` writes a file of them. Ours are in ``measured/``, one for each compute capability
of which there was a GPU; ``TORCHTRT_TUNED`` names files that go before them. A product takes as long as those
nearby did, by the work: rounds of tiles over the multiprocessors, and the steps of a tile. For a GPU on which
nothing was measured, the nearest capability's times are taken, by rounds over its own multiprocessors.
"""

from __future__ import annotations

import functools
import json
import math
import os
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from executorch.backends.cuda._gpu_properties import (
    GpuProperties,
)

VARIABLE = "TORCHTRT_TUNED"


class Product(NamedTuple):
    """``batch`` sums of ``window`` products of (m, k) by (k, n) matrices.

    A convolution is one: over the pixels of its window, and in as many batches as it has groups. So is
    a sum over rows: ``m`` of them, of length ``k``.

    Attributes:
        kind: ``product``, ``convolution`` or ``sum``, with the type, and ``tf32`` where tensor cores take it.
        aligned: Whether rows begin at multiples of 16 bytes. Others are loaded through registers,
            one element at a time, and not ahead.
    """

    kind: str
    m: int
    n: int
    k: int
    batch: int = 1
    window: int = 1
    aligned: bool = True

    def distance(self, other: Product) -> float:
        """How far apart sizes are, in powers of two."""
        apart = sum(
            abs(math.log2(a / b)) for a, b in zip(self[1:5], other[1:5], strict=True)
        )
        windows = abs(math.log2(self.window / other.window)) / 2
        return apart + windows + 3 * (self.aligned != other.aligned)


class Tile(NamedTuple):
    """What one block computes at a time, (m, n) in steps of ``k``, with what it has for it."""

    m: int
    n: int
    k: int
    stages: int
    warps: int

    def work(self, product: Product, multi_processors: int) -> float:
        """Steps that a multiprocessor takes, one behind the other."""
        tiles = math.ceil(product.m / self.m) * math.ceil(product.n / self.n)
        rounds = max(1.0, tiles * product.batch / multi_processors)
        return rounds * product.window * math.ceil(product.k / self.k)


def cost(product: Product, tile: Tile, gpu: GpuProperties) -> float:
    """Return the logarithm of the microseconds to expect; infinite where nothing is known."""
    file = measured(gpu.capability)
    near = sorted(
        (product.distance(known), us, tile.work(known, file["multi_processors"]))
        for known, times in file["products"]
        if known.kind == product.kind and (us := times.get(tile))
    )[:3]
    weights = [1 / (0.3 + distance) ** 2 for distance, *_ in near]
    work = tile.work(product, gpu.multi_processor_count)
    times = [math.log(us * work / known) for _, us, known in near]
    if not near:
        return math.inf
    mean = sum(w * t for w, t in zip(weights, times, strict=True)) / sum(weights)
    return mean + 0.15 * (3 - len(near))


def fastest(product: Product, gpu: GpuProperties) -> Tile | None:
    """Return the tile to take for a product; None if nothing of its kind was measured."""
    products = measured(gpu.capability)["products"]
    tiles = {
        tile
        for known, times in products
        if known.kind == product.kind
        for tile in times
    }
    return min(sorted(tiles), key=lambda tile: cost(product, tile, gpu), default=None)


def measured(capability: tuple[int, int]) -> dict[str, Any]:
    """Return what was measured on a GPU of a capability, or of the nearest.

    Raises:
        ValueError: ``TORCHTRT_TUNED`` names a file of another kind.
    """
    files = sorted(Path(__file__).with_name("measured").glob("*.json"))
    for name in os.environ.get(VARIABLE, "").split(os.pathsep)[::-1]:
        if name:
            files.insert(0, Path(name))
    found = map(_read, files)
    return min(found, key=lambda file: math.dist(file["capability"], capability))


@functools.cache
def _read(path: Path) -> dict[str, Any]:
    text = path.read_text()
    try:
        file: dict[str, Any] = {"digest": sha256(text.encode()).hexdigest()}
        file |= json.loads(text)
        tiles = [Tile(*each) for each in file["tiles"]]
        file["products"] = [
            (
                Product(*each),
                {tile: us for tile, us in zip(tiles, times, strict=False) if us},
            )
            for each, times in file["products"]
        ]
        math.dist(file["capability"], (0, file["multi_processors"]))
    except (ValueError, KeyError, TypeError) as error:
        why = f"{path} isn't a file of torchtrt-executorch tune ({error!r})"
        raise ValueError(why) from error
    return file
