"""Keeps what needs a TensorRT output allocator in PyTorch.

TensorRT can't tell the shape of some results before it has computed them. It then asks for
memory through an output allocator while the engine runs, which ExecuTorch's planned memory has
no room for. Such an operator's converter says ``requires_output_allocator`` in the registry, and
under ``target_executorch`` none of them becomes part of an engine (pytorch/TensorRT#4355).
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, Callable

from torch.fx import GraphModule, Node
from torch.fx.node import Target
from torch_tensorrt.dynamo._executorch_target import check
from torch_tensorrt.dynamo._fallback import RefusedError, compile_graph
from torch_tensorrt.dynamo._settings import CompilationSettings
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_CONVERTERS,
    ConverterRegistry,
)
from torch_tensorrt.dynamo.conversion._selection import selected as selected_by

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")


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
    ``target_executorch``. With ``executorch_allocator_routing="node"`` no operator is added: the
    converter registry decides for each node.

    Raises:
        TypeError, ValueError: A setting is not valid, or ``require_full_compilation`` is set too.
    """
    check(
        settings.target_executorch,
        settings.executorch_allocator_routing,
        require_full_compilation=settings.require_full_compilation,
    )
    if (
        not settings.target_executorch
        or settings.executorch_allocator_routing != "target"
    ):
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


def output_allocator_nodes(module: GraphModule) -> list[Node]:
    """Return the nodes of ``module`` whose selected converter needs an output allocator.

    The selection is upstream's own: capabilities, dynamic shapes, and the settings that the
    registry was last given.
    """
    select = inspect.unwrap(ConverterRegistry.__getitem__)

    def selected(node: Node) -> Mapping[str, bool]:
        try:
            _, _, properties = selected_by(select, DYNAMO_CONVERTERS, node)
        except KeyError:
            return {}
        return properties

    return [
        node
        for node in module.graph.nodes
        if node.op.startswith("call_")
        and selected(node).get("requires_output_allocator", False)
    ]


def compile_routed(
    compile_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Route a copy of the settings, which the partitioners, the engines and a refit then see.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``compile_module``.
    """
    call = inspect.signature(compile_module).bind(*args, **kwargs)
    settings = call.arguments.get("settings")
    if settings is None or settings.target_executorch is False:
        return compile_module(*args, **kwargs)
    routed = call.arguments["settings"] = replace(settings)
    _route_output_allocator_ops(routed)
    if routed.executorch_build_fallback and not routed.dryrun:
        return compile_graph(compile_module, call)
    return compile_module(*call.args, **call.kwargs)


def say_nodes(module: GraphModule, settings: CompilationSettings) -> None:
    """Log which nodes of ``module`` routing by node leaves to PyTorch."""
    DYNAMO_CONVERTERS.set_compilation_settings(settings)
    logger.info(
        "target_executorch: nodes that run in PyTorch because the converter selected for "
        "them needs an output allocator: %s",
        _described(output_allocator_nodes(module)),
    )


def convert_guarded(
    convert_module: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Refuse an engine that needs an output allocator in spite of the routing.

    The converter of a node is selected anew in the partition that the node has got into, and may
    differ from the one that it had in the whole graph; a converter may also ask for an allocator
    without having said so in the registry.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``convert_module``.

    Raises:
        RefusedError: The engine would need an output allocator.
    """
    call = inspect.signature(convert_module).bind(*args, **kwargs)
    call.apply_defaults()
    module, settings = call.arguments["module"], call.arguments["settings"]
    if not settings.target_executorch:
        return convert_module(*args, **kwargs)
    by, reason = "target_executorch=True", "ExecuTorch gives no output allocator"
    if nodes := output_allocator_nodes(module):
        raise RefusedError(by, reason, nodes)
    engine = convert_module(*args, **kwargs)
    if engine.requires_output_allocator:
        raise RefusedError(by, reason, module.graph.nodes, exact=False)
    return engine


def _name(target: Target) -> str:
    name: str = ConverterRegistry.qualified_name_or_str(target)
    return name


def _described(nodes: Iterable[Node]) -> str:
    return _listed(f"{node.name} ({_name(node.target)})" for node in nodes)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
