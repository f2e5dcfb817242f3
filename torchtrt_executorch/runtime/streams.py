"""Delegates that run side by side on one device, in a simulation: who waits for whom.

ExecuTorch's C++ runtime lets some delegates go on after their call (`_delegate_streams`, beside
the device pass, says which). Here they run one after another, so what goes wrong there is looked
for in addresses: a delegate may not touch what an earlier one may still be writing, nor write to
what it may still be reading, until a copy on their device has waited for it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Iterable

import torch

from torchtrt_executorch.runtime.errors import DeviceError, ProgramError


@dataclass(frozen=True)
class Span:
    """The bytes of a tensor, by address."""

    name: str
    start: int
    end: int

    def overlaps(self, other: Span) -> bool:
        return self.start < other.end and other.start < self.end


@dataclass(frozen=True)
class Work:
    """What one call of a delegate reads and writes."""

    delegate: str
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    stream: str


@dataclass
class Running:
    """By device, the work that nothing has waited for yet, in all methods of a program."""

    _work: dict[torch.device, dict[Work, None]] = field(default_factory=dict)

    def wait(self, device: torch.device) -> None:
        """Something waits for all that was enqueued on a device."""
        self._work.pop(device, None)

    def wait_for_all(self) -> None:
        self._work.clear()

    def add(self, device: torch.device, work: Work) -> None:
        self._work.setdefault(device, {})[work] = None

    def state(self) -> object:
        """What is running, to be compared."""
        return frozenset((device, *work) for device, work in self._work.items())

    def copy(self) -> Running:
        """The same work, to be added to apart."""
        return Running({device: {**work} for device, work in self._work.items()})

    def check(self, device: torch.device, work: Work) -> None:
        """Raise ``DeviceError`` if ``work`` meets the memory of what may still be running."""
        for other in self._work.get(device, ()):
            if other.stream == work.stream:
                continue
            for mine, theirs, what in (
                (work.reads, other.writes, "reads {}, which {} may still be writing"),
                (work.writes, other.writes, "writes {}, which {} may be writing, too"),
                (work.writes, other.reads, "writes {} over what {} may still read"),
            ):
                for span in mine:
                    if any(span.overlaps(each) for each in theirs):
                        raise DeviceError(
                            f"{what.format(span.name, other.delegate)}: nothing orders the two on "
                            f"{device}; a copy on that device has to stand between them, or the "
                            "host has to run both on one stream (ordered_streams=True)"
                        )


@dataclass(frozen=True)
class StreamUse:
    """How one delegate uses the streams of its device, by the name of the one that it is on."""

    name: str
    device: torch.device
    leaves_running: bool
    waits: bool
    running: Running
    stream: str

    def called(self, reads: Iterable[Span], writes: Iterable[Span]) -> None:
        """Check a call and note what it leaves running. Raises ``DeviceError``."""
        work = Work(self.name, tuple(reads), tuple(writes), self.stream)
        try:
            if self.waits:
                self.running.wait(self.device)
            else:
                self.running.check(self.device, work)
        finally:
            if self.leaves_running:
                self.running.add(self.device, work)


def stream_use(
    backend_id: str,
    name: str,
    device: torch.device,
    running: Running,
) -> StreamUse | None:
    """What is known of a delegate, or None if it works on the host.

    Raises:
        ProgramError: The patch that knows is left out here.
    """
    if device.type == "cpu":
        return None
    try:
        from executorch.exir.passes._delegate_streams import streams_of
    except ImportError:
        raise ProgramError(
            "which delegates run in order is known to the patch delegate-order, which is "
            "not in force here; load the program with ordered_streams=True"
        ) from None
    streams = streams_of(backend_id)
    return StreamUse(
        name,
        device,
        streams.leaves_running,
        streams.waits,
        running,
        backend_id if streams.one_stream else name,
    )
