"""Identify serialized engines by their header.

Only the header of a serialized engine is read, and no library is needed: the file isn't trusted, and its
builder may not be installed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtrt_executorch.nogpu.builder.installed import TENSORRT, TENSORRT_RTX, Builder
from torchtrt_executorch.nogpu.emulation.payload import is_emulated
from torchtrt_executorch.nogpu.stand_ins import Buffer

_MAGICS = {b"ftrt": TENSORRT, b"vtrt": TENSORRT_RTX}
#: Position in a serialized engine of its builder's version, a byte for each part.
_VERSION = slice(24, 28)
#: Position of a TensorRT-RTX engine's target GPUs, a bit each; of 1.5 to 1.7, found by building for each.
_TARGETS = slice(32, 36)
TARGETS = ("sm_75", "sm_80", "sm_86", "sm_89", "sm_120", "sm_121", "sm_121+")
_TARGETS_KNOWN = ("1.5.", "1.6.", "1.7.")

#: The builder of an emulated engine's payload, in words.
EMULATED = "EMULATED"


@dataclass(frozen=True)
class Origin:
    """The builder of a serialized engine, by its header.

    Attributes:
        builder: TensorRT or TensorRT-RTX; None for an emulated engine, or what is no plan.
        version: ``1.5.0.114``; empty if there is none.
        text: Both in words, for people.
    """

    builder: Builder | None
    version: str
    text: str


def origin(plan: Buffer) -> Origin:
    """Return what ``plan`` says about who has built it; anything at all may be in it."""
    if is_emulated(plan):
        return Origin(None, "", EMULATED)
    header = bytes(memoryview(plan)[: _VERSION.stop])
    builder = _MAGICS.get(header[:4])
    if builder is None:
        return Origin(None, "", f"no plan of TensorRT's, it begins with {header[:4]!r}")
    if len(header) < _VERSION.stop:
        return Origin(builder, "", f"{builder.name}, cut short before its version")
    version = ".".join(map(str, header[_VERSION]))
    return Origin(builder, version, f"{builder.name} {version}")


def targets(plan: Buffer) -> tuple[str, ...] | None:
    """Return the GPUs that a plan was built for, as ``sm_80``; ``sm_121+`` is all after it.

    None if it doesn't say, which only plans of TensorRT-RTX do, or not in a way that is known.
    """
    built_by = origin(plan)
    if built_by.builder is not TENSORRT_RTX or not built_by.version.startswith(
        _TARGETS_KNOWN
    ):
        return None
    bits = int.from_bytes(bytes(memoryview(plan)[_TARGETS]), "little")
    if not bits or bits >> len(TARGETS):
        return None
    return tuple(gpu for bit, gpu in enumerate(TARGETS) if bits >> bit & 1)
