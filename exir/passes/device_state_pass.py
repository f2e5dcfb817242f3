"""Place mutable buffers on the device that uses them.

At each call a mutable buffer has an old value; ``insert_write_back_for_buffers_pass`` copies the new
value over it at the end. On a device that copy is elided: the two allocations are swapped between calls
(ping-pong, `executorch.exir.emit._device_state`), or, if one delegate reads the old and writes the new
value, it writes in place.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from executorch.exir.memory_planning import greedy
from executorch.exir.passes._aliases import (
    IDENTITIES,
    RESHAPES,
    elided_root,
    is_device_write_back,
    is_write_back,
    producer,
)
from executorch.exir.passes._shared_buffers import (
    SHARED_META,
    STATE_META,
    shared_writes,
)
from executorch.exir.passes.devices.nodes import (
    HOST,
    Device,
    is_delegate,
    operator_name,
    tensor_spec,
)
from executorch.exir.passes.devices.placement import (
    Options,
    Placement,
    memory_planning_of,
)
from executorch.exir.passes.streams.delegate_streams import writes_in_place
from torch.export import ExportGraphSignature
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult

logger = logging.getLogger(__name__)

_VIEWS = RESHAPES | IDENTITIES


class DeviceStatePass(PassBase):
    """Place mutable buffers where they need the fewest copies per call; on the host if in doubt.

    Runs before `PropagateDevicePass`, which reads the devices from the specs of the buffers' placeholders.
    It moves the write-backs to the end of the graph. Of devices with equally many copies, the one that
    produces the new value is chosen. Running it again changes nothing.

    Args:
        options: The copies that `PropagateDevicePass` skips.
        enable_non_cpu_memory_planning: The memory planner gives each device its own buffers. If not, the pass
            does nothing.
        on_host: Why no buffer may live on a device, for the log; empty if they may.
    """

    def __init__(
        self,
        options: Options,
        enable_non_cpu_memory_planning: bool = True,
        on_host: str = "",
    ) -> None:
        super().__init__()
        self.options = options
        self.enable_non_cpu_memory_planning = enable_non_cpu_memory_planning
        self.on_host = on_host

    @classmethod
    def for_method(
        cls, config: Any, method: str | None, options: Options
    ) -> DeviceStatePass:
        """Return the pass for one method of a program.

        Args:
            config: The program's ``ExecutorchBackendConfig``.
            method: Its name.
            options: Its ``PropagateDeviceConfig``.
        """
        reason = _reason_for_host_state(memory_planning_of(config, method))
        return cls(options, config.enable_non_cpu_memory_planning, reason)

    def call(self, graph_module: GraphModule) -> PassResult:
        """Place the buffers of a method, in place.

        Raises:
            ValueError: One that methods share on a device can't live there.
        """
        if not self.enable_non_cpu_memory_planning:
            return PassResult(graph_module, False)
        placement = Placement(self.options, graph_module, is_branch=False)
        writes = [
            node
            for node in placement.order
            if is_write_back(node) and STATE_META in node.all_input_nodes[0].meta
        ]
        new_values = {write: _NewValue.of(placement, write) for write in writes}
        buffers_per_root = Counter(new.root for new in new_values.values())
        buffer_devices: dict[Node, Device] = {}
        for write, new in new_values.items():
            name = write.all_input_nodes[0].meta[STATE_META]
            shared = write.all_input_nodes[0].meta.get(SHARED_META)
            shared_on = shared.device if shared is not None else None
            device = HOST
            reason = self.on_host or _reason_for_host(placement, write, new.root)
            if not reason and buffers_per_root[new.root] > 1:
                reason = "its new value is another buffer's, too"
            if not reason and shared_on == HOST:
                reason = "methods share it, and one has it there"
            if not reason:
                device = shared_on or _cheapest_device(placement, write, new)
                if device == HOST:
                    reason = "a device would save no copies"
            elif shared_on not in (None, HOST):
                raise ValueError(
                    f"methods share the buffer {name}, and write it on a device, but it can't live "
                    f"there: {reason}; without share_mutable_buffers=True each method has one on the "
                    "host"
                )
            where = f"{device[0].name.lower()}:{device[1]}"
            where = f"the host: {reason}" if reason else where
            logger.info("the buffer %s lives on %s", name, where)
            if device != HOST:
                buffer_devices[write] = device
        for write, (kind, index) in buffer_devices.items():
            old = write.all_input_nodes[0]
            spec = tensor_spec(old)
            assert spec is not None
            spec.device, spec.device_index = kind, index
            # The emitter gives it its first value: the C++ runtime would load it as if the host
            # could write there.
            old.meta.pop("et_init_buffer", None)
            placement.output.prepend(write)
        return PassResult(graph_module, bool(buffer_devices))


def mark_mutable_buffers(module: GraphModule, signature: ExportGraphSignature) -> None:
    """Mark the placeholders of mutable buffers: a pass over the graph can't tell them from inputs."""
    mutated = set(signature.buffers_to_mutate.values())
    for node in module.graph.nodes:
        name = signature.inputs_to_buffers.get(node.name)
        if node.op == "placeholder" and name in mutated:
            node.meta[STATE_META] = name


def _reason_for_host_state(planning: Any) -> str:
    """Return why a memory planning pass can't plan buffers on a device; empty if it can."""
    if not hasattr(planning, "alloc_mutable_buffers"):
        return "how it is planned is not known"
    if not planning.alloc_mutable_buffers:
        return "its memory is the caller's to give (alloc_mutable_buffers=False)"
    algorithms = getattr(planning.memory_planning_algo, "algo_list", ())
    if [getattr(algorithm, "func", algorithm) for algorithm in algorithms] != [greedy]:
        return "only greedy supports tensors that share memory"
    return ""


def plan_states(graph_module: GraphModule) -> None:
    """Extend the lifetimes of buffers on devices to the whole graph, and mark those that are written in place.

    A buffer is written in place if one delegate reads its old value and is the last to write its new one.
    """
    last = len(graph_module.graph.nodes) - 1
    shared = {
        write: write.all_input_nodes[0].meta[SHARED_META]
        for _, write in shared_writes(graph_module)
    }
    for write in filter(is_device_write_back, graph_module.graph.nodes):
        old, new = (
            tensor_spec(elided_root(input_node)) for input_node in write.all_input_nodes
        )
        assert old is not None and new is not None
        old.lifetime, new.lifetime = [0, last], [0, last]
        in_place = writes_in_place(graph_module, write)
        if in_place and write not in shared:
            new.inplace_base = old
        elif write in shared and shared[write].in_place > in_place:
            name = write.all_input_nodes[0].meta[STATE_META]
            raise RuntimeError(
                f"the buffer {name} is written in place by a delegate, but something else reads it too"
            )


class _NewValue(NamedTuple):
    """Storage root of a buffer's new value, and the device that produces it."""

    root: Node
    made_on: Device

    @classmethod
    def of(cls, placement: Placement, write: Node) -> _NewValue:
        new = write.all_input_nodes[-1]
        root = placement.aliases.root(new, on_host=False)
        made_by = producer(root)
        made_on = placement.reads_on(made_by) if is_delegate(made_by) else HOST
        if made_on in (None, HOST):
            return cls(placement.aliases.root(new, on_host=True), HOST)
        return cls(root, made_on)


def _reason_for_host(placement: Placement, write: Node, new_root: Node) -> str:
    """Return why a buffer has to live on the host; empty if it needn't."""
    placeholder = write.all_input_nodes[0]
    old, new = tensor_spec(placeholder), tensor_spec(new_root)
    writers = placement.aliases.writers
    if old is None or new is None:
        return "it is not a tensor"
    if (old.device, old.device_index) != HOST:
        return "it has been placed before"
    if "constant_tag" in placeholder.meta:
        return "its first value is in a data file, which is loaded into host memory"
    if writers[placeholder] != [write] or new_root in writers:
        return "the host also writes to it in place"
    # The storage root on a device: a host copy of another buffer's old value counts as that buffer.
    shown = placement.aliases.root(write.all_input_nodes[-1], on_host=False)
    if STATE_META in shown.meta or (
        new_root.op == "placeholder"
        and placement.device_of_input(new_root, new) != HOST
    ):
        return "its new value is another buffer or input"
    if (
        (old.dtype, old.nbytes()) != (new.dtype, new.nbytes())
        or not (old.is_static_shape_tensor and new.is_static_shape_tensor)
        or any(
            list(tensor.dim_order) != list(range(len(tensor.shape)))
            for tensor in (old, new)
        )
    ):
        return "its new value has another size, data type or layout"
    return ""


def _cheapest_device(placement: Placement, write: Node, new: _NewValue) -> Device:
    """Return the device with the fewest copies; ties go to the new value's producer, then to the host."""

    def copies(device: Device) -> tuple[int, bool]:
        on_device = device != HOST
        read_on = placement.reading_devices(new.root, new.made_on, {write}, on_device)
        new_value_copies = _copies(new.made_on, read_on | {device})
        cost = new_value_copies + _old_value_copies(placement, write, device)
        return cost, device != new.made_on

    return min((HOST, *placement.devices), key=copies)


def _copies(device: Device, read_on: Iterable[Device | None]) -> int:
    """Count the copies of a value that lives on one device, or the host, for its readers on all of them."""
    devices = {side for side in read_on if side and side not in (HOST, device)}
    to_host = device != HOST and (HOST in read_on or bool(devices))
    return to_host + len(devices)


def _old_value_copies(placement: Placement, write: Node, device: Device) -> int:
    """Count the copies of the old value; on the host, also copies of values that are only views of it on a device."""
    cost, pending = 0, [write.all_input_nodes[0]]
    while pending:
        value = pending.pop()
        read_on = placement.reading_devices(value, device, {write}, device != HOST)
        cost += _copies(device, read_on)
        if device == HOST:
            readers = placement.aliases.readers(value, on_host=True)
            pending += {user for user, _ in readers if operator_name(user) in _VIEWS}
    return cost
