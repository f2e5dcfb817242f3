"""Describe nested inputs and outputs by containers that PyTorch serializes, where they are of types that it can't.

A ``.pte`` holds how a method's inputs and outputs are nested, for callers in Python. PyTorch describes no type that is registered without a
name: what ``topk``, ``max`` and ``sort`` return, a named tuple, a dataclass.
"""

from __future__ import annotations

import dataclasses
from collections import OrderedDict, defaultdict, deque
from typing import Any

from torch.utils import _pytree as pytree

_CONTAINERS = (list, dict, OrderedDict, defaultdict, deque)


def with_named_types(spec: pytree.TreeSpec | None) -> pytree.TreeSpec | None:
    """Return ``spec``; if PyTorch can't serialize it, with dictionaries in the place of dataclasses, and tuples of other types.

    Args:
        spec: Of a method's inputs or outputs, None if it isn't known.
    """
    if spec is None:
        return None
    try:
        pytree.treespec_dumps(spec)
    except NotImplementedError:
        return pytree.tree_structure(_plain(spec))
    return spec


def _plain(spec: Any) -> Any:
    """Return zeros that are nested alike."""
    if spec.is_leaf():
        return 0
    children = [_plain(child) for child in spec.children()]
    if spec.type in _CONTAINERS:
        return pytree.SUPPORTED_NODES[spec.type].unflatten_fn(children, spec.context)
    if dataclasses.is_dataclass(spec.type):
        names, _ = spec.context  # the other fields are None
        return dict(zip(names, children, strict=True))
    return tuple(children)
