"""Stand-ins: found by a payload's digest, in this process or in a file that the user names.

The payload is a plan that nothing here can run, with the program of an emulated engine beside it.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch_tensorrt
from executorch.devtools import Inspector
from executorch.exir import schema
from torch import nn
from torch.export import export
from torch_tensorrt.executorch.serialization import (
    deserialize_engine,
    serialize_engine,
)
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.drawing.page import page
from torchtrt_executorch.inspection.formatting import payload
from torchtrt_executorch.inspection.model.times import with_times
from torchtrt_executorch.nogpu import stand_ins
from torchtrt_executorch.nogpu.emulation.payload import MAGIC, dump
from torchtrt_executorch.nogpu.emulation.payload import load as load_payload
from torchtrt_executorch.nogpu.stand_ins import StandIn, digest
from torchtrt_executorch.nogpu.stand_ins.archive import write_archive
from torchtrt_executorch.nogpu.stand_ins.file import StandInFile, write
from torchtrt_executorch.runtime import ProgramError, load, save_stand_ins
from torchtrt_executorch.runtime.plans.plan import Payload
from torchtrt_executorch.runtime.reading.files import read_program

from ...lowering import Function, lower_emulated
from . import programs
from .test_methods import edited, instructions

ENGINE = "forward/0 (TensorRTBackend)"
X = torch.linspace(-2, 2, 12).reshape(3, 4)
NO_ENGINE = b"ftrt".ljust(len(MAGIC), b"t")


class Model(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.linear = nn.Linear(4, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x).relu()


def engine_of(pte: bytes) -> memoryview:
    file = read_program(pte)
    blob = file.delegate_blob(file.program.execution_plan[0].delegates[0])
    return deserialize_engine(blob)[0]


def with_an_engine(seed: int) -> tuple[bytes, StandIn]:
    """A program whose engine can't run here, and the program of that engine."""
    pte = bytes(lower_emulated(Model(seed), (X,)).to_executorch().buffer)
    program = load_payload(engine_of(pte))

    def spoil(program: schema.Program) -> None:
        (inline,) = program.backend_delegate_data
        inline.data = inline.data.replace(MAGIC, NO_ENGINE)

    return edited(pte, spoil), program


@pytest.fixture(scope="module")
def built() -> tuple[bytes, StandIn]:
    return with_an_engine(seed=0)


@pytest.fixture
def pte(built: tuple[bytes, StandIn]) -> bytes:
    return built[0]


@pytest.fixture
def kept(built: tuple[bytes, StandIn]) -> Iterator[str]:
    """The stand-in is kept in this process; yields its digest."""
    pte, program = built
    payload = digest(engine_of(pte))
    stand_ins.keep(payload, program.program)
    yield payload
    stand_ins.forget()


@pytest.fixture
def file(pte: bytes, kept: str, tmp_path: Path) -> Path:
    """The stand-in is in a file, and not in this process any more."""
    path = tmp_path / "model_stand_ins.zip"
    save_stand_ins(pte, path)
    stand_ins.forget(kept)
    return path


pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a payload that this host can't run"
)


@pytest.mark.parametrize("simulate", [False, True])
def test_this_process_finds_what_it_keeps(
    pte: bytes, kept: str, simulate: bool, caplog: pytest.LogCaptureFixture
) -> None:
    program = load(pte, simulate_devices=simulate)
    torch.testing.assert_close(program.run(X)[0], Model()(X))
    assert program.stats().stand_ins == {ENGINE}
    assert not program.stats().not_run
    assert f"{ENGINE} can't run here: a stand-in" in caplog.text


def test_without_one_it_is_as_before(pte: bytes) -> None:
    with pytest.raises(ProgramError, match="needs a CUDA device"):
        load(pte).run(X)
    program = load(pte)
    assert [each.shape for each in program.inputs()] == [(3, 4)]
    assert [each.shape for each in program.outputs()] == [(3, 5)]
    program = load(pte, simulate_devices=True)
    assert not program.run(X)[0].any()
    assert program.stats().not_run == {ENGINE} and not program.stats().stand_ins


@pytest.mark.parametrize("stand_in", [False, True])
def test_its_times_aren_t_the_payload_s(
    pte: bytes, kept: str, stand_in: bool, tmp_path: Path
) -> None:
    if not stand_in:
        stand_ins.forget(kept)
    said = "by a stand-in" if stand_in else "did not run here"
    program = load(pte, simulate_devices=True, profile=True)
    program.run(X)
    assert f"{ENGINE}, {said}" in str(program.profile())
    file, dump = tmp_path / "model.pte", tmp_path / "run.etdp"
    file.write_bytes(pte)
    program.profile().save(dump)
    facts = with_times(read(pte), dump)
    assert facts.methods[0].times is not None
    assert [*facts.methods[0].times.instead.values()] == [said]
    assert all(each.nanoseconds is None for each in advise(facts))
    assert f", {said}</td>" in page(facts, [])
    options = ["inspect", str(file), "--times", str(dump)]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, options)
    assert said in result.output
    (block,) = Inspector(etdump_path=str(dump)).event_blocks
    assert "DELEGATE_CALL" in {each.name for each in block.events}


def test_another_process_finds_it_in_the_file(
    pte: bytes, file: Path, tmp_path: Path
) -> None:
    (tmp_path / "model.pte").write_bytes(pte)
    torch.save((X,), tmp_path / "inputs.pt")
    torch.save((Model()(X),), tmp_path / "expected.pt")
    code = "from torchtrt_executorch.cli import app; app()"
    command = "run model.pte --inputs inputs.pt --compare expected.pt --stand-ins"
    result = subprocess.run(
        [sys.executable, "-c", code, *command.split(), file.name],
        cwd=tmp_path,
        env={**os.environ, "COLUMNS": "200"},  # nothing wraps
        text=True,
        capture_output=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    *_, agreed, last = result.stdout.strip().splitlines()
    assert " agree" in agreed
    assert last == f"by stand-ins: {ENGINE} itself hasn't run here"
    for said in (f"{ENGINE}, TensorRT ", ", by a stand-in"):
        assert said in result.stdout


@pytest.mark.parametrize("name", ["model.stand_ins", "model_stand_ins.zip"])
def test_it_is_found_beside_the_program(
    pte: bytes, file: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    (file.parent / "model.pte").write_bytes(pte)
    beside = file.rename(file.parent / name)
    program = load(file.parent / "model.pte")
    torch.testing.assert_close(program.run(X)[0], Model()(X))
    assert f"(from {beside})" in caplog.text
    for source in (pte, file.parent / "model.pte"):
        with pytest.raises(ProgramError, match="needs a CUDA device"):
            load(source, stand_ins=False).run(X)


def test_one_beside_it_for_another_engine_is_not_taken(
    file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other, _ = with_an_engine(seed=1)
    (file.parent / "model.pte").write_bytes(other)
    with pytest.raises(ProgramError, match="needs a CUDA device"):
        load(file.parent / "model.pte").run(X)
    assert str(file) in caplog.text and digest(engine_of(other))[:12] in caplog.text


def test_an_operator_that_nothing_registers_is_named(pte: bytes, file: Path) -> None:
    """The bytes are what was written: nothing of them is damaged."""
    (payload,) = StandInFile(file).payloads
    with torch.library._scoped_library("of_the_user", "DEF") as library:
        library.define("double(Tensor x) -> Tensor")
        library.impl("double", lambda x: x * 2, "CompositeExplicitAutograd")
        doubled = Function(lambda x: torch.ops.of_the_user.double(x))
        stand_in = StandIn(export(doubled, (X,)))
        file.unlink()
        write(file, {payload: stand_in})
        engine = dump(stand_in.program)
    with pytest.raises(ProgramError) as raised:
        load(pte, stand_ins=file).run(X)
    with pytest.raises(ValueError) as also:
        load_payload(engine)
    for said in (raised, also):
        assert "'of_the_user::double.default' is not registered" in str(said.value)
        assert "import the library that defines it" in str(said.value)
        assert "damaged" not in str(said.value)


def test_one_that_pytorch_can_t_load_is_not_damaged(pte: bytes, file: Path) -> None:
    (payload,) = StandInFile(file).payloads
    with zipfile.ZipFile(file) as outer:
        archive = io.BytesIO(outer.read(f"{payload}.pt2"))
    file.unlink()
    made = io.BytesIO()
    with zipfile.ZipFile(archive) as before, zipfile.ZipFile(made, "w") as after:
        for entry in before.infolist():
            after.writestr(
                entry, before.read(entry).replace(b"aten.relu", b"aten.r3lu")
            )
    with zipfile.ZipFile(file, "x") as outer:
        outer.writestr(f"{payload}.pt2", made.getvalue())
    with pytest.raises(ProgramError, match="can't run here") as raised:
        load(pte, stand_ins=file).run(X)
    assert "damaged" not in str(raised.value)


@pytest.mark.parametrize("expected, code", [(Model()(X), 0), (Model()(X) + 1, 1)])
def test_the_verdict_says_that_an_emulated_engine_is_none(
    tmp_path: Path, expected: torch.Tensor, code: int
) -> None:
    edge = lower_emulated(Model(), (X,))
    edge.to_executorch().save(str(tmp_path / "model.pte"))
    torch.save((X,), tmp_path / "inputs.pt")
    torch.save((expected.detach(),), tmp_path / "expected.pt")
    files = ["model.pte", "--inputs", "inputs.pt", "--compare", "expected.pt"]
    given = [str(tmp_path / word) if "." in word else word for word in files]
    command = ["run", *given, "--emulated-engines"]
    result = CliRunner(env={"COLUMNS": "200"}).invoke(app, command)
    assert result.exit_code == code
    last = result.output.strip().splitlines()[-1]
    assert last == f"by emulated engines: {ENGINE} itself hasn't run here"


def test_one_for_another_engine_is_refused(file: Path) -> None:
    other, _ = with_an_engine(seed=1)
    with pytest.raises(ProgramError) as raised:
        load(other, stand_ins=file)
    message = str(raised.value)
    assert str(file) in message and digest(engine_of(other))[:12] in message
    assert next(iter(StandInFile(file).payloads))[:12] in message


def test_a_stand_in_is_never_inside_the_program(pte: bytes, kept: str) -> None:
    found = stand_ins.find(kept)
    assert found is not None
    weights = Model().linear.weight.detach().numpy().tobytes()
    assert weights in write_archive(found.program)
    assert pte.count(weights) == 1  # in what is now the engine


def test_files_are_the_same_whenever_they_are_written(
    file: Path, tmp_path: Path
) -> None:
    (payload,) = StandInFile(file).payloads
    found = StandInFile(file).find(payload)
    assert found is not None
    write(tmp_path / "again", {payload: found})
    assert (tmp_path / "again").read_bytes() == file.read_bytes()


def test_nothing_to_save_is_an_error(pte: bytes, tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="no stand-ins are kept"):
        save_stand_ins(pte, tmp_path / "file")
    assert not list(tmp_path.iterdir())


def damaged_archive(path: Path) -> None:
    (payload,) = StandInFile(path).payloads
    path.unlink()
    with zipfile.ZipFile(path, "x") as archive:
        archive.writestr(f"{payload}.pt2", b"no archive")


def another_entry(path: Path) -> None:
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("../escape.pt2", b"")


def compressed(path: Path) -> None:
    (payload,) = StandInFile(path).payloads
    path.unlink()
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{payload}.pt2", bytes(1 << 20))


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


def torn(path: Path) -> None:
    """The archive's middle is gone, and the directory that is read first is not."""
    data = bytearray(path.read_bytes())
    middle = len(data) // 2
    data[middle : middle + 64] = bytes(b ^ 255 for b in data[middle : middle + 64])
    path.write_bytes(data)


@pytest.mark.parametrize(
    "damage", [damaged_archive, another_entry, compressed, truncated, torn]
)
def test_a_damaged_file_is_named(pte: bytes, file: Path, damage) -> None:
    damage(file)
    with pytest.raises(ProgramError, match="model_stand_ins.zip"):
        load(pte, stand_ins=file).run(X)


def test_the_command_line_says_what_is_wrong(pte: bytes, file: Path) -> None:
    truncated(file)
    (file.parent / "model.pte").write_bytes(pte)
    torch.save((X,), file.parent / "inputs.pt")
    names = ("model.pte", "inputs.pt", "model_stand_ins.zip")
    program, inputs, given = (str(file.parent / name) for name in names)
    command = ["run", program, "--inputs", inputs, "--stand-ins", given]
    result = CliRunner().invoke(app, command)
    assert result.exit_code == 2
    assert "ProgramError" in result.output and "holds no stand-ins" in result.output


def test_what_is_kept_does_not_follow_the_model() -> None:
    model = Model().eval()
    stand_ins.keep("0" * 64, export(model, (X,)))
    try:
        expected = model(X)
        with torch.no_grad():
            model.linear.weight.zero_()
        found = stand_ins.find("0" * 64)
        assert found is not None
        torch.testing.assert_close(found([X])[0], expected)
    finally:
        stand_ins.forget("0" * 64)


def test_every_load_has_state_of_its_own() -> None:
    program = export(programs.Counter(), (X,)).run_decompositions({})
    first = StandIn(program).copy()
    second = first.instance()
    for count in (1, 2):
        torch.testing.assert_close(first([X])[0], X * count)
    torch.testing.assert_close(second([X])[0], X)


def test_what_has_no_state_is_shared(built: tuple[bytes, StandIn]) -> None:
    assert built[1].instance() is built[1]


def test_an_engine_without_rows_is_refused_as_tensorrt_does() -> None:
    """A detector that finds nothing hands on none, and the engine's profile begins at one."""

    shapes = {"min_shape": (1, 3), "opt_shape": (4, 3), "max_shape": (8, 3)}
    given = torch_tensorrt.Input(**shapes, dtype=torch.float32)
    pte = lower_emulated(lambda x: x.relu() * 2, (given,)).to_executorch().buffer
    for simulate in (False, True):
        program = load(pte, simulate_devices=simulate, emulated_engines=True)
        for rows in (1, 8):
            x = torch.randn(rows, 3)
            torch.testing.assert_close(program.run(x)[0], x.relu() * 2)
        with pytest.raises(ProgramError, match=r"\[0, 3\]: its profile begins at"):
            program.run(torch.randn(0, 3))
    (delegate,) = read(bytes(pte)).methods[0].delegates
    assert delegate.smallest == dict.fromkeys(delegate.inputs, (1, 3))
    assert delegate.optimal == dict.fromkeys(delegate.inputs, (4, 3))
    assert delegate.largest == dict.fromkeys(delegate.inputs, (8, 3))
    assert "(at least [1, 3], best [4, 3], at most [8, 3])" in payload(delegate)

    def real(program: schema.Program) -> None:
        """As TensorRT would have built it, which nothing runs here."""
        (inline,) = program.backend_delegate_data
        _, metadata = deserialize_engine(bytes(inline.data))
        inline.data = serialize_engine(b"ftrt" + bytes(60), metadata)

    program = load(edited(bytes(pte), real), simulate_devices=True)
    program.run(torch.randn(1, 3))
    with pytest.raises(ProgramError, match=r"shape \[0, 3\].*begins at \[1, 3\]"):
        program.run(torch.randn(0, 3))


@pytest.mark.parametrize("which", [0, 1])
def test_an_engine_s_number_is_named_by_its_binding(which: int) -> None:
    """Not as a slot of the file, which nobody has seen."""
    given = torch.randn(2, 3)
    pte = bytes(lower_emulated(nn.ReLU(), (given,)).to_executorch().buffer)
    (delegate,) = read(pte).methods[0].delegates

    def number(program: schema.Program) -> None:
        (plan,) = program.execution_plan
        (call,) = instructions(program, schema.DelegateCall)
        plan.values.append(schema.EValue(schema.Double(1.5)))
        call.args[which] = len(plan.values) - 1

    named = (*delegate.inputs, *delegate.outputs)[which]
    with pytest.raises(ProgramError, match=rf"forward/0 .*: its {named} is a float"):
        load(edited(pte, number), emulated_engines=True).run(given)


@pytest.mark.parametrize(
    "text", [b"", b"[1]", b'{"x": 1}', b'{"x": ["a"]}', b"[" * 9999]
)
@pytest.mark.parametrize("key", ["min_shapes", "opt_shapes"])
def test_a_profile_s_shapes_that_are_none(key: str, text: bytes) -> None:
    given = Payload("TensorRTBackend", "forward/0", memoryview(b""), {key: text}, {})
    read_as = given.smallest_inputs if key == "min_shapes" else given.optimal_inputs
    with pytest.raises(ProgramError, match=f"compile spec {key} is .* are no shapes"):
        read_as()
