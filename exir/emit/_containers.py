"""Replace types in a method's TreeSpecs that PyTorch can't serialize by dict and tuple.

A ``.pte`` stores the TreeSpecs of a method's inputs and outputs for callers in Python. PyTorch can't serialize types that are registered
without a name: what ``topk``, ``max`` and ``sort`` return, named tuples, dataclasses.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from typing import Any

from torch.utils import _pytree as pytree

_CONTAINERS = (list, dict, OrderedDict, defaultdict, deque)


def with_serializable_types(spec: pytree.TreeSpec | None) -> pytree.TreeSpec | None:
    """Return ``spec`` with dataclasses as dicts and other unnamed types as tuples.

    Args:
        spec: Of a method's inputs or outputs; None if unknown. Unchanged if PyTorch can serialize it.
    """
    if spec is None:
        return None
    try:
        pytree.treespec_dumps(spec)
    except NotImplementedError:
        return pytree.tree_structure(_plain(spec))
    return spec


def _plain(spec: Any) -> Any:
    """Return the nested structure with a 0 at each leaf."""
    if spec.is_leaf():
        return 0
    children = [_plain(child) for child in spec.children()]
    if spec.type in _CONTAINERS:
        return pytree.SUPPORTED_NODES[spec.type].unflatten_fn(children, spec.context)
    if dataclasses.is_dataclass(spec.type):
        names, _ = spec.context  # the other fields are None
        return dict(zip(names, children, strict=True))
    return tuple(children)
