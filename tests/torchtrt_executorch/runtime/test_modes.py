"""PyTorch's modes are the caller's: a program computes the same in all of them, and stays usable."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from typing import Any, Callable, Iterator

import pytest
import torch
from executorch.exir import to_edge
from torch import nn
from torch.export import export

from torchtrt_executorch.emulation import emulated_engines
from torchtrt_executorch.runtime import Method, load

from . import programs


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@contextmanager
def deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


MODES: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "none": nullcontext,
    "inference": torch.inference_mode,
    "gradients": torch.enable_grad,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "double": lambda: default_dtype(torch.float64),
    "half": lambda: default_dtype(torch.float16),
    "meta": lambda: torch.device("meta"),
    "deterministic": deterministic,
}


class Linear(nn.Module):
    """A product, which autocast makes of another type, and a division of integers by integers."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.linear(x), torch.arange(1, 5) / 3


@cache
def plain() -> bytes:
    exported = export(Linear(), (torch.ones(2, 4),))
    return bytes(to_edge(exported).to_executorch().buffer)


@cache
def emulated() -> bytes:
    import torch_tensorrt

    x = torch.ones(2, 4)
    with emulated_engines():
        compiled = torch_tensorrt.compile(
            Linear().eval(), ir="dynamo", arg_inputs=[x], min_block_size=1
        )
        edge = torch_tensorrt.executorch.export(compiled, arg_inputs=[x])
    return bytes(edge.to_executorch().buffer)


def build(name: str) -> tuple[bytes, list[tuple[Any, ...]]]:
    if name in ("plain", "emulated"):
        pte = plain() if name == "plain" else emulated()
        return pte, [(torch.full((2, 4), float(n)),) for n in range(3)]
    case = programs.named(name)
    return programs.build(case), list(case.calls())


NAMES = ["plain", "emulated", "counter", "unplanned_io", "xnnpack_dynamic", "scan"]


def equal(results: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    for result, reference in zip(results, expected, strict=True):
        torch.testing.assert_close(result, reference, rtol=0, atol=0)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("first", ["none", "inference"])
def test_results_are_the_same_in_all_of_them(name: str, mode: str, first: str) -> None:
    pte, calls = build(name)
    reference = load(pte, emulated_engines=True).method()
    expected = [reference(*inputs) for inputs in (*calls, *calls)]
    with MODES[first]():
        method = load(pte, emulated_engines=True).method()
    for index, inputs in enumerate((*calls, *calls)):
        with MODES[mode]() if index < len(calls) else nullcontext():
            results = method(*inputs)
            assert torch.is_grad_enabled() == (
                mode != "inference" or index >= len(calls)
            )
        equal(results, expected[index])
        for tensor in (r for r in results if isinstance(r, torch.Tensor)):
            assert not tensor.is_inference() and tensor.device.type == "cpu"
    with MODES[mode]():
        clone = method.clone()
    equal(clone(*calls[0]), expected[0])


class Interrupted(BaseException):
    """What a signal raises, wherever Python may be interrupted."""


def interrupted(seconds: float, call: Callable[[], Any]) -> Any:
    """What ``call`` returns, or None if it took ``seconds``, and was interrupted."""

    def interrupt(*_: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            return call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        return None
    finally:
        signal.signal(signal.SIGALRM, before)


TRIALS = 400


@pytest.mark.parametrize("mode", ["none", "inference", "autocast", "double", "meta"])
@pytest.mark.parametrize("name", ["plain", "xnnpack_dynamic"])
def test_an_interrupt_leaves_nothing_behind(name: str, mode: str) -> None:
    """Whenever it comes: no lock, no mode, no value of the call that it ended."""
    pte, calls = build(name)
    method = load(pte).method()
    expected = [method(*inputs) for inputs in calls]
    with MODES[mode]():
        start = time.perf_counter()
        for inputs in calls * 5:
            method(*inputs)
        seconds = (time.perf_counter() - start) / (len(calls) * 5)
    ended = 0
    for trial in range(TRIALS):
        inputs, right = calls[trial % len(calls)], expected[trial % len(calls)]
        with MODES[mode]():
            enabled, wait = torch.is_grad_enabled(), seconds * 1.5 * trial / TRIALS
            results = interrupted(1e-6 + wait, lambda: method(*inputs))  # noqa: B023
            assert torch.is_grad_enabled() == enabled
            assert torch.is_inference_mode_enabled() == (mode == "inference")
            assert torch.is_autocast_enabled("cpu") == (mode == "autocast")
            assert (torch.get_default_dtype() is torch.float64) == (mode == "double")
            assert (torch.empty(0).device.type == "meta") == (mode == "meta")
        ended += results is None
        _elsewhere(method, inputs, right)
    assert ended > 20


def _elsewhere(method: Method, inputs: tuple[Any, ...], right: tuple[Any, ...]) -> None:
    """Another thread can call it."""
    found: list[tuple[Any, ...]] = []
    thread = threading.Thread(target=lambda: found.append(method(*inputs)), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it is locked for good"
    equal(found[0], right)
