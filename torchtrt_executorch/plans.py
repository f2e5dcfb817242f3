"""Serialized engines, told apart by their first bytes.

Nothing of a plan is read beyond its header, and no library is needed: a plan comes from a file that
nobody vouches for, and from builders that aren't installed here.
"""

from __future__ import annotations

from dataclasses import dataclass

from torchtrt_executorch.emulation.payload import is_emulated
from torchtrt_executorch.host.builder import TENSORRT, TENSORRT_RTX, Builder
from torchtrt_executorch.stand_ins import Buffer

_MAGICS = {b"ftrt": TENSORRT, b"vtrt": TENSORRT_RTX}
#: Where a plan says which version has built it, a byte each for the version's parts.
_VERSION = slice(24, 28)


@dataclass(frozen=True)
class Origin:
    """What a plan says about who has built it.

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
        return Origin(None, "", "EMULATED")
    header = bytes(memoryview(plan)[: _VERSION.stop])
    builder = _MAGICS.get(header[:4])
    if builder is None:
        return Origin(None, "", f"no plan of TensorRT's, it begins with {header[:4]!r}")
    if len(header) < _VERSION.stop:
        return Origin(builder, "", f"{builder.name}, cut short before its version")
    version = ".".join(map(str, header[_VERSION]))
    return Origin(builder, version, f"{builder.name} {version}")
