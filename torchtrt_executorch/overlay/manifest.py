"""The one table of patches. ``torchtrt-executorch status`` prints it."""

from __future__ import annotations

from torchtrt_executorch.overlay.anchors import Anchor
from torchtrt_executorch.overlay.patch import Amendment, Patch

_TORCH_TENSORRT = {"torch-tensorrt": ">=2.12,<2.15"}
_EXECUTORCH = {"executorch": ">=1.3,<1.6"}
_BOTH = _TORCH_TENSORRT | _EXECUTORCH

_HOST = "torchtrt_executorch.host"
_EMULATION = "torchtrt_executorch.emulation.amendments"

PATCHES: tuple[Patch, ...] = (
    Patch(
        name="host",
        summary="import torch_tensorrt without a GPU, without TensorRT, or without both",
        pull_request="pytorch/TensorRT#4504",
        releases=_TORCH_TENSORRT,
        upstream="queries CUDA and loads TensorRT while it is imported",
        stands="2.14 still needs both to be imported",
        prepares=(Amendment("torch_tensorrt", f"{_HOST}:prepare"),),
        amends=(
            Amendment("torch_tensorrt._Device", f"{_HOST}.cuda_queries:apply"),
            Amendment("torch_tensorrt._utils", f"{_HOST}.cuda_queries:apply"),
            Amendment("torch_tensorrt.dynamo._compiler", f"{_HOST}.cuda_queries:apply"),
            Amendment("torch_tensorrt.dynamo._defaults", f"{_HOST}.cuda_queries:apply"),
            Amendment(
                "torch_tensorrt.dynamo.runtime._TRTEngine",
                f"{_HOST}.cuda_queries:apply",
            ),
            Amendment(
                "torch_tensorrt.dynamo.runtime._serialized_engine_layout",
                f"{_HOST}.cuda_queries:apply",
            ),
            Amendment(
                "torch_tensorrt.dynamo.utils", f"{_HOST}.cuda_queries:apply_to_utils"
            ),
            Amendment("torch_tensorrt._compile", f"{_HOST}.building:apply"),
            Amendment("torch_tensorrt.dynamo._compiler", f"{_HOST}.building:apply"),
        ),
        anchors=(
            Anchor("torch_tensorrt.dynamo.utils", "to_torch_device", ("device",)),
        ),
    ),
    Patch(
        name="emulated-engines",
        summary="Everything after the partitioning, without TensorRT",
        pull_request="pytorch/TensorRT#4504",
        releases={"torch-tensorrt": ">=2.13,<2.15"},
        upstream="nothing",
        stands="upstream has no engine that runs without TensorRT",
        amends=(
            Amendment(
                "torch_tensorrt.dynamo.conversion._conversion",
                f"{_EMULATION}:apply_to_conversion",
            ),
            Amendment(
                "torch_tensorrt.dynamo.runtime._TRTEngine",
                f"{_EMULATION}:apply_to_engine",
            ),
            Amendment(
                "torch_tensorrt.dynamo.runtime._TorchTensorRTModule",
                f"{_EMULATION}:apply_to_module",
            ),
            Amendment(
                "torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops",
                f"{_EMULATION}:apply_to_placeholder",
            ),
        ),
        anchors=(
            Anchor(
                "torch_tensorrt.dynamo.conversion._conversion",
                "interpret_module_to_result",
                ("module", "inputs", "settings"),
            ),
            Anchor(
                "torch_tensorrt.dynamo.conversion._conversion",
                "SerializedInterpreterResult",
                ("serialized_engine", "input_names", "output_names"),
            ),
            Anchor(
                "torch_tensorrt.dynamo.runtime._TRTEngine",
                "TRTEngine.execute",
                ("inputs",),
            ),
            Anchor(
                "torch_tensorrt.dynamo.runtime._TRTEngine", "TRTEngine._setup_engine"
            ),
            Anchor("torch_tensorrt.dynamo.runtime._TRTEngine", "trt"),
            Anchor(
                "torch_tensorrt.dynamo.runtime._TorchTensorRTModule",
                "TorchTensorRTModule.forward",
            ),
            Anchor(
                "torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops",
                "no_op_placeholder_for_execute_engine",
                ("inputs", "serialized_engine"),
            ),
        ),
    ),
    Patch(
        name="propagate-device-pass",
        summary="Device labels and device copies, each value across at most once",
        pull_request="pytorch/executorch#18078",
        releases=_EXECUTORCH,
        upstream="labels from 1.3, copies from 1.4, one per delegate that reads the value",
        stands="1.5.1 still copies a shared value once for every delegate",
        replaces=("executorch.exir.passes.propagate_device_pass",),
    ),
    Patch(
        name="aoti-partitioner",
        summary="Composes after any partitioner, fewest partitions, linear time",
        pull_request="pytorch/executorch#20077",
        releases=_EXECUTORCH,
        upstream="skips foreign delegates from 1.4 on, in quadratic time",
        stands="1.5.1 still proposes partitions in quadratic time",
        replaces=("executorch.backends.aoti.aoti_partitioner",),
    ),
)
