"""The settings that TensorRT's builder goes by, as JSON: written with an emulated engine, read where it is built."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torchtrt_executorch.nogpu.target.gpu_description import chosen

#: The GPUs that were exported for, as ``TORCHTRT_GPU`` has them.
TARGET = "target"
#: Fields of ``CompilationSettings`` that conversion and builder read. What only lowering and partitioning go by
#: is in the program already; folders and caches are the building machine's own.
_PLAIN = (
    "assume_dynamic_shape_support",
    "attn_bias_is_causal",
    "decompose_attention",
    "disable_tf32",
    "dla_global_dram_size",
    "dla_local_dram_size",
    "dla_sram_size",
    "enable_weight_streaming",
    "hardware_compatible",
    "immutable_weights",
    "l2_limit_for_tiling",
    "max_aux_streams",
    "num_avg_timing_iters",
    "optimization_level",
    "refit_identical_engine_weights",
    "sparse_weights",
    "strip_engine_weights",
    "tiling_optimization_level",
    "truncate_double",
    "use_fp32_acc",
    "version_compatible",
    "workspace_size",
)


def building_settings(settings: Any) -> dict[str, Any]:
    """Return what a ``CompilationSettings`` says to the builder, where it isn't the default, and the target."""
    default = type(settings)()
    stored: dict[str, Any] = {
        name: getattr(settings, name)
        for name in _PLAIN
        if hasattr(settings, name) and getattr(settings, name) != getattr(default, name)
    }
    if settings.engine_capability != default.engine_capability:
        stored["engine_capability"] = settings.engine_capability.name
    if (kind := settings.device.device_type.name) != default.device.device_type.name:
        stored["device_type"] = kind
        stored["dla_core"] = settings.device.dla_core
        stored["allow_gpu_fallback"] = settings.device.allow_gpu_fallback
    if gpus := chosen():
        several = (gpu.text.removeprefix(f"{gpu.platform}:") for gpu in gpus)
        stored[TARGET] = f"{gpus[0].platform}:{','.join(several)}"
    return stored


def target_from(stored: Mapping[str, Any]) -> str | None:
    """Return the target that :func:`building_settings` noted, from a file; None if there was none.

    Raises:
        ValueError: It isn't text.
    """
    if not isinstance(text := stored.get(TARGET), str | None):
        raise ValueError(f"an emulated engine's settings: {TARGET}={text!r}")
    return text


def settings_from(stored: Mapping[str, Any], gpu_id: int) -> Any:
    """Return the installed Torch-TensorRT's ``CompilationSettings``.

    Args:
        stored: The result of :func:`building_settings`, read from a file.
        gpu_id: The GPU to build on.

    Raises:
        ValueError: There is no such setting, or it has another type.
    """
    from torch_tensorrt import Device, DeviceType, EngineCapability
    from torch_tensorrt.dynamo._settings import CompilationSettings

    remaining = {name: value for name, value in stored.items() if name != TARGET}
    device: dict[str, Any] = {"gpu_id": gpu_id}
    values: dict[str, Any] = {}
    try:
        if "device_type" in remaining:
            device["device_type"] = DeviceType[remaining.pop("device_type")]
            for name in ("dla_core", "allow_gpu_fallback"):
                device[name] = int(remaining.pop(name))
        if "engine_capability" in remaining:
            capability = EngineCapability[remaining.pop("engine_capability")]
            values["engine_capability"] = capability
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"an emulated engine's settings: {error}") from None
    known = {field.name for field in fields(CompilationSettings)}
    for name, value in remaining.items():
        if name not in _PLAIN or not isinstance(value, (bool, int, str, type(None))):
            raise ValueError(f"an emulated engine's settings: {name}={value!r}")
        if name not in known:
            raise ValueError(
                f"the Torch-TensorRT that is installed has no setting {name}, which an engine is to be built "
                f"with ({value!r}): install the release that exported the file"
            )
        values[name] = value
    return CompilationSettings(device=Device(**device), **values)
