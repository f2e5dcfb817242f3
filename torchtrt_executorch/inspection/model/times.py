"""Times of a file's instructions, from an ETDump."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

from torchtrt_executorch.inspection.formatting import short
from torchtrt_executorch.inspection.model.facts import Facts, Method, Times
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.profile import etdump

_CALLS = ("kernel", "copy")
#: Kinds of instructions, by the names of ExecuTorch's runtime and of this one.
_KINDS = {
    etdump.KERNEL: _CALLS,
    etdump.DELEGATE: ("delegate",),
    **{name: ("move",) for name in ("MOVE_CALL", "MOVE")},
    **{name: ("jump",) for name in ("JF_CALL", "JUMP")},
    **{name: ("free",) for name in ("FREE_CALL", "FREE")},
}


def with_times(facts: Facts, path: Path, method: str | None = None) -> Facts:
    """Return facts with the times of an ETDump in them.

    Args:
        path: What ``Program.profile().save`` wrote, or ExecuTorch's C++ runtime.
        method: Of which method calls are that don't say, as those of the C++ runtime: ``forward``, or
            the only one, by default.

    Raises:
        ProgramError: It is no ETDump, or another program's; or it doesn't say of which method it is.
        OSError: It can't be read.
    """
    known = dict.fromkeys(method.name for method in facts.methods)
    called = ", ".join(short(name, 40) for name in known)
    if method is not None and method not in known:
        raise ProgramError(
            f"{facts.name} has no method {method!r} that times could be of, but {called}"
        )
    if method is None:
        method = (
            "forward"
            if "forward" in known
            else [*known][0] if len(known) == 1 else None
        )
    try:
        written = etdump.read(path.read_bytes())
    except ProgramError as error:
        raise ProgramError(f"{path}: {error}") from None
    runs: dict[str, list[etdump.Run]] = {}
    for run in written:
        if any(event.instruction is not None for event in run.events):
            name = run.name if run.name in known else method
            if name is None:
                raise ProgramError(
                    f"{path} has calls that don't say of which method they are: name it with --method, "
                    f"of {called}"
                )
            runs.setdefault(name, []).append(run)
    if not runs:
        raise ProgramError(f"{path} has no times of instructions")
    methods = [
        (
            replace(method, times=_times(method, runs[method.name], path))
            if method.name in runs
            else method
        )
        for method in facts.methods
    ]
    return replace(facts, methods=methods)


def _times(method: Method, runs: Sequence[etdump.Run], path: Path) -> Times:
    times_of_runs, calls = [], []
    instead: dict[int, str] = {}
    for run in runs:
        times_of_run: Counter[int] = Counter()
        start, end = 2**64, 0
        for event in run.events:
            start, end = min(start, event.start), max(end, event.end)
            if event.instruction is not None:
                _check(method, event, path)
                times_of_run[event.instruction] += event.end - event.start
                if event.instead:
                    instead[event.instruction] = event.instead
        calls.append(end - start)
        times_of_runs.append(times_of_run)
    return Times(len(runs), median(calls), etdump.of_a_call(times_of_runs), instead)


def _check(method: Method, event: etdump.Event, path: Path) -> None:
    index = event.instruction
    assert index is not None
    if index < len(method.instructions):
        step = method.instructions[index]
        kinds = _KINDS.get(event.name, _CALLS if event.kernel else (step.kind,))
        own = f"{etdump.NATIVE}{step.name.partition('::')[2]}"
        if step.kind in kinds and event.kernel in ("", own):
            return
    raise ProgramError(
        f"{path} has times of another program: there is no {short(event.kernel or event.name)} at "
        f"instruction {index} of {method.name!r}"
    )
