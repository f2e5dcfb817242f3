"""What a partitioner wants whole, beside other partitioners: real ones, in every order."""

from __future__ import annotations

import copy
from collections import Counter
from itertools import permutations
from typing import Any, Callable

import pytest
import torch
import torch_tensorrt
from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import EdgeProgramManager, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import Partitioner, PartitionResult
from executorch.exir.backend.test.op_partitioner_demo import NonDecompTestPartitioner
from executorch.exir.program import _program
from torch import nn
from torch.export import Dim, ExportedProgram
from torch.nn import functional
from torch_tensorrt.executorch import TensorRTPartitioner

from ....lowering import BaseModel, Function, compile_emulated, delegates


class WholeTestBackend(BackendDetails):
    """Compiles nothing: delegates run the program that they were given."""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"")


class Mixed(
    BaseModel,
    first=lambda: nn.Linear(8, 8),
    second=lambda: nn.Linear(8, 8, bias=False),
    last=lambda: nn.Linear(4, 3),
):
    """An engine between operators that one partner or another has whole, or that none has."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x).sin()
        x = functional.scaled_dot_product_attention(x, self.second(x), x)
        x = functional.max_pool2d(x[:, None], (1, 2), (1, 2))
        return self.last(x.sin())


def branches(x: torch.Tensor, one: nn.Module, two: nn.Module) -> torch.Tensor:
    """Linears in the branches of a ``cond``, behind an engine."""
    x = x.sin()
    return torch.cond(x.sum() > 0, one, two, (x,))


PARTNERS: dict[str, Callable[[], Partitioner]] = {
    "tensorrt": TensorRTPartitioner,
    "xnnpack": XnnpackPartitioner,  # some operators, by node
    "demo": NonDecompTestPartitioner,  # upstream's example: linears with a bias, attention
    "aoti": lambda: AotiPartitioner("WholeTestBackend", []),  # everything, without a filter
}  # fmt: skip
#: How often Mixed calls what partners want whole, and who takes how many of them.
WHOLE = {"linear": 3, "scaled_dot_product_attention": 1, "max_pool2d": 1}
TAKES = {
    "tensorrt": {},
    "xnnpack": {"linear": 3, "max_pool2d": 1},
    "demo": {"linear": 2, "scaled_dot_product_attention": 1},
    "aoti": WHOLE,
}


def compiled(model: nn.Module, x: torch.Tensor) -> ExportedProgram:
    """Return ``model`` with its ``sin`` calls in engines."""
    outside = {f"torch.ops.aten.{name}.default" for name in WHOLE}
    settings = {"target_executorch": False, "torch_executed_ops": outside}
    module = compile_emulated(copy.deepcopy(model), [x], **settings)
    return torch_tensorrt.dynamo.export(module, arg_inputs=[x])


@pytest.fixture(scope="module")
def mixed() -> tuple[nn.Module, torch.Tensor, ExportedProgram]:
    torch.manual_seed(0)
    model, x = Mixed().eval(), torch.randn(2, 4, 8)
    return model, x, compiled(model, x)


def operators(module: torch.fx.GraphModule) -> Counter[str]:
    """Return what a graph calls, by operator: ``linear``."""
    return Counter(
        str(getattr(node.target, "__name__", "")).removeprefix("aten.").split(".")[0]
        for node in module.graph.nodes
        if node.op == "call_function"
    )


def in_delegates(edge: EdgeProgramManager) -> Counter[str]:
    graphs = [each.original_module.graph_module for each in delegates(edge)]
    return sum(map(operators, graphs), Counter())


def lower(program: ExportedProgram, *names: str) -> EdgeProgramManager:
    partners = [PARTNERS[name]() for name in names]
    return to_edge_transform_and_lower(
        program,
        partitioner=partners,
        compile_config=torch_tensorrt.executorch.get_edge_compile_config(),
    )


def test_linears_are_one_delegate_behind_tensorrt_as_alone() -> None:
    torch.manual_seed(0)
    tail = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    x = torch.randn(2, 8)
    program = torch.export.export(tail, (x,))
    alone = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()])
    (delegate,) = delegates(alone)

    outside = {f"torch.ops.aten.{name}.default" for name in ("linear", "relu")}
    settings = {"target_executorch": False, "torch_executed_ops": outside}
    model = Function(lambda x, tail: tail(x.sin()), tail)
    module = compile_emulated(model, [x], **settings)
    edge = torch_tensorrt.executorch.export(module, partitioners=[XnnpackPartitioner()])
    behind = delegates(edge)
    assert [each.backend_id for each in behind] == ["TensorRTBackend", "XnnpackBackend"]
    found = operators(behind[1].original_module.graph_module)
    assert found == operators(delegate.original_module.graph_module)
    left = operators(edge.exported_program().graph_module)
    assert left.keys() == {"executorch_call_delegate", "getitem"}


@pytest.mark.parametrize(
    "names",
    [
        names
        for count in (2, 3)
        for names in permutations(PARTNERS, count)
        # The AOTI partitioner claims engines, too, where nobody has lowered them yet.
        if "tensorrt" in (names[: names.index("aoti")] if "aoti" in names else names)
    ],
    ids=" ".join,
)
def test_whole_for_every_partner_in_every_order(
    mixed: tuple[nn.Module, torch.Tensor, ExportedProgram], names: tuple[str, ...]
) -> None:
    model, x, program = mixed
    edge = lower(program, *names)
    torch.testing.assert_close(edge.exported_program().module()(x), model(x))
    left = operators(edge.exported_program().graph_module)
    assert not left.keys() & WHOLE.keys()
    taken = in_delegates(edge)
    for operator in WHOLE:
        most = max(TAKES[name].get(operator, 0) for name in names)
        assert taken[operator] == most, operator


def test_whole_in_branches() -> None:
    torch.manual_seed(0)
    model = Function(branches, nn.Linear(8, 8), nn.Linear(8, 8)).eval()
    x = torch.randn(2, 8)
    edge = lower(compiled(model, x), "tensorrt", "demo")
    torch.testing.assert_close(edge.exported_program().module()(x), model(x))
    assert in_delegates(edge)["linear"] == 2


class Greedy(XnnpackPartitioner):
    """Asks for what it then doesn't take."""

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return PartitionResult(exported_program, {})


@pytest.mark.parametrize("others", [[], ["tensorrt"], ["demo"]], ids=str)
@pytest.mark.parametrize("first", [True, False])
def test_what_is_left_for_nobody_is_named(
    mixed: tuple[nn.Module, torch.Tensor, ExportedProgram],
    others: list[str],
    first: bool,
) -> None:
    partners = [PARTNERS[name]() for name in others]
    partners = [Greedy(), *partners] if first else [*partners, Greedy()]
    config = torch_tensorrt.executorch.get_edge_compile_config()
    with pytest.raises(RuntimeError, match="op aten.*Greedy preserves it"):
        to_edge_transform_and_lower(
            mixed[2], partitioner=partners, compile_config=config
        )


def test_methods_have_partners_of_their_own(
    mixed: tuple[nn.Module, torch.Tensor, ExportedProgram],
) -> None:
    model, x, program = mixed
    partners = {
        "forward": [TensorRTPartitioner(), XnnpackPartitioner()],
        "other": [TensorRTPartitioner()],
    }
    edge = to_edge_transform_and_lower(
        {"forward": program, "other": copy.deepcopy(program)},
        partitioner=partners,
        compile_config=torch_tensorrt.executorch.get_edge_compile_config(),
    )
    for method in partners:
        found = edge.exported_program(method)
        torch.testing.assert_close(found.module()(x), model(x))
    assert operators(edge.exported_program("other").graph_module)["addmm"] == 2
    assert in_delegates(edge)["linear"] == 3


class Unpartitioned(Partitioner):
    """It preserves no operator, by no filter, and delegates none."""

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], None]:
        return [], None

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        return PartitionResult(exported_program, {})


@pytest.mark.skipif(
    not hasattr(_program, "contains_any_call_fn_target_op"),
    reason="this executorch has no check of what is decomposed",
)
def test_sizes_are_not_decomposed(monkeypatch: pytest.MonkeyPatch) -> None:
    decomposed: list[int] = []
    decompose: Any = ExportedProgram.run_decompositions

    def noted(self: ExportedProgram, table: Any = None, **kwargs: Any) -> Any:
        decomposed.append(len(table))
        return decompose(self, table, **kwargs)

    rows = ({0: Dim("rows", min=2, max=8)},)
    model = Function(lambda x: x + x.shape[0])
    program = torch.export.export(model, (torch.ones(3, 4),), dynamic_shapes=rows)
    monkeypatch.setattr(ExportedProgram, "run_decompositions", noted)
    to_edge_transform_and_lower(program, partitioner=[Unpartitioned()])
    assert decomposed == [0]
