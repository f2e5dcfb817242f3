"""``torch_tensorrt.executorch.export``: every source, every option, every error."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest
import torch
import torch_tensorrt
from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
    XnnpackFloatingPointPartitioner,
    XnnpackPartitioner,
)
from executorch.exir import EdgeCompileConfig, EdgeProgramManager
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.pass_base import ExportPass
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule
from torch.utils._pytree import tree_leaves
from torch_tensorrt.executorch import export

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

DEFAULT = "TensorRTBackend"
XNNPACK = "XnnpackBackend"


class Model(torch.nn.Module):
    """One stretch for TensorRT, one for XNNPACK (its operators are kept out), one for neither."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 4)

    def forward(
        self, x: torch.Tensor, *, scale: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x).sin() * scale
        return torch.sigmoid(y), torch.nonzero(y > 0)


def compile_engine(model: torch.nn.Module, inputs: Any, **options: Any) -> GraphModule:
    with emulated_engines():
        return torch_tensorrt.compile(
            model.eval(), ir="dynamo", arg_inputs=inputs, min_block_size=1, **options
        )


OUTSIDE = {"torch.ops.aten.sigmoid.default"}
X = torch.linspace(-1, 1, 6).reshape(2, 3)
SCALE = {"scale": torch.full((4,), 2.0)}


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def compiled(model: torch.nn.Module) -> GraphModule:
    return compile_engine(
        model,
        [X],
        kwarg_inputs=SCALE,
        target_executorch=True,
        torch_executed_ops=OUTSIDE,
    )


@pytest.fixture(scope="module")
def dynamic(model: torch.nn.Module) -> GraphModule:
    """The same, compiled for batches of one to eight."""
    batch = torch_tensorrt.Input(
        min_shape=(1, 3), opt_shape=(2, 3), max_shape=(8, 3), dtype=torch.float32
    )
    return compile_engine(
        model,
        [batch],
        kwarg_inputs={"scale": torch_tensorrt.Input(shape=(4,), dtype=torch.float32)},
        target_executorch=True,
        torch_executed_ops=OUTSIDE,
    )


@pytest.fixture(scope="module")
def program(compiled: GraphModule) -> ExportedProgram:
    """What ``torch_tensorrt.dynamo.export`` writes for it."""
    return torch_tensorrt.dynamo.export(
        compiled, arg_inputs=[X], kwarg_inputs=dict(SCALE)
    )


def backends(edge: EdgeProgramManager, method: str = "forward") -> list[str]:
    modules = edge.exported_program(method).graph_module.children()
    return [m.backend_id for m in modules if isinstance(m, LoweredBackendModule)]


def assert_agrees(edge: EdgeProgramManager, model: Any, x: torch.Tensor = X) -> None:
    found = edge.exported_program().module()(x, **SCALE)
    torch.testing.assert_close(found, model(x, **SCALE))


def assert_pte_agrees(edge: EdgeProgramManager, model: Any, *xs: torch.Tensor) -> None:
    """Run the ``.pte``, which uses ``edge`` up."""
    program = load(bytes(edge.to_executorch().buffer), emulated_engines=True)
    for x in xs or (X,):
        expected = tree_leaves(model(x, **SCALE))
        torch.testing.assert_close(list(program.run(x, *SCALE.values())), expected)


def text_of(source: ExportedProgram | GraphModule) -> tuple[str, list[str]]:
    """Everything of a source that lowering could change by mistake."""
    if isinstance(source, GraphModule):
        return str(source.graph), sorted(source.state_dict())
    names = sorted([*source.state_dict, *source.constants])
    return f"{source.graph}{source.graph_signature}", names


def test_interface_is_that_of_2_14() -> None:
    names = [
        "inputs",
        "arg_inputs",
        "kwarg_inputs",
        "dynamic_shapes",
        "retrace",
        "transform_passes",
        "partitioners",
        "compile_specs",
        "compile_config",
        "constant_methods",
        "generate_etrecord",
        "weight_streaming_budget_per_engine",
    ]
    first, *rest = inspect.signature(export).parameters.values()
    assert first.name == "source"
    assert set(names) <= {parameter.name for parameter in rest}
    assert {parameter.kind for parameter in rest} == {inspect.Parameter.KEYWORD_ONLY}
    assert torch_tensorrt.executorch.export is export


@pytest.mark.parametrize(
    "form",
    [
        "graph",
        "retraced",
        "exported",
        "loaded",
        "mapping",
    ],
)
def test_sources(
    form: str,
    model: torch.nn.Module,
    compiled: GraphModule,
    program: ExportedProgram,
    tmp_path: Path,
) -> None:
    options: dict[str, Any] = {}
    source: Any = program
    if form in ("graph", "retraced"):
        source = compiled
        options = {
            "arg_inputs": (X,),
            "kwarg_inputs": SCALE,
            "retrace": form != "graph",
        }
    elif form == "loaded":
        torch_tensorrt.save(
            compiled, str(tmp_path / "m.ep"), arg_inputs=[X], kwarg_inputs=SCALE
        )
        source = torch_tensorrt.load(str(tmp_path / "m.ep"))
    before = text_of(source)
    given = {"forward": source} if form == "mapping" else source
    edge = export(given, **options)
    assert isinstance(edge, EdgeProgramManager)
    assert backends(edge) == [DEFAULT]
    assert_agrees(edge, model)
    assert text_of(source) == before
    assert_pte_agrees(edge, model)


def test_graph_module_needs_no_inputs(
    compiled: GraphModule, model: torch.nn.Module
) -> None:
    assert_agrees(export(compiled), model)


def test_lowering_twice(compiled: GraphModule, program: ExportedProgram) -> None:
    """The source isn't used up, and both times give the same bytes."""
    for source in (compiled, program):
        first, second = (export(source).to_executorch().buffer for _ in range(2))
        assert first == second


def test_partitioners_run_after_tensorrt_and_in_order(
    program: ExportedProgram, model: torch.nn.Module
) -> None:
    edge = export(program, partitioners=[XnnpackPartitioner()])
    assert backends(edge) == [DEFAULT, XNNPACK]
    assert_agrees(edge, model)
    asked: list[str] = []

    class Recording(XnnpackPartitioner):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def partition(self, exported_program: ExportedProgram) -> Any:
            seen = exported_program.graph_module.children()
            asked.append(self.name)
            assert any(isinstance(m, LoweredBackendModule) for m in seen)
            return super().partition(exported_program)

    export(program, partitioners=[Recording("first"), Recording("second")])
    assert asked == ["first", "second"]


def test_methods(program: ExportedProgram, dynamic: GraphModule) -> None:
    other = torch_tensorrt.dynamo.export(
        dynamic,
        arg_inputs=[X],
        kwarg_inputs=dict(SCALE),
        dynamic_shapes={"x": {0: Dim("batch", min=1, max=8)}, "scale": {}},
    )
    edge = export(
        {"forward": program, "other": other},
        partitioners={"other": [XnnpackFloatingPointPartitioner()], "forward": None},
        compile_specs={"forward": [CompileSpec("target_device", b"cuda:3")]},
        constant_methods={"size": 4},
        transform_passes={"other": []},
    )
    assert edge.methods == {"forward", "other"}
    assert edge.config_methods == {"size"}
    assert backends(edge) == [DEFAULT]
    assert backends(edge, "other") == [DEFAULT, XNNPACK]
    devices = [
        next(s.value for s in module.compile_specs if s.key == "target_device")
        for name in ("forward", "other")
        for module in edge.exported_program(name).graph_module.children()
        if isinstance(module, LoweredBackendModule) and module.backend_id == DEFAULT
    ]
    assert devices == [b"cuda:3", b"cuda:0"]
    assert b"other" in edge.to_executorch().buffer


def test_methods_of_compiled_modules(
    compiled: GraphModule,
    dynamic: GraphModule,
    program: ExportedProgram,
    model: torch.nn.Module,
) -> None:
    """What torch_tensorrt.compile returned, beside programs."""
    methods = {"one": compiled, "many": dynamic, "other": program}
    edge = export(methods, partitioners={"many": [XnnpackPartitioner()]})
    assert edge.methods == methods.keys()
    loaded = load(bytes(edge.to_executorch().buffer), emulated_engines=True)
    for method in methods:
        found = [*loaded.method(method)(X, *SCALE.values())]
        torch.testing.assert_close(found, tree_leaves(model(X, **SCALE)))
    more = torch.cat([X, X])
    found = [*loaded.method("many")(more, *SCALE.values())]
    torch.testing.assert_close(found, tree_leaves(model(more, **SCALE)))
    with pytest.raises(ValueError, match="for one compiled GraphModule"):
        export(methods, retrace=True)


@pytest.mark.parametrize("way", ["compiled", "Input", "dims"])
def test_dynamic_shapes(way: str, dynamic: GraphModule, model: torch.nn.Module) -> None:
    batch = torch_tensorrt.Input(
        min_shape=(1, 3), opt_shape=(2, 3), max_shape=(8, 3), dtype=torch.float32
    )
    scale = torch_tensorrt.Input(shape=(4,), dtype=torch.float32)
    shapes = {"x": {0: Dim("batch", min=1, max=8)}, "scale": {}}
    options: dict[str, dict[str, Any]] = {
        "compiled": {},
        "Input": {
            "arg_inputs": (batch,),
            "kwarg_inputs": {"scale": scale},
            "retrace": True,
        },
        "dims": {"arg_inputs": (X,), "kwarg_inputs": SCALE, "dynamic_shapes": shapes},
    }
    edge = export(dynamic, **options[way])
    batches = [torch.randn(size, 3) for size in (2, 1, 8)]
    for x in batches:
        assert_agrees(edge, model, x)
    assert_pte_agrees(edge, model, *batches)


def test_options_reach_executorch(program: ExportedProgram) -> None:
    class Counting(ExportPass):
        calls = 0

        def call(self, graph_module: GraphModule) -> Any:
            Counting.calls += 1
            return super().call(graph_module)

    edge = export(
        program,
        transform_passes=[Counting()],
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
        generate_etrecord=True,
    )
    assert Counting.calls == 1
    assert edge.to_executorch().get_etrecord() is not None


def test_program_without_engines(model: torch.nn.Module) -> None:
    plain = torch.export.export(model, (X,), SCALE)
    with pytest.raises(ValueError, match="no TensorRT engine.*allow_no_engine=True"):
        export(plain)
    edge = export(plain, allow_no_engine=True, partitioners=[XnnpackPartitioner()])
    assert backends(edge) == [XNNPACK] * len(backends(edge))
    assert_agrees(edge, model)


def test_weights_outside_of_engines() -> None:
    """Of every dtype and shape, read by operators that stay in PyTorch."""

    class Weights(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = torch.nn.Embedding(10, 4)
            self.register_buffer("order", torch.tensor([2, 0, 1]))

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.embedding(tokens)[self.order].sin() * 2

    torch.manual_seed(0)
    model, tokens = Weights().eval(), torch.tensor([1, 5, 9])
    outside = {"torch.ops.aten.embedding.default", "torch.ops.aten.index.Tensor"}
    compiled = compile_engine(model, [tokens], torch_executed_ops=outside)
    edge = export(compiled)
    assert backends(edge) == [DEFAULT]
    found = edge.exported_program().module()(tokens)
    torch.testing.assert_close(found, model(tokens))


class NeverCalled(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise AssertionError("work was done before the error")


@pytest.mark.parametrize(
    ("source", "options", "error", "named"),
    [
        (NeverCalled(), {}, TypeError, "NeverCalled.*compile it first"),
        (None, {}, TypeError, "NoneType"),
        ("model.pt2", {}, TypeError, "str"),
        ({}, {}, ValueError, "mapping is empty"),
        ({"forward": NeverCalled()}, {}, TypeError, "NeverCalled for forward"),
        ({1: "program"}, {}, ValueError, "named by a string"),
        ("program", {"arg_inputs": (X,)}, ValueError, "has its inputs"),
        ("program", {"retrace": True}, ValueError, "has its inputs"),
        ("twice", {}, ValueError, "one is there twice"),
        ("compiled", {"inputs": (X,), "arg_inputs": (X,)}, ValueError, "pass one"),
        ("compiled", {"retrace": True}, ValueError, "need arg_inputs"),
        ("compiled", {"partitioners": "xnnpack"}, TypeError, "partitioners"),
        ("compiled", {"partitioners": [XnnpackPartitioner]}, TypeError, "Partitioner"),
        ("compiled", {"partitioners": XnnpackPartitioner()}, TypeError, "sequence"),
        ("compiled", {"partitioners": {"other": []}}, ValueError, "other"),
        ("compiled", {"compile_specs": [("a", b"b")]}, TypeError, "CompileSpecs"),
        ("compiled", {"compile_specs": {"x": []}}, ValueError, "'x'"),
        ("compiled", {"transform_passes": {"x": []}}, ValueError, "'x'"),
        ("compiled", {"constant_methods": {"a b": 1}}, ValueError, "identifier"),
        ("compiled", {"constant_methods": {"forward": 1}}, ValueError, "already"),
        (
            "compiled",
            {"weight_streaming_budget_per_engine": "1"},
            TypeError,
            "weight_streaming",
        ),
        (
            "compiled",
            {"weight_streaming_budget_per_engine": -1},
            ValueError,
            "weight_streaming",
        ),
        ("compiled", {"nonsense": 1}, TypeError, "nonsense"),
    ],
)
def test_errors_come_before_any_work(
    source: Any,
    options: dict[str, Any],
    error: type[Exception],
    named: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if source in ("compiled", "program"):
        source = request.getfixturevalue(source)
    elif source == "twice":
        program = request.getfixturevalue("program")
        source = {"a": program, "b": program}
    elif isinstance(source, dict) and "program" in source.values():
        source = dict.fromkeys(source, request.getfixturevalue("program"))
    with pytest.raises(error, match=named):
        export(source, **options)


def test_partitioner_of_another_method(compiled: GraphModule) -> None:
    from executorch.backends.aoti.aoti_partitioner import AotiPartitioner

    wrong = AotiPartitioner("AotiBackend", [CompileSpec("method_name", b"decode")])
    with pytest.raises(ValueError, match="decode.*given for forward"):
        export(compiled, partitioners=[wrong])


def test_engine_that_needs_an_output_allocator() -> None:
    class NonZero(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.nonzero(x.relu())

    compiled = compile_engine(NonZero(), [X])
    with pytest.raises(RuntimeError, match="output allocator.*target_executorch=True"):
        export(compiled)


@pytest.fixture(scope="module", autouse=True)
def _emulation() -> Any:
    """Reading an emulated engine from a file has to be asked for."""
    with emulated_engines():
        yield
