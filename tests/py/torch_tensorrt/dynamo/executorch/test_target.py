"""Every public function that takes ``target_executorch``, and the one that must not."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch_tensorrt import _features
from torch_tensorrt.dynamo import _compiler
from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS

from torchtrt_executorch.nogpu.host import present

from .....lowering import BaseModel
from ..conftest import placed

ON = {"target_executorch": True}
DRY = {"dryrun": True, "min_block_size": 1}
SETTINGS = ("target_executorch", "executorch_allocator_routing")
NONZERO = "aten.nonzero.default"

TAKING = [torch_tensorrt.dynamo.compile, _compiler.compile]
#: They hand their keyword arguments on.
HANDING_ON = [
    torch_tensorrt.compile,
    torch_tensorrt.MutableTorchTensorRTModule.__init__,
]
REFUSING = [
    torch_tensorrt.convert_method_to_trt_engine,
    torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine,
]


@pytest.fixture(autouse=True)
def no_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no host build engines: what is wrong with arguments is said before that is."""
    monkeypatch.setattr(present, "can_build_engines", lambda: False)


class Model(BaseModel, calls=lambda: 0):
    """Counts how often it is traced or run."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if not torch.compiler.is_dynamo_compiling():
            self.calls += 1
        return torch.nonzero(torch.relu(x)), torch.sigmoid(x) + 1


def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 20).reshape(4, 5)


def program() -> torch.export.ExportedProgram:
    return torch.export.export(Model(), (x(),))


@pytest.mark.parametrize(
    "function", TAKING, ids=lambda f: f"{f.__module__}.{f.__qualname__}"
)
def test_signature_docstring_and_pickle(function: Any) -> None:
    parameters = inspect.signature(function).parameters
    assert [parameters[name].default for name in SETTINGS] == [False, "target"]
    assert {parameters[name].kind for name in SETTINGS} == {
        inspect.Parameter.KEYWORD_ONLY
    }
    assert "target_executorch (bool)" in (inspect.getdoc(function) or "")
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("function", [*HANDING_ON, *REFUSING, _compiler.compile_module])
def test_others_look_as_before(function: Any) -> None:
    assert not set(SETTINGS) & set(inspect.signature(function).parameters)
    assert pickle.loads(pickle.dumps(function)) is function


@pytest.mark.parametrize("compile", [torch_tensorrt.compile, _compiler.compile])
def test_compile_of_an_exported_program(compile: Any) -> None:
    ir = {} if compile is _compiler.compile else {"ir": "dynamo"}
    compiled = compile(program(), **ir, arg_inputs=[x()], **DRY, **ON)
    assert placed(compiled)[1] == [NONZERO]


@pytest.fixture
def cross_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have Torch-TensorRT compile for Windows, which takes a build of its own."""
    features = _features.ENABLED_FEATURES._replace(windows_cross_compile=True)
    monkeypatch.setattr(_features, "ENABLED_FEATURES", features)


@pytest.mark.usefixtures("cross_compiles")
def test_cross_compile_for_windows() -> None:
    compiled = torch_tensorrt.dynamo.cross_compile_for_windows(
        program(), arg_inputs=[x()], **DRY, **ON
    )
    assert placed(compiled)[1] == [NONZERO]


@pytest.mark.parametrize("routing", ["target", "node"])
@pytest.mark.parametrize("entry", ["torch.compile", "torch_tensorrt.compile"])
def test_torch_compile(entry: str, routing: str) -> None:
    torch._dynamo.reset()
    options = {"executorch_allocator_routing": routing, **DRY, **ON}
    model = Model().eval()
    if entry == "torch.compile":
        compiled = torch.compile(model, backend="torch_tensorrt", options=options)
    else:
        compiled = torch_tensorrt.compile(model, ir="torch_compile", **options)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        torch.testing.assert_close(compiled(x()), model(x()))
    settings = DYNAMO_CONVERTERS.compilation_settings
    assert settings.target_executorch
    assert settings.executorch_allocator_routing == routing


def test_torch_compile_may_fall_back_whole() -> None:
    """Upstream ignores require_full_compilation there, and says so: no conflict."""
    torch._dynamo.reset()
    options = {"require_full_compilation": True, **DRY, **ON}
    model = Model().eval()
    compiled = torch_tensorrt.compile(model, ir="torch_compile", **options)
    torch.testing.assert_close(compiled(x()), model(x()))


def test_mutable_module() -> None:
    model = Model().eval()
    mutable = torch_tensorrt.MutableTorchTensorRTModule(model, **DRY, **ON)
    torch.testing.assert_close(mutable(x()), Model()(x()))
    assert placed(mutable.gm)[1] == [NONZERO]


@pytest.mark.parametrize(
    ("given", "error", "named"),
    [
        ({"target_executorch": "yes"}, TypeError, ["_executorch", "True or False"]),
        ({"target_executorch": 1}, TypeError, ["target_executorch", "True or False"]),
        (
            {"executorch_allocator_routing": "nodes"},
            ValueError,
            ["executorch_allocator_routing", "'target' or 'node'"],
        ),
        (
            {"target_executorch": True, "require_full_compilation": True},
            ValueError,
            ["target_executorch", "require_full_compilation"],
        ),
    ],
)
@pytest.mark.parametrize("entry", ["torch_tensorrt", "dynamo", "cross", "mutable"])
@pytest.mark.usefixtures("cross_compiles")
def test_errors_come_before_any_work(
    entry: str, given: dict[str, Any], error: type[Exception], named: list[str]
) -> None:
    model = Model().eval()
    with pytest.raises(error) as raised:
        if entry == "torch_tensorrt":
            torch_tensorrt.compile(model, ir="dynamo", arg_inputs=[x()], **given)
        elif entry == "dynamo":
            torch_tensorrt.dynamo.compile(program(), arg_inputs=[x()], **given)
        elif entry == "cross":
            torch_tensorrt.cross_compile_for_windows(
                model, "nowhere.pt2", arg_inputs=[x()], **given
            )
        else:
            torch_tensorrt.MutableTorchTensorRTModule(model, **given)
    assert all(name in str(raised.value) for name in named)
    assert model.calls == 0


def test_wrong_option_of_torch_compile() -> None:
    torch._dynamo.reset()
    options = {"target_executorch": "yes"}
    compiled = torch.compile(Model().eval(), backend="torch_tensorrt", options=options)
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed) as raised:
        compiled(x())
    assert isinstance(raised.value.inner_exception, TypeError)
    assert "target_executorch" in str(raised.value)


@pytest.mark.parametrize(
    "setting",
    [{name: value} for name, value in zip(SETTINGS, (True, "node"), strict=True)],
)
def test_one_engine_takes_neither(setting: dict[str, Any]) -> None:
    model = Model().eval()
    (name,) = setting
    with pytest.raises(ValueError, match=name):
        torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine(
            program(), arg_inputs=[x()], **setting
        )
    with pytest.raises(ValueError, match=name):
        torch_tensorrt.convert_method_to_trt_engine(
            model, ir="dynamo", arg_inputs=[x()], **setting
        )
    assert model.calls == 0


def test_settings_end_with_the_call() -> None:
    torch_tensorrt.dynamo.compile(program(), arg_inputs=[x()], **DRY, **ON)
    assert not torch_tensorrt.dynamo.CompilationSettings().target_executorch
    with pytest.raises(AssertionError):
        torch_tensorrt.dynamo.compile(program(), **DRY, **ON)  # no inputs
    assert not torch_tensorrt.dynamo.CompilationSettings().target_executorch


class Attention(torch.nn.Module):
    """As it is traced on a host with a GPU."""

    def forward(self, x: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        operator = torch.ops.aten._scaled_dot_product_efficient_attention.default
        return operator(x * 2, x, x, bias, False)[0].relu()


@pytest.mark.parametrize("causal", [None, False, True])
def test_a_mask_is_taken_for_causal_on_request_alone(causal: bool | None) -> None:
    """Upstream's default is to drop the mask of padding, for a causal one."""
    query, bias = torch.ones(1, 2, 8, 8), torch.zeros(1, 2, 8, 8)
    asked = {} if causal is None else {"attn_bias_is_causal": causal}
    compiled = torch_tensorrt.dynamo.compile(
        torch.export.export(Attention(), (query, bias)),
        arg_inputs=[query, bias],
        **DRY,
        **ON,
        **asked,
    )
    (call,) = [
        node
        for module in compiled.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
        if "efficient_attention" in str(node.target)
    ]
    assert (call.args[3] is None) == bool(causal)


PARAMETERS = sorted(
    {
        *inspect.signature(torch_tensorrt.dynamo.compile).parameters,
        *inspect.signature(torch_tensorrt.compile).parameters,
    }
    - {"kwargs"}
)


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_misspelled_parameter_is_an_error(name: str) -> None:
    """Before anything is traced: upstream ignores what it doesn't know."""
    given = {"ir": "dynamo", f"{name}_": None, "target_executorch": True}
    with pytest.raises(TypeError, match=f"'{name}_'.*did you mean {name}"):
        torch_tensorrt.compile(torch.nn.ReLU(), **given)


def dynamo_compile(model: torch.nn.Module, **settings: Any) -> Any:
    program = torch.export.export(model, (torch.ones(2, 3),))
    return torch_tensorrt.dynamo.compile(program, [torch.ones(2, 3)], **settings)


@pytest.mark.parametrize("slip", ["{}_", "{}s", "x{}"])
@pytest.mark.parametrize(
    "name",
    ["target_executorch", "executorch_allocator_routing", "executorch_build_fallback"],
)
@pytest.mark.parametrize("compile", [torch_tensorrt.compile, dynamo_compile])
def test_a_misspelled_setting_is_an_error_without_target_executorch(
    name: str, slip: str, compile: Any
) -> None:
    """``target_executorsh=True`` alone would compile for something else, without a word."""
    slip = slip.format(name)
    with pytest.raises(TypeError, match=f"'{slip}'.*did you mean {name}"):
        compile(torch.nn.ReLU(), **{slip: True})


@pytest.mark.parametrize("name", ["debug", "strict"])
def test_deprecated_parameters_are_still_taken(name: str) -> None:
    compiled = torch_tensorrt.compile(
        torch.nn.ReLU(),
        ir="dynamo",
        arg_inputs=[torch.ones(2, 3)],
        target_executorch=True,
        dryrun=True,
        **{name: False},
    )
    assert compiled is not None
