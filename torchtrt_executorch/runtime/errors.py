"""What can be wrong with a program, an input, or an instruction."""

from __future__ import annotations


class ProgramError(ValueError):
    """A ``.pte`` or ``.ptd`` is malformed, incomplete, or asks for what can't be run here."""


class InstructionError(ProgramError):
    """An instruction failed; the message names the method, the instruction and the operator."""


class DeviceError(ProgramError):
    """An instruction was handed a tensor that lives on the wrong device."""


class InputError(ValueError):
    """The caller's inputs don't fit what the method takes."""
