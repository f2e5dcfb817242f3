"""Where every tensor of a program lives, and the fewest copies that put it there.

Serves ``executorch.exir.passes.propagate_device_pass``. From pytorch/executorch#18078 (labels),
#19921 and #19961 (copies under device memory planning); interface of ExecuTorch 1.4.1 and 1.5.1.
`_device_placement` decides, `_device_copies` moves, `_delegate_order` keeps delegates in order.
"""

from __future__ import annotations

import importlib
import importlib.util

from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes._delegate_order import (
    declare_shared_streams,
    order_delegates,
    warn_of_host_memory,
)
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
from executorch.exir.passes._device_state import place_states, write_in_place
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult
from torch.utils import _pytree as pytree

_COPY_OPS = "executorch.exir.passes._device_copy_ops_registry"
_HAS_COPY_OPS = importlib.util.find_spec(_COPY_OPS) is not None
if _HAS_COPY_OPS:
    # Importers of this module rely on it to register torch.ops.et_copy and to hand the
    # configuration on. ExecuTorch 1.3 has neither.
    importlib.import_module(_COPY_OPS)
    from executorch.exir.passes.propagate_device_config import (
        PropagateDeviceConfig as PropagateDeviceConfig,
    )


class PropagateDevicePass(PassBase):
    """Labels every ``TensorSpec`` with its device and moves values between devices.

    A delegate lives on the device that its ``target_device`` compile spec names; without one, and
    inside control-flow branches, it lives on the host, as everything else does. (The memory
    planner puts all of a branch into host memory; a device delegate there stages its own I/O.)

    With ``enable_non_cpu_memory_planning`` each label is true of the planned memory, because:

    1. A value lives where it is produced: a delegate's outputs on its device, all else on the host.
       A method input lives on the first device whose delegate reads it directly when
       ``skip_h2d_for_method_inputs`` says that the caller puts it there. Constants and tensors
       that an operator writes in place are not the caller's: they stay on the host. A mutable
       buffer lives where it takes the fewest copies per call, where its new value is made if there
       is a choice; on a device its new value's memory becomes its own. It has its first value from
       the method's first call, and no caller gets its memory.
    2. Every reader reads a tensor on its own side. A value is copied to a side at most once, and
       only if something there reads it; between two devices it goes through the host. Method
       outputs are read by the host, or wherever they live with ``skip_d2h_for_method_outputs``.
    3. A view has no bytes of its own: it is taken again on each side where it is read and never
       copied itself. On a device this holds for ``squeeze``, ``unsqueeze`` and casts, clones and
       aliases that change nothing, too; on the host for ``view_copy`` that is not a method output,
       which is what ExecuTorch elides there. A view of a tensor written in place is a value.
    4. A copy to a device stands right before its first reader. A copy to the host stands right
       after its producer, or right before its first reader if the value outlives that on its device
       anyway. So the host never holds a value for longer than with a copy per delegate.
    5. Between two delegates that hand a tensor over, and that ExecuTorch's C++ runtime may run at
       the same time, stands a copy on their device, which is what orders them there: one of those
       above, moved, or one more, of a byte. With ``shared_stream`` the host sees to the order.

    Without device planning nothing is moved: a tensor is labelled with a device if a delegate there
    produces or reads it and nothing elsewhere reads it, and CPU otherwise.

    Running the pass again changes nothing. Time is linear in nodes plus edges.

    Args:
        skip_h2d_for_method_inputs: The caller passes device tensors for method inputs that a device
            delegate reads directly. Needs ``MemoryPlanningPass(alloc_graph_input=False)``: else
            ExecuTorch's C++ runtime copies the caller's tensor into planned memory as the host
            would, and crashes.
        skip_d2h_for_method_outputs: A delegate's output that is a method output stays on its
            device, whether or not the host reads it too. Pair it with ``alloc_graph_output=False``.
            The caller waits for the device before it reads the output or calls again.
        enable_non_cpu_memory_planning: The memory planner gives each device its own buffers.
        shared_stream: All delegates of a device run on one stream: inside a ``CallerStreamGuard``,
            with CudaBackend's option ``use_shared_cuda_stream``, in ``torchtrt_executorch.runtime``.
            Those that rely on it say so in a compile spec, ``needs_shared_stream``.

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
        shared_stream: bool = False,
    ) -> None:
        super().__init__()
        skips = {
            "skip_h2d_for_method_inputs": skip_h2d_for_method_inputs,
            "skip_d2h_for_method_outputs": skip_d2h_for_method_outputs,
        }
        for name, value in skips.items():
            _refuse_dict(name, value)
            if value and not enable_non_cpu_memory_planning:
                raise ValueError(
                    f"{name}=True needs enable_non_cpu_memory_planning=True: only device memory "
                    "planning inserts the copies that it skips."
                )
        if enable_non_cpu_memory_planning and not _HAS_COPY_OPS:
            raise RuntimeError(
                "enable_non_cpu_memory_planning=True needs the device copy operators "
                "(torch.ops.et_copy), which this ExecuTorch lacks: upgrade to executorch 1.4 or "
                "later, or leave device memory planning off."
            )
        self.skip_h2d_for_method_inputs = skip_h2d_for_method_inputs
        self.skip_d2h_for_method_outputs = skip_d2h_for_method_outputs
        self.enable_non_cpu_memory_planning = enable_non_cpu_memory_planning
        self.set_shared_stream(shared_stream)
        self.set_state_on_host("")

    def set_shared_stream(self, shared_stream: bool) -> None:
        """Sets the option, for callers that get a pass from upstream's own code."""
        _refuse_dict("shared_stream", shared_stream)
        self.shared_stream = shared_stream

    def set_state_on_host(self, reason: str) -> None:
        """Leaves mutable buffers in host memory, for a reason that the log gives; not if empty."""
        self.state_on_host = reason

    def call(self, graph_module: GraphModule) -> PassResult:
        """Places the tensors of a method and of its control-flow branches, in place."""
        changed = False
        for module in graph_module.modules():
            if isinstance(module, GraphModule):
                changed |= self._place(module, is_branch=module is not graph_module)
        return PassResult(graph_module, changed)

    def _place(self, module: GraphModule, is_branch: bool) -> bool:
        moved = False
        if self.enable_non_cpu_memory_planning and not is_branch:
            moved = place_states(Placement(self, module, is_branch), self.state_on_host)
        placement = Placement(self, module, is_branch)
        if not self.enable_non_cpu_memory_planning:
            _label(placement)
            return _write_labels(placement)
        copies = Copies(placement)
        for node in placement.order:
            copies.take(node)
        copies.erase_unread_views()
        moved |= copies.changed
        if moved:
            _update_output(placement.output)
        write_in_place(module)
        labelled = _write_labels(placement)
        if self.shared_stream and not is_branch:
            declare_shared_streams(module)
        elif not is_branch:
            moved |= order_delegates(module)
        if moved:
            module.recompile()
        return moved or labelled


def _refuse_dict(name: str, value: object) -> None:
    if isinstance(value, dict):
        # A dict is truthy whatever it says, and the pass isn't told its method's name.
        raise ValueError(
            f"{name}={value!r}: values per method are not supported here. Give "
            "ExecutorchBackendConfig.propagate_device_config a dict from method name to "
            f"PropagateDeviceConfig({name}=...) instead."
        )


def _label(placement: Placement) -> None:
    """Settles everything in host memory, which some backends won't read."""
    for node in placement.order:
        warn_of_host_memory(placement.module, node)
        if placement.is_view(node):
            placement.settle_view(node)
        else:
            placement.settle(node)


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
            spec.device, spec.device_index = device
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
