"""Ask ExecuTorch's runtime which delegates of a ``.pte`` it loads, in a process of its own.

A payload is untrusted input, and a backend that loads it native code: XNNPACK's follows offsets of the file. So it
is asked in a forked process, of which the memory and the time are bounded, and that may crash. What it tells is
read as JSON.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchtrt_executorch.inspection.advice.finding import Finding, calls_of, name_of
from torchtrt_executorch.inspection.formatting import counted, short
from torchtrt_executorch.inspection.model.facts import Facts

#: Backends of which a payload is code, or an engine for a GPU: to load it is to run it.
_RUN_WHEN_LOADED = ("tensorrt", "cuda")
#: Seconds that one delegate may take.
SECONDS = 120.0
#: Bytes of address space, beside four times those of the files: XNNPACK packs weights anew.
_BYTES = 4 << 30
#: Crashes after which no more delegates are asked for.
_MOST_CRASHES = 8

#: A delegate of a method, by its name and its index.
Place = tuple[str, int]


@dataclass
class _Answers:
    """Results of loading delegates in the runtime.

    Attributes:
        load_errors: By delegate, why it isn't loaded; empty for one that is.
        problem: Why other delegates weren't tried, if they weren't.
    """

    load_errors: dict[Place, str]
    problem: str = ""


def refused_delegates(
    facts: Facts,
    path: Path,
    data_files: Sequence[Path] | None = None,
    seconds: float = SECONDS,
) -> Iterator[Finding]:
    """Yield a warning for each delegate that ExecuTorch's runtime rejects, and a note of those that weren't tried.

    Those of which this installation has no backend aren't, nor are TensorRT's engines and CUDA's libraries, which
    are code.

    Args:
        facts: Facts of the file.
        path, data_files: The ``.pte`` and its ``.ptd`` files; None takes those beside it that hold what it expects.
        seconds: Time limit of one delegate.
    """
    asked = [
        (method.name, delegate.index)
        for method in facts.methods
        for delegate in method.delegates
        if delegate.owner not in _RUN_WHEN_LOADED and not delegate.damaged
    ]
    answers = _ask(path, data_files, asked, seconds)
    unchecked: Counter[str] = Counter()
    for method in facts.methods:
        for delegate in method.delegates:
            said = answers.load_errors.get((method.name, delegate.index))
            if said is None:
                unchecked[delegate.backend] += not delegate.damaged
            elif said:
                yield Finding(
                    "refused",
                    "warning",
                    f"{name_of(method)}: ExecuTorch's runtime doesn't load delegate {delegate.index} "
                    f"({short(delegate.backend, 40)}): {short(said, 300)}.",
                    "Export the program again with the patch xnnpack-support in force, and leave out of the "
                    "backend, or change in the model, what it names.",
                    method.name,
                    calls_of(method, delegate),
                )
    if names := ", ".join(f"{n} of {short(b, 40)}" for b, n in unchecked.items() if n):
        code = "what is code is run where it is loaded, and of others there is no backend here"
        yield Finding(
            "unchecked",
            "note",
            f"Whether ExecuTorch's runtime loads {counted(unchecked.total(), 'delegate')} ({names}) "
            f"wasn't asked: {short(answers.problem, 300) or code}.",
            "Load the program in the runtime that it is for.",
        )


def _ask(
    path: Path,
    data_files: Sequence[Path] | None,
    asked: Collection[Place],
    seconds: float,
) -> _Answers:
    """Load delegates in a process, and continue in a new one after each that ends it."""
    answers = _Answers({})
    for _ in range(_MOST_CRASHES):
        rest = [place for place in asked if place not in answers.load_errors]
        if not rest or answers.problem:
            break
        _ask_in_a_process(path, data_files, rest, seconds, answers)
    else:
        answers.problem = f"{_MOST_CRASHES} others crashed it"
    return answers


def _ask_in_a_process(
    path: Path,
    data_files: Sequence[Path] | None,
    asked: Collection[Place],
    seconds: float,
    answers: _Answers,
) -> None:
    """Add to ``answers`` what a forked process tells until it ends."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    with tempfile.TemporaryFile("a+b") as log:
        process = context.Process(
            target=_load_and_tell, args=(path, data_files, asked, sender, log.fileno())
        )
        process.start()
        sender.close()
        place: Place | None = None
        try:
            while receiver.poll(seconds):
                message = json.loads(receiver.recv_bytes())
                if "problem" in message:
                    answers.problem = str(message["problem"])
                    return
                place = str(message["method"]), int(message["delegate"])
                if "error" in message:
                    answers.load_errors[place] = str(message["error"])
                    place = None
            end = f"it takes more than {seconds:g} s"
        except EOFError:
            process.join()
            end = _ending(process.exitcode)
        finally:
            process.kill()
            process.join()
            receiver.close()
        if place is not None:
            answers.load_errors[place] = end
        elif end:
            answers.problem = f"the process that asked ended: {end}"


def _ending(code: int | None) -> str:
    """Return how a process ended; empty if it ended normally."""
    if not code:
        return ""
    known = {-number.value: number.name for number in signal.Signals}
    return f"it ends the process ({known.get(code, f'exit status {code}')})"


def _load_and_tell(
    path: Path,
    data_files: Sequence[Path] | None,
    asked: Collection[Place],
    sender: Any,
    log: int,
) -> None:
    """Load the delegates that are asked for, one after the other, and tell of each before and after."""

    def tell(**message: Any) -> None:
        sender.send_bytes(json.dumps(message).encode())

    faulthandler.disable()
    os.dup2(log, 2)
    sys.stderr = os.fdopen(2, "w", closefd=False)  # where its Python bindings log
    try:
        contexts = _contexts(path, data_files, asked)
        _limit(path, data_files)
        for (method, delegate), context in contexts:
            tell(method=method, delegate=delegate)
            os.ftruncate(log, 0)
            os.lseek(log, 0, os.SEEK_SET)  # not appended to what is gone
            tell(method=method, delegate=delegate, error=_error(context, log))
    except Exception as error:
        tell(problem=f"{type(error).__name__}: {error}")


def _limit(path: Path, data_files: Sequence[Path] | None) -> None:
    """Limit the memory of this process, in addition to what it has now."""
    files = [path, *(data_files or path.parent.glob("*.ptd"))]
    allowed = _BYTES + 4 * sum(file.stat().st_size for file in files)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + allowed
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _error(context: Any, log: int) -> str:
    """Load one delegate in ExecuTorch's runtime; return its error and log if that fails."""
    from torchtrt_executorch.runtime.delegates.executorch import ExecuTorchDelegate
    from torchtrt_executorch.runtime.errors import ProgramError

    try:
        ExecuTorchDelegate(context)
        return ""
    except (ProgramError, RuntimeError, MemoryError) as error:
        sys.stderr.flush()
        said = os.pread(log, 1 << 16, 0).decode(errors="replace").splitlines()
        logged = next((line.strip() for line in said if line.strip()), "")
        cause = str(error.__cause__ or error) or type(error).__name__
        return f"{cause}: {logged}" if logged else cause


def _contexts(
    path: Path, data_files: Sequence[Path] | None, asked: Collection[Place]
) -> Iterator[tuple[Place, Any]]:
    """Yield what each delegate's backend is given to load it, of the backends that there are."""
    from executorch.runtime import Runtime

    from torchtrt_executorch.runtime.binding import ProgramContext
    from torchtrt_executorch.runtime.delegates import StandIns, inputs_of
    from torchtrt_executorch.runtime.plans.analysis import Uses
    from torchtrt_executorch.runtime.plans.reader import read_plans
    from torchtrt_executorch.runtime.profile.stats import Recorder
    from torchtrt_executorch.runtime.reading.data_files import data_of
    from torchtrt_executorch.runtime.reading.files import read_program
    from torchtrt_executorch.runtime.tensors.devices import Placement
    from torchtrt_executorch.runtime.tensors.memory import (
        CommonTensors,
        SharedState,
        Values,
    )

    registry = Runtime.get().backend_registry
    file = read_program(path, data_of(path, data_files))
    placement = Placement(simulate=True)
    context = ProgramContext(file, placement, Recorder(), StandIns())
    for plan in read_plans(file, inputs_of).values():
        values = Values(plan, Uses.of(plan), file, placement, SharedState([plan]))
        told: set[int] = set()
        for call in plan.operations:
            index = call.delegate
            if index is None or index in told or (plan.name, index) not in asked:
                continue
            payload = plan.delegates[index]
            if registry.is_available(payload.backend_id):
                told.add(index)
                args = values.at(call.args)
                yield (plan.name, index), context.of_delegate(
                    payload, args, call.inputs, CommonTensors()
                )
