"""Two steps: a file with emulated engines is exported on one machine, and its engines are built on another."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir._serialize._program import (
    deserialize_pte_binary,
    serialize_pte_binary,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.conversion._TRTInterpreter import TRTInterpreter
from typer.testing import CliRunner

from torchtrt_executorch import build_engines, emulated_engines, runtime
from torchtrt_executorch.cli import app
from torchtrt_executorch.nogpu.emulation.payload import load_plain
from torchtrt_executorch.nogpu.emulation.settings import (
    building_settings,
    settings_from,
)
from torchtrt_executorch.nogpu.stand_ins.archive import (
    DamagedArchiveError,
    write_archive,
)
from torchtrt_executorch.nogpu.stand_ins.plain import check_plain
from torchtrt_executorch.payloads.engine_blob import deserialize_engine
from torchtrt_executorch.payloads.engine_header import origin, targets

from ... import fresh
from ...loading import load_file
from ...lowering import Function, lower, tensorrt_partitioner

releases = load_file("tests/cpp/releases.py")

pytestmark = pytest.mark.builds

TARGET = b"linux-x86_64:sm_89:8GiB"


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = torch.nn.Linear(16, 32), torch.nn.Linear(32, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x)) * scale
        hidden = torch.special.expm1(hidden.tanh()) + hidden
        result: torch.Tensor = self.last(hidden).softmax(-1)
        return result


def _model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


def _export(
    path: Path, emulated: bool, target: bytes = TARGET, **settings: Any
) -> tuple[Any, Any]:
    """Write two engines around an operator of the host's, and return inputs and eager's output."""
    model, inputs = _model(), (torch.randn(3, 16), torch.rand(32))
    shapes = ({0: torch.export.Dim("n", max=8)}, None)
    settings = {"torch_executed_ops": {"torch.ops.aten.expm1.default"}, **settings}
    tensorrt = tensorrt_partitioner(CompileSpec("gpu", target), **settings)
    with emulated_engines() if emulated else nullcontext():
        partitioners = tensorrt, XnnpackPartitioner()
        edge = lower(model, inputs, *partitioners, dynamic_shapes=shapes)
    edge.to_executorch().save(str(path))
    return inputs, model(*inputs)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any, Any]:
    folder = tmp_path_factory.mktemp("project")
    return folder / "model.pte", *_export(folder / "model.pte", emulated=True)


def _blobs(path: Path) -> list[tuple[bytes, Any]]:
    program = deserialize_pte_binary(path.read_bytes()).program
    return [
        deserialize_engine(bytes(each.data)) for each in program.backend_delegate_data
    ]


def test_engines_are_built_for_the_target_and_the_rest_stays(
    project: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    path, inputs, eager = project
    out = tmp_path / "built.pte"
    built = build_engines(path, out)
    assert [each.name for each in built] == [f"forward, delegate {n}" for n in (0, 1)]
    _export(tmp_path / "one_step.pte", emulated=False)
    before, after, one_step = map(_blobs, (path, out, tmp_path / "one_step.pte"))
    for (program, given), (plan, got), (_, at_once), told in zip(
        before, after, one_step, built, strict=True
    ):
        assert origin(program).builder is None and "RTX" in origin(plan).text
        assert targets(plan) == ("sm_89",) and told.nbytes == len(plan)
        assert got == given == at_once
    loaded = runtime.load(out)
    for rows in (3, 8, 1):
        x = torch.randn(rows, 16)
        torch.testing.assert_close(loaded.run(x, inputs[1])[0], _model()(x, inputs[1]))
    torch.testing.assert_close(loaded.run(*inputs)[0], eager)
    assert len(loaded.stats().stand_ins) == 2


def test_the_command_replaces_the_file_which_then_runs_in_another_process(
    project: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    path, inputs, eager = project
    own = Path(shutil.copy(path, tmp_path / "model.pte"))
    torch.save(inputs, tmp_path / "inputs.pt")
    torch.save(eager, tmp_path / "eager.pt")
    commands = [
        "build model.pte",
        "run model.pte --inputs inputs.pt --compare eager.pt",
        f"inspect model.pte --target {TARGET.decode()} --strict --ignore round-trip",
    ]
    code = "import sys; from torchtrt_executorch.cli import app; app(sys.argv[1:])"
    said = ""
    for command in commands:
        done = fresh.python(code, *command.split(), env={**os.environ}, cwd=tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr
        said += done.stdout
    assert "forward, delegate 1: " in said and "1 output agrees" in said
    assert "by stand-ins" in said and own.with_suffix(".stand_ins").exists()
    again = CliRunner().invoke(app, ["build", str(own)])
    assert again.exit_code == 2 and "no emulated engine" in again.stderr


def test_another_release_s_delegate_would_run_out_of_order(tmp_path: Path) -> None:
    """What is exported for 2.14's streams has no copy that orders an engine on 2.13's."""
    path, (old, new) = tmp_path / "model.pte", releases.DELEGATE_RELEASES
    with releases.delegates_of(new):
        _export(path, emulated=True)
        assert len(build_engines(path, tmp_path / "new.pte")) == 2
    before = path.read_bytes()
    with releases.delegates_of(old):
        with pytest.raises(ValueError, match="nothing orders the two .* release of T"):
            build_engines(path)
        assert path.read_bytes() == before
        _export(path, emulated=True)
    for release in (old, new):
        with releases.delegates_of(release):
            assert len(build_engines(path, tmp_path / f"{release}.pte")) == 2


def test_settings_of_the_builder_travel_and_others_stay() -> None:
    from torch_tensorrt import Device, EngineCapability

    given = CompilationSettings(
        optimization_level=2,
        workspace_size=1 << 20,
        sparse_weights=True,
        hardware_compatible=True,
        engine_capability=EngineCapability.SAFETY,
        min_block_size=1,
        timing_cache_path="/elsewhere",
        device=Device(gpu_id=1),
    )
    found = json.loads(json.dumps(building_settings(given)))
    assert {*found} == {
        *("optimization_level", "workspace_size", "sparse_weights"),
        *("hardware_compatible", "engine_capability"),
    }
    read = settings_from(found, gpu_id=1)
    assert building_settings(read) == found and read.device.gpu_id == 1
    assert building_settings(CompilationSettings()) == {}
    for wrong in ({"timing_cache_path": "x"}, {"optimization_level": [1]}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            settings_from(wrong, 0)
    with pytest.raises(ValueError, match="NO_SUCH"):
        settings_from({"engine_capability": "NO_SUCH"}, 0)


def test_settings_reach_the_builder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    configure = TRTInterpreter._populate_trt_builder_config

    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        asked.append(self.compilation_settings.optimization_level)
        return configure(self, *args, **kwargs)

    monkeypatch.setattr(TRTInterpreter, "_populate_trt_builder_config", noted)
    for level in (0, 5):
        _export(tmp_path / "model.pte", emulated=True, optimization_level=level)
        engine, _ = _blobs(tmp_path / "model.pte")[0]
        _, found = load_plain(engine)
        expected = {"optimization_level": level, "target": TARGET.decode()}
        assert found.items() >= expected.items()
        build_engines(tmp_path / "model.pte")
        assert asked[-1] == level


def _rewritten(archive: bytes, change: Callable[[str, bytes], bytes | None]) -> bytes:
    """Return the archive with each file as ``change`` has it, without those that are None."""
    stream = io.BytesIO()
    old = zipfile.ZipFile(io.BytesIO(archive))
    with old, zipfile.ZipFile(stream, "w") as new:
        for name in old.namelist():
            if (data := change(name, old.read(name))) is not None:
                new.writestr(name, data)
    return stream.getvalue()


def _with(old: bytes, new: bytes) -> Callable[[str, bytes], bytes]:
    def change(name: str, data: bytes) -> bytes:
        return data.replace(old, new, 1) if name.endswith("model.json") else data

    return change


HOSTILE = {
    "sample inputs": lambda name, data: b"\x80\x04N." if "sample" in name else data,
    "unpickles": lambda name, data: (
        b'{"config": {"a": {"path_name": "weight_0", "is_param": true, "use_pickle": true, "tensor_meta": null}}}'
        if name.endswith("weights_config.json")
        else data
    ),
    "no tensor": lambda name, data: (
        b'{"config": {"a": {"path_name": "opaque_obj_0", "use_pickle": false}}}'
        if name.endswith("constants_config.json")
        else data
    ),
    "a size": _with(b"Symbol(", b"__import__('os').getenv("),
    "calls 'torch.hub": _with(b'"torch.ops.aten.expm1.default"', b'"torch.hub.load"'),
    "calls 'torchx.ops": _with(
        b'"torch.ops.aten.expm1.default"', b'"torchx.ops.aten.from_file.default"'
    ),
    "calls '#": _with(b'"torch.ops.aten.expm1.default"', b'"#custom:op"'),
    "checks inputs": _with(b'"guards_code": []', b'"guards_code": ["exec(1)"]'),
    "nests": _with(b"builtins.tuple", b"collections.defaultdict"),
    "has a file": lambda name, data: data,
}


@pytest.mark.parametrize("what", HOSTILE)
def test_what_pytorch_would_unpickle_or_evaluate_is_refused(what: str) -> None:
    program = torch.export.export(
        Function(torch.expm1),
        (torch.randn(3, 2),),
        dynamic_shapes=({0: torch.export.Dim("n", max=8)},),
    )
    program = torch.export.ExportedProgram(
        root=program.graph_module,
        graph=program.graph,
        graph_signature=program.graph_signature,
        state_dict={},
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        constants={},
        verifiers=program.verifiers,
    )
    archive = write_archive(program)
    check_plain(archive)
    bad = _rewritten(archive, HOSTILE[what])
    if what == "has a file":
        with zipfile.ZipFile(stream := io.BytesIO(archive), "a") as file:
            file.writestr("archive/data/aotinductor/model/a.so", b"")
        bad = stream.getvalue()
    assert bad != archive
    with pytest.raises(DamagedArchiveError, match=what.replace("(", r"\(")):
        check_plain(bad)


def test_hostile_files_are_refused_in_a_sentence(
    project: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    path, _, _ = project
    file = deserialize_pte_binary(path.read_bytes())
    payload = file.program.backend_delegate_data[0]
    payload.data = bytes(payload.data).replace(b"Symbol(", b"Sxmbol(", 1)
    broken = tmp_path / "broken.pte"
    broken.write_bytes(
        bytes(serialize_pte_binary(file, extract_delegate_segments=True))
    )
    for data in (broken.read_bytes(), path.read_bytes()[:5000], b"no program"):
        broken.write_bytes(data)
        done = CliRunner().invoke(app, ["build", str(broken)])
        assert done.exit_code == 2 and "Traceback" not in done.output, done.output
        assert broken.read_bytes() == data


def test_it_says_what_this_machine_lacks(
    project: tuple[Path, Any, Any], tmp_path: Path
) -> None:
    path, _, _ = project
    with emulated_engines(), pytest.raises(ValueError, match="TORCHTRT_EMULATE unset"):
        build_engines(path, tmp_path / "out.pte")
    code = (
        "import importlib.util as u, sys\n"
        "find = u.find_spec\n"
        "u.find_spec = lambda n, *a: None if n == 'torch_tensorrt' else find(n, *a)\n"
        "from torchtrt_executorch.cli import app; app(sys.argv[1:])"
    )
    done = fresh.python(code, "build", str(path), env={**os.environ}, cwd=tmp_path)
    assert done.returncode == 2 and "takes Torch-TensorRT" in done.stderr, done.stderr


def test_a_target_that_the_builder_here_has_no_engines_for(tmp_path: Path) -> None:
    """It is exported, checked and run by its programs all the same; a Jetson's TensorRT builds it."""
    path, orin = tmp_path / "model.pte", "linux-aarch64:sm_87:16GiB"
    inputs, eager = _export(path, emulated=True, target=orin.encode())
    loaded = runtime.load(path, emulated_engines=True)
    torch.testing.assert_close(loaded.run(*inputs)[0], eager)
    options = f"--target {orin} --strict --ignore emulated --ignore round-trip"
    checked = CliRunner().invoke(app, ["inspect", str(path), *options.split()])
    assert checked.exit_code == 0, checked.output
    before = path.read_bytes()
    done = CliRunner().invoke(app, ["build", str(path)])
    assert done.exit_code == 2 and "can't build engines for" in done.stderr
    assert path.read_bytes() == before
