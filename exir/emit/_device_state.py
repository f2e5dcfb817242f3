"""Emit instructions that initialize and keep mutable buffers on a device.

Planned memory on a device is whatever the allocator returns (``cudaMalloc``, in
``DeviceMemoryBuffer::create``), and what a ``.pte`` has as a buffer's initial state is read straight
into its planned memory, as if the host could write there (``load_mutable_subsegment_into``). So a
buffer's first value is a constant of the program that its method copies there, in its first call.
"""

from __future__ import annotations

from copy import deepcopy

import torch
from executorch.exir.emit._emitter import _AbstractValue, _Emitter
from executorch.exir.passes._aliases import elided_root, elided_views
from executorch.exir.passes.devices.nodes import tensor_spec
from executorch.exir.schema import (
    Bool,
    EValue,
    Instruction,
    JumpFalseCall,
    KernelCall,
    MoveCall,
    Null,
    Tensor,
)
from executorch.exir.tensor import TensorSpec
from torch.fx import Node

#: A buffer of one value is filled from a piece of it: in at most so many copies, each of at least so
#: many bytes. That much, and not the buffer, is in the program.
_MOST_PIECES = 64
_LEAST_BYTES = 64 * 1024


def emit_first_value(
    emitter: _Emitter, placeholder: Node, buffer: _AbstractValue
) -> None:
    """Emit a copy of a buffer's initial value to it, for the method's first call.

    ``JumpFalseCall`` reads a flag among the method's values, which starts as true, and which a
    ``MoveCall`` leaves false.
    """
    first = emitter._emit_evalue(EValue(Bool(True))).id
    done = emitter._emit_evalue(EValue(Bool(False))).id
    jump = emit_jump(emitter, first)
    emit_fill(emitter, placeholder, buffer)
    emitter.chain.instructions.append(Instruction(MoveCall(done, first)))
    jump.destination_instruction = here(emitter)


def here(emitter: _Emitter) -> int:
    """Return the next instruction."""
    return emitter.instruction_start_offset + len(emitter.chain.instructions)


def emit_jump(emitter: _Emitter, unless: int | None = None) -> JumpFalseCall:
    """Emit a jump unless a value is true; an unconditional one without a value."""
    if unless is None:
        unless = emitter._emit_evalue(EValue(Bool(False))).id
    jump = JumpFalseCall(unless, destination_instruction=0)
    emitter.chain.instructions.append(Instruction(jump))
    return jump


def emit_fill(emitter: _Emitter, placeholder: Node, buffer: _AbstractValue) -> None:
    """Emit a copy of a buffer's initial value to it, unless the buffer is empty."""
    data = _first_value(emitter, placeholder)
    if data.nbytes:
        _emit_copies(emitter, placeholder, buffer, data)
    # Tells who reads the program that the buffer has its value from here on, in all its views.
    for spec in _specs_of(placeholder):
        value = emitter._emit_spec(spec).id
        emitter.chain.instructions.append(Instruction(MoveCall(value, value)))


def _emit_copies(
    emitter: _Emitter, placeholder: Node, buffer: _AbstractValue, data: torch.Tensor
) -> None:
    instructions = emitter.chain.instructions
    whole = tensor_spec(placeholder)
    assert whole is not None
    piece = _piece(data)
    constant = TensorSpec.from_tensor(piece, const=True)
    source = emitter._emit_evalue(emitter._tensor_spec_to_evalue(constant)).id
    copy_op, _ = emitter._get_operator("et_copy::_h2d_copy", "out")
    for offset in _offsets(data.nbytes, piece.nbytes):
        part = buffer.id
        if piece.nbytes < data.nbytes:
            spec = TensorSpec.from_tensor(piece)
            spec.device, spec.device_index = whole.device, whole.device_index
            spec.mem_id, spec.mem_offset = whole.mem_id, whole.mem_offset + offset
            part = emitter._emit_evalue(emitter._tensor_spec_to_evalue(spec)).id
        call = KernelCall(copy_op, [source, part, part])
        instructions.append(Instruction(call))


def emit_exchange(emitter: _Emitter, write_back: Node) -> None:
    """Swaps the allocations of a buffer and of its new value, in all tensor values that show them.

    An instruction names a tensor value by its index, and ``MoveCall`` gives it another tensor: its
    clone in the other allocation. Where the two share their memory, the new value is in its place.
    """
    old, new = (
        [emitter._emit_spec(spec).id for spec in _specs_of(node)]
        for node in map(elided_root, write_back.all_input_nodes)
    )
    if _tensor(emitter, old[0]).allocation_info == (
        _tensor(emitter, new[0]).allocation_info
    ):
        return
    for value_ids, (other, *_) in ((old, new), (new, old)):
        for value_id in value_ids:
            emit_swap(emitter, value_id, _clone_in_memory_of(emitter, value_id, other))


def emit_swap(emitter: _Emitter, one: int, other: int) -> None:
    """Swaps what two values hold."""
    spare = emitter._emit_evalue(EValue(Null())).id
    for move in ((one, spare), (other, one), (spare, other)):
        emitter.chain.instructions.append(Instruction(MoveCall(*move)))


def _specs_of(root: Node) -> dict[TensorSpec, None]:
    """Return the specs of a value and its views, each once."""
    specs = map(tensor_spec, (root, *elided_views(root)))
    return dict.fromkeys(spec for spec in specs if spec is not None)


def _clone_in_memory_of(emitter: _Emitter, value_id: int, other: int) -> int:
    """Return the index of a value for the same tensor in another one's allocation."""
    clone = deepcopy(_tensor(emitter, value_id))
    clone.allocation_info = _tensor(emitter, other).allocation_info
    if clone.extra_tensor_info is not None:
        clone.extra_tensor_info.fully_qualified_name = None  # one has the buffer's name
    return emitter._emit_evalue(EValue(clone)).id


def _tensor(emitter: _Emitter, value_id: int) -> Tensor:
    tensor = emitter.emitter_state.values[value_id].val
    assert isinstance(tensor, Tensor)
    return tensor


def _first_value(emitter: _Emitter, placeholder: Node) -> torch.Tensor:
    """Return a buffer's initial value, contiguous on the host."""
    program = emitter.exported_program  # type: ignore[attr-defined]
    name = program.graph_signature.inputs_to_buffers[placeholder.target]
    value = program.state_dict.get(name)
    value = program.constants[name] if value is None else value
    return value.detach().cpu().contiguous()


def _piece(data: torch.Tensor) -> torch.Tensor:
    """Return a tensor's first elements, if all elements are equal; else the tensor."""
    count = max(-(-data.numel() // _MOST_PIECES), _LEAST_BYTES // data.itemsize)
    if count >= data.numel():
        return data
    whole = data.reshape(-1).view(torch.uint8).reshape(-1, data.itemsize)
    if not bool((whole == whole[0]).all()):
        return data
    return data.reshape(-1)[:count].clone()


def _offsets(whole: int, piece: int) -> list[int]:
    """Return the offsets of pieces that cover all bytes; the last piece may overlap the one before."""
    return [min(offset, whole - piece) for offset in range(0, whole, piece)]
