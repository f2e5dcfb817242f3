"""Delegates that run side by side on one device, in a simulation: who waits for whom.

ExecuTorch's C++ runtime lets some delegates go on after their call (`_delegate_streams`, beside
the device pass, says which). Here they run one after another, so what goes wrong there is looked
for in addresses: a delegate may not touch what an earlier one may still be writing, nor write to
what it may still be reading, until a copy on their device has waited for it: one to the host, or, for
most, one to the device, which itself may go on as well.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
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
    """What one call of a delegate, or one copy to its device, reads and writes.

    Attributes:
        stream: What it runs in order with; a name, empty for a copy.
        copied: Whether a copy to the device has been enqueued behind it, or is it.
    """

    name: str
    reads: tuple[Span, ...]
    writes: tuple[Span, ...]
    stream: str
    copied: bool = False


@dataclass
class Running:
    """By device, the work that nothing has waited for yet, in all methods of a program."""

    _work: dict[torch.device, dict[Work, None]] = field(default_factory=dict)

    def copied(self, device: torch.device, written: Span | None) -> None:
        """Something is copied on a device: from there to the host, or over ``written``."""
        earlier = self._work.pop(device, {})
        if written is not None:
            for work in earlier:
                self.add(device, replace(work, copied=True))
            name = f"the copy to {written.name}"
            self.add(device, Work(name, (), (written,), "", copied=True))

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

    def check(self, device: torch.device, work: Work, follows_copies: bool) -> None:
        """Raise ``DeviceError`` if ``work`` meets the memory of what may still be running."""
        for other in self._work.get(device, ()):
            if other.stream == work.stream or (other.copied and follows_copies):
                continue
            for mine, theirs, what in (
                (work.reads, other.writes, "reads {}, which {} may still be writing"),
                (work.writes, other.writes, "writes {}, which {} may be writing, too"),
                (work.writes, other.reads, "writes {} over what {} may still read"),
            ):
                for span in mine:
                    if any(span.overlaps(each) for each in theirs):
                        raise DeviceError(
                            f"{what.format(span.name, other.name)}: nothing orders the two on "
                            f"{device}; a copy {'on' if follows_copies else 'from'} that device has to "
                            "stand between them, or the host has to run both on one stream "
                            "(ordered_streams=True)"
                        )


@dataclass(frozen=True)
class StreamUse:
    """How one delegate uses the streams of its device, by the name of the one that it is on."""

    name: str
    device: torch.device
    leaves_running: bool
    waits: bool
    follows_copies: bool
    running: Running
    stream: str

    def called(self, reads: Iterable[Span], writes: Iterable[Span]) -> None:
        """Check a call and note what it leaves running. Raises ``DeviceError``."""
        work = Work(self.name, tuple(reads), tuple(writes), self.stream)
        try:
            if self.waits:
                self.running.wait(self.device)
            else:
                self.running.check(self.device, work, self.follows_copies)
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
        from executorch.exir.passes._delegate_streams import orders, streams_of
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
        orders(False, streams),
        running,
        backend_id if streams.one_stream else name,
    )
