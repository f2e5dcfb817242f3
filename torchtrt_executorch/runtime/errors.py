"""Errors of programs, inputs and instructions."""

from __future__ import annotations

from typing import Sequence, TypeVar

T = TypeVar("T")

#: Of a message: what is kept of its beginning, and of its end.
_LONGEST = 1500


class ProgramError(ValueError):
    """A ``.pte`` or ``.ptd`` is malformed, incomplete, or asks for what can't be run here."""

    def __init__(self, text: str = "") -> None:
        # What a file calls things, and what it holds, is as long as it likes.
        if len(text) > 2 * _LONGEST:
            text = f"{text[:_LONGEST]} ... {text[-_LONGEST:]}"
        super().__init__(text)


class InstructionError(ProgramError):
    """An instruction failed; the message names the method, the instruction and the operator."""


class DeviceError(ProgramError):
    """An instruction was handed a tensor that lives on the wrong device."""


class ModeError(RuntimeError):
    """A program is called, or prepared, within tracing, a transform or a dispatch mode of PyTorch's."""


class InputError(ValueError):
    """The caller's inputs don't fit what the method takes."""


def misplaced(tensor: str, device: object, reader: str, to_device: bool) -> str:
    """What to say of a tensor that lives where its reader can't take it."""
    copy = "_h2d_copy" if to_device else "_d2h_copy"
    return (
        f"{tensor} lives on {device}, and {reader}: a copy (et_copy::{copy}) is missing, or the tensor is "
        "mislabelled"
    )


def shortened(name: str, most: int = 200) -> str:
    """``name`` as messages have it: of a long one, where it begins. What it names may be named often."""
    return name if len(name) <= most else f"{name[:most]}..."


def item(items: Sequence[T], index: int, what: str) -> T:
    """``items[index]``. Raises ``ProgramError`` that names ``what`` was looked for if there is none."""
    if not 0 <= index < len(items):
        raise ProgramError(f"{what} {index} of {len(items)}, which does not exist")
    return items[index]
