"""Where torch_tensorrt 2.12 meets emulated engines.

2.12's Python runtime is a module of its own, ``PythonTorchTensorRTModule``, that can't be
exported: without the C++ runtime there is no engine record and no ``tensorrt::execute_engine``.
Here it gets a record, and exporting writes it into placeholder calls, as upstream does when it
compiles for another platform.
"""

from __future__ import annotations

import base64
import functools
import pickle
from types import ModuleType
from typing import Any

import torch

from torchtrt_executorch.emulation.payload import is_emulated
from torchtrt_executorch.engine_blob import DELIMITER, Slot

#: The record's slots, by the names that ``_TorchTensorRTModule`` has for them.
SLOTS = {
    "ABI_TARGET_IDX": Slot.ABI_VERSION,
    "NAME_IDX": Slot.NAME,
    "DEVICE_IDX": Slot.DEVICE,
    "ENGINE_IDX": Slot.ENGINE,
    "INPUT_BINDING_NAMES_IDX": Slot.INPUT_NAMES,
    "OUTPUT_BINDING_NAMES_IDX": Slot.OUTPUT_NAMES,
    "HW_COMPATIBLE_IDX": Slot.HARDWARE_COMPATIBLE,
    "SERIALIZED_METADATA_IDX": Slot.METADATA,
    "TARGET_PLATFORM_IDX": Slot.TARGET_PLATFORM,
    "REQUIRES_OUTPUT_ALLOCATOR_IDX": Slot.OUTPUT_ALLOCATOR,
    "RESOURCE_ALLOCATION_STRATEGY_IDX": Slot.RESOURCE_ALLOCATION,
    "REQUIRES_NATIVE_MULTIDEVICE_IDX": Slot.NATIVE_MULTIDEVICE,
}
ABI_VERSION = "8"


def apply_to_layout(module: ModuleType) -> None:
    """Amend ``_TorchTensorRTModule``: the record's layout, which it asks the C++ runtime for."""
    if module.ENABLED_FEATURES.torch_tensorrt_runtime:
        return
    vars(module).update(
        {name: int(slot) for name, slot in SLOTS.items()}, SERIALIZATION_LEN=len(SLOTS)
    )
    module.TorchTensorRTModule.decode_metadata = staticmethod(_decode_metadata)


def apply_to_python_module(module: ModuleType) -> None:
    """Amend ``_PythonTorchTensorRTModule``: run what is emulated, and have an engine record."""
    from torchtrt_executorch.stand_ins.engine import StandInTensorRT

    kind = module.PythonTorchTensorRTModule
    forward = kind.forward

    @functools.wraps(forward)
    def forward_either(self: Any, *inputs: Any) -> Any:
        if not is_emulated(self.serialized_engine):
            return forward(self, *inputs)
        outputs = self.engine.run([torch.as_tensor(value) for value in inputs])
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    kind.forward = forward_either
    kind._pack_engine_info = _record
    kind.runtime_cache = None  # upstream's __del__ asks copies for it, which have none
    vars(module).update(trt=StandInTensorRT(module.trt))


def apply_to_exporter(module: ModuleType) -> None:
    """Amend ``_exporter``: without the C++ runtime, engines are written as placeholder calls."""
    inline = module.inline_trt_modules

    @functools.wraps(inline)
    def inline_trt_modules(
        gm: torch.fx.GraphModule, cross_compile_module: bool | None = False
    ) -> torch.fx.GraphModule:
        # Defines the placeholder that engines are written as.
        import torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops  # noqa: F401

        engines = (
            child for name, child in gm.named_children() if "_run_on_acc" in name
        )
        python_only = any(hasattr(engine, "input_names") for engine in engines)
        return inline(gm, cross_compile_module or python_only)

    vars(module).update(inline_trt_modules=inline_trt_modules)


def _record(module: Any) -> list[str | bytes]:
    """Return the engine record of a ``PythonTorchTensorRTModule``."""
    device = module.target_device_properties
    kind = 0  # tensorrt.DeviceType.GPU
    fields = (module.target_device_id, device.major, device.minor, kind, device.name)
    metadata = {
        "settings": module.settings,
        "weight_name_map": module.weight_name_map,
        "inout_symexprs": module.symbolic_shape_expressions,
        "output_tensors_are_unowned": module.output_tensors_are_unowned,
    }
    record: dict[Slot, str | bytes] = {
        Slot.ABI_VERSION: ABI_VERSION,
        Slot.NAME: f"{module.name or 'tensorrt'}_engine",
        Slot.DEVICE: DELIMITER.join(map(str, fields)),
        Slot.ENGINE: module.serialized_engine,
        Slot.INPUT_NAMES: DELIMITER.join(module.input_names),
        Slot.OUTPUT_NAMES: DELIMITER.join(module.output_names),
        Slot.HARDWARE_COMPATIBLE: str(int(module.settings.hardware_compatible)),
        Slot.METADATA: base64.b64encode(pickle.dumps(metadata)).decode(),
        Slot.TARGET_PLATFORM: str(module.target_platform),
        Slot.OUTPUT_ALLOCATOR: str(int(module.requires_output_allocator)),
        Slot.RESOURCE_ALLOCATION: str(
            int(module.settings.dynamically_allocate_resources)
        ),
        Slot.NATIVE_MULTIDEVICE: str(int(module._has_nccl_ops)),
    }
    return [record[slot] for slot in sorted(record)]


def _decode_metadata(encoded_metadata: str) -> Any:
    """Return the record's metadata; it was pickled by the process that compiled the engine."""
    return pickle.loads(base64.b64decode(encoded_metadata))
