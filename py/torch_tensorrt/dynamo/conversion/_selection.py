"""Selecting a converter where one's validator fails over the node instead of answering.

``sort_validator`` reads ``node.args[1]``, which ``torch.sort(x)`` doesn't have, and its IndexError
ended the compilation of mixtures of experts with no word about the node.
"""

from __future__ import annotations

import functools
import logging
from typing import Any, Callable

from torch.fx import Node
from torch_tensorrt.dynamo.conversion._ConverterRegistry import ConverterRegistry

logger = logging.getLogger("torch_tensorrt.dynamo.conversion._ConverterRegistry")


def selected(
    select: Callable[[Any, Node], Any], registry: ConverterRegistry, node: Node
) -> Any:
    """Return ``select(registry, node)``; a validator that fails doesn't take the node.

    Args:
        select: ``ConverterRegistry.__getitem__``, as upstream has it.

    Raises:
        KeyError: No converter takes the node. A failed validator is said once per node.
    """
    try:
        return select(registry, node)
    except KeyError:
        raise
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        _say(ConverterRegistry.qualified_name_or_str(node.target), node.name, reason)
        raise KeyError(
            f"The converters of {node} can't be validated: {reason}"
        ) from error


@functools.cache
def _say(operator: str, node: str, reason: str) -> None:
    logger.warning(
        "%s (%s) runs in PyTorch: a converter of it fails to say whether it takes the node (%s)",
        node,
        operator,
        reason,
    )
