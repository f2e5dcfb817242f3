"""Amends ``arg_validator``: checks operators that return lists without fixing their sizes.

Upstream takes such a list for the operator's returns, one after the other, and asks the first
tensor for its length. A dynamic size is the size of the example from then on, in the program as
in what is lowered from it, without a word.

Upstream: ``executorch.exir.verification.arg_validator``.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

import torch

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap the check of one call."""
    validator = module.EdgeOpArgValidator
    validator.call_function = wrapped(validator.call_function, _with_list_as_one)


def _with_list_as_one(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    validator, target = args[0], args[1]
    returns = getattr(getattr(target, "_schema", None), "returns", ())
    metadata = validator.node.meta
    if [str(each.type) for each in returns] != [str(torch.ListType.ofTensors())]:
        return function(*args, **kwargs)
    value = metadata["val"]
    metadata["val"] = [value]
    try:
        return function(*args, **kwargs)
    finally:
        metadata["val"] = value
