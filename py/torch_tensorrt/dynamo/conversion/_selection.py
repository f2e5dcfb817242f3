"""Reject a node whose converter's validator raises.

``sort_validator`` reads ``node.args[1]``, which ``torch.sort(x)`` doesn't have, and its IndexError
ended the compilation of mixtures of experts with no word about the node.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Any

from torch.fx import Node

logger = logging.getLogger("torch_tensorrt.dynamo.conversion._ConverterRegistry")


def validator_errors_reject(select: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``ConverterRegistry.__getitem__`` so that it raises KeyError where a validator fails, logged once per node."""

    @functools.wraps(select)
    def select_converter(self: Any, node: Node) -> Any:
        try:
            return select(self, node)
        except KeyError:
            raise
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            _warn(self.qualified_name_or_str(node.target), node.name, reason)
            raise KeyError(
                f"The converters of {node} can't be validated: {reason}"
            ) from error

    return select_converter


@functools.cache
def _warn(operator: str, node: str, reason: str) -> None:
    logger.warning(
        "%s (%s) runs in PyTorch: a converter of it fails to say whether it takes the node (%s)",
        node,
        operator,
        reason,
    )
