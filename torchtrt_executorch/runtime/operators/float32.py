"""Compute in float32 what PyTorch computes in its default dtype, for the calling thread.

The default dtype is the whole process's: a call that changed it would have other threads make tensors of
float32 meanwhile, and two that overlap would leave it changed for good.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only


class DefaultFloat32(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Within it, operators make and promote to float32 where they would to another default dtype.

    That is, factories that aren't told a dtype, and operators only on integers and booleans whose result is
    in floating point, as a division. All others don't depend on it.
    """

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        functional, outs = _functional(func)
        inputs_by_name = {
            name: value for name, value in kwargs.items() if name not in outs
        }
        inputs = [
            leaf for leaf in tree_leaves((args, inputs_by_name)) if _is_tensor(leaf)
        ]
        if (
            functional is None
            or any(map(_is_float, inputs))
            or inputs_by_name.get("dtype")
        ):
            return func(*args, **kwargs)
        makes = "dtype" in {argument.name for argument in func._schema.arguments}
        if (inputs or (makes and not outs)) and _is_default(
            functional, args, inputs_by_name
        ):
            if not inputs:
                return func(*args, **{**kwargs, "dtype": torch.float32})
            args, inputs_by_name = tree_map_only(
                torch.Tensor, torch.Tensor.float, (args, inputs_by_name)
            )
            kwargs = {**kwargs, **inputs_by_name}
        return func(*args, **kwargs)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _is_default(functional: Any, args: Any, kwargs: Any) -> bool:
    """Whether an operator's result has the default dtype; tried on tensors without values."""
    default = torch.get_default_dtype()
    if not any(map(_is_tensor, tree_leaves((args, kwargs)))):
        kwargs = {**kwargs, "device": "meta"}
    args, kwargs = tree_map_only(
        torch.Tensor,
        lambda tensor: torch.empty_like(tensor, device="meta"),
        (args, kwargs),
    )
    try:
        results = tree_leaves(functional(*args, **kwargs))
    except (RuntimeError, NotImplementedError, TypeError):
        return False  # what depends on values promotes nothing
    return any(_is_tensor(result) and result.dtype is default for result in results)


@functools.cache
def _functional(func: Any) -> tuple[Any, frozenset[str]]:
    """Return the overload of ``func`` that writes nothing, if there is one, and what ``func`` writes."""
    if not isinstance(func, torch._ops.OpOverload):
        return None, frozenset()
    outs = frozenset(
        argument.name
        for argument in func._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    if not outs:
        return func, outs
    rest = _signature(func, outs)
    packet: Any = func._overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        if _signature(overload, frozenset()) == rest:
            return overload, outs
    return None, outs


def _signature(func: Any, without: frozenset[str]) -> list[tuple[str, str]]:
    ignored = without | {"dtype", "layout", "device", "pin_memory", "memory_format"}
    arguments = func._schema.arguments
    return [
        (argument.name, str(argument.type))
        for argument in arguments
        if argument.name not in ignored
    ]
