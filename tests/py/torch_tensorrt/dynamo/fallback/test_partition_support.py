"""What no converter takes in the partition that it gets into, and dtypes that TensorRT lacks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_tensorrt
from torch.export import Dim
from torch.fx import Graph, GraphModule
from torch_tensorrt.dynamo.conversion._TRTInterpreter import (
    UnsupportedOperatorException,
)
from torch_tensorrt.dynamo.fallback.bisection import Budget
from torch_tensorrt.dynamo.fallback.build_fallback import Fallback
from torch_tensorrt.dynamo.fallback.rejections import RefusedError

from torchtrt_executorch import emulated_engines

from .....lowering import BaseModel, Function, engines


class Alone(torch.nn.Module):
    """``operator`` on an input, between operators that run in PyTorch: an engine of its own."""

    def __init__(self, operator: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.operator, self.args, self.kwargs = operator, args, kwargs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.operator(x.abs(), *self.args, **self.kwargs).neg()


CAST = Alone(torch.ops.aten._to_copy.default, dtype=torch.float32)
CLONE = Alone(torch.ops.aten.clone.default)
OUTSIDE = {"torch.ops.aten.abs.default", "torch.ops.aten.neg.default"}
ROWS = {"x": {0: Dim("rows", min=1, max=8)}}


def compile(
    model: torch.nn.Module, *inputs: torch.Tensor, shapes: Any = None, **settings: Any
) -> GraphModule:
    program = torch.export.export(model, inputs, dynamic_shapes=shapes)
    settings = {"target_executorch": True, "torch_executed_ops": OUTSIDE, **settings}
    with emulated_engines():
        return torch_tensorrt.dynamo.compile(
            program, arg_inputs=list(inputs), min_block_size=1, **settings
        )


@pytest.mark.parametrize("model", [CAST, CLONE], ids=["cast", "clone"])
@pytest.mark.parametrize("fast", [True, False], ids=["fast", "global"])
def test_dynamic_shapes_that_no_converter_takes_run_in_pytorch(
    model: torch.nn.Module, fast: bool
) -> None:
    x = torch.arange(8).reshape(2, 4)
    compiled = compile(model, x, shapes=ROWS, use_fast_partitioner=fast)
    assert engines(compiled) == []
    for rows in (x, torch.arange(20).reshape(5, 4)):
        torch.testing.assert_close(compiled(rows), model(rows))
    torch_tensorrt.executorch.export(compiled, allow_no_engine=True)


def test_fixed_shapes_stay_in_tensorrt() -> None:
    x = torch.arange(8).reshape(2, 4)
    assert len(engines(compile(CAST, x))) == 1


def test_otherwise_the_node_is_named() -> None:
    x, says = torch.arange(8).reshape(2, 4), "_to_copy.*target_executorch=True"
    with pytest.raises(UnsupportedOperatorException, match=says):
        compile(CAST, x, shapes=ROWS, target_executorch=False)


class Masked(BaseModel, embedding=lambda: torch.nn.Embedding(16, 8)):
    """Attention under a padding mask, made as transformers makes it."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        x = self.embedding(x)
        rows = torch.arange(x.shape[1])
        allowed = mask[:, None, None, :].to(torch.bool) & (rows >= 0)[None, None, None]
        bias = torch.where(allowed, 0.0, -1e4).expand(-1, 1, x.shape[1], -1)
        query = x[:, None]
        return torch.nn.functional.scaled_dot_product_attention(
            query, query, query, attn_mask=bias
        )


def test_a_mask_with_dynamic_batch_and_length() -> None:
    torch.manual_seed(0)
    model = Masked().eval()
    x, mask = torch.arange(12).reshape(2, 6), torch.ones(2, 6, dtype=torch.int64)
    sizes = {0: Dim("batch", min=1, max=4), 1: Dim("length", min=2, max=16)}
    compiled = compile(model, x, mask, shapes={"x": sizes, "mask": sizes})
    for batch, length in ((2, 6), (3, 9)):
        x = torch.arange(batch * length).reshape(batch, length) % 16
        mask = (torch.arange(length) < length - 1).to(torch.int64).expand(batch, -1)
        torch.testing.assert_close(compiled(x, mask), model(x, mask))


class Windows(torch.nn.Module):
    """Operators on windows of a batch, and on the batch, with one between them that runs in PyTorch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch = x.shape[0]
        windows = x.sin().reshape(batch * 4, 4, 2).cos()
        windows = windows.abs().sin().reshape(batch, 4, 4, 2).transpose(1, 2)
        pairs = windows.reshape(batch * 2, 4, 4).abs().cos().reshape(batch, 2, 16)
        return torch.cat([pairs.sin(), pairs.new_ones(batch, 2, 1)], 2)


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "global"])
def test_sizes_between_engines_are_computed_in_each(fast: bool) -> None:
    x = torch.arange(64.0).reshape(2, 16, 2)
    compiled = compile(Windows(), x, shapes=ROWS, use_fast_partitioner=fast)
    assert len(engines(compiled)) == 3
    for rows in (x, x[:1], torch.cat([x, x + 1, x[:1]])):
        torch.testing.assert_close(compiled(rows), Windows()(rows))


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64]
DTYPES += [torch.int32, torch.int16, torch.int8, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("role", ["takes", "returns"])
def test_every_dtype_is_taken_or_named(dtype: torch.dtype, role: str) -> None:
    to = torch.float32 if role == "takes" else dtype
    model = Function(lambda x: x.to(to).add(1))

    x = torch.ones(2, 3, dtype=dtype if role == "takes" else torch.float32)
    for options in ({"truncate_double": True}, {}):
        try:
            compiled = compile(model, x, **options)
        except (TypeError, RefusedError) as error:
            if "Provided an unsupported data type" in str(error):
                assert role == "takes" and str(dtype) in str(error)
                continue  # of an example input, before anything is traced
            assert f"in {dtype}, which TensorRT doesn't have" in str(error)
            assert ("truncate_double=True, or leave it" in str(error)) == (
                dtype == torch.float64
            )
            assert "truncate_double" not in options or dtype != torch.float64
        else:
            torch.testing.assert_close(compiled(x), model(x))


class Doubles(BaseModel, scale=lambda: torch.linspace(0, 1, 3, dtype=torch.float64)):
    """Float64 that comes from constants alone, read within the program and returned, several times over."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = x * self.scale
        return y, y.float().sin(), y.abs().sum(1), y, x.neg() - y


@pytest.mark.parametrize("fast", [True, False], ids=["fast", "global"])
@pytest.mark.parametrize("outputs", [slice(0, 1), slice(0, 5)], ids=["one", "several"])
def test_float64_outputs_are_float64_without_a_float64_input(
    outputs: slice, fast: bool
) -> None:
    class Chosen(Doubles):
        def forward(self, x: torch.Tensor) -> Any:
            chosen = super().forward(x)[outputs]
            return chosen if len(chosen) > 1 else chosen[0]

    x, model = torch.rand(2, 3), Chosen()
    options = {"use_fast_partitioner": fast, "truncate_double": True}
    compiled = compile(model, x, shapes={"x": {0: Dim("rows", min=1)}}, **options)
    assert engines(compiled)
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-6, atol=1e-6)


def test_what_passes_put_into_a_partition_is_not_what_is_left_out() -> None:
    """The program doesn't have those nodes, and without one of its own it would be given up."""
    program, partition = Graph(), Graph()
    for graph, name, count in ((program, "own", 4), (partition, "cast", 12)):
        value = graph.placeholder("x")
        for index in range(count):
            value = graph.call_function(torch.ops.aten.abs.default, (value,))
            value.name = f"{name}{index}"
    for node in program.nodes:
        partition.node_copy(node, lambda _: value)
    refusal = RefusedError("the builder", "no", partition.nodes, exact=False)
    left = Fallback(Budget(0)).nodes_for(refusal, program)
    assert [node.name for node in left] == ["own0", "own1", "own2", "own3"]
    refusal.partition, refusal.engine = {"cast3": ""}, refusal.partition
    assert Fallback(Budget(0)).nodes_for(refusal, program) == left
