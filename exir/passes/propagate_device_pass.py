"""Where every tensor of a program lives, and the fewest copies that put it there.

Serves ``executorch.exir.passes.propagate_device_pass``. From pytorch/executorch#18078 (labels),
#19921 and #19961 (copies under device memory planning); interface of ExecuTorch 1.4.1 and 1.5.1.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
import operator
import re
from collections.abc import Iterator
from typing import Any, TypeAlias

import executorch.exir.schema as schema
import torch
from executorch.exir import memory
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes.replace_view_copy_with_view_pass import _ViewSpec
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg
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

#: Key of the compile spec in which a partitioner names its delegate's device: ``b"cuda:0"``.
TARGET_DEVICE_COMPILE_SPEC_KEY = "target_device"

Device: TypeAlias = tuple[schema.DeviceType, int]
HOST: Device = (schema.DeviceType.CPU, 0)

_MAX_DEVICE_INDEX = 127  # device_index is a signed byte in ExecuTorch's program.fbs

_H2D = "et_copy::_h2d_copy"
_D2H = "et_copy::_d2h_copy"
_VIEW_COPY = "aten::view_copy"
# The same bytes under another shape, and under the same shape.
_RESHAPES = {_VIEW_COPY, "aten::squeeze_copy", "aten::unsqueeze_copy"}
_IDENTITIES = {
    "aten::_to_copy",
    "aten::alias_copy",
    "aten::clone",
    "aten::detach_copy",
    "dim_order_ops::_clone_dim_order",
    "dim_order_ops::_to_dim_order_copy",
}
# They read a tensor's sizes, or, like a copy to the host, take it wherever it is.
_READ_ANYWHERE = {"aten::sym_numel", "aten::sym_size", "aten::sym_stride", _D2H}


class PropagateDevicePass(PassBase):
    """Labels every ``TensorSpec`` with its device and moves values between devices.

    A delegate lives on the device that its ``target_device`` compile spec names; without one, and
    inside control-flow branches, it lives on the host, as everything else does. (The memory
    planner puts all of a branch into host memory; a device delegate there stages its own I/O.)

    With ``enable_non_cpu_memory_planning`` each label is true of the planned memory, because:

    1. A value lives where it is produced: a delegate's outputs on its device, all else on the host.
       A method input lives on the first device whose delegate reads it directly when
       ``skip_h2d_for_method_inputs`` says that the caller puts it there. Constants and tensors
       that an operator writes in place (mutated buffers) are not the caller's: they stay on the host.
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

    Without device planning nothing is moved: a tensor is labelled with a device if a delegate there
    produces or reads it and nothing elsewhere reads it, and CPU otherwise.

    Running the pass again changes nothing. Time is linear in nodes plus edges.

    Args:
        skip_h2d_for_method_inputs: The caller passes device tensors for method inputs that a device
            delegate reads directly. Pair it with ``MemoryPlanningPass(alloc_graph_input=False)``,
            else the runtime copies the caller's tensor into a buffer of its own.
        skip_d2h_for_method_outputs: A delegate's output that is a method output stays on its
            device, whether or not the host reads it too. Pair it with ``alloc_graph_output=False``.
        enable_non_cpu_memory_planning: The memory planner gives each device its own buffers.

    Raises:
        ValueError: A ``skip_*`` option without device planning, or given as a dict; from ``call``,
            a ``target_device`` that is not a device.
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
        if enable_non_cpu_memory_planning and not _HAS_COPY_OPS:
            raise RuntimeError(
                "enable_non_cpu_memory_planning=True needs the device copy operators "
                "(torch.ops.et_copy), which this ExecuTorch lacks: upgrade to executorch 1.4 or "
                "later, or leave device memory planning off."
            )
        self.skip_h2d_for_method_inputs = skip_h2d_for_method_inputs
        self.skip_d2h_for_method_outputs = skip_d2h_for_method_outputs
        self.enable_non_cpu_memory_planning = enable_non_cpu_memory_planning

    def call(self, graph_module: GraphModule) -> PassResult:
        """Places the tensors of a method and of its control-flow branches, in place."""
        changed = False
        for module in graph_module.modules():
            if isinstance(module, GraphModule):
                walk = _Walk(self, module, is_branch=module is not graph_module)
                changed |= walk.run()
        return PassResult(graph_module, changed)


class _Walk:
    """One forward walk over one graph; `PropagateDevicePass` says what holds afterwards.

    Attributes:
        home: node -> the device that its result lives on.
        places: value -> device -> the node that holds it there. A value is a node with one tensor.
        views: view -> the value whose bytes it shows, and its size (None: that value's own).
        labels: spec -> the device to write onto it.
    """

    def __init__(
        self, options: PropagateDevicePass, module: GraphModule, is_branch: bool
    ) -> None:
        self.options = options
        self.module = module
        self.is_branch = is_branch
        self.moves = options.enable_non_cpu_memory_planning
        self.home: dict[Node, Device] = {}
        self.places: dict[Node, dict[Device, Node]] = {}
        self.views: dict[Node, tuple[Node, Any]] = {}
        self.labels: dict[TensorSpec, Device] = {}

        nodes = list(module.graph.nodes)
        self.order = {node: index for index, node in enumerate(nodes)}
        self.body = next(node for node in nodes if node.op != "placeholder")
        self.output = nodes[-1]
        self.returned = set(self.output.all_input_nodes)
        self.written = {arg for node in nodes for arg in _written_args(node)}

    def run(self) -> bool:
        """Returns whether anything changed."""
        moved = False
        for node in self.order:
            if self._is_view(node):
                self._add_view(node)
                continue
            written = _written_args(node)
            if self.moves:
                moved |= self._read(node)
            self._settle(node)
            for value in written:
                if self.moves and value in self.places:
                    # In-place operators run on the host: what is elsewhere is stale now.
                    self.home[value] = HOST
                    self.places[value] = {HOST: self.places[value][HOST]}
        if self.moves:
            moved |= self._erase_unread_views()
        if moved:
            self._update_output()
            self.module.recompile()
        return self._write_labels() or moved

    # Who lives and reads where.

    def _side(self, reader: Node, reads_view: bool = False) -> Device | None:
        """The device on which a node reads an argument; None: wherever that lives."""
        if _is_delegate(reader):
            device = _target_device(self.module, reader)
            return HOST if self.is_branch else device
        if reader is self.output:
            # The caller may rebind an output's memory, which a view doesn't own.
            stays = self.options.skip_d2h_for_method_outputs and not reads_view
            return None if stays or not self.moves else HOST
        anywhere = _is_getitem(reader) or _operator_name(reader) in _READ_ANYWHERE
        return None if anywhere else HOST

    def _readers(self, value: Node) -> Iterator[tuple[Node, Device | None]]:
        """Those that read a value, directly or through views, each with its side."""
        pending = [value]
        while pending:
            node = pending.pop()
            for user in node.users:
                if self._is_view(user, self.home[value]):
                    pending.append(user)
                else:
                    yield user, self._side(user, reads_view=node is not value)

    def _settle(self, node: Node) -> None:
        """Decides where a node's result lives."""
        spec = _tensor_spec(node)
        home = HOST
        if _is_delegate(node):
            home = self._side(node) or HOST
        elif _is_getitem(node):
            home = self.home[node.all_input_nodes[0]]
        elif spec is not None and _operator_name(node) == _H2D:
            home = (spec.device, spec.device_index)
        self.home[node] = home
        if spec is not None:
            if not self.moves:
                self.home[node] = self._label_in_host_memory(node, spec)
            elif node.op == "placeholder":
                self.home[node] = self._home_of_input(node, spec)
            self.places[node] = {self.home[node]: node}
        if node is not self.output:
            for each in _tensor_specs(node):
                self.labels[each] = self.home[node]

    def _home_of_input(self, node: Node, spec: TensorSpec) -> Device:
        """Where the caller puts a method input; the host for what isn't the caller's to put."""
        skips = self.options.skip_h2d_for_method_inputs
        if not skips or spec.const or node in self.written:
            return HOST
        readers = sorted(filter(_is_delegate, node.users), key=self.order.__getitem__)
        sides = (self._side(reader) for reader in readers)
        return next((side for side in sides if side and side != HOST), HOST)

    def _label_in_host_memory(self, node: Node, spec: TensorSpec) -> Device:
        """The one device whose delegates touch a value that nothing else reads."""
        sides = {side for _, side in self._readers(node) if side}
        if self.home[node] != HOST:
            sides.add(self.home[node])
        return sides.pop() if len(sides) == 1 and not spec.const else HOST

    # Views.

    def _is_view(self, node: Node, home: Device | None = None) -> bool:
        """Whether a node shows its first argument's bytes, at no cost where that one lives."""
        name = _operator_name(node)
        if node.target is memory.view:
            return True
        if name not in _RESHAPES and name not in _IDENTITIES:
            return False
        base = node.all_input_nodes[0]
        if node in self.written or base in self.written:
            return False
        if not self.moves or (home or self.home[base]) == HOST:
            # Portable kernels make real copies; ExecuTorch elides just these.
            return name == _VIEW_COPY and node not in self.returned
        return _shows_same_bytes(node, base)

    def _add_view(self, node: Node) -> None:
        base = node.all_input_nodes[0]
        root, size = self.views.get(base, (base, None))
        if _operator_name(node) not in _IDENTITIES:
            size = _view_size(node)
        self.views[node] = (root, size)
        home = self.home[node] = self.home[root]
        self.places[node] = {}
        if node.target is memory.view or home == HOST or not self.moves:
            self.places[node][home] = node
        elif any(
            self._side(user, reads_view=True) not in (home, None)
            for user in node.users
            if not self._is_view(user)
        ):
            # The operator becomes the host's version right here, so that what it reads can go.
            self._at(node, HOST, node)
        if node.target is not memory.view:
            spec = _tensor_spec(node)
            assert spec is not None
            self.labels[spec] = HOST if self.moves else home

    def _view_at(self, view: Node, side: Device, reader: Node) -> Node:
        """Takes a view again, right before its first reader on that side."""
        root, size = self.views[view]
        if side == HOST and view.target is not memory.view:
            base = view.all_input_nodes[0]
            view.replace_input_with(base, self._at(base, side, reader))
            if reader is not view:
                reader.prepend(view)
            return view
        target = self._at(root, side, reader)
        if size is None:
            return target
        with self.module.graph.inserting_before(reader):
            node = self.module.graph.call_function(memory.view, (target, size))
        spec = _tensor_spec(target)
        assert spec is not None
        node.meta = _values_of(view)
        node.meta["spec"] = _ViewSpec(spec, view.meta["val"].shape)
        return node

    # Copies.

    def _read(self, reader: Node) -> bool:
        """Points a node's arguments at its own side; returns whether any was elsewhere."""
        moved = False

        def place(value: Node) -> Node:
            nonlocal moved
            if value not in self.places:
                return value
            here = self._side(reader, reads_view=value in self.views)
            placed = self._at(value, here or self.home[value], reader)
            moved |= placed is not value
            return placed

        args, kwargs = map_arg(reader.args, place), map_arg(reader.kwargs, place)
        if moved:
            reader.args, reader.kwargs = args, kwargs
        return moved

    def _at(self, value: Node, side: Device, reader: Node) -> Node:
        """The node that holds a value on a side, made for its first reader there."""
        places = self.places[value]
        if side not in places:
            if value in self.views:
                places[side] = self._view_at(value, side, reader)
            elif side == HOST:
                places[side] = self._copy(
                    value, side, self._after_or_before(value, reader)
                )
            else:
                places[side] = self._copy(self._at(value, HOST, reader), side, reader)
        return places[side]

    def _after_or_before(self, value: Node, reader: Node) -> Node:
        """Before which node a copy to the host stands: as early as it can, unless late is free."""
        now, home = self.order[reader], self.home[value]
        for other, side in self._readers(value):
            if self.order.get(other, now) > now and side in (home, None):
                return reader
        return self.body if value.op == "placeholder" else value.next

    def _copy(self, source: Node, side: Device, before: Node) -> Node:
        ops = torch.ops.et_copy
        copy_op = ops._d2h_copy if side == HOST else ops._h2d_copy
        with self.module.graph.inserting_before(before):
            node = self.module.graph.call_function(copy_op.default, (source,))
        source_spec = _tensor_spec(source)
        assert source_spec is not None
        spec = copy.copy(source_spec)
        spec.init_mem_planning_fields()
        # The copy is an activation, whatever its source is: no data, no name in the program.
        spec.const, spec.storage, spec.extra_tensor_info = False, None, None
        self.labels[spec] = side
        node.meta = _values_of(source)
        node.meta["spec"] = spec
        return node

    def _erase_unread_views(self) -> bool:
        """Erases views that were taken again on another side, or never read."""
        unread = False
        for view in reversed(self.views):
            if not view.users:
                self.module.graph.erase_node(view)
                unread = True
        return unread

    def _update_output(self) -> None:
        """Gives the planner the method's outputs, which it takes from the output's own spec."""
        self.output.meta["spec"] = pytree.tree_map(
            lambda arg: arg.meta.get("spec") if isinstance(arg, Node) else None,
            self.output.args[0],
        )

    def _write_labels(self) -> bool:
        changed = False
        for spec, device in self.labels.items():
            if (spec.device, spec.device_index) != device:
                spec.device, spec.device_index = device
                changed = True
        return changed


def _parse_device_spec_value(value: bytes) -> Device:
    """Reads a device such as ``b"cuda:1"``; the type in any case, index 0 if there is none.

    Raises:
        ValueError: It is not a device type that ExecuTorch knows, or the index doesn't fit.
    """
    text = value.decode("utf-8", "replace").strip()
    match = re.fullmatch(r"(\w+)(?:\s*:\s*(\d+))?", text, re.ASCII)
    types = {kind.name: kind for kind in schema.DeviceType}
    kind = types.get(match[1].upper()) if match else None
    index = int(match[2] or 0) if match else 0
    if kind is None or index > _MAX_DEVICE_INDEX:
        raise ValueError(
            f"{TARGET_DEVICE_COMPILE_SPEC_KEY} {text!r} is not a device. Valid types: "
            f"{', '.join(types)}, each with an index from 0 to {_MAX_DEVICE_INDEX} after a colon "
            "if it isn't 0, as in 'cuda:1'."
        )
    return kind, index


def _get_lowered_module(
    graph_module: GraphModule, delegate_call_node: Node
) -> LoweredBackendModule | None:
    """The lowered module that an ``executorch_call_delegate`` node calls; None if it isn't one."""
    attribute = delegate_call_node.args[0] if delegate_call_node.args else None
    if not isinstance(attribute, Node) or attribute.op != "get_attr":
        return None
    lowered = getattr(graph_module, str(attribute.target), None)
    return lowered if isinstance(lowered, LoweredBackendModule) else None


def _get_target_device_from_compile_specs(
    lowered_module: LoweredBackendModule,
) -> Device | None:
    """The device that a lowered module's compile specs name; None if they name none."""
    for spec in lowered_module.compile_specs:
        if spec.key == TARGET_DEVICE_COMPILE_SPEC_KEY:
            return _parse_device_spec_value(spec.value)
    return None


def _target_device(module: GraphModule, delegate: Node) -> Device:
    lowered = _get_lowered_module(module, delegate)
    if lowered is None:
        raise RuntimeError(
            f"executorch_call_delegate node '{delegate.name}' has no valid LoweredBackendModule: "
            "its first argument must be a get_attr node for one."
        )
    try:
        device = _get_target_device_from_compile_specs(lowered)
    except ValueError as error:
        raise ValueError(
            f"Delegate '{delegate.name}' of {lowered.backend_id}: {error}"
        ) from error
    return HOST if device is None or device[0] == HOST[0] else device


def _is_delegate(node: Node) -> bool:
    return node.op == "call_function" and node.target is executorch_call_delegate


def _is_getitem(node: Node) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def _operator_name(node: Node) -> str:
    """``aten::add`` for an ATen or edge operator, empty for anything else."""
    return getattr(getattr(node.target, "_schema", None), "name", "")


def _written_args(node: Node) -> list[Node]:
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


def _tensor_specs(node: Node) -> list[TensorSpec]:
    specs = pytree.tree_leaves(node.meta.get("spec"))
    return [spec for spec in specs if isinstance(spec, TensorSpec)]


def _tensor_spec(node: Node) -> TensorSpec | None:
    """The spec of a node that yields one tensor, bare or in a tuple of one; else None."""
    specs = _tensor_specs(node)
    return specs[0] if len(specs) == 1 else None


def _values_of(node: Node) -> dict[str, object]:
    return {key: node.meta[key] for key in ("val", "tensor_meta") if key in node.meta}


def _shows_same_bytes(view: Node, base: Node) -> bool:
    """Whether a view operator's result is its argument's memory, under a shape known ahead."""
    spec, base_spec = _tensor_spec(view), _tensor_spec(base)
    if spec is None or base_spec is None or spec.dtype != base_spec.dtype:
        return False
    if _operator_name(view) in _IDENTITIES:
        return spec.dim_order == base_spec.dim_order
    contiguous = all(
        list(each.dim_order) == list(range(len(each.shape)))
        for each in (spec, base_spec)
    )
    same_dynamism = spec.shape_dynamism == base_spec.shape_dynamism  # _ViewSpec insists
    return contiguous and same_dynamism and _view_size(view) is not None


def _view_size(node: Node) -> Any:
    """The size argument for `memory.view`, or None if more than one dimension is symbolic."""
    if node.target is memory.view or _operator_name(node) == _VIEW_COPY:
        return node.args[1]
    shape = node.meta["val"].shape
    size = [dim if isinstance(dim, int) else -1 for dim in shape]
    return size if size.count(-1) <= 1 else None
