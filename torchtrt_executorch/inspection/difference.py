"""Differences between two exports of a program."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Iterator

from torchtrt_executorch.inspection.model.facts import Facts, Method
from torchtrt_executorch.inspection.model.memory import usage


@dataclass(frozen=True)
class Change:
    """One thing that is different; ``before`` and ``after`` are counts or bytes.

    Attributes:
        method: The method it is about; empty for the file.
        what: ``"file"``, ``"method"``, ``"delegates"``, ``"kernels"``, ``"copies"``, ``"memory"``
            and so on.
        name: The item: a backend and its device, an operator, a direction, a device.
        unit: ``"bytes"``, or empty for counts.
    """

    method: str
    what: str
    name: str
    before: int
    after: int
    unit: str = ""


#: The compared quantities of two methods, in this order, with their units.
_UNITS = {
    "delegates": "",
    "payloads": "bytes",
    "kernels": "",
    "copies": "",
    "copied": "bytes",
    "memory": "bytes",
    "memory in use": "bytes",
}


def difference(before: Facts, after: Facts) -> list[Change]:
    """Return the changes, in the order of ``after``'s methods, then of removed ones.

    Methods are matched by their names, delegates by backend, device and payload, operators by name.
    """
    olds = {method.name: method for method in before.methods}
    news = {method.name: method for method in after.methods}
    sizes = before.nbytes, after.nbytes
    changes = (
        [Change("", "file", "size", *sizes, "bytes")] if sizes[0] != sizes[1] else []
    )
    for name in dict.fromkeys((*news, *olds)):
        old, new = olds.get(name), news.get(name)
        if old is None or new is None:
            changes.append(
                Change(name, "method", name, old is not None, new is not None)
            )
        else:
            changes += _of_method(old, new)
    return changes


def _of_method(old: Method, new: Method) -> Iterator[Change]:
    before, after = _amounts(old), _amounts(new)
    for what, unit in _UNITS.items():
        for key in dict.fromkeys((*after, *before)):
            if key[0] == what and before[key] != after[key]:
                yield Change(new.name, *key, before[key], after[key], unit)


def _amounts(method: Method) -> Counter[tuple[str, str]]:
    """Count the delegates, kernels, copies and bytes of a method, by kind and name."""
    amounts: Counter[tuple[str, str]] = Counter()
    for delegate in method.delegates:
        place = " ".join(filter(None, (delegate.backend, "on", delegate.device)))
        called = " ".join(filter(None, (place, delegate.payload)))
        amounts["delegates", called] += 1
        amounts["payloads", place] += delegate.nbytes
    for step in method.instructions:
        amounts["kernels", step.name] += step.kind == "kernel"
    for transfer in method.transfers:
        staged = ", staged by delegates" if transfer.staged else ""
        direction = f"{transfer.source} to {transfer.target}{staged}"
        amounts["copies", direction] += 1
        amounts["copied", direction] += transfer.nbytes
    for arena in method.arenas:
        amounts["memory", arena.device] += arena.nbytes
    for used in usage(method):
        amounts["memory in use", used.device] += used.peak
    return amounts
