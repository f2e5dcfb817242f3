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

from ....lowering import BaseModel, Function, backends, compile_emulated

DEFAULT = "TensorRTBackend"
XNNPACK = "XnnpackBackend"


class Model(BaseModel, linear=lambda: torch.nn.Linear(3, 4)):
    """One stretch for TensorRT, one for XNNPACK (its operators are kept out), one for neither."""

    def forward(
        self, x: torch.Tensor, *, scale: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        y = self.linear(x).sin() * scale
        return torch.sigmoid(y), torch.nonzero(y > 0)


OUTSIDE = {"torch.ops.aten.sigmoid.default"}
X = torch.linspace(-1, 1, 6).reshape(2, 3)
SCALE = {"scale": torch.full((4,), 2.0)}
BATCH = torch_tensorrt.Input(
    min_shape=(1, 3), opt_shape=(2, 3), max_shape=(8, 3), dtype=torch.float32
)
BUDGET = "weight_streaming_budget_per_engine"


@pytest.fixture(scope="module")
def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def compiled(model: torch.nn.Module) -> GraphModule:
    settings = {"kwarg_inputs": SCALE, "torch_executed_ops": OUTSIDE}
    return compile_emulated(model, [X], **settings)


@pytest.fixture(scope="module")
def dynamic(model: torch.nn.Module) -> GraphModule:
    """The same, compiled for batches of one to eight."""
    scale = {"scale": torch_tensorrt.Input(shape=(4,), dtype=torch.float32)}
    settings = {"kwarg_inputs": scale, "torch_executed_ops": OUTSIDE}
    return compile_emulated(model, [BATCH], **settings)


@pytest.fixture(scope="module")
def program(compiled: GraphModule) -> ExportedProgram:
    """What ``torch_tensorrt.dynamo.export`` writes for it."""
    return torch_tensorrt.dynamo.export(
        compiled, arg_inputs=[X], kwarg_inputs=dict(SCALE)
    )


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
    names = (
        "inputs arg_inputs kwarg_inputs dynamic_shapes retrace transform_passes partitioners "
        "compile_specs compile_config constant_methods generate_etrecord"
    )
    first, *rest = inspect.signature(export).parameters.values()
    assert first.name == "source"
    assert {*names.split(), BUDGET} <= {parameter.name for parameter in rest}
    assert {parameter.kind for parameter in rest} == {inspect.Parameter.KEYWORD_ONLY}
    assert torch_tensorrt.executorch.export is export


@pytest.mark.parametrize(
    "form", ["graph", "graph alone", "retraced", "exported", "loaded", "mapping"]
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
        source, retrace = compiled, form == "retraced"
        options = {"arg_inputs": (X,), "kwarg_inputs": SCALE, "retrace": retrace}
    elif form == "graph alone":
        source = compiled
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
    scale = torch_tensorrt.Input(shape=(4,), dtype=torch.float32)
    shapes = {"x": {0: Dim("batch", min=1, max=8)}, "scale": {}}
    options: dict[str, dict[str, Any]] = {
        "compiled": {},
        "Input": {
            "arg_inputs": (BATCH,),
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

    class Weights(
        BaseModel,
        embedding=lambda: torch.nn.Embedding(10, 4),
        order=lambda: torch.tensor([2, 0, 1]),
    ):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return self.embedding(tokens)[self.order].sin() * 2

    torch.manual_seed(0)
    model, tokens = Weights().eval(), torch.tensor([1, 5, 9])
    outside = {"torch.ops.aten.embedding.default", "torch.ops.aten.index.Tensor"}
    compiled = compile_emulated(model, [tokens], torch_executed_ops=outside)
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
        ("compiled", {BUDGET: "1"}, TypeError, "weight_streaming"),
        ("compiled", {BUDGET: -1}, ValueError, "weight_streaming"),
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
    nonzero = Function(lambda x: torch.nonzero(x.relu()))
    compiled = compile_emulated(nonzero, [X], target_executorch=False)
    with pytest.raises(RuntimeError, match="output allocator.*target_executorch=True"):
        export(compiled)


@pytest.fixture(scope="module", autouse=True)
def _emulation() -> Any:
    """Reading an emulated engine from a file has to be asked for."""
    with emulated_engines():
        yield
