"""Device placement: where each value is stored, and on which device each user reads it.

Decides, node by node in the graph's order, and changes nothing; `devices.copies` acts on it.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator
from typing import Any, Protocol

from executorch.exir import memory
from executorch.exir.passes._aliases import (
    IDENTITIES,
    Aliases,
    is_device_write_back,
    view_size,
)
from executorch.exir.passes.devices.nodes import (
    D2H,
    H2D,
    HOST,
    Device,
    device_of_delegate,
    is_delegate,
    is_getitem,
    operator_name,
    tensor_spec,
    tensor_specs,
)
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule, Node

# They read a tensor's sizes, or, like a copy to the host, take it wherever it is.
_READ_ANYWHERE = {"aten::sym_numel", "aten::sym_size", "aten::sym_stride", D2H}


class Options(Protocol):
    """The options of `PropagateDevicePass`."""

    skip_h2d_for_method_inputs: bool
    skip_d2h_for_method_outputs: bool


class Placement:
    """The placement of one graph; `PropagateDevicePass` says which.

    Attributes:
        device_of: node -> the device that its result lives on, as far as the walk has come.
        views: view -> the value whose bytes it has, and its size (None: that value's own).
        labels: spec -> the device to write onto it.
        devices: Devices of delegates, without the host.
        writes_back: Writes of new values over old ones on a device, which end the call.
    """

    def __init__(self, options: Options, module: GraphModule, is_branch: bool) -> None:
        self.options = options
        self.module = module
        self.is_branch = is_branch
        self.aliases = Aliases(module.graph)
        self.device_of: dict[Node, Device] = {}
        self.views: dict[Node, tuple[Node, Any]] = {}
        self.labels: dict[TensorSpec, Device] = {}
        self._views_of: dict[Node, list[Node]] = {}

        nodes = list(module.graph.nodes)
        self.order = {node: index for index, node in enumerate(nodes)}
        self.output = nodes[-1]
        self.writes_back = dict.fromkeys(filter(is_device_write_back, nodes))
        # Their allocations are not for a caller: the next call writes over them.
        self._kept = {
            self.aliases.root(arg, on_host=False)
            for node in self.writes_back
            for arg in node.all_input_nodes
        }
        used = {self.reads_on(node) for node in nodes if is_delegate(node)}
        self.devices = sorted(
            (device for device in used if device and device != HOST),
            key=lambda device: (device[0].value, device[1]),
        )

    def reads_on(self, reader: Node, is_kept: bool = False) -> Device | None:
        """Return the device on which a node reads an argument; None: wherever that lives.

        The caller may rebind an output's memory, and keep it: what is ``is_kept`` can't be given away,
        as a view, which doesn't own its memory, or state, which the next call writes over.
        """
        if is_delegate(reader):
            device = device_of_delegate(self.module, reader)
            return HOST if self.is_branch else device
        if reader is self.output:
            stays = self.options.skip_d2h_for_method_outputs and not is_kept
            return None if stays else HOST
        if is_device_write_back(reader):
            spec = tensor_spec(reader.all_input_nodes[0])
            assert spec is not None
            return spec.device, spec.device_index
        anywhere = is_getitem(reader) or operator_name(reader) in _READ_ANYWHERE
        return None if anywhere else HOST

    def readers(
        self, value: Node, device: Device, is_kept: bool = False
    ) -> Iterator[tuple[Node, Device | None]]:
        """Yield the readers of a value on ``device``, and of its views, each with the device that it reads on."""
        for user, read in self.aliases.readers(value, device == HOST):
            yield user, self.reads_on(
                user, is_kept or self.is_kept(value) or read is not value
            )

    def reading_devices(
        self,
        value: Node,
        device: Device,
        without: Collection[Node] = (),
        is_kept: bool = False,
    ) -> set[Device | None]:
        """Return the devices that a value on ``device`` would be read on, leaving out the readers ``without``."""
        readers = self.readers(value, device, is_kept)
        return {side for user, side in readers if user not in without}

    def is_kept(self, value: Node) -> bool:
        """Whether a value's memory is not for a caller: a view's, or a mutable buffer's."""
        return value in self.views or value in self._kept

    def is_view(self, node: Node) -> bool:
        """Whether a node has its first argument's bytes where that one lives."""
        inputs = node.all_input_nodes
        device = self.device_of.get(inputs[0], HOST) if inputs else HOST
        return self.aliases.is_view(node, device == HOST)

    def assign(self, node: Node) -> None:
        """Decides where the result of a node that is no view lives, after all before it."""
        spec = tensor_spec(node)
        device = HOST
        if is_delegate(node):
            device = self.reads_on(node) or HOST
        elif is_getitem(node):
            device = self.device_of[node.all_input_nodes[0]]
        elif spec is not None and (
            operator_name(node) == H2D or node.target is memory.alloc
        ):
            device = (spec.device, spec.device_index)
        elif node in self.writes_back:
            device = self.device_of[node.all_input_nodes[0]]
        self.device_of[node] = device
        if spec is not None and node.op == "placeholder":
            self.device_of[node] = self.device_of_input(node, spec)
        if node is not self.output:
            for output_spec in tensor_specs(node):
                self.labels[output_spec] = self.device_of[node]

    def assign_view(self, node: Node) -> None:
        """Assign a view to the device of its base."""
        base = node.all_input_nodes[0]
        root, size = self.views.get(base, (base, None))
        if operator_name(node) not in IDENTITIES:
            size = view_size(node)
        self.views[node] = (root, size)
        self._views_of.setdefault(root, []).append(node)
        self.device_of[node] = self.device_of[root]
        if operator_name(node):  # else it has its base's label
            spec = tensor_spec(node)
            assert spec is not None
            self.labels[spec] = HOST

    def with_views(self, node: Node) -> list[Node]:
        """Return a node's storage root, then all views of it so far."""
        root = self.views[node][0] if node in self.views else node
        return [root, *self._views_of.get(root, ())]

    def device_of_input(self, node: Node, spec: TensorSpec) -> Device:
        """Return the device on which the caller passes a method input; the host for other placeholders."""
        if node in self._kept:
            return spec.device, spec.device_index
        skips = self.options.skip_h2d_for_method_inputs
        if not skips or spec.const or node in self.aliases.writers:
            return HOST
        readers = sorted(filter(is_delegate, node.users), key=self.order.__getitem__)
        devices = (self.reads_on(reader) for reader in readers)
        return next((side for side in devices if side and side != HOST), HOST)


def memory_planning_of(config: Any, method: str | None) -> Any:
    """Return the memory planning pass that ``ExecutorchBackendConfig`` has for a method."""
    planning = config.memory_planning_pass
    if not isinstance(planning, dict):
        return planning
    return planning.get(method, type(config)().memory_planning_pass)


def check_device_inputs(
    config: Any, method: str | None, skip_h2d_for_method_inputs: bool
) -> None:
    """Warn of a method whose inputs the caller has on a device, and the planner in memory of its own.

    The C++ runtime copies such an input as the host's, and crashes (pytorch/executorch#21577).
    """
    planning = memory_planning_of(config, method)
    if skip_h2d_for_method_inputs and getattr(planning, "alloc_graph_input", False):
        warnings.warn(
            f"method {method or 'forward'} has skip_h2d_for_method_inputs, and its inputs are "
            "planned: ExecuTorch's C++ runtime would copy the caller's device tensors as if they "
            "were the host's, and crash; give ExecutorchBackendConfig a "
            "MemoryPlanningPass(alloc_graph_input=False)",
            RuntimeWarning,
            stacklevel=2,
        )
