"""Cost model for matmul and convolution tile configurations, from recorded autotuning results.

The results are in ``measured/``, a file for each measured compute capability; those of
``GpuProperties.measurements`` take precedence. The time of a matmul is interpolated from similar ones, per unit of work: rounds of
tiles over the multiprocessors, times steps of a tile. For a GPU without measurements the times
of the nearest capability are used, with rounds over its own multiprocessors.
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


class Matmul(NamedTuple):
    """``batch`` sums of ``window`` matmuls of (m, k) by (k, n).

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


def row_counts(rows: Any) -> tuple[int, int, int]:
    """Return the fewest rows of a matmul, those of the example, and the most; 0 and the example's where there is no bound.

    Args:
        rows: Their number, or a ``torch.SymInt``.
    """
    if isinstance(rows, int):
        return rows, rows, rows
    bounds = rows.node.shape_env.bound_sympy(rows.node.expr)
    example = int(rows.node.hint or 1)
    least = int(bounds.lower) if bounds.lower.is_Integer else 0
    return least, example, int(bounds.upper) if bounds.upper.is_Integer else example


class Tile(NamedTuple):
    """A tile configuration: the (m, n) tile of a block, computed in steps of ``k``, with its pipeline stages and warps."""

    m: int
    n: int
    k: int
    stages: int
    warps: int

    def count(self, matmul: Matmul) -> int:
        """Return the number of tiles of a matmul."""
        rows, columns = math.ceil(matmul.m / self.m), math.ceil(matmul.n / self.n)
        return rows * columns * matmul.batch

    def work(self, matmul: Matmul, multi_processors: int) -> float:
        """Return the number of sequential steps of a multiprocessor."""
        rounds = max(1.0, self.count(matmul) / multi_processors)
        return rounds * matmul.window * math.ceil(matmul.k / self.k)

    def distance(self, one: Matmul, other: Matmul) -> float:
        """Return the distance of two matmuls, in powers of two: by their sizes, and by their numbers of tiles."""
        sizes = [
            (matmul.m, matmul.n, matmul.batch, matmul.window, self.count(matmul))
            for matmul in (one, other)
        ]
        by_size = sum(abs(math.log2(a / b)) for a, b in zip(*sizes, strict=True)) / 2
        steps = abs(math.log2(one.k / other.k))
        return by_size + steps + 6 * (one.aligned != other.aligned)


def cost(matmul: Matmul, tile: Tile, gpu: GpuProperties) -> float:
    """Return the logarithm of the expected microseconds; infinite where nothing was measured.

    It is a mean over the three nearest matmuls that the tile was measured for. With fewer it is higher, the farther they
    are: the tile wasn't offered for others, or didn't compile.
    """
    multi_processors, matmuls = measured(matmul.kind, gpu)
    near = sorted(
        (tile.distance(matmul, known), us / tile.work(known, multi_processors))
        for known, times in matmuls
        if (us := times.get(tile))
    )[:3]
    if not near:
        return math.inf
    weights = [1 / (0.3 + distance) ** 2 for distance, _ in near]
    steps = [math.log(us) for _, us in near]
    mean = sum(map(operator.mul, weights, steps)) / sum(weights)
    unknown = 0.15 * (3 - len(near)) * min(1.0, near[0][0])
    return mean + unknown + math.log(tile.work(matmul, gpu.multi_processor_count))


def fastest(matmul: Matmul, gpu: GpuProperties, least_k: int = 1) -> Tile | None:
    """Return the fastest tile for a matmul, of those with steps of at least ``least_k``; None if nothing of its kind was measured."""
    _, matmuls = measured(matmul.kind, gpu)
    tiles = {tile for _, times in matmuls for tile in times if tile.k >= least_k}
    return min(sorted(tiles), key=lambda tile: cost(matmul, tile, gpu), default=None)


def measured(
    kind: str, gpu: GpuProperties
) -> tuple[int, list[tuple[Matmul, dict[Tile, float]]]]:
    """Return the number of multiprocessors, and the microseconds of the matmuls of a kind that were measured on them.

    They are from the nearest capability that has any. For a kind of TF32 that was not measured, those of three TF32
    products, or else of IEEE arithmetic are returned; if there are none at all, no matmuls.
    """
    ieee = kind.partition(" tf32")[0]
    kinds = [kind, f"{ieee} tf32x3", ieee] if kind != ieee else [kind]
    for fallback in kinds:
        for file in files(gpu):
            if matmuls := file["products"].get(fallback):
                return file["multi_processors"], matmuls
    return 1, []


def files(gpu: GpuProperties) -> tuple[dict[str, Any], ...]:
    """Return all files of recorded results, their matmuls by kind, the nearest capability first.

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
        rows = [(Matmul(*sizes), times) for sizes, times in file["products"]]
        for sizes in (*tiles, *(matmul[1:6] for matmul, _ in rows)):
            _check(*sizes)
        for _, times in rows:
            _check(*times, minimum=0, kinds=(int, float))
        file["products"] = {}
        for matmul, times in rows:
            known = {t: us for t, us in zip(tiles, times, strict=True) if us}
            file["products"].setdefault(matmul.kind, []).append((matmul, known))
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
