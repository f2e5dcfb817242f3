"""Measured times in what is shown of a file: from this runtime, and as ExecuTorch's writes them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.inspection import Facts, read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.data import as_data
from torchtrt_executorch.inspection.drawing.diagram import draw, svg
from torchtrt_executorch.inspection.drawing.page import page
from torchtrt_executorch.inspection.model.facts import Times
from torchtrt_executorch.inspection.model.names import names
from torchtrt_executorch.inspection.model.times import with_times
from torchtrt_executorch.runtime import ProgramError
from torchtrt_executorch.runtime.profile import etdump

from ...runtime.programs import needs_device_copies
from ..programs import emulated, planned, pte, there_and_back

US = 1000


def dump(folder: Path, name: str, program: bytes, *calls: dict[int, int]) -> Path:
    """An ETDump of calls: microseconds by instruction, which follow each other."""
    runs = []
    steps = read(program).methods[0].instructions
    called = [
        (
            etdump.DELEGATE
            if each.kind == "delegate"
            else f"{etdump.NATIVE}{each.name.partition('::')[2]}"
        )
        for each in steps
    ]
    for call in calls:
        at, events = 0, []
        for index, taken in call.items():
            events.append(etdump.Event(called[index], index, at, at + taken * US))
            at += taken * US
        events.append(etdump.Event("Method::execute", None, 0, at))
        runs.append(etdump.Run(name, events))
    file = folder / "run.etdp"
    file.write_bytes(etdump.dumped(runs))
    return file


def timed(folder: Path, program: bytes, *calls: dict[int, int]) -> Facts:
    return with_times(read(program), dump(folder, etdump.EXECUTE, program, *calls))


def test_medians_of_calls_and_shares(tmp_path: Path) -> None:
    facts = timed(tmp_path, planned(), {0: 10, 2: 30}, {0: 12, 2: 28}, {0: 900, 2: 30})
    times = facts.methods[0].times
    assert times is not None and times.calls == 3
    assert times.call == 40 * US
    assert times.instructions == {0: 12 * US, 2: 30 * US}
    assert times.share(times.of([2])) == 0.75


def test_every_view_has_them(tmp_path: Path) -> None:
    facts = timed(tmp_path, planned(), {0: 10, 1: 5, 2: 85})
    (method,) = facts.methods
    slowest = max(draw(method).boxes, key=lambda box: box.share)
    assert slowest.row.first <= 2 <= slowest.row.last
    assert "85.0 us, 85.0%" in [*slowest.text, slowest.title[0].partition(" · ")[2]]
    assert 'class="heat"' in svg(method)
    made = page(facts, advise(facts)).partition("<h3>Times</h3>")[2]
    assert made.index("85.0 us") < made.index("10.0 us")
    assert as_data(facts, [])["methods"][0]["times"]["instructions"][2] == 85 * US
    assert as_data(read(planned()), [])["methods"][0]["times"] is None


@needs_device_copies
def test_advice_goes_by_time(tmp_path: Path) -> None:
    program = pte(there_and_back, enable_non_cpu_memory_planning=True, size=64)
    (method,) = read(program).methods
    (trip,) = [f for f in advise(read(program)) if f.name == "round-trip"]
    kernel = next(s.index for s in method.instructions if "sigmoid" in s.name)
    assert kernel in trip.instructions
    delegate = next(s.index for s in method.instructions if s.kind == "delegate")
    slow = advise(timed(tmp_path, program, {delegate: 50, kernel: 50}))
    told = {each.name: each for each in slow}
    assert told["round-trip"].nanoseconds == told["slow-on-host"].nanoseconds == 50 * US
    assert "50.0 us of a call, 50.0%" in told["round-trip"].text
    quick = advise(timed(tmp_path, program, {delegate: 9990, kernel: 10}))
    assert not {"round-trip", "slow-on-host"} & {each.name for each in quick}


def test_a_few_bytes_are_no_round_trip() -> None:
    few = pte(there_and_back, enable_non_cpu_memory_planning=True, size=2)
    assert "round-trip" not in {each.name for each in advise(read(few))}


#: Instructions of :func:`planned`.
KERNEL, DELEGATE = (
    next(s.index for s in read(planned()).methods[0].instructions if s.kind == kind)
    for kind in ("kernel", "delegate")
)


@pytest.mark.parametrize(
    "name, events, what",
    [
        ("Execute", [("DELEGATE_CALL", 0)], "another program"),
        ("Execute", [("OPERATOR_CALL", 10**6)], "another program"),
        ("Execute", [("Method::execute", None)], "no times"),
        # What this program has there, but another operator, or another kind of instruction.
        ("Execute", [("native_call_cumsum.out", KERNEL)], "no native_call_cumsum.out"),
        ("Execute", [(etdump.KERNEL, KERNEL), ("native_call_x", KERNEL)], "no native"),
        ("Execute", [("native_call_sigmoid.out", DELEGATE)], "no native_call_sigmoid"),
        ("Execute", [("MOVE_CALL", KERNEL)], "no MOVE_CALL"),
        ("Execute", [("JUMP", DELEGATE)], "no JUMP"),
    ],
)
def test_another_program_s_are_refused(
    tmp_path: Path, name: str, events: list[tuple[str, int | None]], what: str
) -> None:
    file = tmp_path / "run.etdp"
    made = [etdump.Event(each, index, 1, 2) for each, index in events]
    file.write_bytes(etdump.dumped([etdump.Run(name, made)]))
    with pytest.raises(ProgramError, match=what):
        with_times(read(planned()), file)


def test_which_method_calls_are_of(tmp_path: Path) -> None:
    """Those of ExecuTorch's C++ runtime don't say it."""
    facts = read(planned())
    (method,) = facts.methods
    two = [replace(method, name=name) for name in ("prefill", "decode")]
    several = replace(facts, methods=two)
    file = dump(tmp_path, etdump.EXECUTE, planned(), {0: 10})
    with pytest.raises(ProgramError, match="with --method, of prefill, decode"):
        with_times(several, file)
    with pytest.raises(ProgramError, match="no method 'decoed' .* prefill, decode"):
        with_times(several, file, "decoed")
    prefill, decode = with_times(several, file, "decode").methods
    assert prefill.times is None and decode.times is not None
    own = dump(tmp_path, "prefill", planned(), {0: 10})
    prefill, decode = with_times(several, own).methods
    assert prefill.times is not None and decode.times is None


@needs_device_copies
def test_more_copies_than_are_listed(tmp_path: Path) -> None:
    """All of them are timed, and the first are listed."""
    facts = read(planned())
    (method,) = facts.methods
    at = next(
        s.index
        for s in method.instructions
        if s.kind == "copy" and s.reads[0] in method.inputs
    )
    copies = [replace(method.instructions[at], index=index) for index in range(30)]
    times = Times(1, 60.0 * US, dict.fromkeys(range(30), 1.0 * US))
    long = replace(method, instructions=copies, times=times, without_kernel=[])
    told = {each.name: each for each in advise(replace(facts, methods=[long]))}
    edge = told["copies-at-the-edge"]
    assert len(edge.instructions) == 20 and edge.nanoseconds == 30 * US
    assert "30.0 us of a call, 50.0%" in edge.text


def test_what_a_delegate_copies_is_not_timed(tmp_path: Path) -> None:
    program = pte(there_and_back, enable_non_cpu_memory_planning=False, size=64)
    steps = read(program).methods[0].instructions
    taken = {s.index: 990 if s.kind == "delegate" else 10 for s in steps}
    told = {each.name: each for each in advise(timed(tmp_path, program, taken))}
    trip = told["round-trip"]
    assert trip.nanoseconds == 10 * US
    assert "10.0 us of a call" in trip.text
    assert trip.text.endswith(
        "What delegates copy for themselves isn't measured apart."
    )


def test_the_command(tmp_path: Path) -> None:
    program, out = tmp_path / "model.pte", tmp_path / "page.html"
    program.write_bytes(planned())
    file = dump(tmp_path, etdump.EXECUTE, planned(), {0: 10, 2: 30})
    options = [str(program), "--times", str(file)]
    result = CliRunner().invoke(app, ["inspect", *options], env={"COLUMNS": "200"})
    assert result.exit_code == 0 and "30.0 us" in result.output, result.output
    result = CliRunner().invoke(app, ["inspect", *options, "--html", str(out)])
    assert result.exit_code == 0 and "75.0 %" in out.read_text()
    result = CliRunner().invoke(app, ["inspect", *options, "--json"])
    assert json.loads(result.output)["methods"][0]["times"]["calls"] == 1
    file.write_bytes(b"nothing")
    result = CliRunner().invoke(app, ["inspect", *options])
    assert result.exit_code == 2 and "no ETDump" in result.output
    assert str(file) in result.output.replace("\n", "")


def test_values_are_called_what_the_engine_calls_them() -> None:
    (method,) = read(emulated()).methods
    known = names(method)
    step = next(each for each in method.instructions if each.kind == "delegate")
    assert [known[each].partition(" (")[0] for each in step.reads] == ["x"]
    assert all("output" in known[each] for each in step.writes)
    assert ">x" in svg(method)
