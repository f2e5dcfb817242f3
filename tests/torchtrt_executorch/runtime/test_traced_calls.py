"""Programs within what sees each operator, which is refused, and inputs that are more than their memory."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import (
    EdgeCompileConfig,
)
from torch import nn
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.export import export
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from torchtrt_executorch.runtime import InputError, ModeError, Program, load

from ...lowering import Function, input_and_output_planning, lower


class Model(nn.Module):
    """Counts its calls, so that a call which wasn't to happen shows."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        y: torch.Tensor = self.linear(x)
        return y + x + self.count


KINDS = [(planned, delegated) for planned in (True, False) for delegated in (0, 1)]
X = torch.linspace(-1, 1, 12).reshape(3, 4)


@cache
def built(planned: bool, delegated: bool) -> bytes:
    edge = lower(Model(), (X,), *([XnnpackPartitioner()] if delegated else []))
    return bytes(edge.to_executorch(input_and_output_planning(planned)).buffer)


def check(program: Program, *calls: torch.Tensor, before: Any = ()) -> None:
    """That it computes what it is to, call after call, after those that were made before."""
    eager = Model().eval()
    for x in before:
        eager(x)
    for x in calls:
        torch.testing.assert_close(program.run(x)[0], eager(x).detach())


def called(_: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    return func(*args, **(kwargs or {}))


class Logging(TorchDispatchMode):
    __torch_dispatch__ = called


class Doubling(TorchFunctionMode):
    __torch_function__ = called


Call = Callable[[torch.Tensor], torch.Tensor]


def within(mode: Callable[[], AbstractContextManager[object]]) -> Callable[[Call], Any]:
    def run(call: Call) -> Any:
        with mode():
            return call(X)

    return run


def exported(call: Call) -> Any:
    return export(Function(lambda x: call(x) + 1), (X,), strict=False)


def trace(mode: str, pre_dispatch: bool) -> Callable[[Call], Any]:
    return lambda call: make_fx(call, tracing_mode=mode, pre_dispatch=pre_dispatch)(X)


#: What sees operators, and what the error calls it.
REFUSED: dict[str, tuple[Callable[[Call], Any], str]] = {
    "torch.export": (exported, "FakeTensorMode"),
    "torch.jit.trace": (
        lambda call: torch.jit.trace(call, X, check_trace=False),
        "torch.jit.trace",
    ),
    **{
        f"make_fx {mode} {pre}": (trace(mode, pre), "(ProxyTorchDispatchMode|.*Mode|make_fx)")
        for mode in ("real", "fake", "symbolic")
        for pre in (False, True)
    },
    "fake": (within(FakeTensorMode), "FakeTensorMode"),
    "a user's": (within(Logging), "Logging"),
    "flops": (within(lambda: FlopCounterMode(display=False)), "FlopCounterMode|_.*Mode"),
    "vmap": (lambda call: torch.vmap(call)(X[None]), "torch.func.vmap"),
    "grad": (lambda call: torch.func.grad(lambda x: call(x).sum())(X), "torch.func.grad"),
    "vjp": (lambda call: torch.func.vjp(call, X), "torch.func.grad"),
    "jvp": (lambda call: torch.func.jvp(call, (X,), (X,)), "torch.func.jvp"),
    "jacfwd": (lambda call: torch.func.jacfwd(call)(X), "torch.func.(jvp|vmap)"),
    "hessian": (lambda call: torch.func.hessian(call)(X), "torch.func"),
    "functionalize": (
        lambda call: torch.func.functionalize(call)(X),
        "torch.func.functionalize",
    ),
}  # fmt: skip


@pytest.mark.parametrize("planned, delegated", KINDS)
@pytest.mark.parametrize("mode", REFUSED)
def test_what_sees_operators_is_refused(
    mode: str, planned: bool, delegated: bool
) -> None:
    """When a method is to be prepared, called or cloned; and nothing of it is left behind."""
    run, name = REFUSED[mode]
    program = load(built(planned, delegated))

    def first(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = program.run(x)[0]
        return result

    def cloned(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = program.method().clone()(x)[0]
        return result

    with pytest.raises(ModeError, match=f"forward is prepared within {name}"):
        run(first)
    check(program, X, X * 3)
    with pytest.raises(ModeError, match=f"forward is called within {name}"):
        run(first)
    with pytest.raises(ModeError, match=f"forward is cloned within {name}"):
        run(cloned)
    check(program, X * 2, X, before=(X, X * 3))


@pytest.mark.parametrize("planned, delegated", KINDS)
def test_compiled_callers(planned: bool, delegated: bool) -> None:
    """``torch.compile`` breaks its graph there, looks into nothing of the runtime, or says so."""
    program = load(built(planned, delegated))

    def around(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = program.run(x * 2)[0]
        return result * 2

    torch._dynamo.reset()
    compiled, eager = torch.compile(around, backend="eager"), Model().eval()
    torch._dynamo.utils.counters.clear()
    for x in (X, X + 1, X):
        torch.testing.assert_close(compiled(x), eager(x * 2).detach() * 2)
    assert torch._dynamo.utils.counters["frames"]["total"] == 2
    torch._dynamo.reset()
    whole = torch.compile(around, backend="eager", fullgraph=True)
    with pytest.raises(torch._dynamo.exc.Unsupported, match="a program isn't traced"):
        whole(X)

    with pytest.raises(torch._dynamo.exc.Unsupported, match="a program isn't traced"):
        export(Function(around), (X,), strict=True)
    torch.testing.assert_close(program.run(X)[0], eager(X).detach())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, program: Program, x: torch.Tensor) -> Any:
        return program.run(x)[0]


TAKEN: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "no_grad": torch.no_grad,
    "gradients": torch.enable_grad,
    "inference": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "meta": lambda: torch.device("meta"),
    "functions": Doubling,
    "anomaly": torch.autograd.detect_anomaly,
    "profiler": torch.autograd.profiler.profile,
    "dual": forward_ad.dual_level,
    "python": enable_python_dispatcher,
    "hooks": lambda: torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("planned, delegated", KINDS)
@pytest.mark.parametrize("mode", TAKEN)
def test_modes_that_make_no_difference(
    mode: str, planned: bool, delegated: bool
) -> None:
    program, eager = load(built(planned, delegated)), Model().eval()
    calls = X, X * 2, X
    wanted = [eager(x).detach() for x in calls]
    with TAKEN[mode]():
        results = [program.run(x)[0] for x in calls[:2]]
    for result, right in zip((*results, *program.run(X)), wanted, strict=True):
        torch.testing.assert_close(result, right)
        assert not result.is_inference() and not result.requires_grad


@pytest.mark.parametrize("planned, delegated", KINDS)
def test_derivatives_end_at_a_program(planned: bool, delegated: bool) -> None:
    """They don't stay in its memory either."""
    program, eager = load(built(planned, delegated)), Model().eval()
    for _ in range(2):
        with forward_ad.dual_level():
            for _ in range(2):
                dual = forward_ad.make_dual(X.clone(), torch.ones_like(X))
                result = program.run(dual)[0]
                assert forward_ad.unpack_dual(result).tangent is None
                torch.testing.assert_close(result, eager(X).detach())
            plain = program.run(X)[0]
            assert forward_ad.unpack_dual(plain).tangent is None
            torch.testing.assert_close(plain, eager(X).detach())
    recorded = X.clone().requires_grad_()
    for x in (recorded, recorded * 1, nn.Parameter(X)):
        result = program.run(x)[0]
        assert not result.requires_grad
        torch.testing.assert_close(result, eager(X).detach())
    torch.testing.assert_close(Doubled.apply(program, X), eager(X).detach())


def complex_numbers() -> torch.Tensor:
    return torch.complex(X.clone(), X.flip(0) + 1)


#: Values that aren't what is in the memory, and those that are read.
LAZY: dict[str, Callable[[], torch.Tensor]] = {
    "negated": lambda: complex_numbers().conj().imag,
    "negated, dense": lambda: torch._neg_view(X.clone()),
    "negated part": lambda: torch._neg_view(torch.cat([X, X]))[3:],
    "zeros": lambda: torch._efficientzerotensor(3, 4),
}


@pytest.mark.parametrize("planned, delegated", KINDS)
@pytest.mark.parametrize("kind", LAZY)
def test_values_that_are_yet_to_be_computed(
    kind: str, planned: bool, delegated: bool
) -> None:
    program = load(built(planned, delegated))
    given = LAZY[kind]()
    plain = torch.zeros(3, 4).copy_(given)
    check(program, plain, given, given, plain, given, plain)


@pytest.mark.parametrize("planned", [True, False])
def test_conjugated_inputs(planned: bool) -> None:
    z = complex_numbers()
    unchecked = EdgeCompileConfig(_check_ir_validity=False)
    edge = lower(lambda z: z * 2, (z,), compile_config=unchecked)
    built = edge.to_executorch(input_and_output_planning(planned))
    program = load(bytes(built.buffer))
    for given in (z, z.conj(), z, z.conj(), z.conj().conj()):
        torch.testing.assert_close(program.run(given)[0], given * 2)


class Own(torch.Tensor):
    """A subclass whose operators are its own."""

    @classmethod
    def __torch_dispatch__(cls, *called: Any) -> Any:
        raise NotImplementedError


def leaked() -> torch.Tensor:
    """What a transform has wrapped, outside of it."""
    kept: list[torch.Tensor] = []
    torch.vmap(lambda x: (kept.append(x), x)[1])(torch.stack([X, X]))
    return kept[0]


#: Inputs that a program can't take, and what is said of them.
WRONG: dict[str, tuple[Callable[[], torch.Tensor], str]] = {
    "fake": (lambda: FakeTensorMode().from_tensor(X), "a FakeTensor"),
    "wrapper": (lambda: TwoTensor(X.clone(), X.clone()), "a TwoTensor"),
    "subclass": (lambda: X.clone().as_subclass(Own), "a Own"),
    "meta": (lambda: X.to("meta"), "meta"),
    "sparse": (X.to_sparse, "torch.sparse_coo"),
    "compressed": (X.to_sparse_csr, "torch.sparse_csr"),
    "mkldnn": (X.to_mkldnn, "torch._mkldnn"),
    "quantized": (lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.quint8), "Quantized"),
    "nested": (lambda: torch.nested.nested_tensor([*X]), "NestedTensor"),
    "jagged": (lambda: torch.nested.nested_tensor([*X], layout=torch.jagged), "torch.jagged"),
    "functional": (lambda: torch._to_functional_tensor(X), "Functionalize"),
    "leaked": (leaked, "FuncTorchBatched"),
}  # fmt: skip


@pytest.mark.parametrize("planned, delegated", KINDS)
@pytest.mark.parametrize("kind", WRONG)
def test_inputs_that_are_more_than_their_memory(
    kind: str, planned: bool, delegated: bool
) -> None:
    make, text = WRONG[kind]
    program = load(built(planned, delegated))
    with pytest.raises(InputError, match=f"input 0 of forward is .*{text}"):
        program.run(make())
    check(program, X, X * 2)  # the second time it needs no looking at
    with pytest.raises(InputError, match=f"input 0 of forward is .*{text}"):
        program.run(make())
    check(program, X, before=(X, X * 2))
