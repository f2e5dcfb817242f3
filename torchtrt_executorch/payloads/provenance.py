"""Provenance of engines: which operators each engine of this process was built from.

An engine no longer tells which operators it runs. They are kept by its digest, for as long as the
process lives.
"""

from __future__ import annotations

import functools
import hashlib
import operator
from collections import Counter
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch.fx import GraphModule

from torchtrt_executorch.progress import step

#: Number of an engine's most frequent operators to name.
_NAMED = 4

_operators: dict[str, Counter[str]] = {}


@dataclass
class _Engines:
    count: int = 0
    begun: int = 0


_engines: ContextVar[_Engines | None] = ContextVar("_engines", default=None)


def expect_engines(count: int) -> None:
    """Note how many engines a graph was partitioned into, which are built one after another."""
    _engines.set(_Engines(count))


def _next_engine(module: GraphModule) -> str:
    """Return what to say of the partition that an engine is built of now, once for each."""
    engines = _engines.get() or _Engines()
    engines.begun += 1
    count = max(engines.count, engines.begun)
    counts = Counter[str]()
    for name, number in _counted(module).items():
        counts[name.split(".")[-2:][0]] += number
    most = [f"{number} {name}" for name, number in counts.most_common(_NAMED)]
    rest = ["..."] if len(counts) > _NAMED else []
    said = f"{counts.total()} operators ({', '.join([*most, *rest])})"
    return f"TensorRT engine {engines.begun} of {count}: {said}"


def recorded(convert_module: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``convert_module`` so that it reports progress, and records the operators that an engine was built from."""

    @functools.wraps(convert_module)
    def convert(module: GraphModule, *args: Any, **kwargs: Any) -> Any:
        with step(_next_engine(module)):
            engine = convert_module(module, *args, **kwargs)
        plan = getattr(engine, "serialized_engine", None)
        if isinstance(plan, (bytes, bytearray, memoryview)):
            _operators[hashlib.sha256(plan).hexdigest()] = _counted(module)
        return engine

    return convert


def operators_of(plan: bytes | memoryview) -> Counter[str] | None:
    """Return the operators that an engine was built from; None if it wasn't by this process."""
    return _operators.get(hashlib.sha256(plan).hexdigest())


def _counted(module: GraphModule) -> Counter[str]:
    """Count the calls of operators by name, ``aten.relu.default``; taking a tuple apart is none."""
    return Counter(
        str(node.target)
        for node in module.graph.nodes
        if node.op.startswith("call_") and node.target is not operator.getitem
    )
