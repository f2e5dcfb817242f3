"""Run operators that need a TensorRT output allocator in PyTorch, under ``target_executorch``.

TensorRT can't tell the shape of some results before it has computed them. It then asks for
memory through an output allocator while the engine runs, which ExecuTorch's planned memory has
no room for. Such an operator's converter says ``requires_output_allocator`` in the registry.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

from torch.fx import GraphModule, Node
from torch.fx.node import Target
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_CONVERTERS,
    ConverterRegistry,
)
from torch_tensorrt.dynamo.executorch.target import check_target_executorch

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")


class NeedsOutputAllocatorError(RuntimeError):
    """An engine would need an output allocator in spite of the routing.

    Args:
        nodes: Nodes that need it, or, where ``exact`` is False, that may.
        exact: Whether the nodes are known.

    Attributes:
        nodes: See the arguments.
        exact: See the arguments.
    """

    def __init__(self, nodes: Iterable[Node], *, exact: bool = True) -> None:
        self.nodes = [node for node in nodes if node.op.startswith("call_")]
        self.exact = exact
        names = _described(self.nodes)
        operators = ", ".join(sorted({repr(_name(node.target)) for node in self.nodes}))
        super().__init__(
            f"target_executorch=True refuses {names if exact else f'one of {names}'}: ExecuTorch "
            "gives no output allocator. Leave it to PyTorch, with torch_executed_ops"
            + (f"={{{operators}}}" if exact else "")
        )


def _output_allocator_ops() -> set[Target]:
    """Return the targets with a converter that needs an output allocator, in any registry.

    One is enough, whatever nodes it would be selected for. No GPU is needed.
    """
    return {
        target
        for registry in DYNAMO_CONVERTERS.registries
        for target, entry in registry.items()
        if any(
            getattr(converter, "requires_output_allocator", False)
            for converter in _converters(entry)
        )
    }


def _converters(entry: Any) -> Iterator[Any]:
    """Yield the converters of one registry entry: one, several, or several by priority."""
    if isinstance(entry, Mapping):
        entry = tuple(entry.values())
    if not isinstance(entry, (list, tuple)):
        yield entry
        return
    for part in entry:
        yield from _converters(part)


def _route_output_allocator_ops(settings: CompilationSettings) -> None:
    """Add the operators of :func:`_output_allocator_ops` to ``settings.torch_executed_ops``.

    The settings get a new set, and the one they had stays as it is. Nothing happens without
    ``target_executorch``.

    Raises:
        TypeError, ValueError: A setting is not valid, or ``require_full_compilation`` is set too.
    """
    check_target_executorch(
        settings.target_executorch, settings.require_full_compilation
    )
    if not settings.target_executorch:
        return
    before = set(settings.torch_executed_ops)
    routed = {
        target
        for target in _output_allocator_ops()
        if before.isdisjoint((target, _name(target)))
    }
    settings.torch_executed_ops = before | routed
    logger.info(
        "target_executorch: operators that run in PyTorch because a converter of theirs needs "
        "an output allocator: %s",
        _listed(map(_name, routed)),
    )


def routed_settings(settings: CompilationSettings) -> CompilationSettings:
    """Return a copy of the settings that is routed, for partitioners, engines and a refit."""
    if settings.target_executorch is False:
        return settings
    settings = replace(settings)
    _route_output_allocator_ops(settings)
    return settings


def output_allocator_nodes(module: GraphModule) -> list[Node]:
    """Return the nodes of ``module`` whose selected converter needs an output allocator.

    The selection is the registry's own: capabilities, dynamic shapes, and the settings that it was
    last given.
    """
    return [
        node
        for node in module.graph.nodes
        if node.op.startswith("call_") and _needs_output_allocator(node)
    ]


def _needs_output_allocator(node: Node) -> bool:
    properties: Mapping[str, bool] = {}
    with suppress(KeyError):
        _, _, properties = DYNAMO_CONVERTERS[node]
    return properties.get("requires_output_allocator", False)


def check_engine(
    module: GraphModule, settings: CompilationSettings, asked: bool = False
) -> None:
    """Check that an engine needs no output allocator.

    The converter of a node is selected anew in its partition, and may differ from the one that it
    had in the whole graph; a converter may also ask for an allocator without having said so in the
    registry.

    Args:
        module: The partition.
        settings: Settings of its conversion.
        asked: Whether a converter has asked for one.

    Raises:
        NeedsOutputAllocatorError: It does, under ``target_executorch``.
    """
    if settings.target_executorch:
        if nodes := output_allocator_nodes(module):
            raise NeedsOutputAllocatorError(nodes)
        if asked:
            raise NeedsOutputAllocatorError(module.graph.nodes, exact=False)


def _name(target: Target) -> str:
    name: str = ConverterRegistry.qualified_name_or_str(target)
    return name


def _described(nodes: Iterable[Node]) -> str:
    return _listed(f"{node.name} ({_name(node.target)})" for node in nodes)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
