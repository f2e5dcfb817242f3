"""Which mutable buffers live on a device.

A method's mutable buffer has an old value, which is there when a call begins, and a new one, which
``insert_write_back_for_buffers_pass`` has copied over it when the call ends. On a device that takes
no copy: the memories of the two change roles from call to call (`executorch.exir.emit._device_state`),
or, where one delegate reads the old value and makes the new one, it writes the one over the other.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass

from executorch.exir.passes._aliases import (
    IDENTITIES,
    RESHAPES,
    elided_root,
    is_device_write_back,
    is_write_back,
    producer,
)
from executorch.exir.passes._delegate_streams import writes_in_place
from executorch.exir.passes._device_nodes import (
    HOST,
    Device,
    is_delegate,
    operator_name,
    tensor_spec,
)
from executorch.exir.passes._device_placement import Options, Placement
from torch.fx import GraphModule, Node
from torch.fx.passes.infra.pass_base import PassBase, PassResult

logger = logging.getLogger(__name__)

#: Key of a placeholder's metadata: the fully qualified name of the mutable buffer that it is.
STATE_META = "mutable_buffer"


class DeviceStatePass(PassBase):
    """Has mutable buffers live where that takes the fewest copies per call; on the host if in doubt.

    Goes before `PropagateDevicePass`, and tells it by the specs of the buffers' placeholders. Writes
    of their new values come last in the graph then. All else equal, a buffer lives where its new
    value is made. Running it again changes nothing.

    Args:
        options: What `PropagateDevicePass` is told.
        on_host: Why no buffer may live on a device, for the log; empty if they may.
    """

    def __init__(self, options: Options, on_host: str = "") -> None:
        super().__init__()
        self.options = options
        self.on_host = on_host

    def call(self, graph_module: GraphModule) -> PassResult:
        """Places the buffers of a method, in place."""
        if not self.options.enable_non_cpu_memory_planning:
            return PassResult(graph_module, False)
        placement = Placement(self.options, graph_module, is_branch=False)
        writes = [
            node
            for node in placement.order
            if is_write_back(node) and STATE_META in node.all_input_nodes[0].meta
        ]
        states = [_State.of(placement, node, self.on_host) for node in writes]
        together: dict[Node, list[_State]] = {}
        for state in states:
            if not state.reason:
                together.setdefault(state.root, []).append(state)
        for group in together.values():
            _choose(placement, group)
        for state in states:
            state.log()
        moved = [state for state in states if state.home != HOST]
        for state in moved:
            spec = tensor_spec(state.old)
            assert spec is not None
            spec.device, spec.device_index = state.home
            # The emitter gives it its first value: the C++ runtime would load it as if the host
            # could write there.
            state.old.meta.pop("et_init_buffer", None)
            placement.output.prepend(state.write)
        return PassResult(graph_module, bool(moved))


def plan_states(graph_module: GraphModule) -> None:
    """Gives buffers on devices their memories, each for as long as the method is loaded.

    One delegate that reads a buffer's old value, and writes its new one last, writes it over that.
    """
    last = len(graph_module.graph.nodes) - 1
    for write in filter(is_device_write_back, graph_module.graph.nodes):
        old, new = (tensor_spec(elided_root(each)) for each in write.all_input_nodes)
        assert old is not None and new is not None
        old.lifetime, new.lifetime = [0, last], [0, last]
        if writes_in_place(graph_module, write):
            new.inplace_base = old


@dataclass(eq=False)
class _State:
    """A mutable buffer of a method.

    Attributes:
        old: Its placeholder: the value that it has when a call begins.
        write: The node that writes the new value over it.
        root: The value whose bytes that one has.
        made_on: Where it is made.
        home: Where the buffer is to live.
        reason: Why that is the host, if it is.
    """

    old: Node
    write: Node
    root: Node
    made_on: Device
    home: Device = HOST
    reason: str = ""

    @classmethod
    def of(cls, placement: Placement, write: Node, on_host: str) -> _State:
        old, new = write.all_input_nodes[0], write.all_input_nodes[-1]
        root = placement.aliases.root(new, on_host=False)
        made_on = _made_on(placement, root)
        if made_on == HOST:
            root = placement.aliases.root(new, on_host=True)
        state = cls(old, write, root, made_on)
        state.reason = on_host or state._reason_for_host(placement)
        return state

    def _reason_for_host(self, placement: Placement) -> str:
        """Why a buffer has to live on the host; empty if it needn't."""
        old, new = tensor_spec(self.old), tensor_spec(self.root)
        writers = placement.aliases.writers
        if old is None or new is None:
            return "it is not a tensor"
        if (old.device, old.device_index) != HOST:
            return "it has been placed before"
        if "constant_tag" in self.old.meta:
            return "its first value is in a data file, which is loaded into host memory"
        if writers[self.old] != [self.write] or self.root in writers:
            return "the host also writes to it in place"
        if self.root.op == "placeholder" and (
            STATE_META in self.root.meta
            or placement.home_of_input(self.root, new) != HOST
        ):
            return "its new value is another buffer or input"
        if (
            (old.dtype, old.nbytes()) != (new.dtype, new.nbytes())
            or not (old.is_static_shape_tensor and new.is_static_shape_tensor)
            or any(
                list(each.dim_order) != list(range(len(each.shape)))
                for each in (old, new)
            )
        ):
            return "its new value has another size, data type or layout"
        return ""

    def log(self) -> None:
        name, (kind, index) = self.old.meta[STATE_META], self.home
        where = f"{kind.name.lower()}:{index}"
        if self.home == HOST:
            where = f"the host: {self.reason}"
        logger.info("the buffer %s lives on %s", name, where)


def _made_on(placement: Placement, root: Node) -> Device:
    """The device on which a value is made."""
    made_by = producer(root)
    return (placement.reads_on(made_by) or HOST) if is_delegate(made_by) else HOST


def _choose(placement: Placement, group: list[_State]) -> None:
    """Decides about buffers that have one new value in common, which becomes the memory of one."""
    made_on = group[0].made_on
    on_host = {state: _old(placement, state, HOST) for state in group}
    best = sum(on_host.values()) + _new(placement, group, {HOST}), made_on != HOST
    chosen: tuple[_State, Device] | None = None
    for state in group:
        others = sum(cost for each, cost in on_host.items() if each is not state)
        homes = {HOST} if len(group) > 1 else set()
        for device in placement.devices:
            cost = others + _old(placement, state, device)
            cost += _new(placement, group, {device, *homes})
            if (cost, device != made_on) < best:
                best, chosen = (cost, device != made_on), (state, device)
    for state in group:
        if chosen is not None and state is chosen[0]:
            state.home = chosen[1]
        else:
            state.reason = "a device would save no copies"


def _copies(home: Device, read_on: Iterable[Device | None]) -> int:
    """How often a value that lives on one device, or the host, is copied for its readers on all."""
    devices = {each for each in read_on if each and each not in (HOST, home)}
    to_host = home != HOST and (HOST in read_on or bool(devices))
    return to_host + len(devices)


def _new(placement: Placement, group: list[_State], homes: set[Device]) -> int:
    """Copies of a new value, if the buffers that it is written to live in these places."""
    root, made_on = group[0].root, group[0].made_on
    writes = {each.write for each in group}
    read_on = placement.reading_devices(root, made_on, writes, kept=homes != {HOST})
    return _copies(made_on, read_on | homes)


def _old(placement: Placement, state: _State, home: Device) -> int:
    """Copies of an old value, and on the host of the copies that would be its views on a device."""
    cost, pending = 0, [state.old]
    while pending:
        value = pending.pop()
        kept = home != HOST
        cost += _copies(
            home, placement.reading_devices(value, home, {state.write}, kept)
        )
        if home == HOST:
            readers = placement.aliases.readers(value, on_host=True)
            pending += {user for user, _ in readers if operator_name(user) in _VIEWS}
    return cost


_VIEWS = RESHAPES | IDENTITIES
