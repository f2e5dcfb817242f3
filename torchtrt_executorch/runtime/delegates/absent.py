"""A payload that can't run on this machine, in a simulation that only asks about devices."""

from __future__ import annotations

import logging
from typing import Callable, Sequence

from torchtrt_executorch.runtime.delegates import DelegateContext
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.values import Value

logger = logging.getLogger("torchtrt_executorch.runtime")


class AbsentPayload:
    """Writes zeros for the outputs of a payload that needs what this machine doesn't have.

    Raises ``ProgramError`` outside of a simulation: results would be silently wrong. Inside of one
    the program's :class:`~torchtrt_executorch.runtime.stats.Stats` name the delegate under
    ``not_run``, and a warning says so.
    """

    def __init__(self, context: DelegateContext, needs: str) -> None:
        if not context.placement.simulate:
            raise ProgramError(
                f"{context.name} needs {needs}; load the program with simulate_devices=True to "
                "check its devices without running this delegate"
            )
        context.recorder.absent(context.name)
        logger.warning(
            "%s needs %s: the simulation returns zeros for its outputs",
            context.name,
            needs,
        )

    def bind(
        self, inputs: Sequence[Value], outputs: Sequence[Value]
    ) -> Callable[[], None]:
        """What writes the zeros."""

        def run() -> None:
            for output in outputs:
                output.tensor.zero_()

        return run
