"""Times of instructions: ours, written for ExecuTorch's tools and read back, and ExecuTorch's own."""

from __future__ import annotations

import gc
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.devtools import Inspector
from executorch.devtools.etdump.schema_flatcc import (
    ETDumpFlatCC,
    Event,
    ProfileEvent,
    RunData,
)
from executorch.devtools.etdump.serialize import (
    deserialize_from_etdump_flatcc,
    serialize_to_etdump_flatcc,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch._higher_order_ops.map import map as map_of

from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.model.times import with_times
from torchtrt_executorch.runtime import ProgramError, load
from torchtrt_executorch.runtime.profile import etdump, history, profiling

from ...lowering import lower

X = torch.randn(4, 8)


def model(x: torch.Tensor) -> torch.Tensor:
    """x (4, 8) float32 -> (4, 8), by XNNPACK, a kernel of the host, XNNPACK."""
    return torch.cumsum(x + 1, 0) * 2


@cache
def exported(folder: Path) -> tuple[bytes, Path]:
    edge = lower(model, (X,), XnnpackPartitioner(), generate_etrecord=True)
    program = edge.to_executorch()
    record = folder / "etrecord.bin"
    program.get_etrecord().save(record)
    return bytes(program.buffer), record


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[bytes, Path]:
    return exported(tmp_path_factory.mktemp("profile"))


def test_every_instruction_is_timed_and_calls_are_as_without(built: Any) -> None:
    program, plain = load(built[0], profile=True), load(built[0])
    for _ in range(3):
        torch.testing.assert_close(program.run(X), plain.run(X))
    whole, *timings = program.profile().timings
    assert (whole.instruction, whole.kind, whole.runs) == (-1, "call", 3)
    kinds = [each.kind for each in timings]
    assert kinds.count("delegate") == 2 and "kernel" in kinds
    assert [each.instruction for each in timings] == [*range(len(timings))]
    assert {each.runs for each in timings} == {3}
    assert all(0 < each.least <= each.of_call <= each.most for each in timings)
    assert sum(each.total for each in timings) < whole.total
    assert tuple(program.stats().timings) == (whole, *timings)
    assert not plain.stats().timings
    table = str(program.profile())
    assert "3 calls" in table and "aten::cumsum.out" in table and "#1" in table


def test_without_it_nothing_is_timed(built: Any) -> None:
    with pytest.raises(ValueError, match="profile=True"):
        load(built[0]).profile()


def test_a_failed_call_isn_t_counted_and_a_clone_s_are(built: Any) -> None:
    program = load(built[0], profile=True)
    with pytest.raises(ValueError):
        program.run(torch.randn(5, 8))
    method = program.method()
    method(X)
    method.clone()(X)
    assert {each.runs for each in program.profile().timings} == {2}


def clocks() -> int:
    return sum(type(each) is profiling.Profiler for each in gc.get_objects())


def test_a_clone_s_clock_goes_with_it_and_its_calls_stay(built: Any) -> None:
    program = load(built[0], profile=True)
    method = program.method()
    method(X)
    gc.collect()
    before = clocks()
    clone = method.clone()
    clone(X)
    assert clocks() == before + 1
    del clone
    gc.collect()
    assert clocks() == before
    assert {each.runs for each in program.profile().timings} == {2}


def test_a_profile_is_of_the_calls_before_it(built: Any, tmp_path: Path) -> None:
    program = load(built[0], profile=True)
    program.run(X)
    profile = program.profile()
    program.run(X)
    profile.save(tmp_path / "run.etdp")
    written = etdump.read((tmp_path / "run.etdp").read_bytes())
    assert len(written) == profile.timings[0].runs == 1


def loop(xs: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """xs (n, 2), y (2,) float32 -> (n, 2): as many turns as there are rows."""
    return torch.cumsum(map_of(lambda x, y: torch.sin(x) + y, xs, y), 0)


@cache
def looping() -> bytes:
    inputs = (torch.randn(20, 2), torch.randn(2))
    return bytes(lower(loop, inputs).to_executorch().buffer)


@pytest.mark.parametrize("most", [30, 10_000])
def test_a_loop_s_times_are_of_all_its_turns_and_the_same_everywhere(
    most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (history, profiling):
        monkeypatch.setattr(module, "MOST", most)
    program = load(looping(), profile=True)
    for _ in range(3):
        program.run(torch.randn(20, 2), torch.randn(2))
    profile = program.profile()
    timings = {each.instruction: each for each in profile.timings}
    runs: Counter[str] = Counter()
    for each in timings.values():
        if each.kind == "kernel":
            runs[each.name] += each.runs
    calls = timings[-1].runs
    counted = program.stats().kernels.items()
    assert runs == {name: times * calls // 3 for name, times in counted}
    assert runs["aten::sin.out"] == 20 * calls
    inside = sum(each.total for each in profile.timings if each.instruction >= 0)
    assert inside < timings[-1].total
    profile.save(tmp_path / "run.etdp")
    facts = with_times(read(looping()), tmp_path / "run.etdp")
    times = facts.methods[0].times
    assert times is not None and times.calls == calls
    timings.pop(-1)
    assert times.instructions == {i: each.of_call for i, each in timings.items()}
    lines = str(profile).splitlines()
    (line,) = [each for each in lines if "aten::sin.out" in each]
    (sin,) = [each for each in timings.values() if each.name == "aten::sin.out"]
    assert line.split()[0] == f"{sin.of_call / 1e3:.1f}"


def test_executorch_s_inspector_reads_them_with_the_etrecord(
    built: Any, tmp_path: Path
) -> None:
    program = load(built[0], profile=True)
    for _ in range(5):
        program.run(X)
    dump = tmp_path / "run.etdp"
    program.profile().save(dump)
    inspector = Inspector(etdump_path=str(dump), etrecord=str(built[1]))
    (block,) = inspector.event_blocks
    found = {(each.name, each.delegate_backend_name) for each in block.events}
    assert ("DELEGATE_CALL", "XnnpackBackend") in found
    (kernel,) = [each for each in block.events if "cumsum" in each.name]
    assert len(kernel.perf_data.raw) == 5
    (timing,) = [each for each in program.profile().timings if "cumsum" in each.name]
    assert kernel.perf_data.min == pytest.approx(timing.least / 1e6)
    assert "cumsum" in str(kernel.op_types)
    # Model Explorer leaves out what is called DELEGATE_CALL.
    named = {each.name: each for each in block.events if "/" in each.name}
    assert sorted(named) == ["forward/0 (XnnpackBackend)", "forward/1 (XnnpackBackend)"]
    assert all(each.debug_handles for each in named.values())


def _upstream(*events: tuple[str, int, int, int, int]) -> bytes:
    """A dump by ExecuTorch's own writer: name, chain, instruction, part of a delegate, time."""
    made = []
    for *place, taken in events:
        timed = ProfileEvent(*place, None, None, 5, 5 + taken)
        made.append(Event(timed, None, None))
    dump = ETDumpFlatCC(0, [RunData("Execute", -1, None, made)])
    written = serialize_to_etdump_flatcc(dump)
    return len(written).to_bytes(4, "little") + written


def test_dumps_of_executorch_s_own_runtime_are_read() -> None:
    runs = etdump.read(
        _upstream(
            ("native_call_add.out", 0, 0, -1, 7),
            ("OPERATOR_CALL", 0, 0, -1, 9),
            ("inside", 0, 1, 3, 40),
            ("DELEGATE_CALL", 0, 1, -1, 50),
            ("Method::execute", -1, 0, -1, 70),
        )
    )
    (run,) = runs
    found = {(e.name, e.instruction, e.end - e.start) for e in run.events}
    assert found == {
        ("OPERATOR_CALL", 0, 9),
        ("DELEGATE_CALL", 1, 50),
        ("Method::execute", None, 70),
    }


NAMES, TIMES = st.text(max_size=8), st.integers(0, 2**62)
EVENTS = st.tuples(NAMES, st.none() | st.integers(0, 2**31 - 1), TIMES, TIMES)
RUNS = st.lists(st.tuples(NAMES, st.lists(EVENTS, max_size=4)), max_size=3)


@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(RUNS)
def test_what_is_written_is_read_by_both_readers(given: Any) -> None:
    runs = [
        etdump.Run(name, [etdump.Event(n, i, s, s + d) for n, i, s, d in events])
        for name, events in given
    ]
    data = etdump.dumped(runs)
    assert [(r.name, sorted(map(repr, r.events))) for r in etdump.read(data)] == [
        (r.name, sorted(map(repr, r.events))) for r in runs
    ]


@pytest.mark.parametrize("length", [1, 60, 10_000])
def test_names_that_events_share_are_read_as_often_as_there_are_events(
    length: int,
) -> None:
    events = [etdump.Event("n" * length, i, i, i + 1) for i in range(1000)]
    (run,) = etdump.read(etdump.dumped([etdump.Run("Execute", events)]))
    assert run.events == events


def test_upstream_s_reader_sees_what_ours_does() -> None:
    runs = [etdump.Run("Execute", [etdump.Event("native_call_é", 0, 3, 2**60)])]
    theirs = deserialize_from_etdump_flatcc(etdump.dumped(runs))
    (event,) = theirs.run_data[0].events or []
    profiled = event.profile_event
    assert profiled is not None and theirs.run_data[0].name == "Execute"
    where = (profiled.name, profiled.instruction_id, profiled.chain_index)
    assert where == ("native_call_é", 0, 0)
    assert (profiled.start_time, profiled.end_time) == (3, 2**60)


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_damaged_dump_is_a_sentence(data: st.DataObject) -> None:
    good = bytearray(_GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        good[data.draw(st.integers(0, len(good) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(good)))
    try:
        etdump.read(bytes(good[:cut]))
    except ProgramError as error:
        assert str(error)


_GOOD = etdump.dumped(
    [etdump.Run("Execute", [etdump.Event("native_call_add.out", 0, 1, 9)])]
)
