"""``TensorRTPartitioner(compile_settings=...)``: what ``torch_tensorrt.compile`` and ``export`` make."""

from __future__ import annotations

import builtins
import keyword
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
import torch_tensorrt
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    ExecutorchBackendConfig,
    to_edge,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.pass_base import ExportPass
from torch import nn
from torch.export import Dim, ExportedProgram, export
from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.fallback.rejections import RefusedError
from torch_tensorrt.executorch import TensorRTPartitioner

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

from ....lowering import (
    BaseModel,
    assert_same_as_eager,
    backends,
    compile_engines,
    delegates,
    host_operators,
    lower,
    tensorrt_partitioner,
)

SETTINGS = {"min_block_size": 1}


class Found(BaseModel, linear=lambda: nn.Linear(4, 4), calls=lambda: torch.zeros(1)):
    """An engine, an operator that is PyTorch's, another engine, and state."""

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, Any]:
        self.calls.add_(1)
        found = torch.nonzero(self.linear(x).relu())
        return {"last": x.sin() * scale + found.sum(), "calls": self.calls * 2}


X, SCALE = torch.linspace(-1, 1, 8).reshape(2, 4), torch.full((4,), 2.0)


@pytest.fixture(autouse=True)
def _emulated() -> Iterator[None]:
    with emulated_engines():
        yield


@pytest.fixture(scope="module")
def model() -> nn.Module:
    torch.manual_seed(0)
    return Found().eval()


def exported(model: nn.Module, dynamic: bool = False) -> ExportedProgram:
    rows = {0: Dim("rows", min=1, max=16)} if dynamic else None
    shapes = {"x": rows, "scale": None} if dynamic else None
    return export(model, (X,), {"scale": SCALE}, dynamic_shapes=shapes)


def partitioners(**options: Any) -> list[Any]:
    first = TensorRTPartitioner(compile_settings=SETTINGS, **options)
    return [first, XnnpackPartitioner()]


def lowered(model: nn.Module, *partitioners: Any) -> EdgeProgramManager:
    return to_edge_transform_and_lower(exported(model), partitioner=[*partitioners])


def transformed(program: ExportedProgram) -> ExportedProgram:
    return tensorrt_partitioner().transform_for_pre_decomposition(program)


def partitions(edge: EdgeProgramManager) -> list[tuple[str, bytes]]:
    return [(each.backend_id, bytes(each.processed_bytes)) for each in delegates(edge)]


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
def test_makes_what_compile_and_export_make(model: nn.Module, dynamic: bool) -> None:
    """Partition by partition, and byte for byte in the blobs."""
    program = exported(model, dynamic)
    here = to_edge_transform_and_lower(program, partitioner=partitioners())
    settings = {"kwarg_inputs": {"scale": SCALE}, "target_executorch": True, **SETTINGS}
    compiled = torch_tensorrt.dynamo.compile(program, arg_inputs=[X], **settings)
    last = [XnnpackPartitioner()]
    there = torch_tensorrt.executorch.export(compiled, partitioners=last)
    assert partitions(here) == partitions(there)
    assert backends(here).count("TensorRTBackend") == 2


def test_runs_as_the_model_does(model: nn.Module) -> None:
    edge = lowered(model, *partitioners())
    program = load(edge.to_executorch().buffer, emulated_engines=True)
    for calls in (1, 2):
        last, doubled = program.method()(X, SCALE)
        found = torch.nonzero(model.linear(X).relu())
        torch.testing.assert_close(last, X.sin() * SCALE + found.sum())
        torch.testing.assert_close(doubled, torch.full((1,), 2.0 * calls))


def test_the_caller_s_program_is_left_as_it_is(model: nn.Module) -> None:
    program = exported(model)
    graph, signature = str(program.graph), str(program.graph_signature)
    tensors = {name: id(value) for name, value in program.state_dict.items()}
    to_edge_transform_and_lower(program, partitioner=partitioners())
    assert str(program.graph) == graph
    assert str(program.graph_signature) == signature
    assert {name: id(value) for name, value in program.state_dict.items()} == tensors
    program.module()(X, scale=SCALE)


def test_each_method_has_its_own_list(model: nn.Module) -> None:
    programs = {"both": exported(model), "neither": export(nn.Softmax(-1), (X,))}
    seen: list[int] = []

    class Seen(ExportPass):
        def call(self, graph_module: GraphModule) -> PassResult:
            seen.append(len(graph_module.graph.nodes))
            return super().call(graph_module)

    edge = to_edge_transform_and_lower(
        programs,
        transform_passes={"both": [Seen()], "neither": []},
        partitioner={"both": partitioners(), "neither": []},
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
        constant_methods={"version": 3},
        generate_etrecord=True,
    )
    assert "TensorRTBackend" in backends(edge, "both")
    assert backends(edge, "neither") == []
    assert len(seen) == 1
    assert {"both", "neither"} <= set(edge.methods)
    assert load(edge.to_executorch().buffer).method("version")() == (3,)


def test_without_settings_a_program_is_taken_as_it_is(model: nn.Module) -> None:
    edge = lowered(model, TensorRTPartitioner(), XnnpackPartitioner())
    assert "TensorRTBackend" not in backends(edge)


def test_a_program_of_which_tensorrt_takes_nothing_is_what_others_get() -> None:
    program = export(nn.Softmax(-1), (X,))
    partitioner = TensorRTPartitioner(compile_settings={"min_block_size": 9})
    found = partitioner.transform_for_pre_decomposition(program)
    assert str(found.graph) == str(program.graph)
    assert not any("custom" in node.meta for node in program.graph.nodes)


class Twice(nn.Module):
    """State under two names, as transformers' static cache has it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(1))
        self.register_buffer("again", self.calls, persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return x.sin() * self.again


@pytest.mark.parametrize("size", [1, 9], ids=["engine", "no engine"])
def test_state_under_two_names(size: int) -> None:
    edge = lower(Twice(), (X,), tensorrt_partitioner(min_block_size=size))
    assert backends(edge) == ["TensorRTBackend"][: size == 1]
    assert_same_as_eager(edge, Twice(), (X,), (X,))


class Attention(nn.Module):
    """Its result is viewed as its strides allow it, which others' don't."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = x.view(1, -1, 4, 8).transpose(1, 2)
        y = nn.functional.scaled_dot_product_attention(heads, heads, heads)
        return y.transpose(1, 2).reshape(1, -1, 32).relu()


def test_attention_that_is_decomposed_behind_a_view() -> None:
    x = torch.linspace(-1, 1, 160).reshape(1, 5, 32)
    shapes = {"x": {1: torch.export.Dim("length", min=2, max=8)}}
    partitioner = tensorrt_partitioner(decompose_attention=True)
    edge = lower(Attention(), (x,), partitioner, dynamic_shapes=shapes)
    assert backends(edge) == ["TensorRTBackend"]
    assert_same_as_eager(edge, Attention(), (x,))


@pytest.mark.parametrize("before", ["nothing", "a success", "a failure"])
def test_past_the_aten_dialect_it_is_refused(model: nn.Module, before: str) -> None:
    """Whatever the partitioner has seen before."""
    partitioner = tensorrt_partitioner()
    if before == "a success":
        to_edge_transform_and_lower(exported(model), partitioner=[partitioner])
    if before == "a failure":
        partitioner.transform_for_pre_decomposition(exported(model))
    edge = to_edge(exported(model))
    with pytest.raises(RuntimeError, match="pass it to to_edge_transform_and_lower"):
        edge.to_backend(partitioner)


@pytest.mark.parametrize("size", [1, 100], ids=["engines", "no engine"])
def test_lowering_once_more_takes_nothing_more(model: nn.Module, size: int) -> None:
    partitioner = tensorrt_partitioner(min_block_size=size)
    edge = lowered(model, partitioner, XnnpackPartitioner())
    assert backends(edge.to_backend(partitioner)) == backends(edge)


class Between(BaseModel, calls=lambda: torch.zeros(1)):
    """A sine between other operators, and state."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return ((x * 2).sin() + 1).cos() * self.calls


def test_a_second_one_gets_what_the_first_leaves() -> None:
    """Each with settings, compile specs and a GPU of its own."""
    first = tensorrt_partitioner(
        CompileSpec("whose", b"first"),
        torch_executed_ops={"torch.ops.aten.sin.default"},
        device=torch_tensorrt.Device(gpu_id=1),
    )
    gpu = torch_tensorrt.Device(gpu_id=2)
    second = tensorrt_partitioner(CompileSpec("whose", b"second"), device=gpu)
    edge = lower(Between(), (X,), first, second)
    found = [tuple(spec.value for spec in d.compile_specs) for d in delegates(edge)]
    assert sorted(found) == [(b"first", b"cuda:1")] * 2 + [(b"second", b"cuda:2")]
    assert not host_operators(edge)
    assert_same_as_eager(edge, Between(), (X,), (X,))


def test_a_second_one_of_which_nothing_is_left(model: nn.Module) -> None:
    edge = lower(Between(), (X,), tensorrt_partitioner(), tensorrt_partitioner())
    assert backends(edge) == ["TensorRTBackend"]


#: What Python has for builtins, and can be the name of a parameter.
BUILTINS = [
    name
    for name in dir(builtins)
    if name.islower() and not name.startswith("_") and not keyword.iskeyword(name)
]


def test_parameters_with_names_of_builtins(caplog: Any) -> None:
    """``nn.Sequential`` calls its own ``input``."""
    half = len(BUILTINS) // 2
    arguments = ", ".join([*BUILTINS[:half], "*", *BUILTINS[half:]])
    scope: dict[str, Any] = {}
    code = f"def forward(self, {arguments}): return ({' + '.join(BUILTINS)}).relu()"
    exec(code, scope)
    kind = type("Named", (nn.Module,), {"forward": scope["forward"]})
    named = {name: X + i for i, name in enumerate(BUILTINS)}
    args = tuple(named[name] for name in BUILTINS[:half])
    kwargs = {name: named[name] for name in BUILTINS[half:]}
    program = export(kind(), args, kwargs)
    found = transformed(program)
    assert "takes nothing" not in caplog.text
    assert list(found.graph_signature.user_inputs) == BUILTINS
    compiled = torch_tensorrt.dynamo.compile(
        program, arg_inputs=args, kwarg_inputs=kwargs, **SETTINGS
    )
    torch.testing.assert_close(compiled(*args, **kwargs), kind()(*args, **kwargs))
    alone = to_edge_transform_and_lower(program).exported_program()
    for edge in (
        to_edge_transform_and_lower(program, partitioner=[tensorrt_partitioner()]),
        torch_tensorrt.executorch.export(compiled),
    ):
        ours = edge.exported_program().graph_signature.user_inputs
        assert ours == alone.graph_signature.user_inputs
        assert backends(edge) == ["TensorRTBackend"]


def test_compiled_modules_keep_the_names_of_their_inputs(model: nn.Module) -> None:
    compiled = compile_engines(model, [X], kwarg_inputs={"scale": SCALE})
    edge = torch_tensorrt.executorch.export(compiled)
    assert edge.exported_program().graph_signature.user_inputs == ("x", "scale")


BAD: dict[str, tuple[Any, type[Exception], str]] = {
    "earlier": ({"enabled_precisions": {torch.half}}, ValueError, "model.half"),
    "unknown": ({"min_blok_size": 1}, ValueError, "did you mean min_block_size"),
    "inputs": ({"arg_inputs": [X]}, ValueError, "no setting 'arg_inputs'"),
    "off": ({"target_executorch": False}, ValueError, "leave it out"),
    "full": ({"require_full_compilation": True}, ValueError, "fail_on_build_error"),
    "kind": ("fp16", TypeError, "takes a mapping"),
}


@pytest.mark.parametrize(("settings", "error", "says"), BAD.values(), ids=BAD)
def test_bad_settings(settings: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        TensorRTPartitioner(compile_settings=settings)


def test_settings_as_an_object(model: nn.Module) -> None:
    settings = CompilationSettings(
        min_block_size=1, torch_executed_ops={"torch.ops.aten.sin.default"}
    )
    edge = lowered(model, TensorRTPartitioner(compile_settings=settings))
    assert host_operators(edge)["aten.sin.default"]
    assert "TensorRTBackend" in backends(edge)


def doubled(x: torch.Tensor) -> torch.Tensor:
    """Has an engine's worth of operators in a dtype that TensorRT lacks."""
    return x.double().exp().cos().float().sin()


def test_what_tensorrt_lacks_goes_to_the_others(caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        edge = lower(doubled, (X,), *partitioners())
    assert_same_as_eager(edge, doubled, (X,))
    assert "TensorRTBackend" in backends(edge)
    (message,) = [r.getMessage() for r in caplog.records if "left to" in r.getMessage()]
    assert "torch.float64" in message and "exp" in message


def test_or_is_an_error_on_request() -> None:
    with pytest.raises(RefusedError, match="truncate_double"):
        lower(doubled, (X,), *partitioners(fail_on_build_error=True))


@pytest.mark.parametrize("error", [OSError("no TensorRT"), ValueError("odd graph")])
def test_errors_that_nothing_falls_back_from(
    model: nn.Module, error: Exception, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """A machine without TensorRT would leave out everything, and say nothing that helps."""
    from torch_tensorrt.dynamo import _compiler

    def fails(*args: Any, **kwargs: Any) -> Any:
        raise error

    monkeypatch.setattr(_compiler, "compile_module", fails)
    program = exported(model)
    if isinstance(error, OSError):
        with pytest.raises(OSError, match="no TensorRT"):
            transformed(program)
    else:
        assert str(transformed(program).graph) == str(program.graph)
        assert "ValueError: odd graph" in caplog.text


@pytest.mark.beyond_upstream
def test_each_engine_is_a_step_of_its_own(model: nn.Module, caplog: Any) -> None:
    """Which of how many, what is in it, and seconds; see ``test_progress`` for terminals."""
    with caplog.at_level(logging.INFO, logger="torchtrt_executorch.progress"):
        lowered(model, tensorrt_partitioner())
    said = [r.getMessage() for r in caplog.records if " of 2: " in r.getMessage()]
    engines = [line.split(":")[0] for line in said]
    assert engines == ["TensorRT engine 1 of 2", "TensorRT engine 2 of 2"]
    assert all("operators (" in line and line.endswith(" s") for line in said)


def test_interfaces_that_differ_are_no_engine_s(
    model: nn.Module, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    """Should compiling lose an output, the program is exported as it was."""
    from torch_tensorrt.executorch import _compiling

    real = _compiling.lifted_program

    def without_last_output(module: Any) -> ExportedProgram:
        program = real(module)
        output = program.graph.output_node()
        output.args = (output.args[0][:-1],)
        program.graph_signature.output_specs.pop()
        return program

    monkeypatch.setattr(_compiling, "lifted_program", without_last_output)
    program = exported(model)
    found = transformed(program)
    assert str(found.graph) == str(program.graph)
    assert "changed the program's outputs" in caplog.text


def test_signatures_stay(model: nn.Module) -> None:
    """Inputs by name and order, outputs by order, and what is written."""
    program = exported(model)
    compiled = transformed(program)
    inputs = program.run_decompositions({}).graph_signature.user_inputs
    assert compiled.graph_signature.user_inputs == inputs
    assert {*compiled.graph_signature.buffers_to_mutate.values()} == {"calls"}
    ours: Mapping[str, Any] = compiled.module()(X, scale=SCALE)
    assert list(ours) == ["last", "calls"]


def half() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU())


class Halves(BaseModel, first=half, second=half):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).reshape(4, 8))


@pytest.mark.parametrize("second", ["second", "sec*"])
def test_each_half_has_engines_for_its_gpu(second: str) -> None:
    """Engines run on the GPU that they are labelled with, and the program is sound."""
    specs = ("modules", second.encode()), ("target_device", b"cuda:1")
    of_second = [CompileSpec(*each) for each in specs]
    model, x = Halves().eval(), torch.randn(4, 8)
    edge = lower(model, (x,), tensorrt_partitioner(*of_second), tensorrt_partitioner())
    planned = ExecutorchBackendConfig(enable_non_cpu_memory_planning=True)
    program = edge.to_executorch(planned).buffer
    simulated = load(program, simulate_devices=True, emulated_engines=True)
    torch.testing.assert_close(simulated.run(x)[0], model(x))
    engines = [each.device for each in simulated.method("forward")._delegates.values()]
    assert engines == [torch.device("cuda:0"), torch.device("cuda:1")]
    direct = load(program, emulated_engines=True)
    torch.testing.assert_close(direct.run(x)[0], model(x))
    assert direct.stats().copies["device_to_device"].copies == 1


def test_a_device_of_the_settings_stays() -> None:
    """Whatever the label says, as upstream has it."""
    from torch_tensorrt.executorch._compiling import settings_of

    device = torch_tensorrt.Device("cuda:2")
    specs = [CompileSpec("target_device", b"cuda:1")]
    assert settings_of({"device": device}, specs)["device"] is device
    assert settings_of({}, specs)["device"].gpu_id == 1
    assert "device" not in settings_of({}, [])
    with pytest.raises(ValueError, match="TensorRTPartitioner: .*paths of modules"):
        TensorRTPartitioner([CompileSpec("modules", b"")], compile_settings={})
