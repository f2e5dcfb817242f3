"""Checks that some of torch's kernels leave to their callers, who trace their own models.

A damaged program gets past shape inference, which never ran on it. These kernels would then read
or write beyond a tensor's end.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping

from torchtrt_executorch.runtime.errors import ProgramError

Guard = Callable[[Mapping[str, Any]], None]


def _batch_norm(arguments: Mapping[str, Any]) -> None:
    """One statistic for each of the input's channels, and none missing that is read."""
    source = arguments["input"]
    channels = source.size(1) if source.dim() > 1 else 1
    for name in ("weight", "bias", "running_mean", "running_var"):
        tensor = arguments.get(name)
        if tensor is not None and tensor.numel() != channels:
            raise ProgramError(
                f"the argument {name} has {tensor.numel()} elements for {channels} channels"
            )
        if (
            tensor is None
            and name.startswith("running_")
            and arguments.get("training") is False
        ):
            raise ProgramError(
                f"the argument {name} is missing, and no training is to replace it"
            )


def _transform(arguments: Mapping[str, Any]) -> None:
    """Each dimension once, and all of them the tensor's."""
    source, dims = arguments["self"], arguments["dim"]
    rank = source.dim()
    found = {dim % rank for dim in dims if -rank <= dim < rank}
    if not dims or len(found) != len(dims):
        raise ProgramError(
            f"{list(dims)} are no dimensions to transform a tensor of {rank} by"
        )


_GUARDS: dict[str, Guard] = {
    "aten::_native_batch_norm_legit": _batch_norm,
    "aten::_native_batch_norm_legit_no_training": _batch_norm,
    "aten::_fft_r2c": _transform,
    "aten::_fft_c2r": _transform,
}


def guard(operator: str) -> Guard | None:
    """The check to make before a kernel of ``operator`` (without overload) runs, by argument name.

    It raises ``ProgramError`` for arguments that don't go together.
    """
    return _GUARDS.get(operator)
