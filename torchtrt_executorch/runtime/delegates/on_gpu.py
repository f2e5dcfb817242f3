"""GPU delegates: device of inputs and outputs, host staging, and fallback to stand-ins."""

from __future__ import annotations

import logging
from typing import Protocol, Sequence

import torch

from torchtrt_executorch.nogpu.stand_ins import StandIn
from torchtrt_executorch.runtime.delegates import Delegate, DelegateContext, digest
from torchtrt_executorch.runtime.errors import DeviceError, ProgramError, misplaced
from torchtrt_executorch.runtime.profile.stats import Transfers
from torchtrt_executorch.runtime.tensors.layout import CPU
from torchtrt_executorch.runtime.tensors.values import Run, Value

logger = logging.getLogger("torchtrt_executorch.runtime")


#: A value with its name for messages.
NamedValue = tuple[str, Value]


class Runner(Protocol):
    """Computation of a delegate."""

    def bind(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> Run:
        """Return a function that runs on these values, which may be in host memory."""


class GpuDelegate(Delegate):
    """A payload on a GPU, or what stands in for it.

    A tensor on the device is bound as it is. One in host memory is the runner's to move; it is
    counted, and logged once.

    Attributes:
        runner: The computation; a subclass sets it.
        names: Names of the arguments in messages.
        at_home: Names of arguments that the payload itself has in host memory.
    """

    runner: Runner
    names: Sequence[str]
    at_home: frozenset[str] = frozenset()

    def __init__(self, context: DelegateContext) -> None:
        told = type(self).about(context)
        self.name = context.name
        self.device = told.device
        context.placement.memory(self.device)  # which says so if there are fewer GPUs
        self.num_inputs = context.num_inputs
        count = self.num_inputs
        self.names = [
            f"input {index}" if index < count else f"output {index - count}"
            for index in range(len(context.args))
        ]
        self._takes_host = told.takes_host
        self._staged = context.recorder.staged
        if told.built_by:
            context.recorder.payloads[self.name] = told.built_by

    def bind(self, args: Sequence[Value]) -> Run:
        """Return a function that runs on ``args``. Raises ``DeviceError`` for a tensor on a device that isn't supported."""
        called = [*zip(self.names, args, strict=True)]
        for name, value in called:
            if value.layout is None:
                kind = type(value.get()).__name__
                raise ProgramError(f"{self.name}: its {name} is a {kind}, not a tensor")
        count, device, staged = self.num_inputs, self.device, self._staged
        execute = self.runner.bind(args[:count], args[count:])
        into, out = (
            [(name, value) for name, value in values if name not in self.at_home]
            for values in (called[:count], called[count:])
        )
        known = [value for value in args if value.fixed and self._takes(value)]
        others = [value for value in args if value not in known]
        steady = all(value.steady for value in args)
        always = any(value.device == CPU for value in known)
        sizes: list[Transfers] = []

        def run() -> None:
            on_host = always
            for value in others:
                if value.device != device:
                    if not self._takes(value):
                        takes = f"{self.name} takes tensors on {device}"
                        text = misplaced(value.name, value.device, takes, True)
                        raise DeviceError(text)
                    on_host = True
            execute()
            if on_host:
                if not sizes or not steady:
                    sizes[:] = _on_host(into), _on_host(out)
                if (sizes[0].copies or sizes[1].copies) and staged(self.name, *sizes):
                    self._say(into, out)

        return run

    def not_capturable(self, args: Sequence[Value]) -> str | None:
        """Return why a CUDA graph can't capture a call with ``args``; None if it can."""
        if isinstance(self.runner, InPyTorch):
            return "what runs here is PyTorch"
        if self.at_home:
            return f"the engine has {', '.join(sorted(self.at_home))} in host memory"
        for name, value in zip(self.names, args, strict=True):
            if value.planned and value.device.type == "cpu":
                return f"its {name} lives in host memory"
        return None

    def _takes(self, value: Value) -> bool:
        # Where nothing is planned on a device, as before executorch 1.4, all of it is moved.
        staged = self._takes_host or value.label is None
        return value.device == self.device or (value.device == CPU and staged)

    def _say(self, into: Sequence[NamedValue], out: Sequence[NamedValue]) -> None:
        """Log the staged inputs and outputs."""
        staged = []
        for role, values in (("inputs", into), ("outputs", out)):
            on_host = [(name, value) for name, value in values if value.device == CPU]
            if on_host:
                sizes = [
                    f"{name} ({value.data.nbytes} bytes)" for name, value in on_host
                ]
                staged.append(f"{role} {', '.join(sizes)}")
        logger.info(
            "%s on %s stages host I/O on every call: %s. To bind without a copy, export with "
            "enable_non_cpu_memory_planning=True and, for the method's own inputs and outputs, "
            "skip_h2d_for_method_inputs=True and skip_d2h_for_method_outputs=True, and pass tensors "
            "on %s. Said once per engine; stats() keeps counting.",
            self.name,
            self.device,
            "; ".join(staged),
            self.device,
        )


def _on_host(values: Sequence[NamedValue]) -> Transfers:
    """Return the transfers of the values that are in host memory."""
    return Transfers.of([v.data.nbytes for _, v in values if v.device == CPU])


class InPyTorch:
    """A payload's own partition, run by PyTorch: a stand-in for it, or an emulated engine.

    Args:
        program: None for one that isn't there: its outputs are zeros.
        inputs, outputs: For each input of the program, then for each output, which of the delegate's
            it is; None for all in order.
        memory: The device that the program runs on.
    """

    def __init__(
        self,
        program: StandIn | None,
        memory: torch.device,
        inputs: Sequence[int] | None = None,
        outputs: Sequence[int] | None = None,
    ) -> None:
        self._program, self._memory = program, memory
        self._order = inputs, outputs

    def clone(self) -> InPyTorch | None:
        """Return another one with the same weights, to run concurrently; None with state, or without a program."""
        program = self._program
        if program is None or program.instance() is not program:
            return None
        clone = program.copy(share_weights=True)
        return InPyTorch(clone, self._memory, *self._order)

    def bind(self, inputs: Sequence[Value], outputs: Sequence[Value]) -> Run:
        """Return a function that runs on values in the delegate's order."""
        program, memory = self._program, self._memory
        inputs_of_program, wanted = (
            values if order is None else [values[index] for index in order]
            for values, order in zip((inputs, outputs), self._order, strict=True)
        )

        def run() -> None:
            if program is None:
                for output in outputs:
                    output.tensor.zero_()
                return
            results = program([value.tensor.to(memory) for value in inputs_of_program])
            if len(results) != len(wanted):
                raise ProgramError(
                    f"what runs for the payload returned {len(results)} tensors, and the program "
                    f"wants {len(wanted)}"
                )
            for output, result in zip(wanted, results, strict=True):
                output.write(result)

        return run


def stand_in_for(context: DelegateContext, needs: str) -> StandIn | None:
    """Return what runs without a GPU: a stand-in, or, in a simulation, None: outputs are zeros.

    Either is reported: by a warning, and in the program's
    :class:`~torchtrt_executorch.runtime.profile.stats.Stats`. Raises ``ProgramError`` if there is neither:
    results would be silently wrong.
    """
    payload = digest(context)
    stand_in = None if payload is None else context.stand_ins.find(payload)
    if stand_in is not None:
        context.recorder.stand_ins.add(context.name)
        logger.warning(
            "%s can't run here: a stand-in, its partition in PyTorch, computes for it%s",
            context.name,
            context.stand_ins.origin(str(payload)),
        )
        # Its own are the partition's, which others run as well.
        names, tensors = context.common.names, stand_in.tensors
        own = {n: tensors[n].clone() for n in names & tensors.keys()}
        try:
            stand_in = stand_in.sharing(context.common.join(own))
        except ProgramError as error:
            raise ProgramError(f"{context.name}: {error}") from None
    elif context.placement.simulate:
        context.recorder.not_run.add(context.name)
        logger.warning(
            "%s needs %s: the simulation returns zeros for its outputs",
            context.name,
            needs,
        )
    else:
        raise ProgramError(
            f"{context.name} needs {needs}; name the stand-ins that were saved beside the "
            "program (stand_ins=FILE) to run those, or load it with simulate_devices=True to "
            "check its devices without running this delegate"
        )
    return stand_in
