"""Inputs of a method: flatten, validate and bind what the caller passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Sequence

import torch
from torch.utils._pytree import tree_leaves

from torchtrt_executorch.runtime.errors import InputError, shortened
from torchtrt_executorch.runtime.nesting import Tree, arguments
from torchtrt_executorch.runtime.plans.analysis import Uses
from torchtrt_executorch.runtime.plans.plan import Plan
from torchtrt_executorch.runtime.profile.stats import Recorder
from torchtrt_executorch.runtime.tensors.devices import Placement
from torchtrt_executorch.runtime.tensors.layout import CPU
from torchtrt_executorch.runtime.tensors.memory import Values
from torchtrt_executorch.runtime.tensors.values import Value


@dataclass(frozen=True)
class OnDevice:
    """A host tensor that an input is to take for one on ``device``: see :func:`on_device`."""

    tensor: torch.Tensor
    device: torch.device


def on_device(tensor: torch.Tensor, device: str | torch.device) -> OnDevice:
    """Return an input that lives on ``device`` in a simulation, wherever the program declares it.

    Without this, an input in host memory stands in for one on the device that the program says.

    Args:
        tensor: The input, in host memory.
        device: The device that it is to be on: ``"cuda:1"``.
    """
    device = torch.device(device)
    if device.type != "cpu":
        device = torch.device(device.type, device.index or 0)
    return OnDevice(tensor, device)


class _Input:
    """One input, and the properties of its last tensor: another one like it isn't checked again."""

    def __init__(self, value: Value, own: bool, written: bool, where: str) -> None:
        self._value = value
        #: Whether an instruction may change the tensor's shape, which isn't to be seen outside: it is
        #: given a tensor of its own, on the caller's memory.
        self._own = own
        #: Whether one may write to it, which must not reach what else of the caller's is in that memory.
        self._written = written
        self._where = where
        self._home = value.device
        self._dtype: torch.dtype | None = None
        self._shape = torch.Size()
        self._strides: tuple[int, ...] = ()
        self._device = value.device

    def again(self, tensor: Any) -> bool:
        """Set the value to ``tensor``, and return true; return false, with nothing done, if it isn't like the last one."""
        if (
            type(tensor) is not torch.Tensor
            or tensor.dtype is not self._dtype
            or tensor.is_nested
            or tensor.shape != self._shape
            or tensor.layout is not torch.strided
            or tensor.stride() != self._strides
            or tensor.device != self._device
        ):
            return False
        try:
            if not tensor.data_ptr():  # nothing, or zeros that aren't in memory
                return False
        except RuntimeError:  # what a transform has wrapped
            return False
        value = self._value
        if not value.planned:
            if tensor.is_neg() or tensor.is_conj():
                return False
            # An autograd graph isn't to be kept alive either.
            as_it_is = not (self._own or tensor.requires_grad)
            value.data = tensor if as_it_is else tensor.detach()
            if self._written:
                value.data = _alone(value.data)
            value.device = value.label = self._home
        elif value.data.shape == self._shape:
            value.data.copy_(tensor)
        else:
            return False
        return True

    def set(self, argument: Any, placement: Placement, recorder: Recorder) -> None:
        """Set the value to ``argument``. Raises ``InputError`` for an invalid one."""
        value, where, layout = self._value, self._where, self._value.layout
        if layout is None:
            if type(argument) is not type(value.data) or argument != value.data:
                raise InputError(
                    f"{where} is {argument!r}; the model was exported for {value.data!r}"
                )
            return
        explicit = argument.device if isinstance(argument, OnDevice) else None
        tensor = argument.tensor if isinstance(argument, OnDevice) else argument
        if not isinstance(tensor, torch.Tensor):
            raise InputError(f"{where} is a {type(argument).__name__}, not a tensor")
        if tensor.layout is not torch.strided:
            raise InputError(f"{where} is {tensor.layout}; it has to be dense")
        if kind := _more_than_memory(tensor):
            raise InputError(f"{where} is {kind}, and not a tensor in plain memory")
        if tensor.dtype != layout.dtype:
            raise InputError(f"{where} is {tensor.dtype}; it has to be {layout.dtype}")
        shape = tuple(tensor.shape)
        if not layout.allows(shape):
            raise InputError(f"{where} {layout.too_large(shape)}")
        device = explicit or placement.device_of(tensor, layout.device)
        if value.planned:
            value.write(tensor)
            recorder.copied(device, value.device, tensor.nbytes)
            # One that crosses to a device is counted each time.
            as_it_is = tensor.is_cpu and value.data.is_cpu and value.device == CPU
        else:
            value.data = tensor.detach().as_subclass(torch.Tensor)
            if placement.simulate:
                value.data = value.data.cpu()
            strides = layout.strides(shape)
            if value.data.stride() != strides or _is_lazy(value.data):
                laid_out = torch.empty_strided(
                    shape, strides, dtype=layout.dtype, device=value.data.device
                )
                value.data = laid_out.copy_(value.data)
            elif self._written:
                value.data = _alone(value.data)
            value.device = value.label = device
            as_it_is = value.data.data_ptr() == tensor.data_ptr()
            as_it_is &= value.data.stride() == tensor.stride()
        # Inputs that were converted, or counted, are checked each time.
        plain = as_it_is and type(argument) is torch.Tensor
        self._dtype = tensor.dtype if plain else None
        self._shape, self._strides = tensor.shape, tensor.stride()
        self._device, self._home = tensor.device, value.device


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether a tensor's values differ from its memory: a lazy conjugate, negative or zero tensor."""
    return tensor.is_neg() or tensor.is_conj() or tensor._is_zerotensor()


def _alone(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor on memory that ends where it does, so that to make it larger is an error."""
    start = tensor.storage_offset() * tensor.itemsize
    own = tensor.untyped_storage()[start : start + tensor.nbytes]
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(own, 0, tensor.shape, tensor.stride())  # type: ignore[call-overload, no-any-return]


_keys: Any = torch._C._dispatch_keys
_LAZY: int = sum(
    torch._C.DispatchKeySet(key).raw_repr()
    for key in (
        torch._C.DispatchKey.Conjugate,
        torch._C.DispatchKey.Negative,
        torch._C.DispatchKey.ZeroTensor,
    )
)


def _more_than_memory(tensor: torch.Tensor) -> str:
    """Describe a tensor whose operators aren't plain memory accesses; empty for others.

    Subclasses whose operators are Python's, as fake tensors and wrappers, what a transform has wrapped,
    nested and quantized tensors, those without values: PyTorch dispatches on something else for them.
    """
    if tensor.is_meta:
        return "on the device meta"
    plain = _keys(torch.empty(0, device=tensor.device)).raw_repr() | _LAZY
    keys = _keys(tensor)
    if not keys.raw_repr() & ~plain:
        return ""
    if type(tensor) is not torch.Tensor:
        return f"a {type(tensor).__name__}"
    return f"one that PyTorch dispatches by {keys}"


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
        self._inputs = [
            _Input(
                values[value_index],
                value_index in uses.used_by_host,
                value_index in uses.written,
                f"input {i} of {shortened(plan.name)}",
            )
            for i, value_index in enumerate(plan.inputs)
        ]
        self._tree = read_tree(plan.input_tree)
        self._keywords = keywords(plan.input_tree)
        self._placement = placement
        self._recorder = recorder

    def with_keywords(
        self, positional: tuple[Any, ...], named: dict[str, Any]
    ) -> tuple[Any, ...]:
        """Return ``positional`` and the inputs that are ``named``, in the method's order.

        Raises ``InputError`` for names that the model wasn't exported with, and inputs without a value.
        """
        names = self._keywords
        due = ", ".join(map(repr, names)) or "none"
        if unknown := [name for name in named if name not in names]:
            raise InputError(
                f"{self._method} takes no keyword {unknown[0]!r}; the model was exported with the "
                f"keywords {due}"
            )
        first = len(self._tree.children) - len(names) if self._tree else 0
        by_place = names[: max(len(positional) - first, 0)]
        if len(positional) < first or len(positional) > first + len(names):
            raise InputError(
                f"{self._method} takes {_inputs(first)} by position and the keywords {due}, and is given "
                f"{len(positional)} by position"
            )
        if twice := [name for name in by_place if name in named]:
            raise InputError(
                f"{self._method} is given {twice[0]!r} by position and by keyword"
            )
        rest = names[len(by_place) :]
        if missing := [name for name in rest if name not in named]:
            raise InputError(f"{self._method} is not given the keyword {missing[0]!r}")
        return (*positional, *(named[name] for name in rest))

    def set(self, arguments: tuple[Any, ...]) -> None:
        """Check ``arguments``, flattened as it was for the export, and hand it to the values.

        Raises ``InputError`` for what the method doesn't take.
        """
        inputs = self._inputs
        # Where not all of them are like the last, those that were taken are set once more.
        if len(arguments) == len(inputs) and all(map(_Input.again, inputs, arguments)):
            return
        leaves = flatten(arguments, self._tree, self._method)
        if len(leaves) != len(inputs):
            named = ", ".join(map(repr, self._keywords))
            raise InputError(
                f"{self._method} takes {_inputs(len(inputs))}"
                f"{named and f' (keywords: {named})'} and is given {len(leaves)}"
            )
        for one_input, leaf in zip(inputs, leaves, strict=True):
            if not one_input.again(leaf):
                one_input.set(leaf, self._placement, self._recorder)


def _inputs(count: int) -> str:
    return f"{count} input{'' if count == 1 else 's'}"


def read_tree(text: str) -> Tree | None:
    """Return the tree of arguments and keyword arguments; None for other descriptions."""
    trees = arguments(text)
    return trees and Tree(children=[*trees[0].children, *trees[1].children])


def keywords(text: str) -> tuple[str, ...]:
    """Return the names of the keyword arguments, in the order of their inputs."""
    trees = arguments(text)
    return tuple(map(str, trees[1].keys or ())) if trees else ()


def flatten(values: Sequence[Any], tree: Tree | None, method: str) -> list[Any]:
    """Flatten the caller's inputs, in the order of the method's.

    Inputs that are flat already, or nested in another way, are flattened as PyTorch does.

    Raises ``InputError`` for a dictionary with other keys than the model was exported with.
    """
    if tree is None or len(values) != len(tree.children):
        return list(tree_leaves(tuple(values)))
    leaves: list[Any] = []
    for index, (value, below) in enumerate(zip(values, tree.children, strict=True)):
        _add(leaves, value, below, f"input {index} of {method}")
    return leaves


def _add(leaves: list[Any], value: Any, tree: Tree, where: str) -> None:
    keys: Sequence[Any] = range(len(tree.children))
    if isinstance(value, dict) and tree.keys is not None:
        keys = tree.keys
        if value.keys() != {*keys}:
            there, due = (
                ", ".join(sorted(map(repr, names))) for names in (value, keys)
            )
            raise InputError(
                f"{where} has the keys {there or 'none'}; the model was exported with "
                f"{due or 'none'}"
            )
    elif type(value) not in (list, tuple) or len(value) != len(keys):
        leaves += tree_leaves(value)
        return
    for key, below in zip(keys, tree.children, strict=True):
        _add(leaves, value[key], below, f"{where}[{key!r}]")
