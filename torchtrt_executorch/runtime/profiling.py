"""Where a program's time goes, instruction by instruction: by a GPU's own clock for what runs there."""

from __future__ import annotations

import os
import statistics
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Callable, Iterator, Mapping, NamedTuple, Sequence

import torch

from torchtrt_executorch.files import check_writable, staged
from torchtrt_executorch.runtime import etdump
from torchtrt_executorch.runtime.devices import current_stream
from torchtrt_executorch.runtime.layout import CPU
from torchtrt_executorch.runtime.plan import Kind, Operation

Run = Callable[[], "int | None"]
Call = Callable[[tuple[Any, ...]], tuple[Any, ...]]

#: Runs of instructions that are kept of a method: those of its last calls.
MOST = 200_000

_now = time.perf_counter_ns


@dataclass(frozen=True)
class Timing:
    """The time that one instruction took in the last calls since the program was loaded.

    Attributes:
        method: The method that it is of.
        instruction: Its number there; -1 for calls of the method as a whole.
        kind: ``"kernel"``, ``"delegate"``, ``"copy"`` (between devices), ``"move"``, ``"jump"``,
            ``"free"``, or ``"call"``.
        name: The operator, or what messages call the delegate.
        device: Whose clock it is by: ``cpu``, or the GPU that runs it.
        until: The last instruction of those that are launched with it as one CUDA graph; its own
            number otherwise.
        runs: How often it was run.
        total, least, median, most: Nanoseconds, of all runs and of one.
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
    median: float
    most: int


class Span(NamedTuple):
    """A run of an instruction, -1 for the call itself: nanoseconds of the process's clock."""

    instruction: int
    start: int
    end: int


class Clock:
    """Times the calls of one method, which don't overlap, and what they run.

    What runs on a GPU is between two events on the stream that it is enqueued on: the time from when
    the GPU came by to when it was done. Nothing is waited for within a call; at its end all GPUs are.

    Args:
        devices: By operation, the GPU that it is enqueued on, or the host.
        until: By operation, the last of those that run with it as one, if there are others.

    Attributes:
        calls: What the last calls ran.
    """

    def __init__(
        self,
        method: str,
        operations: Sequence[Operation],
        devices: Sequence[torch.device],
        until: Mapping[int, int],
    ) -> None:
        self.method = method
        self.calls: deque[Sequence[Span]] = deque()
        self._kept = 0
        self._operations, self._devices, self._until = operations, devices, until
        self._gpus = sorted({each.index or 0 for each in devices if each.type != "cpu"})
        self._on = False
        self._spans: list[Span] = []
        self._pending: list[tuple[int, Any, Any]] = []

    def run(self, index: int, run: Run) -> Run:
        """Operation ``index``, timed when it runs within a timed call."""
        device = self._devices[index]

        def on_host() -> int | None:
            start = _now()
            target = run()
            if len(self._spans) < MOST:
                self._spans.append(Span(index, start, _now()))
            return target

        def on_gpu() -> int | None:
            if not self._on or len(self._pending) == MOST:
                return run()
            stream = current_stream(device.index or 0)
            before, after = _event(), _event()
            before.record(stream)
            target = run()
            after.record(stream)
            self._pending.append((index, before, after))
            return target

        return on_host if device.type == "cpu" else on_gpu

    def call(self, run: Call, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """A call of the method, timed unless a CUDA graph is being captured, or it fails."""
        self._on = not (self._gpus and torch.cuda.is_current_stream_capturing())
        self._spans, self._pending = [], []
        if not self._on:
            return run(inputs)
        zeros = {gpu: _zero(gpu) for gpu in self._gpus}
        start = _now()
        results = run(inputs)
        for gpu in self._gpus:
            torch.cuda.synchronize(gpu)
        self._note([Span(-1, start, _now()), *self._spans, *self._of_gpus(zeros)])
        return results

    def timing(self, instruction: int, taken: Sequence[int]) -> Timing:
        """What the runs of an instruction took, by how long each did."""
        kind, name, device = "call", self.method, CPU
        if instruction >= 0:
            each, device = self._operations[instruction], self._devices[instruction]
            kind, name = "copy" if each.is_copy else each.kind.value, each.name
        return Timing(
            self.method,
            instruction,
            kind,
            name,
            device,
            until=self._until.get(instruction, instruction),
            runs=len(taken),
            total=sum(taken),
            least=min(taken),
            median=statistics.median(taken),
            most=max(taken),
        )

    def event(self, span: Span) -> etdump.Event:
        """A run as ExecuTorch's own runtime calls it."""
        times = span.start, span.end
        if span.instruction < 0:
            return etdump.Event("Method::execute", None, *times)
        each = self._operations[span.instruction]
        name = each.kind.value.upper()
        if each.kind is Kind.DELEGATE:
            name = etdump.DELEGATE
        elif each.kind is Kind.KERNEL:
            name = f"native_call_{each.name.partition('::')[2]}"
        return etdump.Event(name, span.instruction, *times)

    def _of_gpus(self, zeros: dict[int, tuple[int, Any]]) -> Iterator[Span]:
        for index, before, after in self._pending:
            at, zero = zeros[self._devices[index].index or 0]
            start, end = (
                at + round(1e6 * zero.elapsed_time(e)) for e in (before, after)
            )
            yield Span(index, start, end)

    def _note(self, spans: list[Span]) -> None:
        self.calls.append(sorted(spans[:MOST], key=lambda each: each.start))
        self._kept += len(self.calls[-1])
        while self._kept > MOST and len(self.calls) > 1:
            self._kept -= len(self.calls.popleft())


def _zero(gpu: int) -> tuple[int, Any]:
    """A moment, by the process's clock and by a GPU's."""
    torch.cuda.synchronize(gpu)
    event = _event()
    event.record(current_stream(gpu))
    event.synchronize()
    return _now(), event


def _event() -> Any:
    make: Any = torch.cuda.Event
    return make(enable_timing=True)


class Profile:
    """What :meth:`Program.profile` returns: times, as a table (``print`` it) and as a file.

    Attributes:
        timings: By method and instruction; each method's calls as a whole come first.
    """

    def __init__(self, clocks: Sequence[Clock]) -> None:
        self._clocks = clocks
        taken: dict[tuple[str, int], list[int]] = {}
        of: dict[str, Clock] = {}
        for clock in clocks:  # a method and its clones have one each
            of[clock.method] = clock
            for span in (span for spans in list(clock.calls) for span in spans):
                key = clock.method, span.instruction
                taken.setdefault(key, []).append(span.end - span.start)
        self.timings: Sequence[Timing] = tuple(
            of[method].timing(instruction, taken[method, instruction])
            for method, instruction in sorted(taken)
        )

    def __str__(self) -> str:
        return "\n".join(_table(self.timings)) or "nothing was called"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the last calls as an ETDump, for ExecuTorch's ``Inspector`` and ``inspect --times``.

        Args:
            path: The file, ``.etdp`` as a rule. It is written whole or not at all.

        Raises:
            OSError: It can't be written.
        """
        target = check_writable(path)
        runs = [
            etdump.Run(
                etdump.EXECUTE if clock.method == "forward" else clock.method,
                [clock.event(span) for span in spans],
            )
            for clock in self._clocks
            for spans in clock.calls
        ]
        with staged(target) as folder:
            (folder / target.name).write_bytes(etdump.dumped(runs))


def _table(timings: Sequence[Timing]) -> Iterator[str]:
    """A line for each instruction, by method, the one that takes longest first."""
    for whole in (each for each in timings if each.instruction < 0):
        yield (
            f"{whole.method}: {whole.runs} call{'s' * (whole.runs > 1)} of {whole.median / 1e3:.1f} us, from "
            f"{whole.least / 1e3:.1f} to {whole.most / 1e3:.1f}"
        )
        yield f"{'us a call':>12} {'share':>6} {'runs':>8}  instruction"
        own = [each for each in timings if each.method == whole.method]
        lines = [
            (each.median * each.runs / whole.runs, each.runs, _called(each))
            for each in own
            if each.instruction >= 0
        ]
        rest = max(whole.median - sum(taken for taken, _, _ in lines), 0)
        lines.append((rest, whole.runs, "beside them: inputs, results, the runtime"))
        for taken, runs, name in sorted(lines, reverse=True):
            share = taken / max(whole.median, 1)
            yield f"{taken / 1e3:12.1f} {share:6.1%} {runs:8}  {name}"


def _called(each: Timing) -> str:
    number = f"#{each.instruction}"
    if each.until > each.instruction:
        number += f" to #{each.until}, one CUDA graph"
    where = "" if each.device.type == "cpu" else f", on {each.device}"
    return f"{number} {each.name}{where}"
