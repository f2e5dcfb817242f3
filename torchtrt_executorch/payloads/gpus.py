"""Match compute capabilities with machine code, by NVIDIA's compatibility rules."""

from __future__ import annotations

import re
from typing import Iterable

from torchtrt_executorch.nogpu.target.gpu_description import (
    ON_ARM_ALONE,
    GpuDescription,
)

#: Jetson and DRIVE: binaries run on these exactly, and theirs on no other GPU.
_TEGRA = {53, 62, 72, 87, 101, 110}
_NAME = re.compile(r"sm_?([1-9]\d{1,2})[a-z]?")


def capability(name: str) -> int:
    """Return ``87`` for ``sm_87``.

    Raises:
        ValueError: It names no GPU architecture.
    """
    found = _NAME.fullmatch(name.strip().lower())
    if not found:
        raise ValueError(
            f"{name!r} is no GPU architecture: give its compute capability, as in sm_87"
        )
    return int(found[1])


def described(name: str) -> GpuDescription:
    """Return the GPU that ``sm_87`` names, in a machine of the kind that has it.

    Raises:
        ValueError: As :func:`capability`.
    """
    wanted = capability(name)
    on_arm = divmod(wanted, 10) in ON_ARM_ALONE
    return GpuDescription.parse(
        f"{'linux-aarch64:' if on_arm else ''}sm_{wanted}:16GiB"
    )


def library_runs_on(gpus: Iterable[str], wanted: int) -> bool:
    """Whether a library with code for ``gpus`` runs on the GPU ``wanted``.

    Machine code runs on GPUs of the same major version and no smaller minor one. From 9.0 on Triton
    compiles for one GPU alone, and Tegra's are compatible with none. What the driver translates
    (PTX), ``sm_80+``, runs on all that are later.
    """
    for name in gpus:
        each = capability(name.removesuffix("+"))
        exact = each >= 90 or {each, wanted} & _TEGRA
        same = not exact and each // 10 == wanted // 10
        if each == wanted or (each < wanted and (same or name.endswith("+"))):
            return True
    return False


def engine_runs_on(gpus: Iterable[str], wanted: int) -> bool:
    """Whether an engine that was built for ``gpus`` runs there; ``sm_121+`` is all after it."""
    for each in gpus:
        named = capability(each.removesuffix("+"))
        if each.endswith("+") and wanted > named:
            return True
        if named == wanted and not each.endswith("+"):
            return True
    return False
