"""A ``.pte`` that has what another has many times over: a file of a size that no export reaches in minutes."""

from __future__ import annotations

import copy
from collections.abc import Callable

from executorch.exir._serialize._program import (
    deserialize_pte_binary,
    serialize_pte_binary,
)
from executorch.exir.schema import (
    DelegateCall,
    EValue,
    ExecutionPlan,
    FreeCall,
    IntList,
    KernelCall,
    MoveCall,
    OptionalTensorList,
    Tensor,
    TensorList,
)

_OF_VALUES = (IntList, OptionalTensorList, TensorList)


def repeated(program: bytes, times: int, methods: int = 1) -> bytes:
    """Return a program of ``methods`` methods, each of which does ``times`` times what ``program``'s only one does.

    Each time has values, memory and delegates of its own, but for the inputs; what is returned is the first's.
    """
    file = deserialize_pte_binary(program)
    (plan,) = file.program.execution_plan
    grown = _grown(plan, times)
    plans = [grown]
    for index in range(1, methods):
        other = copy.copy(grown)
        other.name = f"{plan.name}{index}"
        plans.append(other)
    file.program.execution_plan = plans
    return bytes(serialize_pte_binary(file))


def _grown(plan: ExecutionPlan, times: int) -> ExecutionPlan:
    (chain,) = plan.chains
    inputs, count = {*plan.inputs}, len(plan.values)
    memory = plan.non_const_buffer_sizes
    result = copy.copy(plan)
    result.values, result.delegates = [], plan.delegates * times
    # A buffer's offset is of 64 bits, in two numbers of 32.
    strides = [-(-size // 64) * 64 for size in memory]
    result.non_const_buffer_sizes = [size * times for size in strides]
    instructions = []
    for turn in range(times):

        def at(index: int, base: int = turn * count) -> int:
            return index if index in inputs or index < 0 else base + index

        for value in plan.values:
            result.values.append(_moved(value, at, strides, turn))
        for each in chain.instructions:
            call, made = each.instr_args, copy.copy(each)
            made.instr_args = call = copy.copy(call)
            if isinstance(call, (KernelCall, DelegateCall)):
                call.args = [at(index) for index in call.args]
            if isinstance(call, DelegateCall):
                call.delegate_index += turn * len(plan.delegates)
            elif isinstance(call, MoveCall):
                call.move_from, call.move_to = at(call.move_from), at(call.move_to)
            elif isinstance(call, FreeCall):
                call.value_index = at(call.value_index)
            elif not isinstance(call, KernelCall):
                raise ValueError(f"{type(call).__name__} isn't repeated")
            instructions.append(made)
    result.chains = [copy.copy(chain)]
    result.chains[0].instructions, result.chains[0].stacktrace = instructions, None
    return result


def _moved(
    value: EValue, at: Callable[[int], int], strides: list[int], turn: int
) -> EValue:
    held = value.val
    if isinstance(held, _OF_VALUES):
        held = copy.copy(held)
        held.items = [at(index) for index in held.items]
    elif isinstance(held, Tensor) and held.allocation_info is not None:
        held = copy.copy(held)
        place = held.allocation_info = copy.copy(held.allocation_info)
        offset = (place.memory_offset_high << 32) + place.memory_offset_low
        offset += turn * strides[place.memory_id]
        place.memory_offset_high, place.memory_offset_low = divmod(offset, 1 << 32)
    elif not isinstance(held, Tensor):
        return value
    made = copy.copy(value)
    made.val = held
    return made
