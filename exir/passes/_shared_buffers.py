"""Plan mutable buffers that the methods of a program share, on devices and on the host.

With ``MemoryPlanningPass(share_mutable_buffers=True)`` buffers of one name are one buffer in all methods. Each
device with such buffers gets an arena for them, whose index, size and offsets are the same in all methods
(pytorch/executorch#21958); a host gives its methods the same memory for it. Methods are lowered one
after the other, so the devices of buffers are decided for all of them before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from executorch.exir.passes._aliases import (
    elided_root,
    is_device_write_back,
    producer,
    reshaped_root,
)
from executorch.exir.passes.devices.nodes import (
    DEVICE_ALIGNMENT,
    HOST,
    Device,
    device_of_delegate,
    is_delegate,
    is_getitem,
    tensor_spec,
)
from executorch.exir.passes.devices.placement import memory_planning_of
from executorch.exir.passes.streams.delegate_streams import streams_in
from executorch.exir.schema import NonConstBufferDevice
from executorch.exir.tensor import TensorSpec
from torch.export import ExportedProgram, ExportGraphSignature
from torch.fx import GraphModule, Node

#: Key of a placeholder's metadata: the :class:`Group` of the shared buffer on a device that it is.
GROUP_META = "shared_buffers"
#: Key of a placeholder's metadata: the fully qualified name of the mutable buffer that it is.
STATE_META = "mutable_buffer"
#: Key of a placeholder's metadata: the :class:`SharedBuffer` that it is.
SHARED_META = "shared_buffer"

#: Index of an arena that no method has.
_NOWHERE = 1 << 20


@dataclass(frozen=True)
class SharedBuffer:
    """A buffer of one name.

    Attributes:
        device: The device that it is on, in all methods.
        in_place: Whether each method's new value is made in the old one's memory; if not it has a
            second one, and the two are swapped after each call.
    """

    device: Device = HOST
    in_place: bool = False


@dataclass(eq=False)
class Group:
    """Shared buffers on devices that the same methods have.

    Attributes:
        initialized: Arena and offset of a byte of host memory, 0 until they have their first values.
        parity: The same of one that is 0 while their values are in the first of their allocations; None where
            each has one memory.
    """

    initialized: tuple[int, int]
    parity: tuple[int, int] | None = None


def choose_shared_buffers(
    config: Any, programs: Mapping[str, ExportedProgram]
) -> dict[str, SharedBuffer]:
    """Return the mutable buffers that methods share, by name; none if no memory planning pass shares any.

    One lives on a device if every method that has it writes it by a delegate there.

    Args:
        config: The program's ``ExecutorchBackendConfig``.
        programs: The methods, lowered by their partitioners.

    Raises:
        ValueError: One has another shape or type in one method than in another.
    """
    kinds: dict[str, tuple[str, str]] = {}
    uses: dict[str, list[SharedBuffer]] = {}
    programs = {name: programs[name] for name in _sharing(config, programs)}
    for program in programs.values():
        for name in program.graph_signature.buffers_to_mutate.values():
            uses.setdefault(name, [])
    for method, program in programs.items():
        signature = program.graph_signature
        nodes = {node.name: node for node in program.graph.nodes}
        values = {
            name: nodes[value] for value, name in signature.buffers_to_mutate.items()
        }
        written = Counter(map(reshaped_root, values.values()))
        for placeholder, name in signature.inputs_to_buffers.items():
            if name in uses and placeholder in nodes:
                fake_value = nodes[placeholder].meta["val"]
                kind = f"{fake_value.dtype} of shape {[*fake_value.shape]}"
                other, theirs = kinds.setdefault(name, (method, kind))
                if kind != theirs:
                    raise ValueError(
                        f"methods share the buffer {name}, which is {theirs} in {other} and {kind} in "
                        f"{method}: rename one of the two, or give MemoryPlanningPass "
                        "share_mutable_buffers=False"
                    )
                value, use = values.get(name), SharedBuffer()
                if (
                    config.enable_non_cpu_memory_planning
                    and value is not None
                    and written[reshaped_root(value)] == 1
                ):
                    use = _used(program.graph_module, nodes[placeholder], value)
                uses[name].append(use)
    return {name: _common(use) for name, use in uses.items() if use}


def mark_shared_buffers(
    module: GraphModule,
    signature: ExportGraphSignature,
    shared: Mapping[str, SharedBuffer],
) -> None:
    """Mark the placeholders of shared buffers: a pass over one method can't identify them."""
    for node in module.graph.find_nodes(op="placeholder"):
        node.meta.pop(SHARED_META, None)
        name = signature.inputs_to_buffers.get(node.name, "")
        if name in shared:
            node.meta[SHARED_META] = shared[name]


def plan_without_shared_buffers(
    planning: Any, graph_module: GraphModule, signature: ExportGraphSignature
) -> Any:
    """Run the memory planning pass of one method; shared buffers are placed for all methods at once."""
    if not getattr(planning, "share_mutable_buffers", False):
        return planning.run(graph_module, signature)
    with _without_buffers(planning, graph_module):
        return planning.run(graph_module, signature)


def place_shared_buffers(
    config: Any,
    programs: Mapping[str, ExportedProgram],
    shared: Mapping[str, SharedBuffer],
) -> frozenset[int]:
    """Allocate shared buffers in all methods; return the arenas that the methods share.

    Args:
        config: The program's ``ExecutorchBackendConfig``.
        programs: The methods, planned without shared buffers.
        shared: As :func:`choose_shared_buffers` has it.
    """
    if not shared:
        return frozenset()
    plans = _sharing(config, programs)
    programs = {name: programs[name] for name in plans}
    alignment = max(plan.alignment for plan in plans.values())
    specs: dict[str, dict[str, tuple[Node, TensorSpec]]] = {}
    for method, program in programs.items():
        for node in program.graph.find_nodes(op="placeholder"):
            name = program.graph_signature.inputs_to_buffers.get(node.name, "")
            spec = tensor_spec(node)
            if name in shared and spec is not None:
                specs.setdefault(name, {})[method] = node, spec
    if not specs:
        return frozenset()
    devices = sorted({HOST, *(shared[name].device for name in specs)}, key=_order)
    metas = [program.graph_module.meta for program in programs.values()]
    first = max(len(meta["non_const_buffer_sizes"]) for meta in metas)
    arenas = {device: _Arena(first + i) for i, device in enumerate(devices)}
    groups: dict[tuple[frozenset[str], bool], Group] = {}
    allocations = {
        method: _allocations(program.graph_module)
        for method, program in programs.items()
    }
    for name, uses in specs.items():
        device, in_place = shared[name].device, shared[name].in_place
        arena = arenas[device]
        unit = alignment if device == HOST else DEVICE_ALIGNMENT
        nbytes = next(iter(uses.values()))[1].nbytes()
        places = [arena.take(nbytes, unit)]
        places.append(
            places[0] if in_place or device == HOST else arena.take(nbytes, unit)
        )
        for method, (node, old) in uses.items():
            _put(old, arena.index, places[0], unit)
            if device != HOST:
                _put(allocations[method][name][1], arena.index, places[1], unit)
                key = frozenset(uses), in_place
                if key not in groups:
                    flags = arenas[HOST]
                    groups[key] = Group(
                        (flags.index, flags.take(1, 1)),
                        None if in_place else (flags.index, flags.take(1, 1)),
                    )
                node.meta[GROUP_META] = groups[key]
    for meta in metas:
        sizes = meta["non_const_buffer_sizes"]
        sizes += [0] * (first - len(sizes))
        sizes += [arena.nbytes for arena in arenas.values()]
        on = meta.get("non_const_buffer_device") or []
        on += [
            NonConstBufferDevice(arena.index, *device)
            for device, arena in arenas.items()
            if device != HOST
        ]
        if on:
            meta["non_const_buffer_device"] = on
    return frozenset(arena.index for arena in arenas.values())


def _sharing(config: Any, methods: Iterable[str]) -> dict[str, Any]:
    """Return the memory planning passes of the methods that share buffers."""
    plans = {name: memory_planning_of(config, name) for name in methods}
    return {
        name: plan
        for name, plan in plans.items()
        if getattr(plan, "share_mutable_buffers", False)
    }


@contextmanager
def _without_buffers(planning: Any, graph_module: GraphModule) -> Iterator[None]:
    """Scope in which a planning pass gives mutable buffers no memory, nor their new values on devices."""
    algorithm = planning.memory_planning_algo

    def plan(alignment: int, specs: Any, *rest: Any) -> Any:
        left_out = {new for _, new in _allocations(graph_module).values()}
        sizes = algorithm(alignment, [s for s in specs if s not in left_out], *rest)
        for index, spec in enumerate(
            known_spec for known_spec in specs if known_spec in left_out
        ):
            # Of no other's: the verifier looks for memory that is given away twice.
            spec.realign(alignment)
            spec.mem_id, spec.mem_offset = _NOWHERE + index, 0
        return sizes

    planning.share_mutable_buffers = planning.alloc_mutable_buffers = False
    planning.memory_planning_algo = plan
    try:
        yield
    finally:
        planning.share_mutable_buffers = planning.alloc_mutable_buffers = True
        planning.memory_planning_algo = algorithm


def _common(uses: list[SharedBuffer]) -> SharedBuffer:
    device, *others = {use.device for use in uses}
    in_place = all(use.in_place for use in uses)
    return SharedBuffer() if others else SharedBuffer(device, in_place)


def _used(module: GraphModule, old: Node, value: Node) -> SharedBuffer:
    root = reshaped_root(value)
    made_by = producer(root)
    if not is_getitem(root) or not is_delegate(made_by):
        return SharedBuffer()
    device = device_of_delegate(module, made_by)
    if device == HOST:
        return SharedBuffer()
    output = module.graph.output_node()
    returned = sum(arg is root for arg in output.args[0])  # type: ignore[union-attr]
    is_private = (
        {*old.users} == {made_by} and {*root.users} == {output} and returned == 1
    )
    in_place = root is value and is_private and streams_in(module, made_by).writes_last
    return SharedBuffer(device, in_place)


@dataclass
class _Arena:
    index: int
    nbytes: int = field(default=0)

    def take(self, nbytes: int, alignment: int) -> int:
        """Reserve ``nbytes`` more, aligned; return their offset."""
        start = -(-self.nbytes // alignment) * alignment
        self.nbytes = start + nbytes
        return start


def _put(spec: Any, arena: int, offset: int, alignment: int) -> None:
    spec.mem_id, spec.mem_offset = arena, offset
    spec.realign(alignment)


def _allocations(graph_module: GraphModule) -> dict[str, tuple[TensorSpec, TensorSpec]]:
    """Return, by name, the specs of the old and the new value of each shared buffer on a device."""
    return {
        name: (old, new)
        for name, write in shared_writes(graph_module)
        for old, new in [map(tensor_spec, map(elided_root, write.all_input_nodes))]
        if old is not None and new is not None
    }


def shared_writes(graph_module: GraphModule) -> Iterator[tuple[str, Node]]:
    """Yield the write-backs of shared buffers on devices, with the buffers' names."""
    for node in filter(is_device_write_back, graph_module.graph.nodes):
        placeholder = node.all_input_nodes[0]
        if SHARED_META in placeholder.meta:
            yield placeholder.meta[STATE_META], node


def _order(device: Device) -> tuple[bool, int, int]:
    return device != HOST, device[0].value, device[1]
