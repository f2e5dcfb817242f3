"""Advice about a file, only from its facts, and how to change the export."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable, Iterator

from torchtrt_executorch.inspection.advice.copies import (
    avoidable_staging,
    crossing_state,
    handed_over_by_caller,
    planned_device_inputs,
    round_trips,
)
from torchtrt_executorch.inspection.advice.delegates import (
    damaged,
    divided_engines,
    emulated,
    lone_devices,
    no_kernel,
    second_gpu,
    slow_on_host,
    unsound,
)
from torchtrt_executorch.inspection.advice.finding import Finding
from torchtrt_executorch.inspection.advice.language_model import language_model
from torchtrt_executorch.inspection.advice.target import elsewhere, too_large, unfit
from torchtrt_executorch.inspection.formatting import counted, duration, short, size
from torchtrt_executorch.inspection.model.facts import Facts, Method
from torchtrt_executorch.inspection.model.state import state
from torchtrt_executorch.nogpu.target.gpu_description import (
    ON_ARM_ALONE,
    GpuDescription,
)
from torchtrt_executorch.payloads import gpus
from torchtrt_executorch.runtime.reading import common_state

__all__ = ["Finding", "advise"]

#: The checks of each method, in this order.
LOOKS: tuple[Callable[[Method], Iterator[Finding]], ...] = (
    unsound,
    planned_device_inputs,
    emulated,
    damaged,
    no_kernel,
    avoidable_staging,
    crossing_state,
    round_trips,
    divided_engines,
    lone_devices,
    second_gpu,
    slow_on_host,
    handed_over_by_caller,
)

#: Findings of one kind for one method, and instructions of a finding; what is beyond is counted, or timed.
_MOST_ALIKE = 20


def advise(
    facts: Facts, gpu: str | None = None, target: str | None = None
) -> list[Finding]:
    """Return the findings on a file, warnings first, by measured time where there is any.

    Args:
        gpu: A GPU that it is to run on, as ``sm_87``.
        target: A machine that it is to run on, as ``linux-aarch64:sm_87:16GiB``.

    Raises:
        ValueError: ``gpu`` names no GPU, or ``target`` no machine.
    """
    wanted = () if gpu is None else (gpus.described(gpu),)
    machine = () if target is None else GpuDescription.parse_list(target, "target")
    findings = [*_missing_data(facts), *_common_state(facts), *_twice(facts)]
    findings += language_model(facts)
    if machine:
        findings += too_large(facts, machine)
    methods = {
        # Shares of a call with a stand-in in it are none of a call on the machine that is meant.
        one_method.name: (
            replace(one_method, times=None)
            if one_method.times and one_method.times.instead
            else one_method
        )
        for one_method in facts.methods
    }
    for method in methods.values():
        for look in LOOKS:
            findings += _bounded(look(method))
        any_machine = not any(gpu.capability in ON_ARM_ALONE for gpu in wanted)
        findings += _bounded(unfit(method, wanted, any_machine))
        findings += _bounded(unfit(method, machine) if machine else elsewhere(method))
    timed = [_timed(finding, methods.get(finding.method)) for finding in findings]
    return sorted(
        timed,
        key=lambda finding: (finding.level != "warning", -(finding.nanoseconds or 0.0)),
    )


def _timed(finding: Finding, method: Method | None) -> Finding:
    """A finding with what its instructions take, where that was measured."""
    shown = replace(finding, instructions=finding.instructions[:_MOST_ALIKE])
    if method is None or method.times is None or not shown.instructions:
        return shown
    text, nanoseconds = finding.text, None
    measured = [
        index
        for index in finding.instructions
        if not finding.staged or method.instructions[index].kind != "delegate"
    ]
    if measured:
        nanoseconds = method.times.of(measured)
        text += f" {duration(nanoseconds)} of a call, {method.times.share(nanoseconds):.1%}."
    if finding.staged:
        text += " What delegates copy for themselves isn't measured apart."
    return replace(shown, text=text, nanoseconds=nanoseconds)


def _bounded(findings: Iterator[Finding]) -> Iterator[Finding]:
    more, last = 0, None
    for index, finding in enumerate(findings):
        if index < _MOST_ALIKE:
            yield finding
        else:
            more, last = more + 1, finding
    if last is not None:
        text = f"{last.method}: and {more} more of this kind."
        yield Finding(last.name, last.level, text, last.advice, last.method)


#: Hosts that do what each kind of shared buffers needs.
_DONE_BY = {
    common_state.SHARED: " examples/cpp/shared_memory.h does; torchtrt_executorch.runtime does so by itself.",
    common_state.IN_LIBRARIES: " torchtrt_executorch.runtime does so by itself.",
}


def _common_state(facts: Facts) -> Iterator[Finding]:
    for name, text, advice in facts.common.needs():
        advice += _DONE_BY.get(name, "")
        level = "warning" if name == common_state.SEPARATE else "note"
        yield Finding(name, level, f"{short(text, 500)}.", advice)
    if facts.common.buffers or len(facts.methods) < 2:
        return
    # A program that was exported without the table: by the names of what methods keep.
    by_name: dict[str, list[str]] = {}
    for method in facts.methods:
        names = sorted({method.values[index].name for index in state(method)} - {""})
        for name in names:
            by_name.setdefault(name, []).append(method.name)
    several = {name: own for name, own in by_name.items() if len(own) > 1}
    if several:
        name, own = next(iter(several.items()))
        more = f" and {len(several) - 1} more" if len(several) > 1 else ""
        yield Finding(
            common_state.SEPARATE,
            "warning",
            f"{short(' and '.join(own), 200)} each keep a buffer {short(name, 60)}{more} of their own, "
            "and write it.",
            "If they are meant to be one, export again with the patch common-state in force, and "
            "MemoryPlanningPass(share_mutable_buffers=True).",
        )


def _twice(facts: Facts) -> Iterator[Finding]:
    if facts.twice:
        wasted = sum(size * (len(names) - 1) for names, size in facts.twice)
        names, _ = max(facts.twice, key=lambda entry: entry[1])
        shown = ", ".join(short(name, 40) for name in names[:3])
        yield Finding(
            "stored-twice",
            "warning",
            f"{counted(len(facts.twice), 'blob')} of the same bytes stand in the file more than once, "
            f"{size(wasted)} in vain: {shown}.",
            "Export all methods in one call of to_edge_transform_and_lower, which stores weights once; of "
            "two methods that only differ in their length, one of dynamic length does.",
        )


def _missing_data(facts: Facts) -> Iterator[Finding]:
    advice = (
        "Put the .ptd files that were saved with the program beside it, or save both with "
        "torch_tensorrt.save (pytorch/TensorRT#4404)."
    )
    if facts.data_problem:
        text = f"The data files beside the program aren't its own: {short(facts.data_problem, 300)}."
        yield Finding("missing-data", "warning", text, advice)
    keys = {key for m in facts.methods for d in m.delegates for key in d.missing}
    if names := [*facts.missing_data, *sorted(keys)]:
        total = sum(facts.missing_data.values())
        of_bytes = f", {size(total)}" if total else ""
        shown = ", ".join(short(name, 60) for name in names[:3])
        more = f" and {len(names) - 3} more" if len(names) > 3 else ""
        text = f"External weights aren't beside the file{of_bytes}: {shown}{more}."
        yield Finding("missing-data", "warning", text, advice)
