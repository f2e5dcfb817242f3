"""A method's inputs: from what the caller gives, nested as for the export, to the values to be read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Sequence

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from torchtrt_executorch.runtime.analysis import Uses
from torchtrt_executorch.runtime.devices import Placement
from torchtrt_executorch.runtime.errors import InputError, ProgramError
from torchtrt_executorch.runtime.memory import Values
from torchtrt_executorch.runtime.plan import Plan
from torchtrt_executorch.runtime.stats import Recorder
from torchtrt_executorch.runtime.values import Value


@dataclass(frozen=True)
class OnDevice:
    """A host tensor that an input is to take for one on ``device``: see :func:`on_device`."""

    tensor: torch.Tensor
    device: torch.device


def on_device(tensor: torch.Tensor, device: str | torch.device) -> OnDevice:
    """An input that lives on ``device`` in a simulation, wherever the program declares it.

    Without this, an input in host memory stands in for one on the device that the program says.
    """
    device = torch.device(device)
    if device.type != "cpu":
        device = torch.device(device.type, device.index or 0)
    return OnDevice(tensor, device)


class _Again:
    """What an input was given last: another tensor like it needs no looking at."""

    def __init__(self, value: Value, given: torch.Tensor, own: bool) -> None:
        self._value = value
        self._own = own
        self._home = value.device
        self._dtype = given.dtype
        self._shape = given.shape
        self._strides = given.stride()
        self._device = given.device

    @classmethod
    def of(cls, value: Value, given: Any, own: bool) -> _Again | None:
        """None for what is looked at each time: ``given`` was converted, or counted."""
        if type(given) is not torch.Tensor or given.layout is not torch.strided:
            return None
        held = value.data
        if value.planned:
            plain = given.is_cpu and held.is_cpu and value.device.type == "cpu"
        else:
            plain = (
                held.data_ptr() == given.data_ptr() and held.stride() == given.stride()
            )
        return cls(value, given, own) if plain else None

    def take(self, given: Any) -> bool:
        """Give the value ``given``, and return true; or false, with nothing done."""
        if (
            type(given) is not torch.Tensor
            or given.dtype is not self._dtype
            or given.shape != self._shape
            or given.layout is not torch.strided
            or given.stride() != self._strides
            or given.device != self._device
        ):
            return False
        value = self._value
        if not value.planned:
            # An autograd graph isn't to be kept alive either.
            as_it_is = not (self._own or given.requires_grad)
            value.data = given if as_it_is else given.detach()
            value.device = value.label = self._home
        elif value.data.shape == self._shape:
            value.data.copy_(given)
        else:
            return False
        return True


class Inputs:
    """The inputs of one method, set before each call."""

    def __init__(
        self,
        plan: Plan,
        values: Values,
        uses: Uses,
        placement: Placement,
        recorder: Recorder,
    ) -> None:
        self._method = plan.name
        self._values = values.at(plan.inputs)
        #: Where an instruction may change the tensor's shape, which isn't to be seen outside: these are
        #: given a tensor of their own, on the caller's memory.
        self._own = [index in uses.looked_at for index in plan.inputs]
        self._tree = read_tree(plan.input_tree)
        self._placement = placement
        self._recorder = recorder
        #: what inputs were given last, where others like it needn't be looked at
        self._last: list[_Again | None] = [None] * len(plan.inputs)
        self._known: list[_Again] | None = None  #: the same, if that is so for all

    def set(self, given: tuple[Any, ...]) -> None:
        """Check ``given``, flattened as it was for the export, and hand it to the values.

        Raises ``InputError`` for what the method doesn't take.
        """
        known = self._known
        # Where not all of them are, those that were taken are set once more.
        if known and len(given) == len(known) and all(map(_Again.take, known, given)):
            return
        leaves = flatten(given, self._tree, self._method)
        if len(leaves) != len(self._values):
            raise InputError(
                f"{self._method} takes {len(self._values)} inputs and is given {len(leaves)}"
            )
        for index, (value, leaf) in enumerate(zip(self._values, leaves, strict=True)):
            last = self._last[index]
            if last is None or not last.take(leaf):
                self._set(value, leaf, f"input {index} of {self._method}")
                self._last[index] = _Again.of(value, leaf, self._own[index])
        found = [last for last in self._last if last is not None]
        self._known = found if len(found) == len(leaves) else None

    def _set(self, value: Value, given: Any, where: str) -> None:
        if value.layout is None:
            if type(given) is not type(value.data) or given != value.data:
                raise InputError(
                    f"{where} is {given!r}; the model was exported for {value.data!r}"
                )
            return
        explicit = given.device if isinstance(given, OnDevice) else None
        tensor = given.tensor if isinstance(given, OnDevice) else given
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{where} is a {type(given).__name__}, not a tensor")
        layout = value.layout
        if is_traceable_wrapper_subclass(tensor):
            kind = type(tensor).__name__
            raise InputError(f"{where} is a {kind}, which has no memory of its own")
        if tensor.layout is not torch.strided:
            raise InputError(f"{where} is {tensor.layout}; it has to be dense")
        if tensor.dtype != layout.dtype:
            raise InputError(f"{where} is {tensor.dtype}; it has to be {layout.dtype}")
        shape = tuple(tensor.shape)
        try:
            layout.check_shape(shape)
        except ProgramError as error:
            raise InputError(f"{where}: {error}") from None
        home = explicit or self._placement.home(tensor, layout.device)
        if value.planned:
            value.write(tensor)
            self._recorder.copied(home, value.device, tensor.nbytes)
            return
        tensor = tensor.detach().as_subclass(torch.Tensor)
        if self._placement.simulate:
            tensor = tensor.cpu()
        strides = layout.strides(shape)
        if tensor.stride() != strides:
            laid_out = torch.empty_strided(
                shape, strides, dtype=tensor.dtype, device=tensor.device
            )
            value.data = laid_out.copy_(tensor)
        else:
            value.data = tensor
        value.device = value.label = home


@dataclass(frozen=True)
class Tree:
    """One level of how inputs were nested, of which a ``.pte`` holds PyTorch's own description.

    That isn't given to PyTorch, which imports what it names. ``keys`` are a dictionary's, in the order of
    its ``children``; None for all else.
    """

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
