"""What a program's delegates may run in the place of their payloads."""

from __future__ import annotations

from dataclasses import dataclass

from torchtrt_executorch import stand_ins
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.stand_ins import StandIn
from torchtrt_executorch.stand_ins.file import StandInFile


@dataclass(frozen=True)
class StandIns:
    """What a program's delegates may run in the place of their payloads.

    Attributes:
        emulated: Whether the programs in emulated engines may be loaded.
        file: Stand-ins that the user has given, beside those that this process keeps.
    """

    emulated: bool = False
    file: StandInFile | None = None

    def find(self, payload: str) -> StandIn | None:
        """Return the stand-in for a payload, by its digest, with state of its own; None without.

        Raises ``ProgramError`` for one that is damaged.
        """
        try:
            given = None if self.file is None else self.file.find(payload)
        except ValueError as error:
            raise ProgramError(str(error)) from error
        found = given or stand_ins.find(payload)
        return None if found is None else found.instance()
