"""Where every tensor of a program lives, and the fewest copies that put it there.

Serves ``executorch.exir.passes.propagate_device_pass``. From pytorch/executorch#18078 (labels),
#19921 and #19961 (copies under device memory planning); interface of ExecuTorch 1.4.1 and 1.5.1.
`_aliases` says which values have bytes of their own, `_device_placement` decides, `_device_copies` moves.
"""

from __future__ import annotations

import executorch.exir.passes._device_copy_ops_registry  # noqa: F401  registers torch.ops.et_copy, for importers as well
import executorch.exir.schema as schema
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes._device_copies import Copies
from executorch.exir.passes._device_nodes import (
    TARGET_DEVICE_COMPILE_SPEC_KEY as TARGET_DEVICE_COMPILE_SPEC_KEY,
)
from executorch.exir.passes._device_nodes import (
    Device,
    lowered_module,
    named_device,
    parse_device,
)
from executorch.exir.passes._device_placement import Placement
from executorch.exir.passes.propagate_device_config import (
    PropagateDeviceConfig as PropagateDeviceConfig,
)
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.utils import _pytree as pytree


class PropagateDevicePass(PassBase):
    """Labels every ``TensorSpec`` with its device and moves values between devices.

    A delegate lives on the device that its ``target_device`` compile spec names; without one, and
    inside control-flow branches, whose memory is the host's, it lives on the host, as everything
    else does.

    With ``enable_non_cpu_memory_planning`` each label is true of the planned memory, because:

    1. A value lives where it is produced: a delegate's outputs on its device, all else on the host.
       A method input lives on the first device whose delegate reads it directly when
       ``skip_h2d_for_method_inputs`` says that the caller puts it there. Constants and tensors
       that an operator writes in place are not the caller's: they stay on the host. A mutable
       buffer stays where its spec says, so `DeviceStatePass` can have put it on a device.
    2. Every reader reads a tensor on its own side. A value is copied to a side at most once, and
       only if something there reads it; between two devices it goes through the host. Method
       outputs are read by the host, or wherever they live with ``skip_d2h_for_method_outputs``.
    3. A view has no bytes of its own (`_aliases`): it is taken again on each side where it is read
       and never copied itself.
    4. A copy to a device stands right before its first reader. A copy to the host stands right
       after its producer, or right before its first reader if the value outlives that on its device
       anyway. So the host never holds a value for longer than with a copy per delegate.

    Without device planning nothing is moved, and all memory is the host's: a tensor that one
    delegate hands to another is labelled with their device if nobody else reads it, and CPU
    otherwise.

    Running the pass again changes nothing. Time is linear in nodes plus edges.

    Args:
        skip_h2d_for_method_inputs: The caller passes device tensors for method inputs that a device
            delegate reads directly. Needs ``MemoryPlanningPass(alloc_graph_input=False)``: else
            ExecuTorch's C++ runtime copies the caller's tensor into planned memory as the host
            would, and crashes. The caller waits for the device before it writes over them.
        skip_d2h_for_method_outputs: A delegate's output that is a method output stays on its
            device, whether or not the host reads it too. Pair it with ``alloc_graph_output=False``.
            The caller waits for the device before it reads the output or calls again.
        enable_non_cpu_memory_planning: The memory planner gives each device its own buffers.

    Raises:
        ValueError: A ``skip_*`` option without device planning, or an option given as a dict; from
            ``call``, a ``target_device`` that is not a device.
        RuntimeError: Device planning on an ExecuTorch without device copies (before 1.4); from
            ``call``, a delegate without a valid ``LoweredBackendModule``.
    """

    def __init__(
        self,
        skip_h2d_for_method_inputs: bool = False,
        skip_d2h_for_method_outputs: bool = False,
        enable_non_cpu_memory_planning: bool = False,
    ) -> None:
        super().__init__()
        skips = {
            "skip_h2d_for_method_inputs": skip_h2d_for_method_inputs,
            "skip_d2h_for_method_outputs": skip_d2h_for_method_outputs,
        }
        for name, value in skips.items():
            if isinstance(value, dict):
                # A dict is truthy whatever it says, and the pass isn't told its method's name.
                raise ValueError(
                    f"{name}={value!r}: values per method are not supported here. Give "
                    "ExecutorchBackendConfig.propagate_device_config a dict from method name to "
                    f"PropagateDeviceConfig({name}=...) instead."
                )
            if value and not enable_non_cpu_memory_planning:
                raise ValueError(
                    f"{name}=True needs enable_non_cpu_memory_planning=True: only device memory "
                    "planning inserts the copies that it skips."
                )
        self.skip_h2d_for_method_inputs = skip_h2d_for_method_inputs
        self.skip_d2h_for_method_outputs = skip_d2h_for_method_outputs
        self.enable_non_cpu_memory_planning = enable_non_cpu_memory_planning

    def call(self, graph_module: GraphModule) -> PassResult:
        """Places the tensors of a method and of its control-flow branches, in place."""
        changed = False
        for module in graph_module.modules():
            if isinstance(module, GraphModule):
                changed |= self._place(module, is_branch=module is not graph_module)
        return PassResult(graph_module, changed)

    def _place(self, module: GraphModule, is_branch: bool) -> bool:
        placement = Placement(self, module, is_branch)
        if not self.enable_non_cpu_memory_planning:
            _label(placement)
            return _write_labels(placement)
        copies = Copies(placement)
        for node in placement.order:
            copies.take(node)
        copies.erase_unread_views()
        if copies.changed:
            _update_output(placement.output)
            module.recompile()
        return _write_labels(placement) or copies.changed


def _label(placement: Placement) -> None:
    """Settles everything in host memory."""
    for node in placement.order:
        if placement.is_view(node):
            placement.assign_view(node)
        else:
            placement.assign(node)


def _update_output(output: Node) -> None:
    """Gives the planner the method's outputs, which it takes from the output's own spec."""
    output.meta["spec"] = pytree.tree_map(
        lambda arg: arg.meta.get("spec") if isinstance(arg, Node) else None,
        output.args[0],
    )


def _write_labels(placement: Placement) -> bool:
    changed = False
    for spec, device in placement.labels.items():
        if (spec.device, spec.device_index) != device:
            _set_device_on_spec(spec, *device)
            changed = True
    return changed


# Upstream's names, which its tests and other passes import.


def _parse_device_spec_value(value: bytes) -> Device:
    """Reads a ``target_device`` such as ``b"cuda:1"``; ``ValueError`` if it is none."""
    return parse_device(value)


def _get_lowered_module(
    graph_module: GraphModule, delegate_call_node: Node
) -> LoweredBackendModule | None:
    """The lowered module that an ``executorch_call_delegate`` node calls; None if it isn't one."""
    return lowered_module(graph_module, delegate_call_node)


def _get_target_device_from_compile_specs(
    lowered_module: LoweredBackendModule,
) -> Device | None:
    """The device that a lowered module's compile specs name; None if they name none."""
    return named_device(lowered_module)


def _set_device_on_spec(
    spec: TensorSpec, device_type: schema.DeviceType, device_index: int = 0
) -> None:
    """Writes a device onto a spec."""
    spec.device, spec.device_index = device_type, device_index
