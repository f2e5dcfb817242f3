"""What a tiled matrix product costs on a GPU, by a model of it; for ranking tiles, not for timing.

Every multiprocessor runs its share of the tiles, some at a time, as many as its shared memory and
registers hold. A step of a tile's loop over K takes the longest of three: the arithmetic of the
tiles that run together, what they load through the L2 cache, and the wait for a load, of which
pipeline stages hide all but a part. What doesn't fit into a thread's registers is spilled, which
stretches the step.

The constants are those of the hardware but for four, which were fitted to what autotuning measured
on an H200 (``tests/gpu/cuda_programs.py run --timings``): the wait, the tile's fixed cost, the share
of the peak that products without tensor cores reach, and loads of single elements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from executorch.backends.cuda._gpu_properties import (
    GpuProperties,
)

#: Cycles that a load takes, with the memory busy.
_WAIT = 1500
#: Cycles of a tile before its loop and after it, but for what it stores.
_TILE = 2000
#: Cycles of a step of the loop by itself.
_STEP = 100
#: Bytes in a cycle that a multiprocessor loads through the L2 cache, and stores.
_LOAD, _STORE = 64, 32
#: Elements in a cycle that it loads one at a time, each with an address and a mask.
_LOADED_SINGLY = 4.3
#: Of the peak without tensor cores, and the accumulators in a thread from which on it is reached.
_PLAIN_SHARE, _PLAIN_ACCUMULATORS = 0.36, 64
#: Registers of a thread beside those that hold data, and all that it can have.
_OTHER_REGISTERS, _REGISTERS = 40, 250


@dataclass(frozen=True)
class Product:
    """``batch`` sums of ``window`` products of (m, k) by (k, n) matrices.

    A convolution is one: over the pixels of its window, and in as many batches as it has groups.

    Attributes:
        itemsize: Of an element, in bytes.
        tensor_cores: Whether they multiply elements of this type.
        aligned: Whether rows begin at multiples of 16 bytes. Others are loaded through registers,
            one element at a time, and not ahead.
    """

    m: int
    n: int
    k: int
    batch: int
    itemsize: int
    tensor_cores: bool
    aligned: bool = True
    window: int = 1


@dataclass(frozen=True)
class Tile:
    """What one block computes at a time, (m, n) in steps of ``k``, with what it has for it."""

    m: int
    n: int
    k: int
    stages: int
    warps: int


def cycles(product: Product, tile: Tile, gpu: GpuProperties) -> float:
    """Return the cost of ``product`` in tiles of ``tile``; infinite for one that doesn't fit."""
    threads = gpu.warp_size * tile.warps
    shared = (tile.m + tile.n) * tile.k * product.itemsize * tile.stages
    if shared > gpu.shared_memory_per_block_optin:
        return math.inf
    registers = _registers(product, tile, threads)
    together = max(
        1,
        min(
            gpu.shared_memory_per_multiprocessor // (shared + 1024),
            gpu.max_threads_per_multi_processor // threads,
            int(
                gpu.regs_per_multiprocessor // (min(255, max(32, registers)) * threads)
            ),
        ),
    )
    tiles = (
        math.ceil(product.m / tile.m) * math.ceil(product.n / tile.n) * product.batch
    )
    share = math.ceil(tiles / gpu.multi_processor_count)
    together = min(together, share)
    rounds = share / together
    if rounds <= 4:  # the last, incomplete one matters
        rounds = math.ceil(rounds)
    spilled = max(0.0, registers - _REGISTERS)
    arithmetic = tile.m * tile.n * tile.k / _rate(product, tile, threads, gpu)
    loaded = (tile.m + tile.n) * tile.k
    loads = (
        loaded * product.itemsize / _LOAD
        if product.aligned
        else loaded / _LOADED_SINGLY
    )
    ahead = max(1, tile.stages - 1) if product.aligned else 1
    step = max(
        together * arithmetic, together * loads, _WAIT / ahead + _STEP + arithmetic
    )
    stores = tile.m * tile.n * product.itemsize / _STORE
    step *= 1 + spilled / 8
    steps = product.window * math.ceil(product.k / tile.k)
    return rounds * (steps * step + _TILE + stores)


def _registers(product: Product, tile: Tile, threads: int) -> float:
    """Registers that a thread needs, were there as many as it likes."""
    accumulators = tile.m * tile.n / threads
    registers = _OTHER_REGISTERS + accumulators
    if not product.tensor_cores:  # operands of several steps at a time
        return registers + 2 * math.sqrt(accumulators) * tile.k / 9
    if not product.aligned:  # each element that is loaded, and its address
        return registers + 3 * (tile.m + tile.n) * tile.k / threads
    return registers


def _rate(product: Product, tile: Tile, threads: int, gpu: GpuProperties) -> float:
    """Multiply-adds of one multiprocessor in a cycle."""
    if not product.tensor_cores:
        reached = tile.m * tile.n / threads / _PLAIN_ACCUMULATORS
        return gpu.multiply_adds * _PLAIN_SHARE * min(1.0, reached) ** 0.8
    rate = gpu.tensor_multiply_adds * 2 / product.itemsize
    # Hopper's instructions for whole groups of four warps have twice the rate of Ampere's.
    if gpu.major == 9 and (tile.m < 64 or tile.warps < 4):
        rate /= 2
    return rate * math.sqrt(min(1.0, tile.n / 64))
