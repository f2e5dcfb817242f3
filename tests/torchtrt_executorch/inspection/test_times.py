"""Measured times in what is shown of a file: from this runtime, and as ExecuTorch's writes them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.inspection import Facts, read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.data import as_data
from torchtrt_executorch.inspection.names import names
from torchtrt_executorch.inspection.page import page
from torchtrt_executorch.inspection.picture import draw, svg
from torchtrt_executorch.inspection.times import with_times
from torchtrt_executorch.runtime import ProgramError, etdump

from .programs import emulated, planned, pte, there_and_back

US = 1000


def dump(folder: Path, name: str, *calls: dict[int, int]) -> Path:
    """An ETDump of calls: microseconds by instruction, which follow each other."""
    runs = []
    for call in calls:
        at, events = 0, []
        for index, taken in call.items():
            events.append(etdump.Event("native_call_x", index, at, at + taken * US))
            at += taken * US
        events.append(etdump.Event("Method::execute", None, 0, at))
        runs.append(etdump.Run(name, events))
    file = folder / "run.etdp"
    file.write_bytes(etdump.dumped(runs))
    return file


def timed(folder: Path, program: bytes, *calls: dict[int, int]) -> Facts:
    return with_times(read(program), dump(folder, etdump.EXECUTE, *calls))


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


@pytest.mark.parametrize(
    "name, events, what",
    [
        ("Execute", [("DELEGATE_CALL", 0)], "another program"),
        ("Execute", [("OPERATOR_CALL", 10**6)], "another program"),
        ("Execute", [("Method::execute", None)], "no times"),
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


def test_the_command(tmp_path: Path) -> None:
    program, out = tmp_path / "model.pte", tmp_path / "page.html"
    program.write_bytes(planned())
    file = dump(tmp_path, etdump.EXECUTE, {0: 10, 2: 30})
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
