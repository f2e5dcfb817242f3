"""``load(..., compile=True)``: segments in ExecuTorch's own runtime, beside one kernel at a time."""

from __future__ import annotations

import logging
import threading
from typing import Any, Callable

import pytest
import torch
import torch.nn.functional as F
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim, export

from torchtrt_executorch.runtime import InstructionError, load, register_kernel
from torchtrt_executorch.runtime.method import Method

from . import programs


def _pte(
    model: nn.Module,
    inputs: tuple[Any, ...],
    xnnpack: bool = False,
    dynamic: Any = None,
) -> bytes:
    edge = to_edge_transform_and_lower(
        export(model, inputs, dynamic_shapes=dynamic),
        partitioner=[XnnpackPartitioner()] if xnnpack else None,
    )
    return bytes(edge.to_executorch().buffer)


def _both(pte: bytes) -> tuple[Method, Method]:
    only = load(pte).method_names[0]
    return load(pte).method(only), load(pte, compile=True).method(only)


def _agree(
    plain: Method, compiled: Method, *inputs: Any, exact: bool = False
) -> tuple[Any, ...]:
    expected, results = plain(*inputs), compiled(*inputs)
    tolerance = {"rtol": 0, "atol": 0} if exact else {"rtol": 2e-5, "atol": 1e-5}
    for result, reference in zip(results, expected, strict=True):
        if isinstance(reference, torch.Tensor):
            torch.testing.assert_close(result, reference, equal_nan=True, **tolerance)
        else:
            assert type(result) is type(reference) and result == reference
    return results


def _compiled(method: Method) -> int:
    """How many of a method's instructions are part of a segment."""
    return sum(len(span) for span in method._spans.values())


#: Those of the programs in which nothing small follows anything small that ExecuTorch's kernels do.
ALONE = {
    "half", "topk", "max_dim", "argmax_gather", "index_put", "constant_output", "channels_last",
    "data_dependent", "xnnpack_mlp", "xnnpack_convnet", "xnnpack_dynamic",
}  # fmt: skip


@pytest.mark.parametrize("case", programs.CASES, ids=lambda case: case.name)
def test_agrees_with_what_is_interpreted(case: programs.Case) -> None:
    plain, compiled = _both(programs.build(case))
    assert (_compiled(compiled) == 0) == (case.name in ALONE)
    for inputs in (*case.calls(), *case.calls()):
        _agree(plain, compiled, *inputs)


SPECIAL = torch.tensor(
    [0.0, -0.0, 1, -1, 0.5, -0.5, 1.5, 2.5, -2.5, 3.7, float("nan"), 1e30, -1e30, 1e-40, 100, -100]
)  # fmt: skip
INFINITE = torch.cat([SPECIAL, torch.tensor([float("inf"), -float("inf")])])
# fmt: off
UNARY = [
    "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp",
    "expm1", "floor", "isinf", "isnan", "log", "log10", "log1p", "log2", "logical_not", "neg",
    "reciprocal", "relu", "round", "rsqrt", "sigmoid", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
]
BINARY = [
    "add", "div", "eq", "ge", "gt", "le", "logical_and", "logical_or", "logical_xor", "lt", "maximum",
    "minimum", "mul", "ne", "pow", "sub",
]
OF_INTEGERS = [
    "add", "bitwise_and", "bitwise_or", "bitwise_xor", "div", "eq", "ge", "gt", "le", "lt", "maximum",
    "minimum", "mul", "ne", "sub",
]
# fmt: on


def _chunks(names: list[str], size: int = 12) -> list[list[str]]:
    return [names[start : start + size] for start in range(0, len(names), size)]


def _all_of(model: Callable[..., Any], *inputs: torch.Tensor) -> None:
    plain, compiled = _both(_pte(programs.Lambda(model), inputs))
    assert _compiled(compiled) == len(compiled._steps)
    _agree(plain, compiled, *inputs)


@pytest.mark.parametrize("names", _chunks(UNARY), ids=lambda names: names[0])
def test_kernels_of_one_tensor_agree_with_torch_s(names: list[str]) -> None:
    _all_of(lambda x: [getattr(torch, name)(x) for name in names], INFINITE)


@pytest.mark.parametrize("names", _chunks(BINARY), ids=lambda names: names[0])
def test_kernels_of_two_tensors_agree_with_torch_s(names: list[str]) -> None:
    _all_of(
        lambda x, y: [getattr(torch, name)(x, y) for name in names],
        INFINITE,
        INFINITE.roll(5),
    )


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("names", _chunks(OF_INTEGERS), ids=lambda names: names[0])
def test_kernels_of_integers_agree_with_torch_s(
    names: list[str], dtype: torch.dtype
) -> None:
    x = torch.tensor([0, 1, -1, 2, -7, 7, 2**31 - 1, 100], dtype=dtype)
    _all_of(lambda x, y: [getattr(torch, n)(x, y) for n in names], x, x.flip(0))


def test_other_kernels_agree_with_torch_s() -> None:
    _all_of(
        lambda x: (
            F.gelu(x),
            F.elu(x),
            F.hardtanh(x),
            F.leaky_relu(x),
            x.clamp(-1, 2),
            x.masked_fill(x > 0, 3.0),
            x**3,
            2 - x,
            torch.where(x > 0, x, x * 2),
            x.view(4, 4).softmax(-1),
            x.view(4, 4).log_softmax(0),
            x.view(4, 4).amax(1),
            x.view(4, 4).sum(1),
            x.view(4, 4).any(1),
            x.cumsum(0),
            x.view(4, 4).var(0),
            F.layer_norm(x.view(4, 4), (4,)),
            x.view(4, 4) @ x.view(4, 4).t(),
            x.view(2, 2, 4) @ x.view(2, 4, 2),
            F.pad(x.view(4, 4), (1, 2), value=7.0).flip(0),
            x.view(4, 4).t().repeat(2, 1)[1:, ::2],
        ),
        SPECIAL,
    )


_STEPS: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "add": lambda x, y: x + y,
    "half": lambda x, y: x * 0.5,
    "sine": lambda x, y: x.sin(),
    "swap": lambda x, y: y - x,
    "turn": lambda x, y: x.t().reshape(x.shape),
    "norm": lambda x, y: F.layer_norm(x, x.shape[-1:]),
    "mix": lambda x, y: x.softmax(0) @ y.t() @ y,
    "slice": lambda x, y: torch.cat([x[1:], y[:1]]),
    "mean": lambda x, y: x - x.mean(1, keepdim=True),
    "sort": lambda x, y: x.sort(0).values,  # stays interpreted
    "topk": lambda x, y: x + x.topk(1, dim=1).values,  # and so does this
    "fill": lambda x, y: torch.where(x > 0, x, torch.zeros_like(y)),
}


class Random(nn.Module):
    """Steps by name, one after the other, with state that every other one reads and changes."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.register_buffer("state", torch.ones(4, 6))

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x
        for index, name in enumerate(self.names):
            x, y = _STEPS[name](x, y), x
            if index % 2:
                self.state.add_(x)
                y = y + self.state
        return x, y


@given(
    st.lists(st.sampled_from(sorted(set(_STEPS) - {"sort"})), min_size=2, max_size=9),
    st.booleans(),
)
@settings(max_examples=12, deadline=None, derandomize=True)
def test_random_programs_agree(names: list[str], xnnpack: bool) -> None:
    torch.manual_seed(0)
    calls = [torch.randn(4, 6) for _ in range(3)]
    plain, compiled = _both(_pte(Random(names), (calls[0],), xnnpack))
    for x in calls:
        _agree(plain, compiled, x)


def test_results_are_the_caller_s() -> None:
    model = programs.Lambda(lambda x: (x + 1).sin() * 2)
    _, compiled = _both(_pte(model, (torch.zeros(5),)))
    first = compiled(torch.zeros(5))[0]
    kept = first.clone()
    second = compiled(torch.ones(5))[0]
    assert torch.equal(first, kept) and not torch.equal(first, second)


def test_shapes_grow_and_shrink_from_call_to_call() -> None:
    """Their sizes cross the border both ways: a sort stays here, between two segments."""

    def model(x: torch.Tensor) -> torch.Tensor:
        y = ((x + 1).sin() * 2).cos().topk(2, dim=1).values
        return ((y * 3 + x[:, :2]).exp() - x.shape[0]).sqrt() + 1

    dim = Dim("rows", min=2, max=9)
    pte = _pte(programs.Lambda(model), (torch.rand(4, 3),), dynamic=(({0: dim},),))
    plain, compiled = _both(pte)
    assert len(compiled._spans) == 2
    for rows in (9, 2, 4, 4, 9, 3):
        (result,) = _agree(plain, compiled, torch.rand(rows, 3))
        assert result.shape == (rows, 2)


def test_numbers_go_in_and_come_out() -> None:
    def model(x: torch.Tensor) -> tuple[Any, ...]:
        rows = x.shape[0] * 2
        y = (x + 1).sin() * rows
        y = y.topk(1, dim=1).values
        return (y * rows + 1).cos() + rows, rows

    dim = Dim("rows", min=2, max=9)
    pte = _pte(programs.Lambda(model), (torch.rand(4, 3),), dynamic=(({0: dim},),))
    plain, compiled = _both(pte)
    assert any(s._carved.cells for s in _segments(compiled))
    assert any(s._carved.numbers for s in _segments(compiled))
    for rows in (2, 9, 5):
        assert _agree(plain, compiled, torch.rand(rows, 3))[1] == rows * 2


def _segments(method: Method) -> list[Any]:
    starts = method._spans
    return [run.__self__ for start, run in method._runs if start in starts]  # type: ignore[attr-defined]


def test_state_is_one_and_the_same_in_and_out_of_segments() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("seen", torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            before = (self.seen * 2 + 1).topk(2).values  # read outside
            self.seen.add_(x)
            return before + self.seen[:2]

    plain, compiled = _both(_pte(Model(), (torch.ones(3),)))
    assert _compiled(compiled)
    for call in range(4):
        _agree(plain, compiled, torch.full((3,), float(call)), exact=True)
    other = compiled.clone()
    assert torch.equal(other(torch.ones(3))[0], load(_pte(Model(), (torch.ones(3),)), compile=True).run(torch.ones(3))[0])  # fmt: skip
    _agree(plain, compiled, torch.ones(3), exact=True)


def test_every_instruction_is_counted_as_if_it_ran_by_itself() -> None:
    for name in ("xnnpack_between", "nested_cond", "scan"):
        case = programs.named(name)
        plain, compiled = (load(programs.build(case), compile=c) for c in (False, True))
        for inputs in case.calls():
            plain.run(*inputs)
            compiled.run(*inputs)
        one, other = plain.stats(), compiled.stats()
        assert one.kernels == other.kernels and one.delegates == other.delegates
        assert one.kernels


def test_an_endless_loop_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    from torchtrt_executorch.runtime import method as module

    pte = programs.build(programs.named("scan"))
    inputs = programs.named("scan").calls()[0]
    needed = []
    for compile in (False, True):
        loaded = load(pte, compile=compile).method()
        limit = 1
        while True:
            monkeypatch.setattr(module, "MAX_INSTRUCTIONS", limit)
            try:
                loaded(*inputs)
                break
            except InstructionError as error:
                assert "stopped after" in str(error)
                limit += 1
        needed.append(limit)
    assert needed[0] == needed[1] > 10


def test_an_error_names_the_instruction_and_changes_no_more_than_without() -> None:
    def model(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return ((x + 1).sin() * 2).cos() + y

    shapes = (({0: Dim("a", min=2, max=9)}, {0: Dim("b", min=2, max=9)}),)
    pte = _pte(
        programs.Lambda(lambda x, y: model(x, y.sum() + x)),
        (torch.rand(3), torch.rand(4)),
        dynamic=shapes,
    )
    _, compiled = _both(pte)
    assert _compiled(compiled) == len(compiled._steps)
    # What can't happen to a program that was exported: its segment is handed another shape.
    value = compiled._steps[-1]
    object.__setattr__(value, "run", _raising)
    segment = _segments(compiled)[0]
    segment._native.execute = segment._native.call = _raising
    with pytest.raises(InstructionError) as caught:
        compiled(torch.rand(3), torch.rand(4))
    last = len(compiled._steps) - 1
    assert f"instruction {last} ({compiled._steps[last].name})" in str(caught.value)


def _raising(*_: object) -> None:
    raise RuntimeError("failed with error 0x12")


def test_what_the_user_registered_stays() -> None:
    calls = []

    def sine(x: torch.Tensor, out: torch.Tensor) -> None:
        calls.append(1)
        torch.sin(x, out=out)

    pte = _pte(programs.Lambda(lambda x: (x + 1).sin() * 2 + 1), (torch.rand(3),))
    register_kernel("aten::sin.out", sine)
    try:
        load(pte, compile=True).run(torch.rand(3))
    finally:
        register_kernel("aten::sin.out", None)
    assert calls


def test_large_tensors_stay_torch_s(caplog: pytest.LogCaptureFixture) -> None:
    pte = _pte(programs.Lambda(lambda x: x.sin().cos().tanh()), (torch.rand(100_000),))
    with caplog.at_level(logging.INFO, "torchtrt_executorch.runtime"):
        method = load(pte, compile=True).method()
    assert not method._spans
    assert "aten::sin.out: 100000 elements are more than" in caplog.text


def test_a_simulation_compiles_nothing(caplog: pytest.LogCaptureFixture) -> None:
    pte = programs.build(programs.named("mlp"))
    method = load(pte, simulate_devices=True, compile=True).method()
    assert not method._spans and "nothing is compiled" in caplog.text


def test_clones_run_side_by_side() -> None:
    case = programs.named("xnnpack_between")
    method = load(programs.build(case), compile=True).method()
    inputs = [torch.full((4, 4), float(i)) for i in range(4)]
    expected = [method(x)[0] for x in inputs]
    wrong = []

    def work(x: torch.Tensor, result: torch.Tensor) -> None:
        own = method.clone()
        for _ in range(50):
            if not torch.equal(own(x)[0], result):
                wrong.append(x)

    threads = [
        threading.Thread(target=work, args=pair)
        for pair in zip(inputs, expected, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_goes_beside_cuda_graphs() -> None:
    case = programs.named("xnnpack_between")
    method = load(programs.build(case), compile=True, cuda_graphs=True).method()
    assert method._spans
    for inputs in case.calls():
        _agree(load(programs.build(case)).method(), method, *inputs)


def test_a_shape_that_stays_is_told_once() -> None:
    """And what came of it isn't fetched again."""
    method = load(programs.build(programs.named("dynamic_view")), compile=True).method()
    method(torch.rand(3, 6))
    native, calls = _segments(method)[0]._native, []
    for name in ("call", "get_outputs"):
        original = getattr(native, name)

        def counted(*args: Any, original: Any = original) -> Any:
            calls.append(1)
            return original(*args)

        setattr(native, name, counted)
    assert method(torch.ones(3, 6))[0].shape == (6, 3) and not calls
    assert method(torch.ones(5, 6))[0].shape == (10, 3) and len(calls) == 1
