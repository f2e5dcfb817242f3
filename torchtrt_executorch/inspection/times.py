"""Measured times of a file's instructions: an ETDump beside the facts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from torchtrt_executorch.inspection.facts import Facts, Method, Times
from torchtrt_executorch.runtime import etdump
from torchtrt_executorch.runtime.errors import ProgramError


def with_times(facts: Facts, path: Path, method: str | None = None) -> Facts:
    """Return facts with the times of an ETDump in them.

    Args:
        path: What ``Program.profile().save`` wrote, or ExecuTorch's C++ runtime.
        method: Of which method calls are that don't say, as those of the C++ runtime: ``forward``, or
            the only one, by default.

    Raises:
        ProgramError: It is no ETDump, or another program's.
        OSError: It can't be read.
    """
    known = {each.name for each in facts.methods}
    usual = "forward" if "forward" in known or len(known) != 1 else [*known][0]
    try:
        written = etdump.read(path.read_bytes())
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from None
    runs: dict[str, list[etdump.Run]] = {}
    for run in written:
        if any(event.instruction is not None for event in run.events):
            name = run.name if run.name in known else method or usual
            runs.setdefault(name, []).append(run)
    if not runs:
        raise ProgramError(f"{path} has no times of instructions")
    if missing := runs.keys() - known:
        raise ProgramError(
            f"{path} has times of {sorted(missing)[0]!r}, which {facts.name} hasn't"
        )
    found = [
        (
            replace(each, times=_times(each, runs[each.name], path))
            if each.name in runs
            else each
        )
        for each in facts.methods
    ]
    return replace(facts, methods=found)


def _times(method: Method, runs: Sequence[etdump.Run], path: Path) -> Times:
    taken, calls = [], []
    instead: dict[int, str] = {}
    for run in runs:
        each: Counter[int] = Counter()
        start, end = 2**64, 0
        for event in run.events:
            start, end = min(start, event.start), max(end, event.end)
            if event.instruction is not None:
                _check(method, event, path)
                each[event.instruction] += event.end - event.start
                if event.instead:
                    instead[event.instruction] = event.instead
        calls.append(end - start)
        taken.append(each)
    return Times(len(runs), median(calls), etdump.of_a_call(taken), instead)


def _check(method: Method, event: etdump.Event, path: Path) -> None:
    index = event.instruction
    assert index is not None
    if index < len(method.instructions):
        delegate = method.instructions[index].kind == "delegate"
        if (event.name == etdump.DELEGATE) == delegate or event.name not in (
            etdump.KERNEL,
            etdump.DELEGATE,
        ):
            return
    raise ProgramError(
        f"{path} has times of another program: there is no {event.name} at instruction {index} of "
        f"{method.name!r}"
    )
