"""Instructions that keep mutable buffers on a device, which ExecuTorch's C++ runtime can't fill there.

Planned memory on a device is whatever the allocator returns (``cudaMalloc``, in
``DeviceMemoryBuffer::create``), and what a ``.pte`` has as a buffer's initial state is read straight
into its planned memory, as if the host could write there (``load_mutable_subsegment_into``). So a
buffer's first value is a constant of the program that its method copies there, in its first call.
"""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from executorch.exir import memory
from executorch.exir.emit._emitter import _AbstractValue, _Emitter
from executorch.exir.passes._device_nodes import operator_name, tensor_spec
from executorch.exir.passes._device_state_ops import START, STORE
from executorch.exir.schema import (
    Bool,
    EValue,
    Instruction,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Null,
)
from executorch.exir.tensor import TensorSpec

#: A buffer of one value is filled from a piece of it: in at most so many copies, each of at least so
#: many bytes. That much, and not the buffer, is in the program.
_MOST_PIECES = 64
_LEAST_BYTES = 64 * 1024


def emits(target: Any) -> bool:
    """Whether an operator is one that `emit` has instructions for."""
    return getattr(getattr(target, "_schema", None), "name", "") in (START, STORE)


def emit(emitter: _Emitter, *args: _AbstractValue) -> _AbstractValue:
    """Emits the instructions for the emitter's node, and returns the buffer's value."""
    if operator_name(emitter.node) == START:
        _start(emitter, *args)
    else:
        _store(emitter, *args)
    return args[0]


def _start(emitter: _Emitter, state: _AbstractValue) -> None:
    """Copies a buffer's first value to it, in the first call of the method.

    ``JumpFalseCall`` reads a flag among the method's values, which starts as true, and which a
    ``MoveCall`` leaves false.
    """
    instructions = emitter.chain.instructions
    first = emitter._emit_evalue(EValue(Bool(True))).id
    done = emitter._emit_evalue(EValue(Bool(False))).id
    jump = JumpFalseCall(first, destination_instruction=0)
    instructions.append(Instruction(jump))
    data = _first_value(emitter)
    piece = _piece(data)
    source = emitter._emit_evalue(
        emitter._tensor_spec_to_evalue(TensorSpec.from_tensor(piece, const=True))
    ).id
    if piece.numel() == data.numel():
        _copy(emitter, source, state.id)
    else:
        for offset in _offsets(data.nbytes, piece.nbytes):
            _copy(emitter, source, _part(emitter, piece, offset))
    # Tells who reads the program that the buffer has its value from here on, in all its views.
    for value in (state.id, *_elided_views(emitter, emitter.node.args[0])):
        instructions.append(Instruction(MoveCall(value, value)))
    instructions.append(Instruction(MoveCall(done, first)))
    jump.destination_instruction = emitter.instruction_start_offset + len(instructions)


def _first_value(emitter: _Emitter) -> torch.Tensor:
    """What the model has in the buffer that the emitter's node begins with."""
    program, name = emitter.exported_program, emitter.node.args[0].target  # type: ignore[attr-defined]
    name = program.graph_signature.inputs_to_buffers[name]
    found = program.state_dict.get(name)
    found = program.constants[name] if found is None else found
    return found.detach().cpu().contiguous()


def _piece(data: torch.Tensor) -> torch.Tensor:
    """A tensor's first elements, if the rest is the same again; else all of it."""
    count = max(-(-data.numel() // _MOST_PIECES), _LEAST_BYTES // data.itemsize)
    if count >= data.numel():
        return data
    whole = data.reshape(-1).view(torch.uint8).reshape(-1, data.itemsize)
    if not bool((whole == whole[0]).all()):
        return data
    return data.reshape(-1)[:count].clone()


def _offsets(whole: int, piece: int) -> list[int]:
    """Where pieces begin that cover all bytes, the last one as far as it has to over another."""
    return [min(offset, whole - piece) for offset in range(0, whole, piece)]


def _part(emitter: _Emitter, piece: torch.Tensor, offset: int) -> int:
    """A value for a part of the memory of the buffer that the emitter's node begins with."""
    whole = tensor_spec(emitter.node.args[0])
    assert whole is not None
    part = TensorSpec.from_tensor(piece)
    part.device, part.device_index = whole.device, whole.device_index
    part.mem_id, part.mem_offset = whole.mem_id, whole.mem_offset + offset
    return emitter._emit_evalue(emitter._tensor_spec_to_evalue(part)).id


def _copy(emitter: _Emitter, source: int, target: int) -> None:
    operator, _ = emitter._get_operator("et_copy::_h2d_copy", "out")
    call = KernelCall(operator, [source, target, target])
    emitter.chain.instructions.append(Instruction(call))


def _store(emitter: _Emitter, state: _AbstractValue, value: _AbstractValue) -> None:
    """Has the memories of the buffer and of its new value change roles, and their views with them.

    What an instruction names is a slot for a tensor, and ``MoveCall`` gives it another tensor. Where
    the two share their memory, the new value is in its place.
    """
    mine, others = _allocation(emitter, state.id), _allocation(emitter, value.id)
    if mine == others:
        return
    old, new = emitter.node.args
    pairs = [(state.id, value.id)]
    for node, where in ((old, others), (new, mine)):
        for view in _elided_views(emitter, node):
            twin = deepcopy(emitter.emitter_state.values[view])
            twin.val.allocation_info = where  # type: ignore[union-attr]
            pairs.append((view, emitter._emit_evalue(twin).id))
    spare = emitter._emit_evalue(EValue(Null())).id
    for one, other in pairs:
        for move in ((one, spare), (other, one), (spare, other)):
            emitter.chain.instructions.append(Instruction(MoveCall(*move)))


def _allocation(emitter: _Emitter, value: int) -> Any:
    return emitter.emitter_state.values[value].val.allocation_info  # type: ignore[union-attr]


def _elided_views(emitter: _Emitter, node: Any) -> list[int]:
    """The values that show a node's memory without an instruction that says so."""
    found, pending = [], [node]
    while pending:
        for user in pending.pop().users:
            if user.target is not memory.view:
                continue
            pending.append(user)
            spec = tensor_spec(user)
            if spec is not None and spec.is_static_shape_tensor:
                found.append(emitter._emit_spec(spec).id)
    return sorted(set(found))
