"""Profile a program by instruction, with GPU events for what runs there."""

from __future__ import annotations

import os
import time
from typing import Any, Callable, Iterator, Sequence

import torch

from torchtrt_executorch.files import check_writable, staged
from torchtrt_executorch.runtime.profile import etdump
from torchtrt_executorch.runtime.profile.history import (
    MOST,
    CallRecord,
    Span,
    Timing,
    TimingStats,
    Trace,
    sum_up,
)
from torchtrt_executorch.runtime.tensors.devices import current_stream, synchronize
from torchtrt_executorch.runtime.tensors.values import Run

Call = Callable[[tuple[Any, ...]], tuple[Any, ...]]

_now = time.perf_counter_ns


class Profiler:
    """Times the calls of one method or clone, which don't overlap, and what they run.

    What runs on a GPU is between two events on the stream that it is enqueued on: the time from when
    the GPU came by to when it was done. Nothing is waited for within a call that enqueues no more than
    :data:`MOST`; at its end all GPUs are.
    """

    def __init__(self, history: Trace) -> None:
        self._history, self._devices = history, history.devices
        self._gpus = sorted({d.index or 0 for d in self._devices if d.type != "cpu"})
        self._zeros: dict[int, tuple[int, Any]] = {}
        self._on = False
        self._spans: list[Span] = []
        self._totals: dict[int, TimingStats] = {}
        self._pending: list[tuple[int, Any, Any]] = []

    def run(self, index: int, run: Run) -> Run:
        """Operation ``index``, timed when it runs within a timed call."""
        device = self._devices[index]

        def on_host() -> int | None:
            start = _now()
            target = run()
            self._add(Span(index, start, _now()))
            return target

        def on_gpu() -> int | None:
            if not self._on:
                return run()
            stream = current_stream(device.index or 0)
            before, after = _event(), _event()
            before.record(stream)
            target = run()
            after.record(stream)
            self._pending.append((index, before, after))
            if len(self._pending) == MOST:
                self._settle()
            return target

        return on_host if device.type == "cpu" else on_gpu

    def call(self, run: Call, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return a call of the method, timed unless a CUDA graph is being captured, or it fails."""
        self._on = not (self._gpus and torch.cuda.is_current_stream_capturing())
        self._spans, self._totals, self._pending = [], {}, []
        if not self._on:
            return run(inputs)
        self._zeros = {gpu: _zero(gpu) for gpu in self._gpus}
        start = _now()
        results = run(inputs)
        self._settle()
        self._add(Span(-1, start, _now()))
        self._history.note(self._called())
        return results

    def _settle(self) -> None:
        """Wait for the GPUs, and ask them for their times."""
        for gpu in self._gpus:
            synchronize(gpu)
        pending, self._pending = self._pending, []
        for index, before, after in pending:
            at, zero = self._zeros[self._devices[index].index or 0]
            start, end = (
                at + round(1e6 * zero.elapsed_time(e)) for e in (before, after)
            )
            self._add(Span(index, start, end))

    def _add(self, span: Span) -> None:
        self._spans.append(span)
        if len(self._spans) > MOST:
            sum_up(self._spans, self._totals)
            self._spans.clear()

    def _called(self) -> CallRecord:
        spans, self._spans = self._spans, []
        if self._totals:
            spans = [
                Span(index, own.start, own.start + own.total)
                for index, own in sum_up(spans, self._totals).items()
            ]
        return CallRecord(sorted(spans, key=lambda span: span.start), self._totals)


def _zero(gpu: int) -> tuple[int, Any]:
    """Return a moment, by the process's clock and by a GPU's."""
    synchronize(gpu)
    event = _event()
    event.record(current_stream(gpu))
    event.synchronize()
    return _now(), event


def _event() -> Any:
    make: Any = torch.cuda.Event
    return make(enable_timing=True)


class Profile:
    """Result of :meth:`Program.profile`: times, as a table (``print`` it) and as a file.

    Attributes:
        timings: By method and instruction, of the calls until now; each method's calls as a whole
            come first.
    """

    def __init__(self, histories: Sequence[Trace]) -> None:
        self._calls = [(history, history.calls()) for history in histories]
        self.timings: Sequence[Timing] = tuple(
            timing
            for history, calls in sorted(
                self._calls, key=lambda record: record[0].method
            )
            for timing in history.timings(calls)
        )

    def __str__(self) -> str:
        return "\n".join(_table(self.timings)) or "nothing was called"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the same calls as an ETDump, for ExecuTorch's ``Inspector`` and ``inspect --times``.

        Args:
            path: The file, ``.etdp`` as a rule. It is written whole or not at all.

        Raises:
            OSError: It can't be written.
        """
        target = check_writable(path)
        runs = [
            etdump.Run(
                etdump.EXECUTE if history.method == "forward" else history.method,
                [event for span in call.spans for event in history.events(span)],
            )
            for history, calls in self._calls
            for call in calls
        ]
        with staged(target) as folder:
            (folder / target.name).write_bytes(etdump.dumped(runs))


def _table(timings: Sequence[Timing]) -> Iterator[str]:
    """Yield a line for each instruction, by method, the one that takes longest first."""
    for whole in (timing for timing in timings if timing.instruction < 0):
        yield (
            f"{whole.method}: {whole.runs} call{'s' * (whole.runs > 1)} of {whole.of_call / 1e3:.1f} us, from "
            f"{whole.least / 1e3:.1f} to {whole.most / 1e3:.1f}"
        )
        yield f"{'us a call':>12} {'share':>6} {'runs':>8}  instruction"
        lines = [
            (timing.of_call, timing.runs, _called(timing))
            for timing in timings
            if timing.method == whole.method and timing.instruction >= 0
        ]
        rest = max(whole.of_call - sum(duration for duration, _, _ in lines), 0)
        lines.append((rest, whole.runs, "beside them: inputs, results, the runtime"))
        for duration, runs, name in sorted(lines, reverse=True):
            share = duration / max(whole.of_call, 1)
            yield f"{duration / 1e3:12.1f} {share:6.1%} {runs:8}  {name}"


def _called(timing: Timing) -> str:
    number = f"#{timing.instruction}"
    if timing.until > timing.instruction:
        number += f" to #{timing.until}, one CUDA graph"
    where = "" if timing.device.type == "cpu" else f", on {timing.device}"
    instead = timing.instead and f", {timing.instead}"
    return f"{number} {timing.name}{where}{instead}"
