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
    multi_processors, products = measured(product.kind, gpu.capability)
    near = sorted(
        (product.distance(known), us, tile.work(known, multi_processors))
        for known, times in products
        if (us := times.get(tile))
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
    _, products = measured(product.kind, gpu.capability)
    tiles = {tile for _, times in products for tile in times}
    return min(sorted(tiles), key=lambda tile: cost(product, tile, gpu), default=None)


def measured(
    kind: str, capability: tuple[int, int]
) -> tuple[int, list[tuple[Product, dict[Tile, float]]]]:
    """Return the microseconds of products of a kind, and the multiprocessors that they were measured on.

    They are of the nearest capability of which there are any; if there are none at all, no products.
    """
    for file in files(capability):
        if products := [row for row in file["products"] if row[0].kind == kind]:
            return file["multi_processors"], products
    return 1, []


def files(capability: tuple[int, int]) -> tuple[dict[str, Any], ...]:
    """Return all files of what was measured, the nearest to a capability first.

    Raises:
        ValueError: ``TORCHTRT_TUNED`` names a file of another kind, or one that can't be read.
    """
    return _files(capability, os.environ.get(VARIABLE, ""))


@functools.cache
def _files(capability: tuple[int, int], names: str) -> tuple[dict[str, Any], ...]:
    named = map(Path, filter(None, names.split(os.pathsep)))
    ours = sorted(Path(__file__).with_name("measured").glob("*.json"))
    found = map(_read, [*named, *ours])
    return tuple(
        sorted(found, key=lambda file: math.dist(file["capability"], capability))
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        file: dict[str, Any] = {"digest": sha256(data).hexdigest()} | json.loads(data)
        _check(file["multi_processors"])
        math.dist(file["capability"], (0, 0))
        tiles = [Tile(*each) for each in file["tiles"]]
        rows = [(Product(*each), times) for each, times in file["products"]]
        for sizes in (*tiles, *(product[1:6] for product, _ in rows)):
            _check(*sizes)
        for _, times in rows:
            _check(*times, least=0, kinds=(int, float))
        file["products"] = [
            (product, {t: us for t, us in zip(tiles, times, strict=True) if us})
            for product, times in rows
        ]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} isn't what {VARIABLE} takes, a file of torchtrt-executorch tune ({error!r})"
        ) from error
    return file


def _check(*numbers: float, least: int = 1, kinds: tuple[type, ...] = (int,)) -> None:
    """Raise if any is no size of a tensor or a tile, or no time."""
    for each in numbers:
        if type(each) not in kinds or not least <= each < 1 << 63:
            raise ValueError(each)
