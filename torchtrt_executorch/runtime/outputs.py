"""Outputs of a method, nested as the exported model returned them."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

_DICTIONARIES = ("builtins.dict", "collections.OrderedDict", "collections.defaultdict")


@dataclass(frozen=True)
class _Nested:
    """One level of the outputs, as PyTorch describes it; ``names`` are of what has names."""

    kind: str | None
    children: Sequence[_Nested]
    names: Sequence[Any] | None

    def leaves(self) -> int:
        return (self.kind is None) + sum(each.leaves() for each in self.children)

    def made_of(self, values: Iterator[Any]) -> Any:
        if self.kind is None:
            return next(values)
        made = [each.made_of(values) for each in self.children]
        if self.names is not None:
            kind = OrderedDict if self.kind == "collections.OrderedDict" else dict
            return kind(zip(self.names, made, strict=True))
        return made if self.kind == "builtins.list" else tuple(made)


class Nesting:
    """How the outputs of a method are nested, of which a ``.pte`` holds PyTorch's own description.

    That isn't given to PyTorch, which imports what it names. A type of the user's is a dictionary of its
    fields where the description names them, else a tuple.

    Args:
        text: The description. What is none, or describes another number of outputs, nests nothing.
        count: How many outputs there are.
    """

    def __init__(self, text: str, count: int) -> None:
        self._nested: _Nested | None = None
        try:
            _, whole = json.loads(text)
            nested = _read(whole)
            if nested.leaves() == count and nested.kind is not None:
                self._nested = nested
        except (ValueError, TypeError, KeyError, RecursionError):
            pass

    def __call__(self, outputs: tuple[Any, ...]) -> Any:
        """Return flat ``outputs`` as the model did; one that is no container, as a tuple."""
        if self._nested is None:
            return outputs
        made = self._nested.made_of(iter(outputs))
        return tuple(made) if type(made) is list else made


def _read(node: Any) -> _Nested:
    children = [_read(each) for each in node["children_spec"]]
    kind, names = node["type"], None
    if not (kind is None or isinstance(kind, str)):
        raise ValueError(f"a container of the type {kind!r}")
    if kind in _DICTIONARIES or not (kind is None or kind.startswith("builtins.")):
        names = _names(node["context"], kind, len(children))
        if names is None and kind in _DICTIONARIES:
            raise ValueError(f"a dictionary of {len(children)} without as many keys")
    return _Nested(kind, children, names)


def _names(context: Any, kind: str, count: int) -> Sequence[Any] | None:
    """What the children are called, if the description says."""
    found = context
    if kind == "collections.defaultdict":
        found = context["dict_context"]
    elif isinstance(context, str):
        try:
            found = json.loads(context)
        except ValueError:
            return None  # a type of the user's may write what it likes
    if kind not in _DICTIONARIES and _is_of_a_dataclass(found):
        found = found[0]  # the other fields were None
    if not isinstance(found, list) or not len(found) == len({*found}) == count:
        return None
    return found


def _is_of_a_dataclass(context: Any) -> bool:
    return (
        isinstance(context, list)
        and len(context) == 2
        and all(isinstance(each, list) for each in context)
    )
