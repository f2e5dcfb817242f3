"""For which GPU an engine is built; decided once per process, so each is one."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
import torch

from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.target import engine_targets
from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription

from ... import fresh
from ...backends.cuda.conftest import needs_compilers

pytestmark = pytest.mark.builds

CODE = """
import json, torch, torch_tensorrt
from torchtrt_executorch import emulated_engines
import torch_tensorrt.dynamo.conversion._TRTInterpreter as interpreter

asked, set_one = [], interpreter.trt.IBuilderConfig.set_compute_capability
configure = interpreter.TRTInterpreter._populate_trt_builder_config
def configured(*args, **kwargs):
    config = configure(*args, **kwargs)
    count = config.num_compute_capabilities
    asked.extend(config.get_compute_capability(i).name for i in range(count))
    return config
interpreter.TRTInterpreter._populate_trt_builder_config = configured

def record(**options):
    compiled = torch_tensorrt.compile(
        torch.nn.ReLU(), ir="dynamo", arg_inputs=[torch.ones(2, 3)], min_block_size=1, **options)
    (engine,) = [m.engine for m in compiled.modules() if hasattr(m, "serialized_engine")]
    return engine.serialized_device_info
try:
    result = {"record": record()}
except Exception as error:
    with emulated_engines():
        result = {"error": [type(error).__name__, str(error)], "emulated": record()}
print(json.dumps(result | {"asked": asked}))
"""


def run(code: str, *arguments: str, gpu: str, cwd: Any = None) -> list[str]:
    """Return the lines that code prints in a process with this target."""
    env = {**os.environ, "TORCHTRT_GPU": gpu}
    result = fresh.run(code, *arguments, env=env, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines()


def compile_for(gpu: str) -> dict[str, object]:
    return json.loads(run(CODE, gpu=gpu)[-1])


def test_most_of_them_by_default() -> None:
    found = compile_for("")
    assert found["asked"] == []
    expected = "described sm_80, built for sm_80, sm_86, sm_89, sm_120 and later"
    assert found["record"] == f"0%8%0%0%{expected}"


@pytest.mark.parametrize("capability", [(7, 5), (12, 0)])
def test_one_that_is_described(capability: tuple[int, int]) -> None:
    major, minor = capability
    found = compile_for(f"sm_{major}{minor}:8GiB")
    assert found["asked"] == [f"SM{major}{minor}"]
    assert found["record"] == f"0%{major}%{minor}%0%described sm_{major}{minor}"


@pytest.mark.parametrize("described", ["sm_90", "sm_87"])
def test_one_that_it_cannot_target(described: str) -> None:
    found = compile_for(f"{described}:64GiB")
    kind, message = found["error"]
    assert kind == "UntargetableGpuError"
    assert f"engines for {described}: " in message and "TensorRT-RTX 1." in message
    for known in ("sm_75", "sm_80", "sm_86", "sm_89", "sm_120"):
        assert known in message
    assert f"described {described}" in str(found["emulated"])


@pytest.mark.parametrize(
    "capability", [(7, 0), (7, 5), (8, 7), (8, 9), (9, 0), (12, 0), (13, 0)]
)
def test_a_gpu_that_is_here_and_supported_or_not(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]
) -> None:
    monkeypatch.setattr(engine_targets.present, "cuda_device", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    major, minor = capability
    if capability not in ((9, 0), (8, 7), (7, 0)):
        engine_targets.check()
        return
    with pytest.raises(engine_targets.UntargetableGpuError) as raised:
        engine_targets.check()
    message = str(raised.value)
    assert f"doesn't support the GPU that is here, sm_{major}{minor}" in message
    assert "sm_89" in message and "install torch-tensorrt in the place" in message


def test_several_that_are_described() -> None:
    found = compile_for("sm_89:24GiB,sm_80:40GiB")
    assert found["asked"] == ["SM80", "SM89"]
    expected = "described sm_80, built for sm_80, sm_89"
    assert found["record"] == f"0%8%0%0%{expected}"


def test_engines_for_arm_are_those_of_releases_that_are() -> None:
    """What 1.6 builds on x86-64 is what it builds on aarch64, byte for byte; seen under qemu."""
    spark = GpuDescription.parse_list("linux-aarch64:sm_121:128GiB")
    if engine_targets.runs_on("linux-aarch64", present.bindings_version()):
        engine_targets.check_target(spark)
        assert "linux-aarch64" in engine_targets.engines_for()
    else:
        error = engine_targets.UntargetableGpuError
        with pytest.raises(error, match=r"1\.6 and later"):
            engine_targets.check_target(spark)
    assert engine_targets.runs_on("linux-aarch64", "1.6.1.120")
    for platform, version in (
        ("linux-aarch64", "1.5.0.114"),
        ("windows-x86_64", "1.6.1"),
        ("linux-aarch64", None),
    ):
        assert not engine_targets.runs_on(platform, version)


PLATFORM = """
import torch, torch_tensorrt
from torchtrt_executorch.payloads.engine_blob import deserialize_engine

x = torch.linspace(-1, 1, 6).reshape(2, 3)
trt = torch_tensorrt.compile(torch.nn.ReLU(), ir="dynamo", arg_inputs=[x], min_block_size=1)
torch.testing.assert_close(trt(x), torch.relu(x))
built = torch_tensorrt.executorch.export(trt).to_executorch()
(delegate,) = built.executorch_program.execution_plan[0].delegates
payload = built.executorch_program.backend_delegate_data[delegate.processed.index].data
print(deserialize_engine(bytes(payload))[1].target_platform)
"""


@pytest.mark.parametrize(
    ("gpu", "platform"),
    [
        ("", "linux_x86_64"),
        ("linux-x86_64:sm_89:8GiB", "linux_x86_64"),
        ("linux-aarch64:sm_121:128GiB", "linux_aarch64"),
    ],
)
def test_an_engine_records_the_machine_that_it_is_for(gpu: str, platform: str) -> None:
    """And its stand-in runs here whatever that is."""
    arm = gpu.startswith("linux-aarch64")
    if arm and not engine_targets.runs_on("linux-aarch64", present.bindings_version()):
        pytest.skip("needs TensorRT-RTX 1.6, the first for aarch64")
    assert run(PLATFORM, gpu=gpu)[-1] == platform


BEHIND = """
import json, sys, torch, torch_tensorrt, torchtrt_executorch
from torch_tensorrt.executorch.partitioner import TensorRTPartitioner
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

program = torch.export.export(torch.nn.ReLU(), (torch.ones(2, 3),))
for behind in ([XnnpackPartitioner()], []):
    partitioners = [TensorRTPartitioner(compile_settings={"min_block_size": 1}), *behind]
    try:
        edge = to_edge_transform_and_lower(program, partitioner=partitioners)
        print(json.dumps(torchtrt_executorch.report(edge).as_data()))
    except Exception as error:
        print(json.dumps([type(error).__name__, str(error)]))
"""


@pytest.mark.parametrize("target", ["linux-aarch64:sm_87:16GiB", "sm_90:80GiB"])
def test_one_that_others_serve(target: str) -> None:
    """What is behind gets all, and the report says why; alone it is an error."""
    lowered, alone = map(json.loads, run(BEHIND, gpu=target)[-2:])
    (operator,) = lowered["methods"][0]["operators"]
    assert "XnnpackBackend" in str(operator)
    assert alone[0] == "UntargetableGpuError"
    assert operator["reason"] and operator["reason"] in alone[1]


NAMED = """
import json, sys, torch, torch_tensorrt
from torch_tensorrt.executorch.partitioner import TensorRTPartitioner
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir import to_edge, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torchtrt_executorch.inspection.model.reading import read

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.sigmoid(torch.relu(x))

def gpu(named):
    return [CompileSpec("gpu", named.encode())] if named else []

name = CudaBackend.generate_method_name_compile_spec("forward")
for engine, library, *left in json.loads(sys.argv[1]):
    settings = {"min_block_size": 1, "torch_executed_ops": {*left}}
    partitioners = [
        TensorRTPartitioner(gpu(engine), compile_settings=settings),
        CudaPartitioner([name, *gpu(library)]),
    ]
    program = torch.export.export(Model(), (torch.ones(2, 3),))
    try:
        edge = to_edge_transform_and_lower(program, partitioner=partitioners)
        edge.to_executorch().save("model.pte")
        (method,) = read("model.pte").methods
        found = {d.backend: d.gpus for d in method.delegates}
    except Exception as error:
        found = [type(error).__name__, str(error)]
    print(json.dumps(found))
"""


def lowered_for(
    *named: tuple[str, ...], folder: Any, variable: str = ""
) -> list[dict[str, list[str]]]:
    """For which GPUs each delegate is, by what each partitioner is told, and what is left to CUDA."""
    lines = run(NAMED, json.dumps(named), gpu=variable, cwd=folder)
    return [json.loads(line) for line in lines if line[0] in "[{"]


@needs_compilers
def test_all_partitioners_compile_for_the_target_that_one_names(tmp_path: Any) -> None:
    """Whoever names it; one that TensorRT has no engines for is CUDA's alone."""
    target, left = "sm_75:8GiB", "torch.ops.aten.sigmoid.default"
    both, *engines, alone = lowered_for(
        (target, "", left),
        *((target, ""), ("", target), (target, target)),
        ("", "sm_90:80GiB"),
        folder=tmp_path,
    )
    engines += lowered_for(("", ""), ("", target), folder=tmp_path, variable=target)
    assert both == {"TensorRTBackend": ["sm_75"], "CudaBackend": ["sm_75", "sm_75+"]}
    assert engines == [{"TensorRTBackend": ["sm_75"]}] * 5
    assert alone == {"CudaBackend": ["sm_90"]}


@pytest.mark.parametrize(
    ("engine", "library", "variable"),
    [
        ("sm_75:8GiB", "sm_80:8GiB", ""),
        ("sm_75:8GiB", "sm_75:4GiB", ""),
        ("sm_75:8GiB", "", "sm_80:8GiB"),
        ("", "sm_75:8GiB", "sm_80:8GiB,sm_75:8GiB"),
        ("sm_75:8GiB", "sm_75:8GiB", "linux-aarch64:sm_75:8GiB"),
    ],
)
def test_two_targets_are_an_error(
    tmp_path: Any, engine: str, library: str, variable: str
) -> None:
    ((kind, message),) = lowered_for(
        (engine, library), folder=tmp_path, variable=variable
    )
    assert kind == "ValueError" and "two targets" in message
    named = {engine, library, variable} - {""}
    assert sum(repr(each) in message for each in named) == 2


BEFORE = """
import json, sys, torch, torch_tensorrt
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.exir.backend.compile_spec_schema import CompileSpec

name = CudaBackend.generate_method_name_compile_spec("forward")
for gpu in sys.argv[1:]:
    compiled = torch_tensorrt.compile(
        torch.nn.ReLU(), ir="dynamo", arg_inputs=[torch.ones(2, 3)], min_block_size=1,
        target_executorch=True)
    behind = [CudaPartitioner([name, CompileSpec("gpu", gpu.encode())])]
    try:
        torch_tensorrt.executorch.export(compiled, partitioners=behind)
        print(json.dumps(""))
    except ValueError as error:
        print(json.dumps(str(error)))
"""


def test_an_engine_that_was_built_for_others_is_an_error() -> None:
    """By default it is for sm_80, sm_86, sm_89, sm_120 and later: not for sm_75, nor an H100."""
    targets = ("sm_86:8GiB", "sm_121:8GiB", "sm_75:8GiB", "sm_90:80GiB")
    lines = run(BEFORE, *targets, gpu="")
    said = [json.loads(line) for line in lines if line[0] == '"']
    assert said[:2] == ["", ""]
    for message, target in zip(said[2:], targets[2:], strict=True):
        assert "was built for sm_80, sm_86" in message and target in message
