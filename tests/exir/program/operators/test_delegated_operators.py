"""Operators outside of Core ATen: no violation where a partitioner supports them, and located where none does."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from torch import Tensor, nn
from torch._export.verifier import SpecViolationError
from torch.export import ExportedProgram, export

from torchtrt_executorch.operators import register
from torchtrt_executorch.runtime import load

from ....executorch_runtime import UpstreamMethod
from ....lowering import BaseModel, Function, assert_same_as_eager, lower

X = torch.linspace(-1, 1, 128).reshape(8, 16).sin()
COUNTS = (9 * X).int()

#: Functions of operators outside of Core ATen that have no decomposition into it.
FUNCTIONS: dict[str, tuple[Callable[..., Any], Tensor]] = {
    "lgamma": (lambda x: (x + 2).lgamma(), X),
    "mode": (lambda x: (9 * x).int().mode(-1).values, X),
    "nextafter": (lambda x: torch.nextafter(x, x + 1), X),
    "linalg_qr": (lambda x: torch.linalg.qr(x)[1], X),
}


class DelegatedTestBackend(BackendDetails):
    """Compiles nothing: delegates run the program that they were given."""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"")


def everything() -> Partitioner:
    return AotiPartitioner("DelegatedTestBackend", [])


class Some(AotiPartitioner):
    """Supports an operator where it is called on several rows alone."""

    def __init__(self) -> None:
        super().__init__("DelegatedTestBackend", [])

    def unsupported(self, program: ExportedProgram) -> Any:
        return {
            node: "a single row"
            for node in program.graph.nodes
            if node.op == "call_function"
            and "lgamma" in str(node.target)
            and node.meta["val"].shape[0] == 1
        }


class TakesNothing(AotiPartitioner):
    """Says what it supports, and doesn't take it."""

    def __init__(self) -> None:
        super().__init__("DelegatedTestBackend", [])

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return PartitionResult(exported_program, {})


@pytest.mark.parametrize(
    "behind", [[], [XnnpackPartitioner]], ids=["alone", "and XNNPACK"]
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_supported_operator_is_no_violation(
    name: str, behind: list[type[Partitioner]]
) -> None:
    function, x = FUNCTIONS[name]
    edge = lower(Function(function), (x,), everything(), *(each() for each in behind))
    torch.testing.assert_close(edge.exported_program().module()(x), function(x))
    assert name not in str(edge.exported_program().graph)


@pytest.mark.parametrize(
    "partitioners", [[], [XnnpackPartitioner]], ids=["nothing", "XNNPACK"]
)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_unsupported_operator_is_a_violation(
    name: str, partitioners: list[type[Partitioner]]
) -> None:
    function, x = FUNCTIONS[name]
    model = nn.Sequential(nn.Identity(), Function(function))
    with pytest.raises(SpecViolationError, match="is not in Core ATen opset") as raised:
        to_edge_transform_and_lower(
            export(model, (x,)), partitioner=[each() for each in partitioners]
        )
    last = str(raised.value).splitlines()[-1]
    assert name in last and "by 1 of forward" in last
    assert f"{inspect.getfile(Function)}:" in last


#: Outside of Core ATen, with a kernel in ExecuTorch's runtime.
ON_HOST: dict[str, Callable[[Tensor], Tensor]] = {
    "masked_select": lambda x: torch.masked_select(x, x > 0).sum() + 1,
    "antialias": lambda x: nn.functional.interpolate(
        x[None, None], size=(5, 9), mode="bilinear", antialias=True
    ),
}


@pytest.mark.parametrize("lists", [[], [XnnpackPartitioner()]], ids=["none", "XNNPACK"])
@pytest.mark.parametrize("name", ON_HOST)
def test_what_the_runtime_has_a_kernel_for_is_no_violation(
    name: str, lists: list[Partitioner]
) -> None:
    edge = lower(Function(ON_HOST[name]), (X,), *lists)
    buffer = edge.to_executorch().buffer
    method = UpstreamMethod(buffer)
    torch.testing.assert_close([*method.execute([X])], [ON_HOST[name](X)])


def test_a_branch_is_checked_as_well() -> None:
    def branches(x: Tensor) -> Any:
        return torch.cond(
            x.sum() > 0, lambda x: x.lgamma(), lambda x: x.cumsum(0), (x,)
        )

    program = export(Function(branches), (X,))
    edge = to_edge_transform_and_lower(program, partitioner=[everything()])
    torch.testing.assert_close(edge.exported_program().module()(X), branches(X))
    with pytest.raises(SpecViolationError, match=r"lgamma.default \(node"):
        to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])


def test_an_operator_that_is_supported_in_one_place_is_a_violation_in_another() -> None:
    with pytest.raises(SpecViolationError, match=r"supports it \(Some: a single row\)"):
        lower(lambda x: x.lgamma() + x[:1].lgamma(), (X,), Some())


@pytest.mark.parametrize("config", [None, EdgeCompileConfig()], ids=["no", "a"])
def test_what_is_left_of_supported_operators_is_a_violation(
    config: EdgeCompileConfig | None,
) -> None:
    with pytest.raises(SpecViolationError, match="is not in Core ATen opset"):
        lower(lambda x: x.lgamma(), (X,), TakesNothing(), compile_config=config)


def test_exceptions_are_those_of_one_program() -> None:
    config = EdgeCompileConfig()
    program = export(Function(lambda x: x.lgamma()), (X,))
    lower = partial(to_edge_transform_and_lower, program, compile_config=config)
    lower(partitioner=[everything()])
    with pytest.raises(SpecViolationError, match="is not in Core ATen opset"):
        lower(partitioner=[XnnpackPartitioner()])


def test_exceptions_of_the_caller_stay() -> None:
    allowed = [torch.ops.aten.lgamma.default]
    allow = EdgeCompileConfig(_core_aten_ops_exception_list=allowed)
    partitioner = XnnpackPartitioner()
    edge = lower(lambda x: x.lgamma(), (X,), partitioner, compile_config=allow)
    assert "lgamma" in str(edge.exported_program().graph)


class Embedded(nn.Module):
    """Adds a table, resampled to its input's (8, 16), by operators that nothing supports."""

    def __init__(self, *, written: bool = False, drawn: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.register_buffer("table", torch.rand(1, 1, 5, 7))
        self.written, self.drawn = written, drawn

    def forward(self, x: Tensor) -> Tensor:
        if self.written:
            self.table.add_(1)
        table = torch.poisson(self.table) if self.drawn else self.table
        return x + nn.functional.interpolate(
            table, (8, 16), mode="bicubic", antialias=True
        )


@pytest.mark.parametrize("partitioners", [[], [XnnpackPartitioner()]], ids=len)
def test_what_constants_determine_is_computed_at_export(
    partitioners: list[Partitioner],
) -> None:
    program = export(Embedded().eval(), (X,))
    expected = program.module()(X)
    for _ in range(2):
        edge = to_edge_transform_and_lower(program, partitioner=partitioners)
        assert [*program.state_dict] == ["table"] and not program.constants
        assert not edge.exported_program().state_dict
        (found,) = load(edge.to_executorch().buffer).run(X)
        torch.testing.assert_close(found, expected)


class Masked(BaseModel, rows=lambda: torch.arange(48.0).reshape(16, 3).T):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        copied = self.rows.clone()
        other = torch.where(x > 0, x, torch.tensor(-1.0)) + copied
        return other + self.rows.contiguous().sum(), self.rows.clone()


@pytest.mark.parametrize("lists", [[], [XnnpackPartitioner()]], ids=["none", "XNNPACK"])
def test_constants_are_read_and_not_copied_first(lists: list[Partitioner]) -> None:
    """But for what is returned, and what another layout is asked of."""
    x = X[:3].contiguous()
    edge = to_edge_transform_and_lower(export(Masked(), (x,)), partitioner=lists)
    copies = [n for n in edge.exported_program().graph.nodes if "clone" in n.name]
    assert len(copies) == (0 if lists else 2)  # XNNPACK has them
    method = UpstreamMethod(edge.to_executorch().buffer)
    torch.testing.assert_close([*method.execute([x])], [*Masked()(x)])


def test_a_program_without_constants_gets_one() -> None:
    def scaled(x: Tensor) -> Tensor:
        return x * torch.arange(16.0).lgamma()

    assert_same_as_eager(lower(scaled, (X,)), scaled, (X,))


def test_what_upstream_lets_pass_stays() -> None:
    """Weights stay quantized."""
    register(["quantized_decomposed::dequantize_per_tensor"])
    dequantize = torch.ops.quantized_decomposed.dequantize_per_tensor.default

    class Quantized(BaseModel, weight=lambda: torch.ones(16, 16, dtype=torch.int8)):
        def forward(self, x: Tensor) -> Tensor:
            return x @ dequantize(self.weight, 0.5, 0, -127, 127, torch.int8)

    edge = lower(Quantized(), (X,))
    (constant,) = edge.exported_program().state_dict.values()
    assert constant.dtype is torch.int8


def test_what_is_drawn_is_not() -> None:
    with pytest.raises(SpecViolationError, match="no partitioner of forward supports"):
        lower(Embedded(drawn=True), (X,))


def test_what_is_written_is_not() -> None:
    """But it is decomposed, for each call."""
    edge = lower(Embedded(written=True), (X,))
    (mutated,) = edge.exported_program().graph_signature.buffers_to_mutate.values()
    assert mutated in edge.exported_program().state_dict


class WithConstants(nn.Module):
    """Reads a buffer that isn't saved, and a constant tensor: those that a program has beside its state dict."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("frequencies", torch.arange(16.0), persistent=False)
        self.offset = torch.full((16,), 0.5)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.frequencies + self.offset


@pytest.mark.parametrize("by", ["to_edge_transform_and_lower", "to_edge"])
def test_a_program_keeps_the_constants_that_delegates_take(by: str) -> None:
    """It can be lowered again, for another device."""
    program, wanted = export(WithConstants(), (X,)), WithConstants()(X)
    for _ in range(2):
        if by == "to_edge":
            edge = to_edge(program).to_backend(everything())
        else:
            edge = to_edge_transform_and_lower(program, partitioner=[everything()])
        torch.testing.assert_close(edge.exported_program().module()(X), wanted)
        torch.testing.assert_close(program.module()(X), wanted)
