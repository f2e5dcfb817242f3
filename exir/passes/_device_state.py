"""Which mutable buffers live on a device, and what becomes of the writes to them.

A method's mutable buffer has an old value, which is there when a call begins, and a new one, which
``insert_write_back_for_buffers_pass`` has copied over it when the call ends. On a device that takes
no copy: the memories of the two change roles from call to call, or, where one delegate reads the
old value and makes the new one, it writes the one over the other.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from executorch.exir.passes._delegate_streams import streams_of
from executorch.exir.passes._device_nodes import (
    HOST,
    RESHAPES,
    Device,
    is_delegate,
    is_getitem,
    lowered_module,
    operator_name,
    tensor_spec,
    values_of,
    written_args,
)
from executorch.exir.passes._device_placement import (
    IDENTITIES,
    Placement,
    shows_same_bytes,
)
from executorch.exir.passes._device_state_ops import START, STATE_META, STORE
from executorch.exir.tensor import TensorSpec
from torch.fx import GraphModule, Node

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class State:
    """A mutable buffer of a method.

    Attributes:
        old: Its placeholder: the value that it has when a call begins.
        write: The node that writes the new value over it.
        root: The node that makes the new value.
        made_on: The device that lives on.
        home: Where the buffer is to live.
        reason: Why that is the host, if it is.
    """

    old: Node
    write: Node
    root: Node
    made_on: Device
    home: Device = HOST
    reason: str = ""

    @property
    def name(self) -> str:
        return str(self.old.meta[STATE_META])


def place_states(placement: Placement, on_host: str = "") -> bool:
    """Moves mutable buffers to where that takes the fewest copies per call; the host if in doubt.

    Their writes become `et_state::store_`, and an `et_state::start_` stands before everything else.
    Goes by a placement that has walked no node yet, and is of no use afterwards. ``on_host`` is the
    reason why none may move. Returns whether the graph changed.
    """
    states = _states(placement, on_host)
    together: dict[Node, list[State]] = {}
    for state in states:
        if not state.reason:
            together.setdefault(state.root, []).append(state)
    for group in together.values():
        _choose(placement, group)
    for state in states:
        if state.home != HOST:
            _rewrite(placement.module, state)
    _log(states)
    return any(state.home != HOST for state in states)


def write_in_place(module: GraphModule) -> None:
    """Plans the new value of a buffer into the old one's memory where its delegate allows that."""
    for store in module.graph.nodes:
        if operator_name(store) != STORE:
            continue
        old, new = store.args
        readers = [
            user for user in old.users if operator_name(user) not in (START, STORE)
        ]
        if is_getitem(new) and readers == new.all_input_nodes:
            (delegate,) = readers
            lowered = lowered_module(module, delegate)
            if lowered is not None and streams_of(lowered.backend_id).writes_last:
                spec = tensor_spec(new)
                assert spec is not None
                spec.inplace_base = tensor_spec(old)


def kept_memory(module: GraphModule) -> Iterator[TensorSpec]:
    """What holds a mutable buffer in one call or another, and nothing else at any time."""
    for store in module.graph.nodes:
        if operator_name(store) == STORE:
            for node in store.all_input_nodes:
                spec = tensor_spec(node)
                assert spec is not None
                yield spec


def _states(placement: Placement, on_host: str) -> list[State]:
    """The buffers that the host would copy their new values to, in the graph's order."""
    found = []
    for write in placement.order:
        if operator_name(write) != "aten::copy_":
            continue
        old, new = write.args[:2]
        if STATE_META not in old.meta or not isinstance(new, Node):
            continue
        root = _root(placement, new)
        state = State(old, write, root, _made_on(placement, root))
        state.reason = on_host or _reason(placement, state)
        found.append(state)
    return found


def _made_on(placement: Placement, node: Node) -> Device:
    """The device on which a node's result is made."""
    producer = node.all_input_nodes[0] if is_getitem(node) else node
    if is_delegate(producer):
        return placement.side(producer) or HOST
    if node.op == "placeholder":
        spec = tensor_spec(node)
        return HOST if spec is None else placement.home_of_input(node, spec)
    return HOST


def _root(placement: Placement, node: Node) -> Node:
    """The node whose bytes a chain of casts and clones shows on a device, if it was made there."""
    root = node
    while operator_name(root) in IDENTITIES and root not in placement.written:
        base = root.all_input_nodes[0]
        if base in placement.written or not shows_same_bytes(root, base):
            break
        root = base
    return node if _made_on(placement, root) == HOST else root


def _reason(placement: Placement, state: State) -> str:
    """Why a buffer has to live on the host; empty if it needn't."""
    old, root = state.old, state.root
    spec, new_spec = tensor_spec(old), tensor_spec(root)
    if spec is None or new_spec is None:
        return "it is not a tensor"
    if "constant_tag" in old.meta:
        return "its first value is in a data file, which is loaded into host memory"
    writers = [
        user
        for user in (*old.users, *root.users)
        if user is not state.write
        and {old, root} & set(written_args(user))
        and operator_name(user) != "aten::copy_"
    ]
    if writers or len([u for u in old.users if old in written_args(u)]) > 1:
        return "the host also writes to it in place"
    if root.op == "placeholder" and (STATE_META in root.meta or state.made_on != HOST):
        return "its new value is another buffer or input"
    contiguous = list(range(len(spec.shape)))
    if (
        list(spec.shape) != list(new_spec.shape)
        or spec.dtype != new_spec.dtype
        or not (spec.is_static_shape_tensor and new_spec.is_static_shape_tensor)
        or list(spec.dim_order) != contiguous
        or list(new_spec.dim_order) != contiguous
    ):
        return "its new value has another shape, data type or layout"
    return ""


def _choose(placement: Placement, group: list[State]) -> None:
    """Decides about buffers that have one new value in common, which becomes the memory of one."""
    on_host = {state: _old_on_host(placement, state) for state in group}
    made_on = group[0].made_on
    cost = sum(on_host.values()) + _new(placement, group, {HOST})
    best = cost, made_on != HOST  # all else equal, it lives where it is made
    chosen: tuple[State, Device] | None = None
    for state in group:
        others = sum(cost for each, cost in on_host.items() if each is not state)
        homes = {HOST} if len(group) > 1 else set()
        for device in placement.devices:
            cost = others + _old_on_device(placement, state, device)
            cost += _new(placement, group, {device, *homes})
            if (cost, device != made_on) < best:
                best, chosen = (cost, device != made_on), (state, device)
    for state in group:
        if chosen is not None and state is chosen[0]:
            state.home = chosen[1]
        else:
            state.reason = "a device would save no copies"


def _copies(home: Device, sides: Iterable[Device | None]) -> int:
    """How often a value that lives on one side is copied for its readers on all of them."""
    devices = {side for side in sides if side and side not in (HOST, home)}
    to_host = home != HOST and (HOST in sides or bool(devices))
    return to_host + len(devices)


def _new(placement: Placement, group: Iterable[State], homes: set[Device]) -> int:
    """Copies of a new value, if the buffers that it is written to live in these places."""
    state = next(iter(group))
    writes = {each.write for each in group}
    on_device = homes != {HOST}
    sides = placement.sides(state.root, state.made_on, writes, on_device)
    return _copies(state.made_on, sides | homes)


def _old_on_host(placement: Placement, state: State) -> int:
    """Copies of an old value in host memory, where a view of what is written is a value itself."""
    users = [user for user in state.old.users if user is not state.write]
    views = [u for u in users if operator_name(u) in RESHAPES | IDENTITIES]
    cost = _copies(HOST, {placement.side(user) for user in users})
    return cost + sum(_copies(HOST, placement.sides(view, HOST)) for view in views)


def _old_on_device(placement: Placement, state: State, device: Device) -> int:
    placement.written.discard(state.old)
    sides = placement.sides(state.old, device, {state.write}, kept=True)
    placement.written.add(state.old)
    return _copies(device, sides)


def _rewrite(module: GraphModule, state: State) -> None:
    """Has a buffer's memory, not the host, take its new value."""
    graph, old, write = module.graph, state.old, state.write
    ops = torch.ops.et_state
    new = write.args[1] if state.made_on == HOST else state.root
    body = next(node for node in graph.nodes if node.op != "placeholder")
    spec = tensor_spec(old)
    assert spec is not None
    spec.device, spec.device_index = state.home
    with graph.inserting_before(body):
        start = graph.call_function(ops.start_.default, (old,))
    start.meta = {**values_of(old), "spec": copy.copy(spec)}
    write.target, write.args = ops.store_.default, (old, new)
    write.kwargs = {}
    graph.output_node().prepend(write)
    # Its first value comes from `start_`: the C++ runtime would load it as if into host memory.
    old.meta.pop("et_init_buffer", None)


def _log(states: list[State]) -> None:
    for state in states:
        if state.home != HOST:
            kind, index = state.home
            where = f"{kind.name.lower()}:{index}"
            logger.info("the buffer %s lives on %s", state.name, where)
        else:
            logger.info("the buffer %s lives on the host: %s", state.name, state.reason)
