"""Cost model for matmul and convolution tile configurations, from recorded autotuning results.

The results are in ``measured/``, a file for each compute capability of which there was a GPU; those of
``GpuProperties.measurements`` go before them. A product takes as long as those nearby did, by the work: rounds of
tiles over the multiprocessors, and the steps of a tile. For a GPU on which nothing was measured, the nearest
capability's times are taken, by rounds over its own multiprocessors.
"""

from __future__ import annotations

import functools
import json
import math
import operator
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from executorch.backends.cuda.tuning.gpu_properties import GpuProperties


class Product(NamedTuple):
    """``batch`` sums of ``window`` products of (m, k) by (k, n) matrices.

    A convolution is one: over the pixels of its window, and in as many batches as it has groups. So is
    a sum over rows: ``m`` of them, of length ``k``.

    Attributes:
        kind: ``product``, ``convolution`` or ``sum``, with the dtype, and ``tf32`` or ``tf32x3`` where tensor cores
            multiply float32.
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


class Tile(NamedTuple):
    """What one block computes at a time, (m, n) in steps of ``k``, with what it has for it."""

    m: int
    n: int
    k: int
    stages: int
    warps: int

    def count(self, product: Product) -> int:
        """How many of them a product takes."""
        rows, columns = math.ceil(product.m / self.m), math.ceil(product.n / self.n)
        return rows * columns * product.batch

    def work(self, product: Product, multi_processors: int) -> float:
        """Steps that a multiprocessor takes, one behind the other."""
        rounds = max(1.0, self.count(product) / multi_processors)
        return rounds * product.window * math.ceil(product.k / self.k)

    def distance(self, one: Product, other: Product) -> float:
        """How far apart products are, in powers of two: by their sizes, and by how many tiles they take."""
        sizes = [
            (product.m, product.n, product.batch, product.window, self.count(product))
            for product in (one, other)
        ]
        by_size = sum(abs(math.log2(a / b)) for a, b in zip(*sizes, strict=True)) / 2
        steps = abs(math.log2(one.k / other.k))
        return by_size + steps + 6 * (one.aligned != other.aligned)


def cost(product: Product, tile: Tile, gpu: GpuProperties) -> float:
    """Return the logarithm of the microseconds to expect; infinite where nothing is known.

    Of the three nearest that a tile was measured for. With fewer it costs more, the farther these are: it
    wasn't offered for others, or didn't compile.
    """
    multi_processors, products = measured(product.kind, gpu)
    near = sorted(
        (tile.distance(product, known), us / tile.work(known, multi_processors))
        for known, times in products
        if (us := times.get(tile))
    )[:3]
    if not near:
        return math.inf
    weights = [1 / (0.3 + distance) ** 2 for distance, _ in near]
    steps = [math.log(us) for _, us in near]
    mean = sum(map(operator.mul, weights, steps)) / sum(weights)
    unknown = 0.15 * (3 - len(near)) * min(1.0, near[0][0])
    return mean + unknown + math.log(tile.work(product, gpu.multi_processor_count))


def fastest(product: Product, gpu: GpuProperties, least_k: int = 1) -> Tile | None:
    """Return the tile to take for a product, of those with steps of ``least_k``; None if nothing of its kind was measured."""
    _, products = measured(product.kind, gpu)
    tiles = {tile for _, times in products for tile in times if tile.k >= least_k}
    return min(sorted(tiles), key=lambda tile: cost(product, tile, gpu), default=None)


def measured(
    kind: str, gpu: GpuProperties
) -> tuple[int, list[tuple[Product, dict[Tile, float]]]]:
    """Return the microseconds of products of a kind, and the multiprocessors that they were measured on.

    They are of the nearest capability of which there are any. Where tensor cores multiply float32 and nothing was
    measured of that, they are those of three TF32 products, or of IEEE arithmetic; if there are none at all, no
    products.
    """
    ieee = kind.partition(" tf32")[0]
    kinds = [kind, f"{ieee} tf32x3", ieee] if kind != ieee else [kind]
    for fallback in kinds:
        for file in files(gpu):
            if products := file["products"].get(fallback):
                return file["multi_processors"], products
    return 1, []


def files(gpu: GpuProperties) -> tuple[dict[str, Any], ...]:
    """Return all files of what was measured, their products by kind, those of the nearest capability first.

    Raises:
        ValueError: One of ``gpu.measurements`` is a file of another kind, or can't be read.
    """
    return _files(gpu.capability, gpu.measurements)


@functools.cache
def _files(
    capability: tuple[int, int], named: tuple[Path, ...]
) -> tuple[dict[str, Any], ...]:
    ours = sorted(Path(__file__).with_name("measured").glob("*.json"))
    files_read = map(_read, [*named, *ours])
    return tuple(
        sorted(files_read, key=lambda file: math.dist(file["capability"], capability))
    )


def _read(path: Path) -> dict[str, Any]:
    try:
        data = path.read_bytes()
        file: dict[str, Any] = {"digest": sha256(data).hexdigest()} | json.loads(data)
        _check(file["multi_processors"])
        math.dist(file["capability"], (0, 0))
        tiles = [Tile(*sizes) for sizes in file["tiles"]]
        rows = [(Product(*sizes), times) for sizes, times in file["products"]]
        for sizes in (*tiles, *(product[1:6] for product, _ in rows)):
            _check(*sizes)
        for _, times in rows:
            _check(*times, minimum=0, kinds=(int, float))
        file["products"] = {}
        for product, times in rows:
            known = {t: us for t, us in zip(tiles, times, strict=True) if us}
            file["products"].setdefault(product.kind, []).append((product, known))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} is no file of measured tiles ({error!r}): measure again, or leave it out"
        ) from error
    return file


def _check(*numbers: float, minimum: int = 1, kinds: tuple[type, ...] = (int,)) -> None:
    """Raise if any is no size of a tensor or a tile, or no time."""
    for value in numbers:
        if type(value) not in kinds or not minimum <= value < 1 << 63:
            raise ValueError(value)
