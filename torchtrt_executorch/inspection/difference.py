"""Differences between two exports of a program."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Iterator

from torchtrt_executorch.inspection.model.facts import Crossing, Facts, Method
from torchtrt_executorch.inspection.model.memory import usage


@dataclass(frozen=True)
class Change:
    """One thing that is different; ``before`` and ``after`` are counts or bytes.

    Attributes:
        method: The method it is about; empty for the file.
        what: ``"file"``, ``"method"``, ``"delegates"``, ``"kernels"``, ``"copies"``, ``"memory"``
            and so on.
        name: Which one: a backend and its device, an operator, a direction, a device.
        unit: ``"bytes"``, or empty for counts.
    """

    method: str
    what: str
    name: str
    before: int
    after: int
    unit: str = ""


def difference(before: Facts, after: Facts) -> list[Change]:
    """Return what changed, in the order of ``after``'s methods, then what is gone.

    Methods are matched by their names, delegates by backend, device and payload, operators by name.
    """
    olds = {method.name: method for method in before.methods}
    news = {method.name: method for method in after.methods}
    found = _changes("", "file", "size", before.nbytes, after.nbytes, "bytes")
    for name in dict.fromkeys((*news, *olds)):
        old, new = olds.get(name), news.get(name)
        if old is None or new is None:
            found.append(Change(name, "method", name, old is not None, new is not None))
        else:
            found += _of_method(old, new)
    return found


def _of_method(old: Method, new: Method) -> Iterator[Change]:
    for what, count, unit in (
        ("delegates", _delegates, ""),
        ("payloads", _payloads, "bytes"),
        ("kernels", _kernels, ""),
        ("copies", _copies, ""),
        ("copied", _copied, "bytes"),
        ("memory", _planned, "bytes"),
        ("memory in use", _in_use, "bytes"),
    ):
        before, after = count(old), count(new)
        for name in dict.fromkeys((*after, *before)):
            yield from _changes(new.name, what, name, before[name], after[name], unit)


def _changes(
    method: str, what: str, name: str, before: int, after: int, unit: str
) -> list[Change]:
    return [Change(method, what, name, before, after, unit)] if before != after else []


def _delegates(method: Method) -> Counter[str]:
    return Counter(
        " ".join(filter(None, (each.backend, "on", each.device, each.payload)))
        for each in method.delegates
    )


def _payloads(method: Method) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in method.delegates:
        found[f"{each.backend} on {each.device}"] += each.nbytes
    return found


def _kernels(method: Method) -> Counter[str]:
    return Counter(s.name for s in method.instructions if s.kind == "kernel")


def _copies(method: Method) -> Counter[str]:
    return Counter(_direction(each) for each in method.crossings)


def _copied(method: Method) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in method.crossings:
        found[_direction(each)] += each.nbytes
    return found


def _direction(crossing: Crossing) -> str:
    source, target = crossing.source, crossing.target
    staged = ", staged by delegates" if crossing.staged else ""
    return f"{source} to {target}{staged}"


def _planned(method: Method) -> Counter[str]:
    found: Counter[str] = Counter()
    for arena in method.arenas:
        found[arena.device] += arena.nbytes
    return found


def _in_use(method: Method) -> Counter[str]:
    return Counter({each.device: each.peak for each in usage(method)})
