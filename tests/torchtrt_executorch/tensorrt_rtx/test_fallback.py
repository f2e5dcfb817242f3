"""What TensorRT-RTX can't convert or build runs in PyTorch where that is asked for, and is named."""

from __future__ import annotations

import logging
import operator
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch import nn
from torch.fx import GraphModule
from torch_tensorrt.dynamo.conversion import dynamo_tensorrt_converter
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_ATEN_CONVERTERS,
    ConverterPriority,
)
from torch_tensorrt.dynamo.lowering.passes._aten_lowering_pass import (
    ATEN_POST_LOWERING_PASSES,
    _aten_lowering_pass,
)

from torchtrt_executorch.runtime import load

pytestmark = pytest.mark.builds

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def build(model: nn.Module, **options: Any) -> GraphModule:
    return torch_tensorrt.compile(
        model.eval(),
        ir="dynamo",
        arg_inputs=[X],
        min_block_size=1,
        target_executorch=True,
        **options,
    )


def engines(compiled: GraphModule) -> list[str]:
    return [n for n, m in compiled.named_modules() if hasattr(m, "serialized_engine")]


class Chain(nn.Module):
    """Two operators of a kind in the middle, and others around them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return ((x * 2).sin().erf().cos().erf() + x).relu()


@pytest.fixture
def raising() -> Iterator[list[str]]:
    """``erf`` has a converter that raises, and nobody said so before; the nodes that it was asked."""
    target, asked = torch.ops.aten.erf.default, []
    before = DYNAMO_ATEN_CONVERTERS.get(target)
    kept = list(before) if isinstance(before, (list, tuple)) else before

    @dynamo_tensorrt_converter(target, priority=ConverterPriority.HIGH)
    def refuse(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        asked.append(name)
        raise NotImplementedError("no erf today")

    yield asked
    if kept is None:
        del DYNAMO_ATEN_CONVERTERS[target]
    else:
        DYNAMO_ATEN_CONVERTERS[target] = kept


def test_a_converter_that_raises(raising: list[str], caplog: Any) -> None:
    with caplog.at_level(logging.WARNING):
        compiled = build(Chain(), executorch_build_fallback=True)
    torch.testing.assert_close(compiled(X), Chain()(X))
    assert len(engines(compiled)) == 3  # around and between the two
    assert (
        len(raising) == 2
    )  # each was tried once, and built engines weren't built again
    (message,) = [r.getMessage() for r in caplog.records if "left to" in r.getMessage()]
    assert "aten.erf.default" in message
    assert "no erf today" in message


def test_is_an_error_by_default(raising: list[str]) -> None:
    with pytest.raises(RuntimeError, match="no erf today"):
        build(Chain())


def test_is_for_executorch() -> None:
    with pytest.raises(ValueError, match="set both"):
        torch_tensorrt.compile(
            Chain(), ir="dynamo", arg_inputs=[X], executorch_build_fallback=True
        )


def test_a_builder_that_returns_nothing(monkeypatch: Any, caplog: Any) -> None:
    """It names no node, so the partition is left out."""
    import tensorrt as trt

    monkeypatch.setattr(
        trt.Builder, "build_serialized_network", lambda *args, **kwargs: None
    )
    compiled = build(Chain(), executorch_build_fallback=True)
    torch.testing.assert_close(compiled(X), Chain()(X))
    assert engines(compiled) == []
    assert "left to PyTorch" in caplog.text


class Long(nn.Module):
    """Forty operators around one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(10):
            x = (x * 2).sin()
        x = x.erf()
        for _ in range(10):
            x = (x + 2).cos()
        return x


def test_a_builder_that_names_nothing(monkeypatch: Any) -> None:
    """Most of the partition is built all the same, in few attempts."""
    import tensorrt as trt

    real, sizes = trt.Builder.build_serialized_network, []

    def refuse(self: Any, network: Any, config: Any) -> Any:
        names = [network.get_layer(i).name for i in range(network.num_layers)]
        sizes.append(len(names))
        refused = any("erf" in name for name in names)
        return None if refused else real(self, network, config)

    monkeypatch.setattr(trt.Builder, "build_serialized_network", refuse)
    compiled = build(Long(), executorch_build_fallback=True)
    torch.testing.assert_close(compiled(X), Long()(X))
    outside = [
        node
        for node in compiled.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
    ]
    assert len(outside) < 14
    assert len(sizes) < 12


def test_a_lowering_pass_that_trips(caplog: Any) -> None:
    @_aten_lowering_pass
    def trips(module: GraphModule, settings: Any) -> GraphModule:
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        module.graph.erase_node(output)  # half-way through
        raise IndexError("a pattern that it doesn't know")

    try:
        with pytest.raises(IndexError):  # upstream's own
            build(Chain())
        compiled = build(Chain(), executorch_build_fallback=True)
    finally:
        ATEN_POST_LOWERING_PASSES.passes.remove(trips)
    torch.testing.assert_close(compiled(X), Chain()(X))
    assert engines(compiled)
    assert "trips (the lowering pass trips: a pattern" in caplog.text


class Reduced(nn.Module):
    """Upstream's decomposition of it asserts, and ExecuTorch has no kernel for it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(3, 4, dtype=torch.int64)
        reduced = (x * 2).scatter_reduce(0, rows, x.sin(), "sum", include_self=False)
        return reduced.relu() + 1


def test_a_decomposition_that_trips(caplog: Any) -> None:
    with pytest.raises(AssertionError):
        build(Reduced())
    compiled = build(Reduced(), executorch_build_fallback=True)
    torch.testing.assert_close(compiled(X), Reduced()(X))
    assert len(engines(compiled)) == 2
    assert "aten.scatter_reduce.two (the decomposition of aten." in caplog.text


def test_attention_is_decomposed_before_it_is_given_up(caplog: Any) -> None:
    """Of grouped queries and a dynamic length, which TensorRT-RTX refuses in one layer."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=128,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)

    class Logits(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = transformers.LlamaForCausalLM(config).eval()

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            return self.model(input_ids=ids, use_cache=False).logits

    model, ids = Logits(), torch.arange(8)[None]
    length = {1: torch.export.Dim("length", min=2, max=32)}
    program = torch.export.export(model, (ids,), dynamic_shapes={"ids": length})
    compiled = torch_tensorrt.dynamo.compile(
        program,
        arg_inputs=[ids],
        min_block_size=1,
        target_executorch=True,
        executorch_build_fallback=True,
    )
    assert len(engines(compiled)) == 2
    (message,) = [r.getMessage() for r in caplog.records if "left to" in r.getMessage()]
    assert "scaled_dot_product_attention.default as one operator" in message
    assert message.count("torch.ops.aten") == 1  # nothing else was given up
    for given in (ids, torch.arange(11)[None]):
        torch.testing.assert_close(compiled(given), model(given))


@pytest.mark.parametrize("fails", [False, True])
def test_errors_are_heard_where_it_fails(fails: bool, caplog: Any) -> None:
    """What the fallback has handled is a warning, and no error of the builder's beside it."""
    from torch_tensorrt.dynamo._fallback import Fallback, builder, going_on

    caplog.set_level(logging.DEBUG, builder.name)
    other = threading.Thread(target=builder.error, args=["another's"])
    try:
        with going_on(Fallback()):
            builder.error("TensorRT refuses it")
            builder.warning("TensorRT is slow")
            other.start()
            other.join()
            if fails:
                raise RuntimeError
    except RuntimeError:
        pass
    said = {each.getMessage(): each.levelname for each in caplog.records}
    assert said == {
        "TensorRT refuses it": "ERROR" if fails else "DEBUG",
        "TensorRT is slow": "WARNING",
        "another's": "ERROR",
    }
    builder.error("afterwards")
    assert "afterwards" in caplog.text


class Numbered(nn.Module):
    """The length is taken from a tensor in PyTorch, and read by engines around it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        length = (x * 2).erf().shape[0]
        return (x.erf() * length + torch.arange(length)[:, None]).relu() * length


def test_engines_are_given_no_numbers(raising: list[str]) -> None:
    rows = {0: torch.export.Dim("rows", min=2, max=8)}
    program = torch.export.export(Numbered(), (X,), dynamic_shapes={"x": rows})
    compiled = torch_tensorrt.dynamo.compile(
        program,
        arg_inputs=[X],
        min_block_size=1,
        target_executorch=True,
        executorch_build_fallback=True,
    )
    for node in compiled.graph.find_nodes(op="call_module"):
        if node.target in engines(compiled):
            assert all(
                isinstance(each.meta["val"], (torch.Tensor, list)) for each in node.args
            )
    assert engines(compiled)
    for given in (X, X[:2]):
        torch.testing.assert_close(compiled(given), Numbered()(given))
    edge = torch_tensorrt.executorch.export(compiled)
    made = load(edge.to_executorch().buffer)
    torch.testing.assert_close(made.run(X)[0], Numbered()(X))
