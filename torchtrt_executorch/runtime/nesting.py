"""How a method's inputs were nested when it was exported, and those of a caller taken apart likewise.

A ``.pte`` holds PyTorch's own description. It isn't given to PyTorch, which imports what it names.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Sequence

from torch.utils._pytree import tree_leaves

from torchtrt_executorch.runtime.errors import InputError


@dataclass(frozen=True)
class Tree:
    """One level. ``keys`` are a dictionary's, in the order of its ``children``; None for all else."""

    children: Sequence[Tree] = ()
    keys: Sequence[Any] | None = None


def read_tree(text: str) -> Tree | None:
    """The arguments, then the keyword arguments; None for what isn't such a description."""
    try:
        _, whole = json.loads(text)
        args, keywords = _tree(whole).children
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return Tree([*args.children, *keywords.children])


def _tree(node: Any) -> Tree:
    context, keys = node["context"], None
    if node["type"] in ("builtins.dict", "collections.OrderedDict"):
        keys = json.loads(context)
    elif node["type"] == "collections.defaultdict":
        keys = context["dict_context"]
    children = [_tree(each) for each in node["children_spec"]]
    if keys is not None and len({*keys}) != len(children):
        raise ValueError
    return Tree(children, keys)


def flatten(given: Sequence[Any], tree: Tree | None, method: str) -> list[Any]:
    """Return what is in the caller's inputs, in the order of the method's.

    Inputs that are flat already, or nested in another way, are flattened as PyTorch does.

    Raises ``InputError`` for a dictionary with other keys than the model was exported with.
    """
    if tree is None or len(given) != len(tree.children):
        return list(tree_leaves(tuple(given)))
    found: list[Any] = []
    for index, (each, below) in enumerate(zip(given, tree.children, strict=True)):
        _add(found, each, below, f"input {index} of {method}")
    return found


def _add(found: list[Any], given: Any, tree: Tree, where: str) -> None:
    if isinstance(given, dict) and tree.keys is not None:
        if given.keys() != {*tree.keys}:
            raise InputError(
                f"{where} has the keys {_words(given)}; the model was exported with "
                f"{_words(tree.keys)}"
            )
        for key, below in zip(tree.keys, tree.children, strict=True):
            _add(found, given[key], below, f"{where}[{key!r}]")
    elif type(given) in (list, tuple) and len(given) == len(tree.children):
        for index, (each, below) in enumerate(zip(given, tree.children, strict=True)):
            _add(found, each, below, f"{where}[{index}]")
    else:
        found += tree_leaves(given)


def _words(keys: Any) -> str:
    return ", ".join(sorted(map(repr, keys))) or "none"
