"""What a model writes in place survives compilation, export, and the ``.pte``."""

from __future__ import annotations

import contextlib
import copy
import gc
import importlib
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tensorrt
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils import _pytree as pytree
from torch_tensorrt import _features
from torch_tensorrt.executorch import TensorRTPartitioner, export

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

from .....lowering import BaseModel, Function, compile_emulated, lower

pytestmark = pytest.mark.skipif(
    _features.ENABLED_FEATURES.torch_tensorrt_runtime,
    reason="emulated engines need the Python-only mode",
)
OPTIONS = {"min_block_size": 1, "target_executorch": True}


class Counter(BaseModel, total=lambda: torch.zeros(3)):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x.sum(0))
        return self.total * 2 + x


class Stateful(torch.nn.Module):
    """Buffers of two dtypes, nested, swapped, read before they are written, and frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Counter()
        self.register_buffer("previous", torch.zeros(3))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("left", torch.zeros(2))
        self.register_buffer("right", torch.zeros(2), persistent=False)
        self.register_buffer("frozen", torch.full((3,), 2.0))

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> Any:
        self.count += 1
        self.left[0] = self.count.to(torch.float32)
        swapped = self.left.clone()
        self.left.copy_(self.right)
        self.right.copy_(swapped)
        before = self.previous.clone()
        y = self.inner(x) * scale
        self.previous.copy_(self.inner.total * self.frozen)
        returned = {"y": y, "before": before, "sides": (self.left + 0, self.right + 0)}
        return returned, self.count * 2, torch.nonzero(y)


class Cache(BaseModel, keys=lambda: torch.zeros(4, 3)):
    """A key cache that is written to at a position."""

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        self.keys.index_put_((position,), x)
        return (self.keys @ x.T).softmax(0)


class InPlace(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(y)
        return x * 2


REGIONS: dict[str, Any] = {
    "no_grad": lambda: torch.no_grad(),
    "enable_grad": lambda: torch.enable_grad(),
    "inference_mode": lambda: torch.inference_mode(),
    "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
    "autocast_off": lambda: torch.autocast("cpu", enabled=False),
}
WRITES: dict[str, Any] = {
    "whole": lambda state, x: state.add_(x.sum(0)),
    "copied": lambda state, x: state.copy_(state * 0.5 + x[0]),
    "slice": lambda state, x: state[1:].sub_(1),
    "item": lambda state, x: state.__setitem__(0, x[0, 0]),
    "indices": lambda state, x: state.index_put_((torch.tensor([2, 0]),), x[0, :2]),
}


class InRegions(torch.nn.Module):
    """Writes to a buffer and to an input within context managers, one inside of the other."""

    def __init__(self, regions: tuple[str, ...], write: str) -> None:
        super().__init__()
        self.regions, self.write = [REGIONS[name] for name in regions], WRITES[write]
        self.register_buffer("state", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with contextlib.ExitStack() as stack:
            for region in self.regions:
                stack.enter_context(region())
            self.write(self.state, x)
            x.mul_(0.5)
        return self.state * 2 + x


X = torch.linspace(-1, 1, 6).reshape(2, 3)
SCALE = {"scale": torch.full((3,), 2.0)}
#: The buffers that :class:`Stateful` writes.
WRITTEN = {"inner.total", "previous", "count", "left", "right"}


def compiled(model: torch.nn.Module, *inputs: Any, **keywords: Any) -> Any:
    return compile_emulated(model, inputs, kwarg_inputs=keywords)


@pytest.fixture(scope="module")
def stateful() -> torch.fx.GraphModule:
    """:class:`Stateful` as it is at first; to be copied by those who call it."""
    return compiled(Stateful(), X, **SCALE)


def test_buffers(stateful: torch.fx.GraphModule) -> None:
    ours, eager = copy.deepcopy(stateful), Stateful()
    for _ in range(3):
        torch.testing.assert_close(ours(X, **SCALE), eager(X, **SCALE))
    held = dict(ours.named_buffers())
    assert set(held) == WRITTEN
    torch.testing.assert_close(held, {name: eager.get_buffer(name) for name in held})


def test_the_model_keeps_its_own() -> None:
    model = Counter()
    ours = compiled(model, X)
    ours(X)
    assert model.total.count_nonzero() == 0
    assert ours.total.count_nonzero() > 0


def test_inputs() -> None:
    ours = compiled(InPlace(), X.clone(), X)
    given, expected = X.clone(), X.clone()
    torch.testing.assert_close(ours(given, X), InPlace()(expected, X))
    torch.testing.assert_close(given, expected)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    "regions",
    [
        (),
        *((name,) for name in REGIONS),
        ("no_grad", "autocast"),
        ("autocast", "no_grad"),
    ],
    ids="-".join,
)
def test_in_regions(regions: tuple[str, ...], write: str) -> None:
    """Such regions become graphs of their own, inside of the program's."""
    program = torch.export.export(InRegions(regions, write), (X.clone(),))
    with emulated_engines():
        ours = torch_tensorrt.dynamo.compile(program, arg_inputs=[X.clone()], **OPTIONS)
    eager, given, expected = InRegions(regions, write), X.clone(), X.clone()
    for _ in range(3):
        torch.testing.assert_close(ours(given), eager(expected))
        torch.testing.assert_close(given, expected)
    torch.testing.assert_close(ours.state, eager.state)


@pytest.mark.parametrize("region", ["no_grad", "autocast"])
def test_in_regions_by_the_other_ways(region: str) -> None:
    model = InRegions((region,), "whole").eval()
    model.state.zero_()  # a .pte has no other initial value
    edge = export(compiled(copy.deepcopy(model), X.clone()))
    with emulated_engines():
        program = load(edge.to_executorch().buffer)
        backend = torch.compile(
            copy.deepcopy(model), backend="torch_tensorrt", options=OPTIONS
        )
        for _ in range(3):
            expected = model(X.clone())
            *_, found = program.run(X.clone())  # behind the input's new value
            torch.testing.assert_close(found, expected)
            torch.testing.assert_close(backend(X.clone()), expected)
    with pytest.raises(ValueError, match="writes to state, x"):
        torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine(
            torch.export.export(model, (X.clone(),)), arg_inputs=[X]
        )


def test_several_sizes() -> None:
    sizes = {"min_shape": (1, 3), "opt_shape": (2, 3), "max_shape": (8, 3)}
    batch = torch_tensorrt.Input(**sizes, dtype=torch.float32)
    ours, eager = compiled(Counter(), batch), Counter()
    for size in (2, 1, 8):
        x = torch.ones(size, 3)
        torch.testing.assert_close(ours(x), eager(x))


class Rows(torch.nn.Module):
    """Writes rows of a cache along a dimension, at positions that are given or known."""

    def __init__(self, dim: int, at: list[int] | None) -> None:
        super().__init__()
        self.dim, self.at = dim, None if at is None else torch.tensor(at)

    def forward(
        self, cache: torch.Tensor, at: torch.Tensor, x: torch.Tensor
    ) -> torch.Tensor:
        at = at if self.at is None else self.at
        return cache.index_copy(self.dim, at, x * 2) * 3


@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("known", [None, [6, 0, 3]], ids=["given", "known"])
def test_a_dynamic_number_is_written_in_the_engine(
    dim: int, known: list[int] | None
) -> None:
    """As by the prefill of a static cache; from 2.14 on upstream has converters of static shapes alone."""
    other = (dim + 1) % 3
    model, size = Rows(dim, known), torch.export.Dim("size", min=1, max=8)

    def inputs(count: int) -> tuple[torch.Tensor, ...]:
        shape = [8, 8, 8]
        if known:
            shape[other] = count
        rows = list(shape)
        rows[dim] = count = len(known) if known else count
        return torch.randn(shape), torch.randperm(8)[:count], torch.randn(rows)

    dynamic: tuple[Any, ...] = ({}, {0: size}, {dim % 3: size})
    if known:
        dynamic = ({other: size}, {}, {other: size})
    program = torch.export.export(model, inputs(4), dynamic_shapes=dynamic)
    with emulated_engines():
        ours = torch_tensorrt.dynamo.compile(
            program, arg_inputs=[*inputs(4)], **OPTIONS
        )
    assert [name[:11] for name, _ in ours.named_children()] == ["_run_on_acc"]
    for count in (4, 1, 8):
        given = inputs(count)
        torch.testing.assert_close(ours(*given), model(*given))


def test_model_that_writes_nothing_is_compiled_as_it_is() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y.add_(1)  # its own
        return y.relu()

    ours = compiled(Function(function), X)
    torch.testing.assert_close(ours(X), function(X))
    assert not list(ours.named_buffers())
    assert "aten.copy_" not in str(ours.graph)


@pytest.mark.parametrize("retrace", [False, True])
def test_pte(stateful: torch.fx.GraphModule, retrace: bool) -> None:
    edge = export(stateful, arg_inputs=(X,), kwarg_inputs=SCALE, retrace=retrace)
    written = edge.exported_program().graph_signature.buffers_to_mutate
    assert {*written.values()} == WRITTEN
    with emulated_engines():
        program = load(edge.to_executorch().buffer)
        eager = Stateful()
        for _ in range(3):
            expected = pytree.tree_leaves(eager(X, **SCALE))
            found = program.run(X, SCALE["scale"])
            torch.testing.assert_close(pytree.tree_leaves(found), expected)


def test_cache_around_a_compiled_module() -> None:
    """The other way: the engine is stateless, and a module around it owns the cache."""

    class Step(torch.nn.Module):
        def forward(self, keys: torch.Tensor, x: torch.Tensor, at: torch.Tensor) -> Any:
            keys = keys.index_put((at,), x)
            return (keys @ x.T).softmax(0), keys

    class Owner(torch.nn.Module):
        def __init__(self, step: torch.nn.Module) -> None:
            super().__init__()
            self.step = step
            self.register_buffer("keys", torch.zeros(4, 3))

        def forward(self, x: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
            scores, keys = self.step(self.keys, x, at)
            self.keys.copy_(keys)
            return scores

    step = compiled(Step(), torch.zeros(4, 3), X, torch.tensor([0, 1]))
    program = torch.export.export(Owner(step), (X, torch.tensor([0, 1])))
    edge = export(program)
    written = edge.exported_program().graph_signature.buffers_to_mutate
    assert [*written.values()] == ["keys"]
    with emulated_engines():
        ran, eager = load(edge.to_executorch().buffer), Cache()
        for at in (torch.tensor([0, 1]), torch.tensor([2, 3])):
            (found,) = ran.run(X, at)
            torch.testing.assert_close(found, eager(X, at))
            X.neg_()  # other keys, the first two stay


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (Counter, (X,)),
        (Cache, (X, torch.tensor([1, 3]))),
        (InPlace, (X, X)),
        (lambda: Elements((8, 4), (-1, slice(1, 3))), (torch.linspace(1, 2, 8),)),
    ],
    ids=["counter", "cache", "input", "negative index"],
)
def test_torch_compile(model: Callable[[], Any], inputs: tuple[Any, ...]) -> None:
    torch._dynamo.reset()
    eager, own = model().eval(), model().eval()
    with emulated_engines():
        ours = torch.compile(own, backend="torch_tensorrt", options=OPTIONS)
        for _ in range(2):
            given, expected = copy.deepcopy(inputs), copy.deepcopy(inputs)
            torch.testing.assert_close(ours(*given), eager(*expected))
            torch.testing.assert_close(given, expected)
    torch.testing.assert_close(dict(own.named_buffers()), dict(eager.named_buffers()))


def test_engine_freed_during_a_trace() -> None:
    """What upstream does when an engine is freed stays out of the next model's program."""

    def frees(x: torch.Tensor) -> torch.Tensor:
        held.clear()
        gc.collect()
        return x * 2

    held = [compiled(InPlace(), X.clone(), X)]
    program = torch.export.export(Function(frees), (X,))
    targets = [n.target for n in program.graph.nodes if n.op == "call_function"]
    assert targets == [torch.ops.aten.mul.Tensor]


def test_one_engine_has_no_state() -> None:
    program = torch.export.export(Counter(), (X,))
    with pytest.raises(ValueError, match="writes to total.*torch_tensorrt.dynamo"):
        torch_tensorrt.dynamo.convert_exported_program_to_serialized_trt_engine(
            program, arg_inputs=[X]
        )


class Scaled(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


def _load(module: Any, assign: bool) -> None:
    state = {name: torch.full_like(t, 3.0) for name, t in module.state_dict().items()}
    module.load_state_dict(state, assign=assign)


#: What users do to a module between two calls of it.
BETWEEN: dict[str, Any] = {
    "nothing": lambda module: None,
    "another weight": lambda m: setattr(m, "scale", torch.nn.Parameter(m.scale + 1)),
    "another buffer": lambda m: setattr(m, "total", torch.full((3,), 7.0)),
    "buffer written": lambda m: m.total.zero_(),
    "loaded": lambda m: _load(m, assign=False),
    "assigned": lambda m: _load(m, assign=True),
}


@settings(max_examples=6)
@example([("nothing", 4), ("nothing", 2)])
@example([(each, 2) for each in BETWEEN] + [("nothing", 3)])
@given(
    st.lists(
        st.tuples(st.sampled_from([*BETWEEN]), st.sampled_from([2, 3, 4])),
        min_size=2,
        max_size=4,
    )
)
def test_mutable_module(steps: list[tuple[str, int]]) -> None:
    """It is compiled anew for other shapes and weights, and keeps what it wrote."""
    eager = Scaled().eval()
    ours = torch_tensorrt.MutableTorchTensorRTModule(Scaled().eval(), **OPTIONS)
    with emulated_engines(), torch.no_grad():
        for done, size in [("nothing", 2), *steps]:
            BETWEEN[done](eager)
            BETWEEN[done](ours)
            x = torch.linspace(-1, 1, size * 3).reshape(size, 3)
            torch.testing.assert_close(ours(x), eager(x))
            assert torch.equal(ours.original_model.total, eager.total)


class Elements(torch.nn.Module):
    """Writes to elements, whose index is folded: a number is expanded to it."""

    def __init__(self, shape: tuple[int, ...], place: Any) -> None:
        super().__init__()
        self.place = place
        self.register_buffer("state", torch.zeros(shape))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.state[self.place] = x[6]
        return self.state.sin()


def assert_written_in_a_pte(place: Any, *shape: int, **settings: Any) -> None:
    model, x = Elements(shape, place), torch.linspace(1, 2, 8)
    settings = {"min_block_size": 1, **settings}
    with emulated_engines():
        edge = lower(model, (x,), TensorRTPartitioner(compile_settings=settings))
        program = load(bytes(edge.to_executorch().buffer))
        for number in (1, -2):
            (found,) = program.run(x * number)
            torch.testing.assert_close(found, model(x * number))


@pytest.mark.parametrize(
    "dims, place",
    [(1, 5), (2, 5), (3, 5), (2, (5, 3)), (3, (5, 3)), (2, (0, slice(1, 3)))],
    ids=str,
)
def test_elements_are_written_outside_of_engines(dims: int, place: Any) -> None:
    outside = {"torch.ops.aten.scatter.src"}
    assert_written_in_a_pte(place, *(8, 4, 3)[:dims], torch_executed_ops=outside)


def indexes(size: int) -> st.SearchStrategy[Any]:
    """Of a dimension, from either end: one, or several that follow one another."""
    ends = st.integers(-size, size - 1)
    several = st.slices(size).filter(lambda s: len(range(size)[s]) > 0)
    return ends | several.filter(lambda s: (s.step or 1) > 0)


@given(place=st.tuples(indexes(8), indexes(4)) | indexes(8))
@settings(max_examples=8)
@example(place=(-1, slice(1, 3)))
@example(place=-1)
@example(place=(slice(-3, None), -1))
def test_elements_are_written_in_engines_from_either_end(place: Any) -> None:
    assert_written_in_a_pte(place, 8, 4)


def decomposed(
    program: torch.export.ExportedProgram, name: str = "_compiler"
) -> torch.nn.Module:
    """Return a program by the decompositions of a module of Torch-TensorRT's."""
    module = importlib.import_module(f"torch_tensorrt.dynamo.{name}")
    return program.run_decompositions(module.get_decompositions()).module()


@pytest.mark.parametrize("name", ["_compiler", "_refit", "backend.backends"])
@given(place=st.integers(-8, 7))
@settings(max_examples=5)
@example(place=-1)
def test_whoever_decomposes_writes_from_either_end(name: str, place: Any) -> None:
    """Refitting and ``torch.compile`` as well as the compiler."""
    model, x = Elements((8,), place), torch.linspace(1, 2, 8)
    program = torch.export.export(copy.deepcopy(model), (x,))
    torch.testing.assert_close(decomposed(program, name)(x), model(x))


class Scattered(torch.nn.Module):
    """Rows that are added to, or averaged with, those that they are meant for."""

    def __init__(self, reduce: str) -> None:
        super().__init__()
        self.reduce = reduce

    def forward(self, x: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        rows, into = x + 0.25, torch.ones(3, x.shape[1])
        index = places[:, None].expand_as(rows)
        if self.reduce == "add":
            return into.scatter_add(0, index, rows)
        return into.scatter_reduce(0, index, rows, self.reduce)


def scattered(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-2, 2, 2 * count).view(count, 2), torch.arange(count) % 3


@pytest.mark.parametrize("reduce", ["sum", "mean", "prod", "amax", "amin"])
def test_scattered_rows_are_reduced_as_eager_does(reduce: str) -> None:
    model, inputs = Scattered(reduce), scattered(5)
    module = decomposed(torch.export.export(model, inputs))
    torch.testing.assert_close(module(*inputs), model(*inputs))


@pytest.mark.parametrize("reduce", ["add", "sum"])
def test_as_many_rows_are_scattered_as_there_are(reduce: str) -> None:
    """A decomposition into a scatter for each row would be one of the example's rows alone."""
    model, count = Scattered(reduce), torch.export.Dim("count", min=2, max=9)
    program = torch.export.export(
        model, scattered(5), dynamic_shapes=({0: count}, {0: count})
    )
    module = decomposed(program)
    for rows in (2, 5, 9):
        inputs = scattered(rows)
        torch.testing.assert_close(module(*inputs), model(*inputs))
