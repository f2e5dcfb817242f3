"""One method of a program: its description, and the loop that runs its instructions."""

from __future__ import annotations

from collections import Counter
from typing import Any, Callable, Mapping, Sequence

import torch
from executorch.exir import schema

from torchtrt_executorch.runtime import graphs
from torchtrt_executorch.runtime.arenas import SharedState
from torchtrt_executorch.runtime.binding import Binder
from torchtrt_executorch.runtime.calling import CallLock
from torchtrt_executorch.runtime.delegates import Delegate
from torchtrt_executorch.runtime.errors import InstructionError, ProgramError
from torchtrt_executorch.runtime.files import ProgramFile
from torchtrt_executorch.runtime.inputs import Inputs
from torchtrt_executorch.runtime.loading import Key
from torchtrt_executorch.runtime.placement import Placement
from torchtrt_executorch.runtime.stand_ins import StandIns
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.steps import Kind, Step
from torchtrt_executorch.runtime.value_info import ValueInfo, describe
from torchtrt_executorch.runtime.value_table import ValueTable
from torchtrt_executorch.runtime.values import Value

#: As many as ExecuTorch's own runtime allows one call, so that no program runs forever.
MAX_INSTRUCTIONS = 10_000_000


class Method:
    """A method, ready to be called. Calls from several threads run one after the other.

    State that the method mutates (KV caches, counters) carries over from call to call.
    """

    def __init__(
        self,
        plan: schema.ExecutionPlan,
        file: ProgramFile,
        placement: Placement,
        recorder: Recorder,
        stand_ins: StandIns,
        shared: SharedState,
        calls: CallLock,
        cuda_graphs: bool,
        original: Method | None = None,
    ) -> None:
        self.name: str = plan.name
        self._made_of = plan, file, placement, recorder, stand_ins
        self._cuda_graphs = cuda_graphs
        self._calls = calls
        self._placement = placement
        table = ValueTable(plan, file, placement, shared)
        if original is not None:
            table.share_constants(original._table)
        self._table: ValueTable = table
        given = [table.at(index, "an input") for index in plan.inputs]
        self._given = given
        self._outputs = [table.at(index, "an output") for index in plan.outputs]
        loaded = {} if original is None else original._delegates
        binder = Binder(file, table, placement, recorder, stand_ins, loaded)
        uses = binder.uses
        self._steps: list[Step] = binder.steps
        own = [id(value) in uses.looked_at for value in given]
        self._inputs = Inputs(self.name, given, own, placement, recorder)
        self._delegates: dict[Key, Delegate] = binder.delegates
        self._devices = binder.devices()
        calls.order.keep(self._devices, table.memory() if self._devices else [])
        self._straight = all(step.kind is not Kind.JUMP for step in self._steps)
        self._position = 0
        self._tally = recorder.tally(self.name, self._steps)
        taken = {id(value) for value in given}
        wanting = uses.unplanned - taken
        unplanned = {id(v): v for v in table.values if id(v) in wanting}
        # Memory that was made for this call alone is the caller's as it is.
        fresh = set(unplanned) - uses.lent - uses.moved
        renewals = {
            key: value.renewal()
            for key, value in unplanned.items()
            if key not in binder.made
        }
        segments: dict[range, graphs.Segment] = {}
        if cuda_graphs:
            delegates = [step.call for step in self._steps]
            segments = graphs.captured(delegates, uses.moved, binder.destinations)
            for captured in segments.values():
                # What a graph keeps needs no memory of a call's own where it is launched.
                written = {id(value) for value in captured.outputs}
                captured.renewals = [renewals[v] for v in written if v in renewals]
                if self._straight:  # else another branch may write them
                    for value in written:
                        renewals.pop(value, None)
                fresh -= written
        self._renewals = list(renewals.values())
        #: what runs as one, by its first instruction
        self._spans = {span[0]: span for span in segments}
        self._runs = _runs(self._steps, segments)
        once = Counter(map(id, self._outputs))
        #: outputs, and whether what they are after a call is the caller's
        self._returns = [
            (value, id(value) in fresh and once[id(value)] == 1)
            for value in self._outputs
        ]
        self._owned = [value for value, own in self._returns if own]

    def clone(self) -> Method:
        """The same method once more, for calls that run beside this one's.

        It has memory of its own, and state that starts anew, apart from what other methods share.
        Constants and TensorRT's engines are shared; other delegates are loaded once more.
        """
        plan, file, placement, recorder, stand_ins = self._made_of
        return Method(
            plan,
            file,
            placement,
            recorder,
            stand_ins,
            SharedState([plan]),
            CallLock(),
            self._cuda_graphs,
            self,
        )

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """What the method takes, in order."""
        return describe(self._given, "input")

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """What the method returns, in order."""
        return describe(self._outputs, "output")

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        """Run the method.

        ``inputs`` are the model's, in order; lists, tuples and dicts are flattened as PyTorch
        flattens them. Returns the flat outputs: tensors that are the caller's, and numbers.

        Raises ``InputError`` for inputs that the method doesn't take, ``InstructionError`` or
        ``DeviceError`` when an instruction fails.
        """
        self._calls.enter(self.name)
        recording = torch.is_grad_enabled()
        if recording:  # as torch.no_grad does, which takes a microsecond more
            torch._C._set_grad_enabled(False)
        devices, order = self._devices, self._calls.order
        changed = False
        try:
            changed = bool(devices) and order.begin(devices)
            for renew in self._renewals:
                renew()
            self._inputs.set(inputs)
            self._run()
            running = self._placement.running
            if running and any(value.device.type != "cpu" for value in self._outputs):
                running.wait_for_all()  # as the caller has to, who reads them
            results = tuple(
                [
                    value.data if own else self._result(value)
                    for value, own in self._returns
                ]
            )
            for value in self._owned:
                value.data = None  # so that it is freed when the caller lets go of it
            return results
        finally:
            if changed:
                order.end(devices)
            if recording:
                torch._C._set_grad_enabled(True)
            self._calls.leave()

    def _run(self) -> None:
        self._position = 0
        try:
            if self._straight:
                for position, run in self._runs:
                    self._position = position
                    run()
                self._tally.calls += 1
            else:
                self._tally.add(self._interpret())
        except Exception as error:
            # Kernels and delegates raise what they like; say which instruction it was.
            raise self._named(error) from error

    def _named(self, error: Exception) -> ProgramError:
        """``error``, with the instruction that has failed."""
        span = self._spans.get(self._position)
        where = self._where()
        if span is not None and not isinstance(error, ProgramError):
            where = f"{self.name}: instructions {span[0]} to {span[-1]}"
        if not isinstance(error, ProgramError):
            return InstructionError(f"{where}: {type(error).__name__}: {error}")
        kind = InstructionError if type(error) is ProgramError else type(error)
        return kind(f"{where}: {error}")

    def _interpret(self) -> list[int]:
        """Follow the jumps. Return how often each step was run."""
        runs = dict(self._runs)
        counts = [0] * len(self._steps)
        lengths = [1] * len(self._steps)
        for start, span in self._spans.items():
            lengths[start] = len(span)
        position = executed = 0
        while position < len(counts):
            self._position = position
            executed += lengths[position]
            if executed > MAX_INSTRUCTIONS:
                raise InstructionError(f"stopped after {MAX_INSTRUCTIONS} instructions")
            counts[position] += 1
            target = runs[position]()
            position = position + lengths[position] if target is None else target
        for span in self._spans.values():
            for index in span:
                counts[index] = counts[span[0]]
        return counts

    def _where(self) -> str:
        name = self._steps[self._position].name
        return f"{self.name}: instruction {self._position} ({name})"

    def _result(self, value: Value) -> Any:
        data = value.get()
        if isinstance(data, torch.Tensor):
            # What lies in planned memory or in an input is overwritten by the next call.
            return data.clone()
        return data


def _runs(
    steps: Sequence[Step], segments: Mapping[range, graphs.Segment]
) -> list[tuple[int, Callable[[], int | None]]]:
    """What to run, and the index of its first instruction."""
    runs = {index: step.run for index, step in enumerate(steps)}
    for span, segment in segments.items():
        for index in span[1:]:
            del runs[index]
        runs[span[0]] = segment.run
    return list(runs.items())
