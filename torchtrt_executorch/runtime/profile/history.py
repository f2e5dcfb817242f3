"""Times of a method's last calls, by instruction."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Iterator, Mapping, NamedTuple, Sequence

import torch

from torchtrt_executorch.runtime.plans.plan import Kind, Operation
from torchtrt_executorch.runtime.profile import etdump
from torchtrt_executorch.runtime.tensors.layout import CPU

#: Runs of instructions that are kept of a method and its clones: those of their last calls.
MOST = 200_000


@dataclass(frozen=True)
class Timing:
    """The time that one instruction took in the last calls since the program was loaded.

    Attributes:
        method: The method that it is of.
        instruction: Its number there; -1 for calls of the method as a whole.
        kind: ``"kernel"``, ``"delegate"``, ``"copy"`` (between devices), ``"move"``, ``"jump"``,
            ``"free"``, or ``"call"``.
        name: The operator, or what messages call the delegate.
        device: Device of its clock: ``cpu``, or the GPU that runs it.
        until: The last instruction of those that are launched with it as one CUDA graph; its own
            number otherwise.
        runs: Number of runs.
        total, least, most: Nanoseconds, of all runs and of one.
        of_call: Nanoseconds that it takes of a call: the median of those that run it, all its runs
            there together, shared out among those that don't.
        instead: For a delegate whose payload doesn't run here, whose time this is:
            ``"by a stand-in"``, or ``"did not run here"``. Empty otherwise.
    """

    method: str
    instruction: int
    kind: str
    name: str
    device: torch.device
    until: int
    runs: int
    total: int
    least: int
    most: int
    of_call: float
    instead: str = ""


class Span(NamedTuple):
    """A run of an instruction, -1 for the call itself: nanoseconds of the process's clock."""

    instruction: int
    start: int
    end: int


class TimingStats(NamedTuple):
    """Runs of one instruction: when the first began, how many, and nanoseconds, of all and of one."""

    start: int
    runs: int
    total: int
    least: int
    most: int

    def and_of(self, other: TimingStats) -> TimingStats:
        """Return the statistics of both runs."""
        return TimingStats(
            min(self.start, other.start),
            self.runs + other.runs,
            self.total + other.total,
            min(self.least, other.least),
            max(self.most, other.most),
        )


def sum_up(
    spans: Sequence[Span], totals: dict[int, TimingStats]
) -> dict[int, TimingStats]:
    """Add runs to sums, by instruction, which are returned."""
    for index, start, end in spans:
        own = TimingStats(start, 1, end - start, end - start, end - start)
        totals[index] = totals[index].and_of(own) if index in totals else own
    return totals


class CallRecord(NamedTuple):
    """One call.

    Attributes:
        spans: Its instructions' runs, in order. Where that is more than :data:`MOST`, one for each instruction,
            from its first run on for as long as all its runs took.
        summed_up: All that it ran, by instruction, where that is more.
    """

    spans: Sequence[Span]
    summed_up: Mapping[int, TimingStats]

    @property
    def totals(self) -> Mapping[int, TimingStats]:
        """All that it ran, by instruction."""
        return self.summed_up or sum_up(self.spans, {})


class Trace:
    """The last timed calls of a method and its clones, also of those that are gone.

    Args:
        devices: By operation, the GPU that it is enqueued on, or the host.
        until: By operation, the last of those that run with it as one, if there are others.
        instead: By operation, what :attr:`Timing.instead` says, if anything.
    """

    def __init__(
        self,
        method: str,
        operations: Sequence[Operation],
        devices: Sequence[torch.device],
        until: Mapping[int, int],
        instead: Mapping[int, str],
    ) -> None:
        self.method, self.devices = method, devices
        self._operations, self._until, self._instead = operations, until, instead
        self._lock = threading.Lock()
        self._calls: deque[CallRecord] = deque()
        self._kept = 0

    def note(self, call: CallRecord) -> None:
        """Keep a call, and as many before it as there is room for."""
        with self._lock:
            self._calls.append(call)
            self._kept += len(call.spans)
            while self._kept > MOST and len(self._calls) > 1:
                self._kept -= len(self._calls.popleft().spans)

    def calls(self) -> list[CallRecord]:
        """Return the recorded calls."""
        with self._lock:
            return list(self._calls)

    def timings(self, calls: Sequence[CallRecord]) -> Iterator[Timing]:
        """Yield the times of calls, first as a whole, then by instruction."""
        totals: dict[int, TimingStats] = {}
        of_calls = []
        for call in calls:
            of_call = call.totals
            of_calls.append({index: own.total for index, own in of_call.items()})
            for index, own in of_call.items():
                totals[index] = totals[index].and_of(own) if index in totals else own
        for index, usual in etdump.of_a_call(of_calls).items():
            kind, name, device = "call", self.method, CPU
            if index >= 0:
                operation, device = self._operations[index], self.devices[index]
                kind, name = (
                    "copy" if operation.is_copy else operation.kind.value
                ), operation.name
            yield Timing(
                self.method,
                index,
                kind,
                name,
                device,
                until=self._until.get(index, index),
                runs=totals[index].runs,
                total=totals[index].total,
                least=totals[index].least,
                most=totals[index].most,
                of_call=usual,
                instead=self._instead.get(index, ""),
            )

    def events(self, span: Span) -> Iterator[etdump.Event]:
        """Yield the events of a run by ExecuTorch's own names, and a delegate's by its name as well.

        It has an event of each kernel beside the one of the call; of calls, tools leave it at that.
        """
        times = span.start, span.end
        if span.instruction < 0:
            yield etdump.Event("Method::execute", None, *times)
            return
        operation = self._operations[span.instruction]
        name = operation.kind.value.upper()
        if operation.kind is Kind.DELEGATE:
            name = etdump.DELEGATE
            yield etdump.Event(operation.name, span.instruction, *times)
        elif operation.kind is Kind.KERNEL:
            name = f"{etdump.NATIVE}{operation.name.partition('::')[2]}"
        instead = self._instead.get(span.instruction, "")
        yield etdump.Event(name, span.instruction, *times, instead)
