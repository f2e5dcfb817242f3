"""Reading ``.pte`` and ``.ptd`` files: like ExecuTorch's reader, and never beyond the file."""

from __future__ import annotations

import enum
import os
import random
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import flatbuffers
import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, schema, to_edge
from executorch.exir._serialize._program import (
    deserialize_pte_binary,
    serialize_pte_binary,
)
from torch.export import export

from torchtrt_executorch.runtime import InputError, ProgramError, load
from torchtrt_executorch.runtime.reading.files import read_data, read_program

from . import programs

READ = ("mlp", "cond", "scan", "index_put", "constant_output", "xnnpack_between")
BROKEN = ("mlp", "cond", "map", "cache", "split_cat", "dynamic_cat")


def _plain(value: Any) -> Any:
    """Tables as dicts, with nothing and empty the same."""
    if is_dataclass(value) or isinstance(value, SimpleNamespace):
        return {type(value).__name__: {k: _plain(v) for k, v in vars(value).items()}}
    if isinstance(value, (bytes, bytearray, memoryview, list, tuple)):
        return [_plain(item) for item in value] or None
    return int(value) if isinstance(value, enum.Enum) else (value or None)


@pytest.mark.parametrize("name", READ)
def test_reads_what_executorch_reads(name: str) -> None:
    pte = programs.build(programs.named(name))
    ours = read_program(pte)
    theirs = deserialize_pte_binary(pte)
    inline = theirs.program.backend_delegate_data
    plans = ours.program.execution_plan, theirs.program.execution_plan
    for our_plan, their_plan in zip(*plans, strict=True):
        delegates = our_plan.delegates, their_plan.delegates
        for our_delegate, their_delegate in zip(*delegates, strict=True):
            blob = ours.delegate_blob(our_delegate)
            assert bytes(blob) == inline[their_delegate.processed.index].data
            our_delegate.processed = their_delegate.processed
        assert _plain(our_plan) == _plain(their_plan)
    for index, buffer in enumerate(theirs.program.constant_buffer):
        if index:
            assert bytes(ours.constant(index)).startswith(bytes(buffer.storage))
    named, wanted = theirs.named_data, {}
    for key, entry in named.pte_data.items() if named else ():
        wanted[key] = named.buffers[entry.buffer_index]
    found = {key: bytes(entry.data) for key, entry in ours.named_data.items()}
    assert found == wanted


def _external(model: torch.nn.Module, x: torch.Tensor) -> tuple[bytes, bytes]:
    edge = to_edge(export(model, (x,)))
    program = edge.to_executorch(ExecutorchBackendConfig(external_constants=True))
    ((_, ptd),) = program._tensor_data.items()
    return bytes(program.buffer), bytes(ptd)


def test_external_weights_and_those_that_are_missing(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    pte, ptd = _external(model, x)
    (tmp_path / "model.pte").write_bytes(pte)
    (tmp_path / "model.ptd").write_bytes(ptd)
    program = load(tmp_path / "model.pte", [tmp_path / "model.ptd"])
    torch.testing.assert_close(program.run(x)[0], model(x))
    with pytest.raises(ProgramError, match=r"\(weight\).*data_files"):
        load(pte).method()
    _, other = _external(torch.nn.Linear(4, 5), torch.randn(2, 4))
    with pytest.raises(ProgramError, match="isn't this program's.*bytes for 'weight'"):
        load(pte, [other])


def test_somebody_elses_weights() -> None:
    """Called alike and of one size, which is what the same model, trained again, has."""
    x = torch.randn(2, 4)
    pte, own = _external(torch.nn.Linear(4, 3), x)
    _, again = _external(torch.nn.Linear(4, 3), x)
    load(pte, [own]).method()
    with pytest.raises(ProgramError, match="another '(weight|bias)'"):
        load(pte, [again]).method()
    with pytest.raises(ProgramError, match="it holds 'other', and.*and 1 more"):
        load(pte, [_external(Other(), x)[1]])
    edge = to_edge(export(torch.nn.Linear(4, 3), (x,)))
    trained = ExecutorchBackendConfig(
        external_constants=True, external_mutable_weights=True
    )
    pte = bytes(edge.to_executorch(trained).buffer)
    load(pte, [again]).method()  # weights that are trained on change


class Other(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.other = torch.nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.other


def test_data_files_are_bounded() -> None:
    _, ptd = _external(torch.nn.Linear(4, 3), torch.randn(2, 4))
    assert {entry.layout.sizes[0] for entry in read_data(ptd).values()} == {3}
    for end in range(0, len(ptd), 7):
        _fails_or_reads(lambda end=end: read_data(ptd[:end]))
    for position in range(0, min(len(ptd), 600)):
        damaged = bytearray(ptd)
        damaged[position] ^= 0xFF
        _fails_or_reads(lambda damaged=damaged: read_data(damaged))


def _fails_or_reads(read: Any) -> None:
    try:
        read()
    except ProgramError as error:
        assert str(error)


@pytest.mark.parametrize("content", [b"", b"x", b"\0" * 64, b"not a program" * 10])
def test_files_that_are_no_programs(content: bytes, tmp_path: Path) -> None:
    with pytest.raises(ProgramError):
        load(content)
    path = tmp_path / "model.pte"
    path.write_bytes(content)
    with pytest.raises(ProgramError):
        load(path)


@pytest.mark.parametrize("name", BROKEN)
def test_truncated_programs(name: str) -> None:
    case = programs.named(name)
    pte = programs.build(case)
    for end in range(0, len(pte), max(1, len(pte) // 60)):
        _runs_or_says_why(pte[:end], case)


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_bit_flips(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torchtrt_executorch.runtime.method.MAX_INSTRUCTIONS", 2000)
    case = programs.named(name)
    pte = programs.build(case)
    segments = pte[8:12] == b"eh00"
    flatbuffer = int.from_bytes(pte[16:24], "little") if segments else len(pte)
    chance = random.Random(seed)
    refused = 0
    for _ in range(2000 if seed else 150):
        damaged = bytearray(pte)
        damaged[chance.randrange(flatbuffer)] ^= 1 << chance.randrange(8)
        refused += not _runs_or_says_why(damaged, case)
    assert refused


def _runs_or_says_why(pte: bytes | bytearray, case: programs.Case) -> bool:
    try:
        program = load(pte)
        program.method(program.method_names[0])(*case.calls()[0])
    except (ProgramError, InputError) as error:
        assert str(error)
        return False
    return True


def test_a_small_file_can_not_unfold_into_a_large_one() -> None:
    """Ten thousand methods that are one table, with ten thousand values that are one table."""
    builder = flatbuffers.Builder()

    def repeated(table: int) -> int:
        builder.StartVector(4, 10_000, 4)
        for _ in range(10_000):
            builder.PrependUOffsetTRelative(table)
        return builder.EndVector()

    def table(slots: int, **offsets: int) -> int:
        builder.StartObject(slots)
        for slot, offset in offsets.items():
            builder.PrependUOffsetTRelativeSlot(int(slot[1:]), offset, 0)
        return builder.EndObject()

    null = table(0)
    builder.StartObject(2)
    builder.PrependUint8Slot(0, 1, 0)
    builder.PrependUOffsetTRelativeSlot(1, null, 0)
    value = builder.EndObject()
    plan = table(10, _2=repeated(value))
    program = table(8, _1=repeated(plan))
    builder.Finish(program, file_identifier=b"ET12")
    with pytest.raises(ProgramError, match="over and over"):
        load(bytes(builder.Output()))


def test_the_file_is_not_written_to(tmp_path: Path) -> None:
    case = programs.named("counter")
    pte = programs.build(case)
    path = tmp_path / "counter.pte"
    path.write_bytes(pte)
    program = load(path)
    for inputs in case.calls():
        program.run(*inputs)
    assert path.read_bytes() == pte


def test_schema_fields_are_executorch_s() -> None:
    """A field that a later executorch appends is noticed here."""
    from torchtrt_executorch.runtime.reading.schemas import PROGRAM

    for table, slots in PROGRAM.items():
        theirs = getattr(schema, table.__name__)
        names = {field.name for field in fields(theirs)}
        if theirs is schema.Double:
            names = {"double_val"}
        assert set(slots) == names, table.__name__


def test_schema_enums_and_types_are_executorch_s() -> None:
    from executorch.exir.tensor import get_scalar_type, scalar_type_table

    from torchtrt_executorch.runtime.reading.schemas import schema as ours
    from torchtrt_executorch.runtime.tensors.layout import dtype_of

    for name in ("TensorShapeDynamism", "TensorDataLocation", "DeviceType"):
        one, other = ([(m.name, m) for m in getattr(of, name)] for of in (ours, schema))
        assert one == other
    assert [*ours.DataLocation] == [*schema.DataLocation]
    for each in scalar_type_table.values():
        plain = not ours.ScalarType(each).name.startswith(("Q", "BITS"))
        wanted = get_scalar_type(each) if plain else None
        assert dtype_of(ours.ScalarType(each)) is wanted


def test_reading_a_file_imports_nothing_of_executorch() -> None:
    """Its packages take seconds."""
    heavy = "[n for n in sys.modules if n in ('executorch.exir', 'torch_tensorrt', 'sympy')]"
    code = f"import sys, torchtrt_executorch.inspection.drawing.page; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.parametrize("dtype", ["INT", "HALF", "DOUBLE"])
def test_a_data_file_with_another_dtype_is_refused(dtype: str) -> None:
    """Its bytes would be read as the program's dtype: sizes alone don't tell."""
    model, x = torch.nn.Linear(4, 4), torch.randn(2, 4)
    pte, ptd = _external(model, x)
    file = deserialize_pte_binary(pte)
    for value in file.program.execution_plan[0].values:
        extra = getattr(value.val, "extra_tensor_info", None)
        if extra is not None and extra.location is schema.TensorDataLocation.EXTERNAL:
            value.val.scalar_type = schema.ScalarType[dtype]
    other = bytes(serialize_pte_binary(file))
    said = f"dtype {dtype} in the program and FLOAT in"
    with pytest.raises(ProgramError, match=said):
        load(other, [ptd]).method()


def test_a_bundled_program(tmp_path: Path) -> None:
    """One with cases to test it by: the program in it is run."""
    from executorch.devtools import BundledProgram
    from executorch.devtools.bundled_program.config import (
        MethodTestCase,
        MethodTestSuite,
    )
    from executorch.devtools.bundled_program.serialize import (
        serialize_from_bundled_program_to_flatbuffer,
    )

    model, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    cases = [MethodTestCase(inputs=(x,), expected_outputs=(model(x),))]
    program = to_edge(export(model, (x,))).to_executorch()
    bundled = serialize_from_bundled_program_to_flatbuffer(
        BundledProgram(program, [MethodTestSuite("forward", cases)])
    )
    (tmp_path / "model.bpte").write_bytes(bundled)
    for source in (bundled, tmp_path / "model.bpte"):
        torch.testing.assert_close(load(source).run(x)[0], model(x))
    for end in range(0, len(bundled), 97):  # the cases may be cut off
        try:
            found = load(bundled[:end]).run(x)[0]
        except ProgramError:
            continue
        torch.testing.assert_close(found, model(x))


def _rewrite(path: Path, data: bytes) -> None:
    """Write into the file, as ``open(path, "wb")`` does, and say that it was later."""
    path.write_bytes(data)
    later = path.stat().st_mtime_ns + 10**9
    os.utime(path, ns=(later, later))


@pytest.mark.parametrize(
    "change", [lambda d: d[: len(d) // 2], lambda d: bytes(len(d))]
)
@pytest.mark.parametrize("which", ["model.pte", "model.ptd"])
def test_files_that_change_under_a_program(
    tmp_path: Path, which: str, change: Any
) -> None:
    """What is loaded stays what it is; what isn't yet is refused, and doesn't end the process."""
    model, x = torch.nn.Linear(400, 300), torch.randn(2, 400)
    pte, ptd = _external(model, x)
    whole = to_edge(export(model, (x,))).to_executorch().buffer
    (tmp_path / "model.ptd").write_bytes(ptd)
    for held in (pte, whole):
        data = [tmp_path / "model.ptd"] if held is pte else []
        (tmp_path / "model.ptd").write_bytes(ptd)
        (tmp_path / "model.pte").write_bytes(held)
        prepared, other = (load(tmp_path / "model.pte", data) for _ in range(2))
        method = prepared.method()
        _rewrite(tmp_path / which, change((tmp_path / which).read_bytes()))
        torch.testing.assert_close(method(x)[0], model(x))
        if which == "model.pte" or data:
            for prepare in (other.method, method.clone):
                with pytest.raises(ProgramError, match=f"{which} has changed since"):
                    prepare()


def test_a_file_that_another_takes_the_place_of(tmp_path: Path) -> None:
    """As whoever saves a program whole does: the one that was loaded is still there."""
    model, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    path = tmp_path / "model.pte"
    path.write_bytes(to_edge(export(model, (x,))).to_executorch().buffer)
    program = load(path)
    (tmp_path / "other").write_bytes(b"no program")
    (tmp_path / "other").replace(path)
    torch.testing.assert_close(program.run(x)[0], model(x))


def test_methods_have_their_constants_in_common(tmp_path: Path) -> None:
    model, x = torch.nn.Linear(4, 3), torch.randn(2, 4)
    methods = {name: export(model, (x,)) for name in ("one", "two")}
    path = tmp_path / "model.pte"
    path.write_bytes(to_edge(methods).to_executorch().buffer)
    program = load(path)
    places = [
        {v.data.data_ptr() for v in program.method(name)._values if v.constant}
        for name in ("one", "two")
    ]
    assert places[0] == places[1] and places[0]
