"""Errors of programs, inputs and instructions."""

from __future__ import annotations

from typing import Sequence, TypeVar

T = TypeVar("T")

#: Characters that are kept of the beginning and of the end of a long message.
_LONGEST = 1500


class ProgramError(ValueError):
    """A ``.pte`` or ``.ptd`` is malformed, incomplete, or asks for what can't be run here."""

    def __init__(self, text: str = "") -> None:
        # Names and contents of a file may be of any length.
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
    """The caller's inputs don't match the method's."""


def misplaced(tensor: str, device: object, reader: str, to_device: bool) -> str:
    """Return the message for a tensor on a device where its reader can't use it."""
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
