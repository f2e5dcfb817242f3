"""Read operator, specs, delegate and device off a node, for the device passes."""

from __future__ import annotations

import operator

from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes.devices.labels import HOST as HOST
from executorch.exir.passes.devices.labels import Device as Device
from executorch.exir.passes.devices.labels import target_device
from executorch.exir.passes.propagate_device_pass import _get_lowered_module
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule, Node
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils import _pytree as pytree

#: Bytes. TensorRT asks for it (``IExecutionContext::setTensorAddress`` in NvInferRuntime.h), and
#: ``cudaMalloc`` gives it to an arena as a whole.
DEVICE_ALIGNMENT = 256

H2D = "et_copy::_h2d_copy"
D2H = "et_copy::_d2h_copy"


def is_delegate(node: Node) -> bool:
    return node.op == "call_function" and node.target is executorch_call_delegate


def is_getitem(node: Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def lowered_module(
    graph_module: GraphModule, delegate: Node
) -> LoweredBackendModule | None:
    """Return the lowered module that an ``executorch_call_delegate`` node calls; None if it isn't one."""
    return _get_lowered_module(graph_module, delegate)


def device_of_delegate(graph_module: GraphModule, delegate: Node) -> Device:
    """Return the device that a delegate lives on: the host unless its compile specs name another.

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
    device = target_device(delegate, lowered)
    return HOST if device is None or device[0] == HOST[0] else device


def operator_name(node: Node) -> str:
    """``aten::add`` for an ATen or edge operator, empty for anything else."""
    return getattr(getattr(node.target, "_schema", None), "name", "")


def tensor_specs(node: Node) -> list[TensorSpec]:
    specs = pytree.tree_leaves(node.meta.get("spec"))
    return [spec for spec in specs if isinstance(spec, TensorSpec)]


def tensor_spec(node: Node) -> TensorSpec | None:
    """Return the spec of a node that yields one tensor, bare or in a tuple of one; else None."""
    specs = tensor_specs(node)
    return specs[0] if len(specs) == 1 else None


def values_of(node: Node) -> dict[str, object]:
    """Return the metadata of a node's value, for a new node of the same value."""
    return {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}


def copied_on(node: Node) -> Device | None:
    """Return the device on which a copy orders what comes before it and after it; None if on none."""
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
