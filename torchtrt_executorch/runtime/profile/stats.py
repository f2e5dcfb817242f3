"""Statistics of calls: delegates, transfers by direction, and host I/O staged by engine."""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from dataclasses import dataclass, field
from typing import Mapping, Sequence

import torch

from torchtrt_executorch.payloads.engine_header import EMULATED
from torchtrt_executorch.runtime.plans.plan import Kind, Operation
from torchtrt_executorch.runtime.profile import etdump
from torchtrt_executorch.runtime.profile.history import Timing, Trace
from torchtrt_executorch.runtime.profile.profiling import Profile, Profiler


@dataclass(frozen=True)
class Transfers:
    """``copies`` copies of ``nbytes`` bytes in all."""

    copies: int = 0
    nbytes: int = 0

    @classmethod
    def of(cls, sizes: Sequence[int]) -> Transfers:
        """Copies of ``sizes`` bytes each."""
        return cls(len(sizes), sum(sizes))

    def __add__(self, other: Transfers) -> Transfers:
        return Transfers(self.copies + other.copies, self.nbytes + other.nbytes)


@dataclass(frozen=True)
class Staging:
    """Host-resident I/O that one engine staged: copies in and out, over ``calls`` calls."""

    calls: int = 0
    inputs: Transfers = Transfers()
    outputs: Transfers = Transfers()


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
    ``"AOTInductor for sm_80"``. ``timings`` are those of ``load(..., profile=True)``.
    """

    calls: Mapping[str, int]
    kernels: Mapping[str, int]
    delegates: Mapping[str, int]
    copies: Mapping[str, Transfers]
    staged: Mapping[str, Staging]
    not_run: frozenset[str] = frozenset()
    stand_ins: frozenset[str] = frozenset()
    payloads: Mapping[str, str] = field(default_factory=dict)
    timings: Sequence[Timing] = ()

    @property
    def in_pytorch(self) -> Mapping[str, str]:
        """By delegate, what PyTorch ran in its payload's place: ``"stand-in"`` or ``"emulated engine"``.

        Results then say nothing of what the payload itself computes.
        """
        emulated = [name for name, made in self.payloads.items() if made == EMULATED]
        return dict.fromkeys(sorted(emulated), "emulated engine") | dict.fromkeys(
            sorted(self.stand_ins), "stand-in"
        )


class Tally:
    """Counts of a method's calls, and of its operations' runs.

    Only a call of the method writes to it, and those don't overlap: no lock is taken.

    Attributes:
        calls: Calls that ran each operation once.
    """

    def __init__(self, method: str, operations: Sequence[Operation]) -> None:
        self.method = method
        self.calls = 0
        self._operations = operations
        self._branching = 0
        self._runs = [0] * len(operations)

    def add(self, runs: Sequence[int]) -> None:
        """Count a call that ran each operation as often as ``runs`` says."""
        self._branching += 1
        self._runs = [old + new for old, new in zip(self._runs, runs, strict=True)]

    def merge(self, other: Tally) -> None:
        """Add the counts of a clone of the same method."""
        self.calls += other.calls
        self._branching += other._branching
        self._runs = [a + b for a, b in zip(self._runs, other._runs, strict=True)]

    def count(self, calls: Counter[str], runs: Mapping[Kind, Counter[str]]) -> None:
        """Add its calls, by method, and those of its operations, by kind and name."""
        calls[self.method] += self.calls + self._branching
        for operation, times in zip(self._operations, self._runs, strict=True):
            if operation.kind in runs:
                runs[operation.kind][operation.name] += times + self.calls


class Recorder:
    """The counters behind :class:`Stats`, which calls of several threads may add to.

    Attributes:
        not_run: Names of the delegates whose payload nothing runs here.
        stand_ins: Names of those in whose place a stand-in runs.
        payloads: By delegate's name, the builder of its payload.
        histories: By method, its last timed calls and those of its clones.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        #: with each one's owner: of a clone that is gone only the counts stay, added to its method's
        self._tallies: list[tuple[weakref.ref[object], Tally]] = []
        self._gone: dict[str, Tally] = {}
        self._copies: dict[str, Transfers] = {}
        self._staged: dict[str, Staging] = {}
        self.not_run: set[str] = set()
        self.stand_ins: set[str] = set()
        self.payloads: dict[str, str] = {}
        self.histories: dict[str, Trace] = {}

    def tally(
        self, owner: object, method: str, operations: Sequence[Operation]
    ) -> Tally:
        """Return the counts of ``owner``, a method or a clone, which are added to those of the program."""
        new = Tally(method, operations)
        with self._lock:
            there = [(weakref.ref(owner), new)]
            for owner_ref, tally in self._tallies:
                if owner_ref() is not None:
                    there.append((owner_ref, tally))
                elif (whole := self._gone.setdefault(tally.method, tally)) is not tally:
                    whole.merge(tally)
            self._tallies = there
        return new

    def clock(
        self,
        method: str,
        operations: Sequence[Operation],
        devices: Sequence[torch.device],
        until: Mapping[int, int],
    ) -> Profiler:
        """Return the clock of a method or a clone, whose delegates are loaded.

        ``devices`` and ``until`` are as :class:`~.history.Trace` takes them.
        """
        instead = {
            index: etdump.NOT_RUN if operation.name in self.not_run else etdump.STAND_IN
            for index, operation in enumerate(operations)
            if operation.name in self.not_run | self.stand_ins
        }
        history = Trace(method, operations, devices, until, instead)
        return Profiler(self.histories.setdefault(method, history))

    def copied(self, source: torch.device, target: torch.device, nbytes: int) -> None:
        """Count a copy; one from host to host isn't counted."""
        kinds = ("host" if d.type == "cpu" else "device" for d in (source, target))
        way = "_to_".join(kinds)
        if way != "host_to_host":
            with self._lock:
                before = self._copies.get(way, Transfers())
                self._copies[way] = before + Transfers(1, nbytes)

    def staged(self, delegate: str, inputs: Transfers, outputs: Transfers) -> bool:
        """Count what one call of a delegate has staged; true the first time."""
        with self._lock:
            old = self._staged.get(delegate, Staging())
            self._staged[delegate] = Staging(
                old.calls + 1, old.inputs + inputs, old.outputs + outputs
            )
            return old.calls == 0

    def snapshot(self) -> Stats:
        """Return the counts until now."""
        calls: Counter[str] = Counter()
        runs: dict[Kind, Counter[str]] = {
            Kind.KERNEL: Counter(),
            Kind.DELEGATE: Counter(),
        }
        with self._lock:
            tallies = [*self._gone.values(), *(tally for _, tally in self._tallies)]
        for tally in tallies:
            tally.count(calls, runs)
        timings = Profile([*self.histories.values()]).timings
        with self._lock:
            return Stats(
                dict(+calls),
                dict(+runs[Kind.KERNEL]),
                dict(+runs[Kind.DELEGATE]),
                dict(self._copies),
                dict(self._staged),
                frozenset(self.not_run),
                frozenset(self.stand_ins),
                dict(self.payloads),
                timings,
            )
