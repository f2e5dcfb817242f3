"""Lowers a network by one door, runs it at each of its sizes, and compares with eager."""

from __future__ import annotations

import logging
import time
from collections import Counter
from typing import Any

import torch
from torch import Tensor

from benchmarks.models._doors import DOORS
from benchmarks.models._families import NETWORKS


def measure(name: str, door: str) -> dict[str, Any]:
    """Lower and run a network.

    Returns:
        ``seconds`` of the lowering, ``bytes``, ``delegates`` by backend, ``host`` operators of a call, ``copies`` of a call;
        ``difference``, the largest from the program that was lowered, beside the largest value; ``loss``, the norm of the
        difference from the model before it was quantized, beside the norm of what that returns; ``truth``; ``wrong``;
        or, with what there is until then, ``error``, after the step that failed.
    """
    logging.disable(logging.WARNING)
    found: dict[str, Any] = {"step": "eager"}
    try:
        with torch.no_grad():
            _measure(name, door, found)
        del found["step"]
    except Exception as error:
        found["error"] = f"{found.pop('step')}: {first_line(error)}"
    return found


def _measure(name: str, door: str, found: dict[str, Any]) -> None:
    from executorch.exir import to_edge_transform_and_lower

    from torchtrt_executorch import runtime

    network, way = NETWORKS[name], DOORS[door]
    torch.manual_seed(0)
    model = network.make().eval()
    calls = network.calls()
    eager = [model(*inputs) for inputs in calls]
    found["step"] = "export"
    if way.quantize is None:
        program, wanted = network.export(model, calls[0]), eager
    else:
        found["step"] = "quantize"
        program = way.quantize(network, model, calls)
        module = program.module()
        wanted = [module(*inputs) for inputs in calls]
    found["step"] = "lower"
    began = time.perf_counter()
    edge = to_edge_transform_and_lower(program, partitioner=way.partitioners())
    emitted = edge.to_executorch()
    found["seconds"] = round(time.perf_counter() - began, 1)
    data = [bytes(weights) for weights in emitted._tensor_data.values()]
    found["bytes"] = len(emitted.buffer) + sum(map(len, data))
    plan = emitted.executorch_program.execution_plan[0]
    found["delegates"] = dict(Counter(each.id for each in plan.delegates))
    found["step"] = "run"
    loaded = runtime.load(emitted.buffer, data)

    def run(*inputs: Any) -> Any:
        outputs = loaded.run(*(each.clone() for each in inputs))
        single = isinstance(outputs, tuple) and len(outputs) == 1
        return outputs[0] if single else outputs

    gaps, losses = [], []
    for inputs, value, exact in zip(calls, wanted, eager, strict=True):
        outputs = run(*inputs)
        if not gaps:
            stats = loaded.stats()
            found["host"] = dict(stats.kernels)
            found["copies"] = sum(each.copies for each in stats.copies.values())
        gaps.append(difference(outputs, value))
        losses.append(distance(outputs, exact))
    found["difference"] = max(gaps)
    found["wrong"] = not max(gaps) <= way.tolerance
    if way.quantize is not None:
        found["loss"] = max(losses)
    if network.truth is not None:
        found["step"] = "truth"
        truth = network.truth(run)
        found["truth"] = truth.words
        # what quantization loses is its own; what eager says too is nobody's fault
        found["wrong"] |= way.quantize is None and not truth.holds


def difference(outputs: Any, wanted: Any) -> float:
    """Return the largest difference between tensors, beside the largest value of each.

    Raises:
        RuntimeError: Their number or shapes differ.
    """
    values, expected = _tensors(outputs), _tensors(wanted)
    if [each.shape for each in values] != [each.shape for each in expected]:
        raise RuntimeError(
            f"outputs of {[tuple(each.shape) for each in values]}, "
            f"not {[tuple(each.shape) for each in expected]}"
        )
    largest = 0.0
    for value, exact in zip(values, expected, strict=True):
        if not exact.numel():
            continue
        if not torch.equal(value.isfinite(), exact.isfinite()):
            return float("inf")
        gap = (
            (value.double() - exact.double()).nan_to_num(posinf=0, neginf=0).abs().max()
        )
        scale = exact.double().nan_to_num(posinf=0, neginf=0).abs().max()
        largest = max(largest, float(gap / scale if scale > 0 else gap))
    return largest


def distance(outputs: Any, wanted: Any) -> float:
    """Return the norm of the difference between tensors, beside the norm of all that were wanted."""
    expected = _tensors(wanted)
    gaps = [
        value.double() - exact.double()
        for value, exact in zip(_tensors(outputs), expected, strict=True)
    ]
    return _norm(gaps) / max(_norm(expected), 1e-12)


def _norm(tensors: list[Tensor]) -> float:
    return sum(float(each.double().square().sum()) for each in tensors) ** 0.5


def _tensors(outputs: Any) -> list[Tensor]:
    leaves = torch.utils._pytree.tree_leaves(outputs)
    return [each for each in leaves if isinstance(each, Tensor)]


def first_line(error: BaseException) -> str:
    """Return an error's type and the first line of its message; a pass's failure is told by its cause."""
    while error.__cause__ is not None and type(error) in (Exception, RuntimeError):
        error = error.__cause__
    line = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {line[:200]}"
