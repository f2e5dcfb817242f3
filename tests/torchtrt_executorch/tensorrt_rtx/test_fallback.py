"""What TensorRT-RTX can't convert or build runs in PyTorch where that is asked for, and is named."""

from __future__ import annotations

import logging
import operator
import random
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

import torchtrt_executorch
from torchtrt_executorch.runtime import load

from ...lowering import Function, compile_engines, engines, lower_engines

pytestmark = pytest.mark.builds

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def build(model: Any, **options: Any) -> GraphModule:
    return compile_engines(model, [X], **options)


def check(compiled: GraphModule, model: Any, *inputs: torch.Tensor) -> None:
    for x in inputs or (X,):
        torch.testing.assert_close(compiled(x), model(x))


def left_to_pytorch(caplog: Any) -> list[str]:
    said = (record.getMessage() for record in caplog.records)
    return [message for message in said if "left to" in message]


def chain(x: torch.Tensor) -> torch.Tensor:
    """Two operators of a kind in the middle, and others around them."""
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
        compiled = build(chain, executorch_build_fallback=True)
    check(compiled, chain)
    assert len(engines(compiled)) == 3  # around and between the two
    # Each was tried once, and built engines weren't built again.
    assert len(raising) == 2
    (message,) = left_to_pytorch(caplog)
    assert "aten.erf.default" in message and "no erf today" in message


def test_is_an_error_by_default(raising: list[str]) -> None:
    with pytest.raises(RuntimeError, match="no erf today"):
        build(chain)


def test_is_for_executorch() -> None:
    with pytest.raises(ValueError, match="set both"):
        build(chain, executorch_build_fallback=True, target_executorch=False)


def test_a_builder_that_returns_nothing(monkeypatch: Any, caplog: Any) -> None:
    """It names no node, so the partition is left out."""
    import tensorrt as trt

    nothing = lambda *args, **kwargs: None  # noqa: E731
    monkeypatch.setattr(trt.Builder, "build_serialized_network", nothing)
    compiled = build(chain, executorch_build_fallback=True)
    check(compiled, chain)
    assert engines(compiled) == []
    assert "left to PyTorch" in caplog.text


def long(x: torch.Tensor) -> torch.Tensor:
    """Forty operators around one."""
    for _ in range(10):
        x = (x * 2).sin()
    x = x.erf()
    for _ in range(10):
        x = (x + 2).cos()
    return x


def refusing(
    monkeypatch: Any, names: set[str], *, said: str = "node [/{name}]"
) -> torch.Tensor:
    """Have the builder refuse networks with layers of these nodes; return how many it was given, in any process.

    Upstream ends a layer's name in its node's, and the builder's errors have it.
    """
    import tensorrt as trt
    from torch_tensorrt.logging import _LOGGER

    real = trt.Builder.build_serialized_network
    builds = torch.zeros((), dtype=torch.int64).share_memory_()

    def build_or_refuse(self: Any, network: Any, config: Any) -> Any:
        layers = [network.get_layer(i).name for i in range(network.num_layers)]
        builds.add_(1)
        for name in sorted(names):
            if any(each.endswith((f"/{name}]", f"[{name}]")) for each in layers):
                ends = f"{layers[0]}...{layers[-1]}"
                about = said.format(name=name, ends=ends)
                _LOGGER.error(f"no implementation for {about}")
                return None
        return real(self, network, config)

    monkeypatch.setattr(trt.Builder, "build_serialized_network", build_or_refuse)
    return builds


def outside(compiled: GraphModule) -> list[str]:
    """Return the nodes that are in no engine; taking a tuple apart is none."""
    inside = engines(compiled)
    return [
        node.name
        for part in (compiled, *compiled.children())
        if isinstance(part, GraphModule)
        for node in part.graph.nodes
        if node.op == "call_function" and node.target is not operator.getitem
        if part is not compiled or node.name not in inside
    ]


@pytest.mark.parametrize("said", ["", "node {{ForeignNode[{ends}]}}"])
def test_a_builder_that_names_nothing(said: str, monkeypatch: Any) -> None:
    """Or only the ends of many layers: the one that is refused is found, in few attempts."""
    builds = refusing(monkeypatch, {"erf"}, said=said)
    compiled = build(long, executorch_build_fallback=True)
    check(compiled, long)
    assert outside(compiled) == ["erf"]
    assert len(engines(compiled)) == 2
    assert builds <= 1 + 2 * 6 + 2  # of 41 operators, and the two engines


def test_a_search_ends_when_its_seconds_are_over(monkeypatch: Any, caplog: Any) -> None:
    builds = refusing(monkeypatch, {"erf"}, said="")
    at_once = {"executorch_build_fallback_seconds": 0}
    compiled = build(long, executorch_build_fallback=True, **at_once)
    check(compiled, long)
    assert builds == 1
    assert engines(compiled) == []
    (message,) = left_to_pytorch(caplog)
    assert "executorch_build_fallback_seconds=0 are over" in message


def test_the_seconds_of_a_search_are_checked() -> None:
    for seconds, error in (("1", TypeError), (True, TypeError), (-1, ValueError)):
        with pytest.raises(error, match="executorch_build_fallback_seconds"):
            build(long, executorch_build_fallback_seconds=seconds)


def test_the_cure_is_a_partitioner_behind(monkeypatch: Any) -> None:
    refusing(monkeypatch, {"erf"})
    edge = lower_engines(long, [X], executorch_build_fallback=True)
    (left,) = torchtrt_executorch.report(edge).methods["forward"].on_host()
    assert left.name == "aten.erf.default"
    assert left.reason.startswith("TensorRT's builder: ")
    assert left.suggestion.endswith("can take it: CudaPartitioner([...])")


class Halves(nn.Module):
    """Operators that read any before them, around one that runs in PyTorch; some are of a kind."""

    FIRST = (torch.sin, torch.cos, torch.sigmoid, torch.add, torch.mul)
    SECOND = (torch.tanh, torch.relu, torch.exp, torch.sub, torch.maximum)

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        drawn = random.Random(self.seed)
        for operators in (self.FIRST, self.SECOND):
            values = [x * 0.5, torch.tanh(x)]
            for _ in range(9):
                function = drawn.choice(operators)
                count = 2 if function in (*operators[3:], torch.maximum) else 1
                values.append(function(*drawn.choices(values, k=count)))
            x = sum(values).erf()  # type: ignore[union-attr]
        return x


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("seed", range(2))
def test_a_refusal_costs_no_other_partition(
    seed: int, named: bool, monkeypatch: Any
) -> None:
    drawn = random.Random(seed)
    # Of the second half: the first has one tanh, and none of the others.
    names = {"tanh_1", drawn.choice(["exp", "relu", "sub", "maximum"])}
    builds = refusing(monkeypatch, names, said="node [/{name}]" if named else "")
    aside = {"torch.ops.aten.erf.default"}
    model, options = Halves(seed), {"torch_executed_ops": aside}
    compiled = build(model, executorch_build_fallback=True, **options)
    check(compiled, model)
    without = [name for name in outside(compiled) if not name.startswith("erf")]
    monkeypatch.undo()
    whole = [n for n in outside(build(model, **options)) if not n.startswith("erf")]
    first = {"sin", "cos", "sigmoid", "tanh", "mul"}
    assert whole == []
    assert not first & {*without}, "of the first half all stays"
    assert names >= {*without}
    assert builds <= (2 + 2 * len(names) if named else 2 + 3 * (1 + 2 * 4 + 2))


def test_the_words_of_the_builder_are_kept_whole(monkeypatch: Any) -> None:
    refusing(monkeypatch, {"erf"}, said="node [/{name}]\n" + "as it is " * 100 + "!")
    with pytest.raises(RuntimeError) as caught:
        build(long)
    first, *more = str(caught.value).splitlines()
    assert "node [/erf]. Leave it to PyTorch, with torch_executed_ops" in first
    assert more == ["as it is " * 100 + "!"]


def test_a_lowering_pass_that_trips(caplog: Any) -> None:
    @_aten_lowering_pass
    def trips(module: GraphModule, settings: Any) -> GraphModule:
        (output,) = (n for n in module.graph.nodes if n.op == "output")
        module.graph.erase_node(output)  # half-way through
        raise IndexError("a pattern that it doesn't know")

    try:
        with pytest.raises(IndexError):  # upstream's own
            build(chain)
        compiled = build(chain, executorch_build_fallback=True)
    finally:
        ATEN_POST_LOWERING_PASSES.passes.remove(trips)
    check(compiled, chain)
    assert engines(compiled)
    assert "trips (the lowering pass trips: a pattern" in caplog.text


class Unnamed:
    """A pass that raises, and is called by another name every time."""

    def __call__(self, module: GraphModule, settings: Any) -> GraphModule:
        raise IndexError("a pattern that it doesn't know")

    def __repr__(self) -> str:
        return f"pass {random.random()}"


@pytest.mark.parametrize("fails", [lambda *_: 1 / 0, Unnamed()])
def test_of_passes_of_one_name_the_one_that_trips_is_left_out(fails: Any) -> None:
    ran: list[GraphModule] = []
    works = lambda module, settings: ran.append(module) or module  # noqa: E731
    try:
        _aten_lowering_pass(fails)
        _aten_lowering_pass(works)
        compiled = build(chain, executorch_build_fallback=True)
    finally:
        passes = ATEN_POST_LOWERING_PASSES.passes
        passes[:] = [each for each in passes if each not in (fails, works)]
    check(compiled, chain)
    assert len(ran) == 1


def test_a_decomposition_that_trips(caplog: Any) -> None:
    """Upstream's asserts, and ExecuTorch has no kernel for the operator."""

    def reduced(x: torch.Tensor) -> torch.Tensor:
        rows = torch.zeros(3, 4, dtype=torch.int64)
        y = (x * 2).scatter_reduce(0, rows, x.sin(), "sum", include_self=False)
        return y.relu() + 1

    with pytest.raises(AssertionError):
        build(reduced)
    compiled = build(reduced, executorch_build_fallback=True)
    check(compiled, reduced)
    assert len(engines(compiled)) == 2
    assert "aten.scatter_reduce.two (the decomposition of aten." in caplog.text


def test_attention_is_decomposed_before_it_is_given_up(caplog: Any) -> None:
    """Of grouped queries and a dynamic length, which TensorRT-RTX 1.5 refuses in one layer."""
    import tensorrt as trt
    from packaging.version import Version

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
    llm = transformers.LlamaForCausalLM(config)
    model = Function(lambda ids, llm: llm(input_ids=ids, use_cache=False).logits, llm)
    model, ids = model.eval(), torch.arange(8)[None]
    length = {1: torch.export.Dim("length", min=2, max=32)}
    program = torch.export.export(model, (ids,), dynamic_shapes=(length,))
    compiled = torch_tensorrt.dynamo.compile(
        program,
        arg_inputs=[ids],
        min_block_size=1,
        target_executorch=True,
        executorch_build_fallback=True,
    )
    assert len(engines(compiled)) == 2
    said = left_to_pytorch(caplog)
    if Version(trt.__version__) < Version("1.6"):  # which has such a layer
        assert "scaled_dot_product_attention.default as one operator" in said[0]
    assert "; ".join(said).count("torch.ops.aten") == len(said) < 2  # nothing else
    check(compiled, model, ids, torch.arange(11)[None])


@pytest.mark.parametrize("goes_on", [True, False])
def test_errors_are_heard_where_it_fails(
    goes_on: bool, monkeypatch: Any, caplog: Any
) -> None:
    """What is gone on without is a warning, and no error of the builder's beside it.

    What another thread compiles meanwhile says is its own.
    """
    from torch_tensorrt.logging import _LOGGER

    def at_once(record: logging.LogRecord) -> bool:
        if "no impl" in record.getMessage():
            words = "another's node [/sin]"
            other = threading.Thread(target=_LOGGER.error, args=[words])
            other.start()
            other.join()
        return True

    refusing(monkeypatch, {"erf"})
    _LOGGER.addFilter(at_once)
    caplog.set_level(logging.DEBUG, _LOGGER.name)
    try:
        compiled = build(long, executorch_build_fallback=goes_on)
        assert outside(compiled) == ["erf"]
    except RuntimeError as error:
        assert not goes_on and "no implementation for node [/erf]" in str(error)
        assert "another's" not in str(error)
    finally:
        _LOGGER.removeFilter(at_once)
    others = [each for each in caplog.records if "another's" in each.getMessage()]
    assert {each.levelname for each in others} == {"ERROR"}
    said = {each.levelname for each in caplog.records if "no impl" in each.getMessage()}
    assert said == ({"DEBUG", "WARNING"} if goes_on else {"ERROR"})
    _LOGGER.error("afterwards")
    assert caplog.records[-1].levelname == "ERROR"


def test_what_is_taken_of_a_tuple_goes_with_its_operator() -> None:
    """It is no node that could be left out by itself."""

    def largest(x: torch.Tensor) -> torch.Tensor:
        return (torch.topk((x * 2).sin(), 2)[0] + 1).cos()

    @dynamo_tensorrt_converter(operator.getitem, priority=ConverterPriority.HIGH)
    def refuse(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        raise NotImplementedError("no tuples today")

    try:
        compiled = build(largest, executorch_build_fallback=True)
    finally:
        DYNAMO_ATEN_CONVERTERS[operator.getitem] = [
            each
            for each in DYNAMO_ATEN_CONVERTERS[operator.getitem]
            if each.converter_implementation is not refuse
        ]
    check(compiled, largest)
    assert len(engines(compiled)) == 2


def test_of_an_operator_that_is_refused_twice_other_types_stay(
    monkeypatch: Any,
) -> None:
    """Of multiplications those of integers are, and those of floating-point numbers aren't."""

    def mixed(x: torch.Tensor) -> torch.Tensor:
        whole = (x * 3).to(torch.int32)
        whole = (whole * whole + 1) * whole
        return ((whole.to(torch.float32) * x).sin() * x).cos()

    refusing(monkeypatch, {"mul_1", "mul_2"})
    compiled = build(mixed, executorch_build_fallback=True)
    check(compiled, mixed)
    assert outside(compiled) == ["mul_1", "mul_2"]


def test_engines_are_given_no_numbers(raising: list[str]) -> None:
    """The length is taken from a tensor in PyTorch, and read by engines around it."""

    def numbered(x: torch.Tensor) -> torch.Tensor:
        length = (x * 2).erf().shape[0]
        return (x.erf() * length + torch.arange(length)[:, None]).relu() * length

    rows = {0: torch.export.Dim("rows", min=2, max=8)}
    program = torch.export.export(Function(numbered), (X,), dynamic_shapes=(rows,))
    compiled = torch_tensorrt.dynamo.compile(
        program,
        arg_inputs=[X],
        min_block_size=1,
        target_executorch=True,
        executorch_build_fallback=True,
    )
    for node in compiled.graph.find_nodes(op="call_module"):
        if node.target in engines(compiled):
            values = (each.meta["val"] for each in node.args)
            assert all(isinstance(each, (torch.Tensor, list)) for each in values)
    assert engines(compiled)
    check(compiled, numbered, X, X[:2])
    edge = torch_tensorrt.executorch.export(compiled)
    made = load(edge.to_executorch().buffer)
    torch.testing.assert_close(made.run(X)[0], numbered(X))
