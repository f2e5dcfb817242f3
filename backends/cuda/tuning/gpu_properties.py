"""GPU properties that compilers ask for, derived from compute capability and memory size.

From the tables of the CUDA programming guide ("Technical Specifications per Compute Capability")
and, for what differs between the GPUs of one capability, from the data sheet of the usual one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

_KIB = 1 << 10


@dataclasses.dataclass(frozen=True)
class GpuProperties:
    """The attributes of ``torch.cuda.get_device_properties``, those that compilers read.

    Sizes are in bytes, registers in 32-bit words, clocks in kHz, ``memory_bus_width`` in bits.
    Four are not among them: ``others``, capabilities beside this one to have code for; ``per_gpu``, the properties of
    each of several GPUs by themselves; ``platform``,
    operating system and processor of the machine, as ``linux-aarch64``; and ``measurements``, files of
    autotuning results that go before those of :mod:`.cost_model`.
    """

    major: int
    minor: int
    name: str
    total_memory: int
    multi_processor_count: int
    max_threads_per_multi_processor: int
    shared_memory_per_multiprocessor: int
    shared_memory_per_block_optin: int
    L2_cache_size: int
    clock_rate: int
    memory_clock_rate: int
    memory_bus_width: int
    shared_memory_per_block: int = 48 * _KIB
    regs_per_multiprocessor: int = 1 << 16
    max_threads_per_block: int = 1024
    warp_size: int = 32
    gcnArchName: str = ""
    others: tuple[tuple[int, int], ...] = ()
    per_gpu: tuple[GpuProperties, ...] = ()
    platform: str = ""
    measurements: tuple[Path, ...] = dataclasses.field(
        default=(), compare=False, repr=False
    )

    @property
    def capability(self) -> tuple[int, int]:
        return self.major, self.minor

    @property
    def kilobytes_per_us(self) -> float:
        """What a kernel reads of the memory in a microsecond: four fifths of its bandwidth."""
        return self.memory_clock_rate * 2 * self.memory_bus_width / 8 / 1e6 * 0.8

    @property
    def key(self) -> str:
        """A name for all that differs in kernels, whatever the machine: ``sm_80-sm_90-163KiB``."""
        capabilities = (self.capability, *self.others)
        names = [f"sm_{major}{minor}" for major, minor in capabilities]
        return "-".join([*names, f"{self.shared_memory_per_block_optin // _KIB}KiB"])


@dataclasses.dataclass(frozen=True)
class _Usual:
    """The GPU of a capability that is meant when only the capability is known."""

    multi_processors: int
    threads: int
    shared_kib: int
    l2_mib: int
    clock_mhz: int
    memory_clock_mhz: int
    memory_bus: int


_USUAL = {
    (7, 5): _Usual(40, 1024, 64, 4, 1590, 5001, 256),  # T4
    (8, 0): _Usual(108, 2048, 164, 40, 1410, 1593, 5120),  # A100
    (8, 6): _Usual(84, 1536, 100, 6, 1740, 7251, 384),  # A40, RTX A6000
    (8, 7): _Usual(16, 1536, 164, 4, 1300, 3199, 256),  # Jetson AGX Orin
    (8, 9): _Usual(58, 1536, 100, 48, 2040, 6251, 192),  # L4
    (9, 0): _Usual(132, 2048, 228, 50, 1980, 2619, 5120),  # H100
    (10, 0): _Usual(148, 2048, 228, 126, 1965, 3996, 8192),  # B200
    (10, 3): _Usual(148, 2048, 228, 126, 1965, 3996, 8192),  # B300
    (11, 0): _Usual(20, 1536, 228, 32, 1575, 4266, 256),  # Jetson AGX Thor
    (12, 0): _Usual(170, 1536, 100, 96, 2407, 14001, 512),  # RTX 5090
    (12, 1): _Usual(48, 1536, 100, 24, 2418, 4266, 256),  # DGX Spark
}


def common_properties(gpus: Sequence[Gpu]) -> GpuProperties:
    """Return the properties to compile with for several GPUs, or for one.

    They are those of the lowest compute capability, with the least memory of either kind and the
    fewest threads that any has: what fits there fits everywhere.

    Raises:
        ValueError: As :func:`properties`.
    """
    first, *others = per_gpu = sorted(map(properties, gpus), key=lambda p: p.capability)

    def minimum(name: str) -> Any:
        return min(getattr(one, name) for one in per_gpu)

    limits = (
        "total_memory",
        "max_threads_per_multi_processor",
        "shared_memory_per_multiprocessor",
        "shared_memory_per_block_optin",
    )
    return dataclasses.replace(
        first,
        **{name: minimum(name) for name in limits},
        others=tuple(one.capability for one in others),
        per_gpu=tuple(per_gpu) if others else (),
    )


class Gpu(Protocol):
    """A GPU that is described, not there: its compute capability, name, and bytes of memory."""

    @property
    def major(self) -> int: ...
    @property
    def minor(self) -> int: ...
    @property
    def capability(self) -> tuple[int, int]: ...
    @property
    def name(self) -> str: ...
    @property
    def total_memory(self) -> int: ...
    @property
    def platform(self) -> str: ...


def properties(gpu: Gpu) -> GpuProperties:
    """Return the properties of ``gpu``.

    Raises:
        ValueError: Nothing is known of its compute capability, or Triton can't target it.
    """
    usual = _USUAL.get(gpu.capability)
    if usual is None:
        known = ", ".join(f"sm_{major}{minor}" for major, minor in _USUAL)
        raise ValueError(
            f"CUDA delegates can't be compiled for a {gpu.name}; they can for {known}"
        )
    # A block can have all of a multiprocessor's shared memory but 1 KiB, from 8.0 on.
    reserved_kib = 0 if gpu.capability < (8, 0) else 1
    return GpuProperties(
        major=gpu.major,
        minor=gpu.minor,
        name=gpu.name,
        platform=gpu.platform,
        total_memory=gpu.total_memory,
        multi_processor_count=usual.multi_processors,
        max_threads_per_multi_processor=usual.threads,
        shared_memory_per_multiprocessor=usual.shared_kib * _KIB,
        shared_memory_per_block_optin=(usual.shared_kib - reserved_kib) * _KIB,
        L2_cache_size=usual.l2_mib << 20,
        clock_rate=usual.clock_mhz * 1000,
        memory_clock_rate=usual.memory_clock_mhz * 1000,
        memory_bus_width=usual.memory_bus,
    )
