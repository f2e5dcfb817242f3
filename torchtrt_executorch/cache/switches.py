"""Process-wide switches that change generated code, for cache keys.

They are listed by PyTorch and Triton themselves, not here, so that one which a release adds is in a key, too.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any

import torch

#: Configurations of what lowers, decomposes and compiles.
CONFIGURATIONS = (
    "torch._dynamo.config",
    "torch._functorch.config",
    "torch._inductor.config",
    "torch._inductor.config_comms",
    "torch.fx.experimental._config",
)
#: What a compilation leaves of what it was for, and a folder for reports, in the one that a process was started in.
_NOT_SET = frozenset({"aot_inductor.metadata", "debug_dir_root"})
#: Switches of ``torch._C``, of a thread or the interpreter, that don't affect compilation.
_OF_A_THREAD = frozenset({"thread_name", "torch_function_state", "tracing_state"})
#: Getters of switches that are set together with others.
_SET_TOGETHER = ("_sdp_enabled", "_warn_only")
#: Groups of Triton's knobs that say where to keep files, how to report, and how to measure.
_NO_MATTER = frozenset({"autotuning", "cache", "proton", "redis"})
_BACKENDS, _OPERATIONS = ("generic", "cuda", "mkldnn"), ("all", "matmul", "conv", "rnn")
_LITERAL = (bool, int, float, str, type(None))


def switches() -> dict[str, Any]:
    """Return the value of each switch; what isn't a literal is what somebody has put there."""
    return {
        "torch": _of_torch(),
        "precision": _precision(),
        "ambient": _ambient(),
        "triton": _of_triton(),
        **{name: _of_configuration(name) for name in CONFIGURATIONS},
    }


def _of_torch() -> dict[str, Any]:
    """Return what ``torch.backends`` and functions of ``torch`` set."""
    switches = {}
    for name in dir(torch._C):
        short = name.removeprefix("_get_")
        paired = hasattr(torch._C, f"_set_{short}") or short.endswith(_SET_TOGETHER)
        if short != name and paired and short not in _OF_A_THREAD:
            switches[short] = _read(getattr(torch._C, name))
    return switches


def _precision() -> dict[str, Any]:
    getter = getattr(torch._C, "_get_fp32_precision_getter", None)
    if getter is None:
        return {}
    return {
        f"{backend}.{operation}": _read(getter, backend, operation)
        for backend in _BACKENDS
        for operation in _OPERATIONS
    }


def _read(getter: Any, *args: str) -> Any:
    try:
        value = getter(*args)
    except (RuntimeError, TypeError) as error:
        # It takes arguments, or was set by PyTorch's new names and is asked by an old one.
        return type(error).__name__
    # Enumerations of C++ are of no class that Python knows for one.
    literal = isinstance(value, (*_LITERAL, tuple, list))
    return value if literal else str(value)


def _ambient() -> dict[str, Any]:
    """Return what a graph that is traced once more is traced under."""
    ambient: dict[str, Any] = {
        "dtype": torch.get_default_dtype(),
        "device": torch.get_default_device(),
        "grad": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "threads": torch.get_num_threads(),
    }
    for device in torch._C._autocast_supported_devices():
        if torch.is_autocast_enabled(device):
            ambient[f"autocast {device}"] = torch.get_autocast_dtype(device)
    return ambient


def _of_configuration(name: str) -> dict[str, Any]:
    configuration: Any = importlib.import_module(name)
    # What PyTorch's own caches leave out are literals for caches and logs, and passes, which do matter.
    left_out = tuple(getattr(configuration, "_cache_config_ignore_prefix", ()))
    return {
        key: value
        for key, value in configuration.get_config_copy().items()
        if key not in _NOT_SET
        and not (key.startswith(left_out) and type(value) in _LITERAL)
    }


def _of_triton() -> dict[str, Any]:
    if importlib.util.find_spec("triton") is None:
        return {}
    knobs: Any = importlib.import_module("triton.knobs")
    groups = {
        name: group
        for name, group in vars(knobs).items()
        if isinstance(group, knobs.base_knobs) and name not in _NO_MATTER
    }
    return {
        f"{name}.{knob}": value
        for name, group in groups.items()
        for knob in group.knob_descriptors
        if type(value := getattr(group, knob)) in _LITERAL
    }
