"""Read the TreeSpecs of a method's inputs and outputs from a ``.pte``.

PyTorch's own parser isn't used: it imports the types that a file names.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_DICTIONARIES = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")


@dataclass(frozen=True)
class Tree:
    """One level.

    Attributes:
        kind: The type, by its qualified name; None of a leaf.
        names: Names of the children, of a dictionary or of another type that has them.
        leaves: Number of leaves.
    """

    kind: str | None = "builtins.tuple"
    children: Sequence[Tree] = ()
    names: Sequence[Any] | None = None
    leaves: int = 0

    @property
    def keys(self) -> Sequence[Any] | None:
        """A dictionary's, in the order of its children; None for all else."""
        return self.names if self.kind in _DICTIONARIES else None


def read(text: str) -> Tree | None:
    """Return the tree of a description; None if it is invalid."""
    try:
        _, whole = json.loads(text)
        return _tree(whole)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def arguments(text: str) -> tuple[Tree, Tree] | None:
    """Return the positional and the keyword arguments of a description; None if it is invalid."""
    nesting = read(text)
    if nesting is None or len(nesting.children) != 2:
        return None
    args, keywords = nesting.children
    return args, keywords


class Nesting:
    """Nests the outputs of a method as the exported model returned them.

    A type of the user's is a dictionary of its fields where the description names them, else a tuple.

    Args:
        text: The description. What is none, or describes another number of outputs, nests nothing.
        count: Number of outputs.
    """

    def __init__(self, text: str, count: int) -> None:
        nesting = read(text)
        nests = (
            nesting is not None and nesting.kind is not None and nesting.leaves == count
        )
        self._tree = nesting if nests else None

    def __call__(self, outputs: tuple[Any, ...]) -> Any:
        """Return flat ``outputs`` as the model did; one that is no container, as a tuple."""
        if self._tree is None:
            return outputs
        made = _made_of(self._tree, iter(outputs))
        return tuple(made) if type(made) is list else made


def _made_of(tree: Tree, values: Iterator[Any]) -> Any:
    if tree.kind is None:
        return next(values)
    made = [_made_of(child, values) for child in tree.children]
    if tree.names is not None:
        kind = OrderedDict if tree.kind == "collections.OrderedDict" else dict
        return kind(zip(tree.names, made, strict=True))
    return made if tree.kind == "builtins.list" else tuple(made)


def _tree(node: Any) -> Tree:
    children = [_tree(child_spec) for child_spec in node["children_spec"]]
    kind, names = node["type"], None
    if not (kind is None or isinstance(kind, str)):
        raise ValueError(f"a container of the type {kind!r}")
    if kind in _DICTIONARIES or not (kind is None or kind.startswith("builtins.")):
        names = _names(node["context"], kind, len(children))
        if names is None and kind in _DICTIONARIES:
            raise ValueError(f"a dictionary of {len(children)} without as many keys")
    leaves = 1 if kind is None else sum(child.leaves for child in children)
    return Tree(kind, children, names, leaves)


def _names(context: Any, kind: str, count: int) -> Sequence[Any] | None:
    """Return the children's names, if the description has them."""
    names = context
    try:
        if kind == "collections.defaultdict":
            names = context["dict_context"]
        elif isinstance(context, str):
            names = json.loads(context)
        if kind not in _DICTIONARIES and _is_of_a_dataclass(names):
            names = names[0]  # the other fields were None
        if isinstance(names, list) and len(names) == len({*names}) == count:
            return names
    except (ValueError, TypeError, KeyError):
        pass  # a type of the user's may write what it likes
    return None


def _is_of_a_dataclass(context: Any) -> bool:
    return (
        isinstance(context, list)
        and len(context) == 2
        and all(isinstance(key, list) for key in context)
    )
