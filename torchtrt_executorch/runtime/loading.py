"""Load a method's delegates, each once for all instructions that call it alike."""

from __future__ import annotations

from typing import Mapping, Sequence

from torchtrt_executorch.runtime.delegates import (
    Delegate,
    DelegateContext,
    Payload,
    bind_delegate,
    clone_delegate,
)
from torchtrt_executorch.runtime.instructions import delegate_step
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.stand_ins import StandIns
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.steps import DelegateCall, Step
from torchtrt_executorch.runtime.streams import stream_use
from torchtrt_executorch.runtime.values import Value

#: A delegate's index, and the kinds of its arguments.
Key = tuple[object, ...]


class DelegateLoader:
    """Loads delegates when an instruction first calls them.

    ``shared`` are another method's, which these are to run beside.

    Attributes:
        delegates: Those loaded.
    """

    def __init__(
        self,
        placement: Placement,
        recorder: Recorder,
        stand_ins: StandIns,
        shared: Mapping[Key, Delegate],
    ) -> None:
        self._placement = placement
        self._recorder = recorder
        self._stand_ins = stand_ins
        self._shared = shared
        self.delegates: dict[Key, Delegate] = {}

    def step(
        self, index: int, payload: Payload, args: Sequence[Value], inputs: int
    ) -> Step:
        """The step that calls delegate ``index``, whose first ``inputs`` arguments are read.

        Raises ``ProgramError`` if it can't be loaded, or can't have these arguments.
        """
        delegate = self._delegate(index, payload, args, inputs)
        running, streams = self._placement.running, None
        if running is not None:
            device = payload.target_device("cpu")
            backend = payload.backend_id
            streams = stream_use(backend, payload.name, device, inputs, running)
        inputs = getattr(delegate, "num_inputs", inputs)
        run = bind_delegate(delegate, args)
        call = DelegateCall(payload.name, delegate, args, inputs, run)
        return delegate_step(call, self._placement.simulate, streams)

    def _delegate(
        self, index: int, payload: Payload, args: Sequence[Value], inputs: int
    ) -> Delegate:
        # What a delegate checked when it was loaded holds for calls with values of the same kinds.
        key = index, inputs, *(value.signature for value in args)
        if key not in self.delegates:
            context = DelegateContext(
                **vars(payload),
                args=args,
                num_inputs=inputs,
                placement=self._placement,
                recorder=self._recorder,
                stand_ins=self._stand_ins,
            )
            self.delegates[key] = clone_delegate(self._shared.get(key), context)
        return self.delegates[key]
