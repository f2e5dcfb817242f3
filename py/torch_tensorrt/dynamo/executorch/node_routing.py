"""Route nodes, rather than operators, out of TensorRT: ``executorch_allocator_routing="node"``.

The partitioners, the count of supported operators, the interpreter and a refit all ask the
registry for a node's converter, so its answer decides for all of them.
"""

from __future__ import annotations

from typing import Any

from torch.fx import GraphModule, Node

ROUTINGS = ("target", "node")


class RoutedError(KeyError):
    """No converter is used for the node: the selected one needs an output allocator."""


def check_allocator_routing(
    executorch_allocator_routing: object = "target", **others: Any
) -> None:
    """Check the setting.

    Args:
        executorch_allocator_routing: One of :data:`ROUTINGS`.
        others: Settings that don't concern it.

    Raises:
        ValueError: It isn't.
    """
    if executorch_allocator_routing not in ROUTINGS:
        raise ValueError(
            f"executorch_allocator_routing={executorch_allocator_routing!r} is not a routing; "
            f"it takes {' or '.join(map(repr, ROUTINGS))}"
        )


def unless_routed(selected: Any, node: Node, settings: Any) -> Any:
    """Return what the registry has selected for a node: converter, convention and properties.

    Raises:
        RoutedError: The converter needs an output allocator, and nodes are routed.
    """
    routes = (
        settings is not None
        and settings.target_executorch
        and settings.executorch_allocator_routing == "node"
    )
    if routes and selected[2]["requires_output_allocator"]:
        raise RoutedError(
            f"target_executorch=True, and the converter selected for {node} needs an output "
            "allocator"
        )
    return selected


def is_routed(registry: Any, node: Node) -> bool:
    """Whether the converter that the registry would select is routed around."""
    try:
        registry[node]
    except KeyError as error:
        return isinstance(error, RoutedError)
    return False


def log_routed_nodes(module: GraphModule, settings: Any) -> None:
    """Log which nodes of ``module`` are left to PyTorch."""
    from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS
    from torch_tensorrt.dynamo.executorch import allocator_routing

    if settings.target_executorch and settings.executorch_allocator_routing == "node":
        DYNAMO_CONVERTERS.set_compilation_settings(settings)
        allocator_routing.logger.info(
            "target_executorch: nodes that run in PyTorch because the converter selected for "
            "them needs an output allocator: %s",
            allocator_routing._described(
                allocator_routing.output_allocator_nodes(module)
            ),
        )
