"""Emit instructions for device buffers that several methods share.

Two facts about a buffer are shared by its methods: whether it is initialized, and which of its two
allocations holds its value (`executorch.exir.emit._device_state`). Each is a byte of host memory that they
share too, zero at first, as planned host memory is. A method begins by comparing: it fills the buffers that
no method has filled, and swaps the two allocations if their parity over all methods differs from its own.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from executorch.exir.emit._device_state import (
    emit_exchange,
    emit_fill,
    emit_first_value,
    emit_jump,
    emit_swap,
    here,
)
from executorch.exir.emit._emitter import _AbstractValue, _Emitter
from executorch.exir.passes._aliases import is_device_write_back
from executorch.exir.passes._shared_buffers import GROUP_META, Group
from executorch.exir.schema import EValue, Instruction, Int, JumpFalseCall, KernelCall
from executorch.exir.tensor import TensorSpec
from torch.fx import Node


@dataclass(eq=False)
class _Emitted:
    """State of emitting one method's instructions for a group of buffers.

    Attributes:
        remaining: Placeholders that are not emitted yet.
        buffers: The placeholders emitted so far, with their values.
        parity: The index of the value of the group's byte.
        mine: Index of the value of the parity at which the buffers' values have the allocations that they have now.
        other: Index of the value of the parity at which the allocations are swapped.
        to_exchange: Jumps to what swaps the allocations.
        body: The first instruction after the comparison.
    """

    remaining: int
    buffers: list[tuple[Node, _AbstractValue]] = field(default_factory=list)
    parity: int = -1
    mine: int = -1
    other: int = -1
    to_exchange: list[JumpFalseCall] = field(default_factory=list)
    body: int = -1


def emit_initial_value(
    emitter: _Emitter, placeholder: Node, value: _AbstractValue
) -> None:
    """Emits what gives a mutable buffer on a device its initial value; nothing for any other placeholder."""
    if GROUP_META in placeholder.meta:
        _emit_shared_buffer(emitter, placeholder, value)
    elif any(map(is_device_write_back, placeholder.users)):
        emit_first_value(emitter, placeholder, value)


def emit_write_back(emitter: _Emitter, write_back: Node) -> None:
    """Emits the exchange of a buffer and its new value on a device; those that methods share come last."""
    if GROUP_META not in write_back.all_input_nodes[0].meta:
        emit_exchange(emitter, write_back)


def _emit_shared_buffer(
    emitter: _Emitter, placeholder: Node, buffer: _AbstractValue
) -> None:
    """Emits the comparison, with the last placeholder of a group."""
    group: Group = placeholder.meta[GROUP_META]
    groups = vars(emitter).setdefault("shared_buffers", {})
    if group not in groups:
        nodes = placeholder.graph.find_nodes(op="placeholder")
        own = [node for node in nodes if node.meta.get(GROUP_META) is group]
        groups[group] = _Emitted(len(own))
    emitted: _Emitted = groups[group]
    emitted.buffers.append((placeholder, buffer))
    emitted.remaining -= 1
    if not emitted.remaining:
        _emit_first_values(emitter, group, emitted)
        if group.parity is not None:
            _emit_comparison(emitter, group.parity, emitted)


def emit_exchanges(emitter: _Emitter, graph: torch.fx.Graph) -> None:
    """Emit the swap of allocations after the last instruction of a call, and record it."""
    groups: dict[Group, _Emitted] = vars(emitter).get("shared_buffers", {})
    writes = list(filter(is_device_write_back, graph.nodes))
    for group, emitted in groups.items():
        if group.parity is None:
            continue
        _emit_copy(emitter, emitted.other, emitted.parity)
        to_end = emit_jump(emitter)
        for jump in emitted.to_exchange:
            jump.destination_instruction = here(emitter)
        for write in writes:
            if write.all_input_nodes[0].meta.get(GROUP_META) is group:
                emit_exchange(emitter, write)
        emit_swap(emitter, emitted.mine, emitted.other)
        emit_jump(emitter).destination_instruction = emitted.body
        to_end.destination_instruction = here(emitter)


def _emit_first_values(emitter: _Emitter, group: Group, emitted: _Emitted) -> None:
    initialized = _emit_flag(emitter, group.initialized)
    to_fill, to_end = emit_jump(emitter, initialized), emit_jump(emitter)
    to_fill.destination_instruction = here(emitter)
    for placeholder, buffer in emitted.buffers:
        emit_fill(emitter, placeholder, buffer)
    _emit_copy(emitter, _emit_constant(emitter, True), initialized)
    to_end.destination_instruction = here(emitter)


def _emit_comparison(
    emitter: _Emitter, parity: tuple[int, int], emitted: _Emitted
) -> None:
    emitted.parity = _emit_flag(emitter, parity)
    emitted.mine = _emit_constant(emitter, False)
    emitted.other = _emit_constant(emitter, True)
    to_even = emit_jump(emitter, emitted.parity)
    # The parity is odd.
    emitted.to_exchange.append(emit_jump(emitter, emitted.mine))
    to_body = [emit_jump(emitter)]
    to_even.destination_instruction = here(emitter)
    to_body.append(emit_jump(emitter, emitted.mine))
    emitted.to_exchange.append(emit_jump(emitter))
    emitted.body = here(emitter)
    for jump in to_body:
        jump.destination_instruction = emitted.body


def _emit_flag(emitter: _Emitter, place: tuple[int, int]) -> int:
    """Return the index of a value for a byte of planned host memory."""
    spec = TensorSpec.from_tensor(torch.zeros(1, 1, dtype=torch.bool))
    spec.mem_id, spec.mem_offset = place
    return emitter._emit_evalue(emitter._tensor_spec_to_evalue(spec)).id


def _emit_constant(emitter: _Emitter, value: bool) -> int:
    spec = TensorSpec.from_tensor(torch.tensor([value]), const=True)
    return emitter._emit_evalue(emitter._tensor_spec_to_evalue(spec)).id


def _emit_copy(emitter: _Emitter, source: int, flag: int) -> None:
    """Writes a flag by the one operator for it that every runtime has."""
    index = emitter._emit_evalue(EValue(Int(0))).id
    operator, _ = emitter._get_operator("executorch_prim::et_copy_index", "tensor")
    call = KernelCall(operator, [flag, source, index])
    emitter.chain.instructions.append(Instruction(call))
