"""Which of a compilation's engines is being built, and what is in it, for whoever says so."""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar
from dataclasses import dataclass

from torch.fx import GraphModule
from torch_tensorrt.dynamo.conversion._ConverterRegistry import ConverterRegistry

#: Of an engine's operators the most frequent ones are named, this many.
_NAMED = 4


@dataclass
class _Engines:
    count: int = 0
    begun: int = 0


_engines: ContextVar[_Engines | None] = ContextVar("_engines", default=None)


def expect_engines(count: int) -> None:
    """Note how many engines a graph was partitioned into, which are built one after another."""
    _engines.set(_Engines(count))


def next_engine(module: GraphModule) -> str:
    """Return what to say of the partition that an engine is built of now, once for each."""
    engines = _engines.get() or _Engines()
    engines.begun += 1
    count = max(engines.count, engines.begun)
    return f"TensorRT engine {engines.begun} of {count}: {_operators(module)}"


def _operators(module: GraphModule) -> str:
    nodes = [node for node in module.graph.nodes if node.op.startswith("call_")]
    counts = Counter(
        ConverterRegistry.qualified_name_or_str(node.target).split(".")[-2:][0]
        for node in nodes
    )
    most = [f"{count} {name}" for name, count in counts.most_common(_NAMED)]
    rest = ["..."] if len(counts) > _NAMED else []
    return f"{len(nodes)} operators ({', '.join([*most, *rest])})"
