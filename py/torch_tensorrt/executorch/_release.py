"""Differences between releases of torch-tensorrt that exporting depends on.

By what the installed release has where that shows, else by its number. The blob's layout is
``blob.layout``'s matter, and engine objects are ``engines.objects``'.
"""

from __future__ import annotations

from inspect import signature
from typing import Any, Mapping

from packaging.version import Version
from torch.fx import GraphModule
from torch_tensorrt import __version__
from torch_tensorrt.dynamo import _exporter, _tracer

RELEASE: str = __version__

WEIGHT_STREAMING_SINCE = "2.14"
"""The first release whose runtime reads a budget."""

STREAMS_WEIGHTS = Version(RELEASE).release >= Version(WEIGHT_STREAMING_SINCE).release

# Caches that an engine of 2.14's writes to would become outputs; ``state.mutations`` sees to them, once
# there is a program.
_INLINING = {
    name: value
    for name, value in {"expose_aliased_mutations": False}.items()
    if name in signature(_exporter.transform).parameters
}

_build_dim_registry = getattr(_tracer, "build_dim_registry", None)


def with_parts_inlined(module: GraphModule) -> GraphModule:
    """Return a copy of a compiled module with its engines and its PyTorch parts in one graph."""
    inlined: GraphModule = _exporter.transform(module, **_INLINING)
    return inlined


def named_dims(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the further arguments of ``get_dynamic_shapes``: dims that inputs share by name.

    ``torch_tensorrt.Input`` has names for them from 2.14 on.
    """
    return () if _build_dim_registry is None else (_build_dim_registry(args, kwargs),)
