"""A method of a program: its description, and the loop over its instructions."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch

from torchtrt_executorch.runtime import graphs
from torchtrt_executorch.runtime.binding import Binder, Key, ProgramContext, nothing
from torchtrt_executorch.runtime.calling import (
    CallLock,
    as_it_is,
    in_modes,
    refuse_modes,
    sees_operators,
    without_modes,
)
from torchtrt_executorch.runtime.delegates import Delegate, about, uses_gpu
from torchtrt_executorch.runtime.errors import (
    DeviceError,
    InstructionError,
    ProgramError,
)
from torchtrt_executorch.runtime.inputs import Inputs
from torchtrt_executorch.runtime.nesting import Nesting
from torchtrt_executorch.runtime.operators.kernels import registered_kernels
from torchtrt_executorch.runtime.plans.analysis import (
    Uses,
    fences,
    transposed_constants,
)
from torchtrt_executorch.runtime.plans.peer_copies import peer_copies
from torchtrt_executorch.runtime.plans.placement_check import (
    find_violations,
    with_inputs_on,
)
from torchtrt_executorch.runtime.plans.plan import Plan, ValueInfo
from torchtrt_executorch.runtime.profile.profiling import Profiler
from torchtrt_executorch.runtime.tensors.layout import CPU
from torchtrt_executorch.runtime.tensors.memory import SharedState, Values
from torchtrt_executorch.runtime.tensors.values import Value

#: ExecuTorch's own limit of instructions in one call, so that no program runs forever.
MAX_INSTRUCTIONS = 10_000_000


class Method:
    """A method, ready to be called. Calls from several threads run one after the other.

    State that the method mutates (KV caches, counters) carries over from call to call.
    """

    def __init__(
        self,
        plan: Plan,
        context: ProgramContext,
        shared: SharedState,
        call_lock: CallLock,
        original: Method | None = None,
    ) -> None:
        self.name: str = plan.name
        self._plan = plan
        self._context = context
        self._call_lock = call_lock
        file, placement = context.file, context.placement
        file.check_unchanged()
        # First analysis of the plan, then memory, then operations, then the state at a call's beginning.
        uses = Uses.of(plan)
        views, needless, peers = {}, frozenset[int](), dict[int, int]()
        if not placement.simulate:
            views = transposed_constants(plan, registered_kernels())
            elided, peers = peer_copies(plan)
            needless = fences(plan).union(views, elided)
        self._values: Values = Values(
            plan,
            uses,
            file,
            placement,
            shared,
            views.values(),
            pinned=not placement.in_host_memory and uses_gpu(plan.delegates),
            clone_source=None if original is None else original._values,
        )
        loaded = {} if original is None else original._delegates
        common = shared.tensors_of(plan.name)
        binder = Binder(plan, self._values, context, needless, peers, loaded, common)
        self._delegates: dict[Key, Delegate] = binder.delegates
        file.check_unchanged()
        self._nesting = Nesting(plan.output_tree, len(plan.outputs))
        self._inputs = Inputs(plan, self._values, uses, placement, context.recorder)
        self._tally = context.recorder.tally(self, self.name, plan.operations)
        self._devices = self._gpus()
        call_lock.order.keep(
            self._devices, self._values.memory() if self._devices else []
        )
        per_call = self._arrange(binder, uses)
        once = Counter(plan.outputs)
        #: outputs, and whether what they are after a call is the caller's
        self._returns = [
            (self._values[index], index in per_call and once[index] == 1)
            for index in plan.outputs
        ]
        self._owned = [value for value, own in self._returns if own]
        #: those that change, and what they are at first
        self._numbers = [
            (self._values[value.index], value.literal)
            for value in plan.values
            if value.index in uses.rebindable
            and value.layout is None
            and value.items is None
        ]
        self._position = 0
        self._simulate = placement.simulate
        #: what delegates say of themselves, asked while the file is what it was
        self._described = {
            delegate.name: about(delegate)
            for delegate in plan.delegates
            if placement.simulate
        }
        #: where inputs lived in calls that were looked at
        self._checked_input_devices: list[dict[int, torch.device]] = []

    def _arrange(self, binder: Binder, uses: Uses) -> set[int]:
        """Set the allocations and operations of a call. Return the values that it may hand to the caller."""
        plan, runs = self._plan, [*binder.runs]
        #: what runs as one, by its first operation
        self._spans: dict[int, range] = {}
        allocators, per_call = self._values.allocators(), set(uses.per_call)
        for call in binder.calls.values():
            if call.delegate.makes_results:
                for value in call.args[call.num_inputs :]:
                    if value.delegate_private:
                        allocators.pop(value.index, None)
        if self._context.cuda_graphs:
            calls = [binder.calls.get(index) for index in range(len(runs))]
            segments = graphs.find_segments(calls, plan.destinations, allocators)
            for span, segment in segments.items():
                runs[span.start : span.stop] = [nothing] * len(span)
                runs[span.start], self._spans[span.start] = segment.run, span
                # Values that a CUDA graph keeps need no per-call memory when it is launched.
                written = {value.index for value in segment.outputs}
                per_call -= written
                if plan.straight:  # else another branch may write them
                    for index in written:
                        allocators.pop(index, None)
        self._clock: Profiler | None = None
        if self._context.profile:
            self._clock = clock = self._new_clock(binder)
            runs = [
                run if run is nothing else clock.run(index, run)
                for index, run in enumerate(runs)
            ]
        self._allocators = list(allocators.values())
        #: what each operation runs, and those that run something
        self._runs = runs
        self._steps = [step for step in enumerate(runs) if step[1] is not nothing]
        return per_call

    def _new_clock(self, binder: Binder) -> Profiler:
        """Return a profiler of calls, with the clocks of the devices where operations run."""
        devices = [CPU] * len(self._plan.operations)
        if not self._context.placement.in_host_memory:
            for index, operation in enumerate(self._plan.operations):
                if index in binder.calls:
                    devices[index] = binder.calls[index].delegate.device
                elif operation.is_copy:
                    ends = (self._values[index].device for index in operation.args[:2])
                    devices[index] = next((d for d in ends if d.type != "cpu"), CPU)
        until = {span.start: span.stop - 1 for span in self._spans.values()}
        recorder = self._context.recorder
        return recorder.clock(self.name, self._plan.operations, devices, until)

    @as_it_is
    def clone(self) -> Method:
        """Return a clone of the method, for calls that run concurrently.

        It has memory of its own, and state that starts anew, apart from what other methods share.
        Constants and TensorRT's engines are shared; other delegates are loaded once more.

        Raises:
            ModeError: It is cloned within tracing, a transform or a dispatch mode.
            ProgramError: A file has changed since the program was loaded.
        """
        refuse_modes(f"{self.name} is cloned")
        own_state = SharedState([self._plan]), CallLock()
        return without_modes(
            lambda: Method(self._plan, self._context, *own_state, original=self)
        )

    @property
    def inputs(self) -> tuple[ValueInfo, ...]:
        """The method's inputs, in order."""
        return self._plan.described_inputs

    @property
    def outputs(self) -> tuple[ValueInfo, ...]:
        """The method's outputs, in order."""
        return self._plan.described_outputs

    def _gpus(self) -> list[int]:
        """Return the GPUs on which calls leave work running, by index."""
        if self._context.placement.in_host_memory:
            return []
        places = {value.device for value in self._values}
        places.update(delegate.device for delegate in self._delegates.values())
        return sorted(place.index or 0 for place in places if place.type == "cuda")

    def nested(self, outputs: tuple[Any, ...]) -> Any:
        """Return the outputs of a call as the model returned them when it was exported.

        Tuples, lists and dictionaries are nested as they were, if the file says so; a type of the user's is
        a dictionary of its fields. A single tensor, or a flat list, is a tuple.
        """
        return self._nesting(outputs)

    @as_it_is
    def __call__(self, *inputs: Any, **keywords: Any) -> tuple[Any, ...]:
        """Run the method.

        Modes that the caller has set (inference mode, autocast, a default device or dtype, gradients)
        make no difference, and ``torch.compile`` calls it as it is. Inputs' gradients and derivatives
        end here.

        Args:
            inputs: The model's, in order; lists, tuples and dicts are flattened as PyTorch flattened
                them for the export.
            keywords: Names of the inputs that the model was exported with by keyword.

        Returns:
            The flat outputs: tensors that are the caller's, and numbers. See :meth:`nested`.

        Raises:
            InputError: The method doesn't take these.
            ModeError: It is called within what sees each operator: ``torch.export`` and other tracing,
                transforms as ``torch.vmap``, a ``TorchDispatchMode``.
            InstructionError: An instruction failed; ``DeviceError`` if a tensor was on the wrong device.
        """
        if sees_operators():
            refuse_modes(f"{self.name} is called")
        if keywords:
            inputs = self._inputs.with_keywords(inputs, keywords)
        call_lock = self._call_lock
        if call_lock.lock._is_owned():
            raise InstructionError(
                f"{self.name} is called by a kernel or delegate of {call_lock.caller}, which runs on the "
                "same memory: load the program a second time for that"
            )
        with call_lock.lock:
            call_lock.caller = self.name
            if self._clock is not None:
                clock = self._clock
                return without_modes(lambda: clock.call(self._call, inputs))
            if in_modes():
                return without_modes(lambda: self._call(inputs))
            return self._call(inputs)

    def _call(self, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Run a call that holds the call lock, outside of the caller's modes except for that of gradients."""
        devices, order = self._devices, self._call_lock.order
        recording, changed = torch.is_grad_enabled(), False
        try:
            if recording:  # as torch.no_grad does, which takes a microsecond more
                torch._C._set_grad_enabled(False)
            if devices:
                changed = order.begin(devices)
            for allocate in self._allocators:
                allocate()
            self._inputs.set(inputs)
            self._run()
            results = tuple(
                [value.data if own else _result(value) for value, own in self._returns]
            )
            for value in self._owned:
                value.data = None  # so that it is freed when the caller lets go of it
            return results
        finally:
            try:
                if changed:
                    order.end(devices)
            finally:
                if recording:
                    torch._C._set_grad_enabled(True)

    def _run(self) -> None:
        self._position = 0
        try:
            if self._simulate:
                self._check_devices()
            if self._plan.straight:
                for position, run in self._steps:
                    self._position = position
                    run()
                self._tally.calls += 1
            else:
                self._tally.add(self._interpret())
        except BaseException as error:
            for value, literal in self._numbers:  # a loop has left its counter anywhere
                value.data = literal
            if not isinstance(error, Exception):
                raise
            # Kernels and delegates raise what they like; say which instruction it was.
            raise self._named(error) from error

    def _check_devices(self) -> None:
        """Raise ``DeviceError`` unless the method is sound on its devices, for inputs as they are."""
        input_devices = {
            value.index: self._values[value.index].device
            for value in self._plan.tensors(self._plan.inputs)
            if value.free
        }
        if input_devices in self._checked_input_devices:
            return
        plan = with_inputs_on(self._plan, input_devices)
        ordered = self._context.placement.ordered_streams
        for violation in find_violations(
            plan, lambda p: self._described[p.name], ordered
        ):
            self._position = violation.operation
            raise DeviceError(violation.text)
        self._checked_input_devices.append(input_devices)

    def _named(self, error: Exception) -> ProgramError:
        """``error``, with the instruction that has failed."""
        span = self._spans.get(self._position)
        if span is not None and not isinstance(error, ProgramError):
            where = f"{self.name}: instructions {span[0]} to {span[-1]}"
        else:
            name = self._plan.operations[self._position].name
            where = f"{self.name}: instruction {self._position} ({name})"
        if not isinstance(error, ProgramError):
            return InstructionError(f"{where}: {type(error).__name__}: {error}")
        kind = InstructionError if type(error) is ProgramError else type(error)
        return kind(f"{where}: {error}")

    def _interpret(self) -> list[int]:
        """Follow the jumps. Return how often each operation was run."""
        counts = [0] * len(self._runs)
        position = executed = 0
        while position < len(counts):
            self._position = position
            executed += 1
            if executed > MAX_INSTRUCTIONS:
                raise InstructionError(f"stopped after {MAX_INSTRUCTIONS} instructions")
            counts[position] += 1
            target = self._runs[position]()
            position = position + 1 if target is None else target
        return counts


def _result(value: Value) -> Any:
    data = value.get()
    if isinstance(data, torch.Tensor):
        # Planned memory and inputs are overwritten by the next call.
        return data.clone()
    return data
