"""PyTorch's modes are the caller's: a program computes the same in all of them, and stays usable."""

from __future__ import annotations

import itertools
import sys
import threading
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from types import FrameType
from typing import Any, Callable, Iterator

import pytest
import torch
from executorch.exir import EdgeProgramManager
from torch import nn

from torchtrt_executorch.runtime import Method, load

from ...lowering import lower, lower_emulated
from ...switches import switches
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
def linear(lowered: Callable[..., EdgeProgramManager]) -> bytes:
    edge = lowered(Linear().eval(), (torch.ones(2, 4),))
    return bytes(edge.to_executorch().buffer)


def build(name: str) -> tuple[bytes, list[tuple[Any, ...]]]:
    if name in ("plain", "emulated"):
        pte = linear(lower if name == "plain" else lower_emulated)
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
        current = mode if index < len(calls) else "none"
        with MODES[current]():
            results = method(*inputs)
            assert torch.is_grad_enabled() == (current != "inference")
        equal(results, expected[index])
        for tensor in (r for r in results if isinstance(r, torch.Tensor)):
            assert not tensor.is_inference() and tensor.device.type == "cpu"
    with MODES[mode]():
        clone = method.clone()
    equal(clone(*calls[0]), expected[0])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", MODES)
def test_no_call_touches_what_is_the_whole_process_s(name: str, mode: str) -> None:
    """Nor restores it in the end: wherever another thread may look, nothing is changed."""
    pte, calls = build(name)
    load(pte, emulated_engines=True).run(*calls[0])  # what is imported once
    with MODES[mode]():
        before, looked = switches(), itertools.count()
        changed: set[str] = set()

        def look(frame: FrameType, event: str, _: object) -> None:
            if next(looked) % 7 == 0:
                now = switches()
                changed.update(key for key in now if now[key] != before.get(key))

        method = load(pte, emulated_engines=True).method()
        sys.setprofile(look)
        try:
            method(*calls[0])
        finally:
            sys.setprofile(None)
    assert not changed


class Interrupted(BaseException):
    """What a signal raises, wherever Python may be interrupted."""


def interrupted(after: int, call: Callable[[], Any]) -> Any:
    """What ``call`` returns, or None if it was interrupted at place ``after`` of those where it may be.

    Python looks for signals where a function of its own begins and where one in C has returned. In
    between, and so from the last such place of a ``finally`` to its end, no interrupt comes.
    """
    places = 0

    def look(frame: FrameType, event: str, _: object) -> None:
        nonlocal places
        if event in ("call", "c_return") and frame.f_code is not call.__code__:
            places += 1
            if places > after:
                sys.setprofile(None)
                raise Interrupted

    try:
        sys.setprofile(look)
        return call()
    except Interrupted:
        return None
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    "name, mode",
    [
        *((name, "none") for name in NAMES),
        *(("plain", mode) for mode in ("inference", "autocast", "double", "meta")),
    ],
)
def test_an_interrupt_leaves_nothing_behind(name: str, mode: str) -> None:
    """Wherever it comes in a call: no lock, no mode, no value of the call that it ended."""
    pte, calls = build(name)
    method = load(pte, emulated_engines=True).method()
    # Which an interrupt may leave before or after its next value.
    stateful = name == "counter"
    inputs = calls[0]
    right = method(*inputs)
    for after in itertools.count():
        with MODES[mode]():
            enabled = torch.is_grad_enabled()
            results = interrupted(after, lambda: method(*inputs))
            assert torch.is_grad_enabled() == enabled
            assert torch.is_inference_mode_enabled() == (mode == "inference")
            assert torch.is_autocast_enabled("cpu") == (mode == "autocast")
            assert (torch.get_default_dtype() is torch.float64) == (mode == "double")
            assert (torch.empty(0).device.type == "meta") == (mode == "meta")
        if results is not None:
            break
        if after % 8 == 0:
            _elsewhere(method, inputs, None if stateful else right)
        elif not stateful:
            equal(method(*inputs), right)
    assert after > 10


def _elsewhere(
    method: Method, inputs: tuple[Any, ...], right: tuple[Any, ...] | None
) -> None:
    """Another thread can call it."""
    found: list[tuple[Any, ...]] = []
    thread = threading.Thread(target=lambda: found.append(method(*inputs)), daemon=True)
    thread.start()
    thread.join(20)
    assert found, "it is locked for good"
    if right is not None:
        equal(found[0], right)
