"""How far a long compilation is: a line per engine, on a terminal or in the log."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from inspect import signature
from typing import Any

from torch.fx import GraphModule
from torch_tensorrt.dynamo.conversion._ConverterRegistry import ConverterRegistry

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")

#: Of an engine's operators the most frequent ones are named, this many.
_NAMED = 4


@dataclass
class _Progress:
    engines: int = 0
    begun: int = 0


_progress: ContextVar[_Progress | None] = ContextVar("_progress", default=None)


@contextmanager
def shown_progress() -> Iterator[None]:
    """Within, say of each engine that is built which it is, what is in it, and how long it took."""
    token = _progress.set(_Progress())
    try:
        yield
    finally:
        _progress.reset(token)


def expect_engines(count: int) -> None:
    """Say how many engines there are to be built, from the first one on."""
    progress = _progress.get()
    if progress is not None:
        progress.engines, progress.begun = count, 0


def convert_aloud(
    convert_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Convert a partition, and say so if progress is shown.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``convert_module``.
    """
    progress = _progress.get()
    if progress is None:
        return convert_module(*args, **kwargs)
    module = signature(convert_module).bind(*args, **kwargs).arguments["module"]
    progress.begun += 1
    which = (
        f"TensorRT engine {progress.begun} of {max(progress.engines, progress.begun)}"
    )
    text = f"{which}: {_operators(module)}"
    terminal = sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None
    if terminal is not None:
        print(text, end=" ... ", file=terminal, flush=True)
    began, outcome = time.monotonic(), "failed after"
    try:
        converted = convert_module(*args, **kwargs)
        outcome = "built in"
        return converted
    finally:
        took = f"{outcome} {time.monotonic() - began:.1f} s"
        if terminal is not None:
            print(took, file=terminal, flush=True)
        else:
            logger.info("%s, %s", text, took)


def _operators(module: GraphModule) -> str:
    nodes = [node for node in module.graph.nodes if node.op.startswith("call_")]
    counts = Counter(
        ConverterRegistry.qualified_name_or_str(node.target).split(".")[-2:][0]
        for node in nodes
    )
    most = [f"{count} {name}" for name, count in counts.most_common(_NAMED)]
    rest = ["..."] if len(counts) > _NAMED else []
    return f"{len(nodes)} operators ({', '.join([*most, *rest])})"
