"""What a program did: calls, copies by direction, and host I/O staged by engine."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Mapping, Sequence

import torch

from torchtrt_executorch.runtime.plan import Kind, Operation


@dataclass(frozen=True)
class Traffic:
    """``copies`` copies of ``nbytes`` bytes in all."""

    copies: int = 0
    nbytes: int = 0

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Traffic:
        """Copies of ``sizes`` bytes each."""
        return cls(len(sizes), sum(sizes))

    def plus(self, nbytes: int) -> Traffic:
        return Traffic(self.copies + 1, self.nbytes + nbytes)


@dataclass(frozen=True)
class Staging:
    """Host-resident I/O that one engine staged: copies in and out, over ``calls`` calls."""

    calls: int = 0
    inputs: Traffic = Traffic()
    outputs: Traffic = Traffic()


@dataclass(frozen=True)
class Stats:
    """A snapshot of a program's counters, since it was loaded.

    ``copies`` has the directions ``host_to_device``, ``device_to_host`` and
    ``device_to_device``: device-copy operators, and method inputs that live elsewhere than the
    program wants them. What delegates stage for themselves is in ``staged``, by engine.
    ``not_run`` names the delegates whose payload a simulation could not run here, so that results
    that depend on them mean nothing. ``stand_ins`` names those that a stand-in computed for, the
    payload's partition in PyTorch. ``payloads`` says what has built a delegate's payload, where its
    bytes tell: ``"TensorRT-RTX 1.5.0.114"``, ``"TensorRT 11.0.0.114"``, ``"EMULATED"``,
    ``"AOTInductor for sm_80"``.
    """

    calls: Mapping[str, int]
    kernels: Mapping[str, int]
    delegates: Mapping[str, int]
    copies: Mapping[str, Traffic]
    staged: Mapping[str, Staging]
    not_run: frozenset[str] = frozenset()
    stand_ins: frozenset[str] = frozenset()
    payloads: Mapping[str, str] = field(default_factory=dict)


class Tally:
    """How often a method ran, and its operations.

    Only a call of the method writes to it, and those don't overlap: no lock is taken.

    Attributes:
        calls: Calls that ran each operation once.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.calls = 0
        self._operations = operations
        self._branching = 0
        self._runs = [0] * len(operations)

    def add(self, runs: Sequence[int]) -> None:
        """Count a call that ran each operation as often as ``runs`` says."""
        self._branching += 1
        self._runs = [old + new for old, new in zip(self._runs, runs, strict=True)]

    @property
    def total(self) -> int:
        """The number of calls."""
        return self.calls + self._branching

    def of(self, kind: Kind) -> Counter[str]:
        """How often the operations of one kind ran, by name."""
        counts: Counter[str] = Counter()
        for each, runs in zip(self._operations, self._runs, strict=True):
            if each.kind is kind and runs + self.calls:
                counts[each.name] += runs + self.calls
        return counts


class StagingTally:
    """What the delegates of one name have staged. Those of clones count at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls = 0
        self._copies = [0, 0]
        self._nbytes = [0, 0]

    def add(self, inputs: Traffic, outputs: Traffic) -> bool:
        """Count what one call has staged; true the first time."""
        with self._lock:
            self._calls += 1
            self._copies[0] += inputs.copies
            self._copies[1] += outputs.copies
            self._nbytes[0] += inputs.nbytes
            self._nbytes[1] += outputs.nbytes
            return self._calls == 1

    def total(self) -> Staging | None:
        """The sum, or None if nothing was staged."""
        with self._lock:
            inputs, outputs = map(Traffic, self._copies, self._nbytes)
            return Staging(self._calls, inputs, outputs) if self._calls else None


class Recorder:
    """Thread-safe counters behind :class:`Stats`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tallies: list[tuple[str, Tally]] = []
        self._copies: dict[str, Traffic] = {}
        self._staged: dict[str, StagingTally] = {}
        self._not_run: set[str] = set()
        self._stand_ins: set[str] = set()
        self._payloads: dict[str, str] = {}

    def tally(self, method: str, operations: Sequence[Operation]) -> Tally:
        """Return a method's own counts, which are added to those of the program."""
        tally = Tally(operations)
        with self._lock:
            self._tallies.append((method, tally))
        return tally

    def copied(self, source: torch.device, target: torch.device, nbytes: int) -> None:
        """Count a copy; one that stays on a host is nobody's traffic."""
        sides = ("host" if d.type == "cpu" else "device" for d in (source, target))
        direction = "_to_".join(sides)
        if direction != "host_to_host":
            with self._lock:
                before = self._copies.get(direction, Traffic())
                self._copies[direction] = before.plus(nbytes)

    def staging(self, delegate: str) -> StagingTally:
        """Return the counts of what the delegates of one name stage."""
        with self._lock:
            return self._staged.setdefault(delegate, StagingTally())

    def loaded(self, delegate: str, built_by: str) -> None:
        """Say what has built a delegate's payload."""
        with self._lock:
            self._payloads[delegate] = built_by

    def absent(self, delegate: str) -> None:
        """Say that nothing runs a delegate's payload here."""
        with self._lock:
            self._not_run.add(delegate)

    def stood_in(self, delegate: str) -> None:
        """Say that a stand-in runs in the place of a delegate's payload."""
        with self._lock:
            self._stand_ins.add(delegate)

    def snapshot(self) -> Stats:
        with self._lock:
            calls: Counter[str] = Counter()
            kernels: Counter[str] = Counter()
            delegates: Counter[str] = Counter()
            for method, tally in self._tallies:
                if tally.total:
                    calls[method] += tally.total
                kernels += tally.of(Kind.KERNEL)
                delegates += tally.of(Kind.DELEGATE)
            return Stats(
                dict(calls),
                dict(kernels),
                dict(delegates),
                dict(self._copies),
                {
                    delegate: total
                    for delegate, tally in self._staged.items()
                    if (total := tally.total()) is not None
                },
                frozenset(self._not_run),
                frozenset(self._stand_ins),
                dict(self._payloads),
            )
