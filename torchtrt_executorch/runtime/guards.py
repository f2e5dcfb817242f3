"""Checks that some of torch's kernels leave to their callers, who trace their own models.

A damaged program gets past shape inference, which never ran on it. These kernels would then read
or write beyond a tensor's end.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Sequence

from torchtrt_executorch.runtime.errors import ProgramError

Guard = Callable[[Mapping[str, Any]], None]


def _per_channel(names: Sequence[str]) -> Guard:
    """Each of ``names``, if given, has one element for each of the input's channels."""

    def check(arguments: Mapping[str, Any]) -> None:
        source = arguments["input"]
        channels = source.size(1) if source.dim() > 1 else 1
        for name in names:
            tensor = arguments.get(name)
            if tensor is not None and tensor.numel() != channels:
                raise ProgramError(
                    f"the argument {name} has {tensor.numel()} elements for {channels} channels"
                )

    return check


_STATISTICS = _per_channel(("weight", "bias", "running_mean", "running_var"))

_GUARDS: dict[str, Guard] = {
    "aten::native_batch_norm": _STATISTICS,
    "aten::_native_batch_norm_legit": _STATISTICS,
    "aten::_native_batch_norm_legit_no_training": _STATISTICS,
    "aten::_batch_norm_no_update": _STATISTICS,
    "aten::_batch_norm_with_update": _STATISTICS,
}


def guard(operator: str) -> Guard | None:
    """The check to make before a kernel of ``operator`` (without overload) runs, by argument name.

    It raises ``ProgramError`` for arguments that don't go together.
    """
    return _GUARDS.get(operator)
