"""What the device passes read off a node: its operator, its specs, its delegate and its device.

For ``propagate_device_pass`` and its neighbours; upstream has these in one place as well
(pytorch/executorch#18078).
"""

from __future__ import annotations

import operator
import re
from functools import cache
from typing import TypeAlias

import executorch.exir.schema as schema
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

#: Key of the compile spec in which a partitioner names its delegate's device: ``b"cuda:0"``.
TARGET_DEVICE_COMPILE_SPEC_KEY = "target_device"

Device: TypeAlias = tuple[schema.DeviceType, int]
HOST: Device = (schema.DeviceType.CPU, 0)

MAX_DEVICE_INDEX = 127  # device_index is a signed byte in ExecuTorch's program.fbs

#: Bytes. TensorRT asks for it (``IExecutionContext::setTensorAddress`` in NvInferRuntime.h), and
#: ``cudaMalloc`` gives it to an arena as a whole.
DEVICE_ALIGNMENT = 256

H2D = "et_copy::_h2d_copy"
D2H = "et_copy::_d2h_copy"


@cache
def parse_device(value: bytes) -> Device:
    """Reads a device such as ``b"cuda:1"``; the type in any case, index 0 if there is none.

    Raises:
        ValueError: It is not a device type that ExecuTorch knows, or the index doesn't fit.
    """
    text = value.decode("utf-8", "replace").strip()
    match = re.fullmatch(r"(\w+)(?:\s*:\s*(\d+))?", text, re.ASCII)
    types = {kind.name: kind for kind in schema.DeviceType}
    kind = types.get(match[1].upper()) if match else None
    index = int(match[2] or 0) if match else 0
    if kind is None or index > MAX_DEVICE_INDEX:
        raise ValueError(
            f"{TARGET_DEVICE_COMPILE_SPEC_KEY} {text!r} is not a device. Valid types: "
            f"{', '.join(types)}, each with an index from 0 to {MAX_DEVICE_INDEX} after a colon "
            "if it isn't 0, as in 'cuda:1'."
        )
    return kind, index


def is_delegate(node: Node) -> bool:
    return node.op == "call_function" and node.target is executorch_call_delegate


def is_getitem(node: Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def lowered_module(
    graph_module: GraphModule, delegate: Node
) -> LoweredBackendModule | None:
    """The lowered module that an ``executorch_call_delegate`` node calls; None if it isn't one."""
    attribute = delegate.args[0] if delegate.args else None
    if not isinstance(attribute, Node) or attribute.op != "get_attr":
        return None
    lowered = getattr(graph_module, str(attribute.target), None)
    return lowered if isinstance(lowered, LoweredBackendModule) else None


def named_device(lowered: LoweredBackendModule) -> Device | None:
    """The device that a lowered module's compile specs name; None if they name none."""
    for spec in lowered.compile_specs:
        if spec.key == TARGET_DEVICE_COMPILE_SPEC_KEY:
            return parse_device(spec.value)
    return None


def device_of_delegate(graph_module: GraphModule, delegate: Node) -> Device:
    """The device that a delegate lives on: the host unless its compile specs name another.

    Raises:
        RuntimeError: It has no lowered module.
        ValueError: Its ``target_device`` is not a device.
    """
    lowered = lowered_module(graph_module, delegate)
    if lowered is None:
        raise RuntimeError(
            f"executorch_call_delegate node '{delegate.name}' has no valid LoweredBackendModule: "
            "its first argument must be a get_attr node for one."
        )
    try:
        device = named_device(lowered)
    except ValueError as error:
        raise ValueError(
            f"Delegate '{delegate.name}' of {lowered.backend_id}: {error}"
        ) from error
    return HOST if device is None or device[0] == HOST[0] else device


def operator_name(node: Node) -> str:
    """``aten::add`` for an ATen or edge operator, empty for anything else."""
    return getattr(getattr(node.target, "_schema", None), "name", "")


def written_args(node: Node) -> list[Node]:
    """The arguments that an operator writes in place."""
    formals = getattr(getattr(node.target, "_schema", None), "arguments", ())
    names = (formal.name for formal in formals)
    args = dict(zip(names, node.args, strict=False)) | node.kwargs
    return [
        arg
        for formal in formals
        if formal.alias_info is not None and formal.alias_info.is_write
        for arg in [args.get(formal.name)]
        if isinstance(arg, Node)
    ]


def tensor_specs(node: Node) -> list[TensorSpec]:
    specs = pytree.tree_leaves(node.meta.get("spec"))
    return [spec for spec in specs if isinstance(spec, TensorSpec)]


def tensor_spec(node: Node) -> TensorSpec | None:
    """The spec of a node that yields one tensor, bare or in a tuple of one; else None."""
    specs = tensor_specs(node)
    return specs[0] if len(specs) == 1 else None


def values_of(node: Node) -> dict[str, object]:
    """What a new node for the same value takes over of this one's metadata."""
    return {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}


def copied_on(node: Node) -> Device | None:
    """The device on which a copy orders what comes before it and after it; None if on none."""
    name = operator_name(node)
    if name not in (H2D, D2H):
        return None
    source = node.all_input_nodes[0]
    on_device = tensor_spec(node if name == H2D else source)
    value = source.meta.get("val")
    if isinstance(value, (list, tuple)):
        (value,) = value  # a delegate's only output, taken whole
    never_empty = value is None or all(
        size > 0 if isinstance(size, int) else statically_known_true(size > 0)
        for size in value.shape
    )
    if on_device is None or not never_empty:
        return None
    return on_device.device, on_device.device_index
