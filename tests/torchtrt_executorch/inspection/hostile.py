"""Programs that no exporter writes."""

from __future__ import annotations

import copy

from executorch.exir._serialize._program import (
    deserialize_pte_binary,
    serialize_pte_binary,
)
from executorch.exir.schema import EValue, Int, KernelCall, TensorList


def with_names(program: bytes, name: str) -> bytes:
    """A program in which the method, all operators and all backends are called ``name``."""
    file = deserialize_pte_binary(program)
    (plan,) = file.program.execution_plan
    plan.name = name
    for operator in plan.operators:
        operator.name = operator.overload = name
    for delegate in plan.delegates:
        delegate.id = name
    return bytes(serialize_pte_binary(file))


def with_values(program: bytes, count: int) -> bytes:
    """A program with ``count`` values that nothing uses, and as many method inputs."""
    file = deserialize_pte_binary(program)
    (plan,) = file.program.execution_plan
    first = len(plan.values)
    plan.values += [EValue(Int(7))] * count
    plan.inputs = [*plan.inputs, *range(first, first + count)]
    return bytes(serialize_pte_binary(file))


def with_methods(program: bytes, count: int) -> bytes:
    """A program with its method ``count`` times, under as many names."""
    file = deserialize_pte_binary(program)
    (plan,) = file.program.execution_plan
    plans = []
    for index in range(count):
        plans.append(copy.copy(plan))
        plans[-1].name = f"method{index}"
    file.program.execution_plan = plans
    return bytes(serialize_pte_binary(file))


def with_list_over_and_over(program: bytes, count: int) -> bytes:
    """A program with a list of ``count`` tensors, which ``count`` instructions use."""
    file = deserialize_pte_binary(program)
    (plan,) = file.program.execution_plan
    (chain,) = plan.chains
    plan.values.append(EValue(TensorList([0] * count)))
    (call,) = [
        each for each in chain.instructions if isinstance(each.instr_args, KernelCall)
    ][:1]
    call.instr_args.args = [len(plan.values) - 1, *call.instr_args.args]
    chain.instructions = [call] * count
    return bytes(serialize_pte_binary(file))
