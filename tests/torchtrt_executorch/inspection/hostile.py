"""Programs that no exporter writes."""

from __future__ import annotations

import copy
import json

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


def nested(keys: list[str], leaves: int) -> str:
    """PyTorch's description of one argument: a dictionary, of which each key has as many leaves in a list."""

    def node(kind: str | None, context: object, *children: object) -> dict[str, object]:
        return {"type": kind, "context": context, "children_spec": children}

    below = node("builtins.list", "null", *[node(None, None)] * leaves)
    named = node("builtins.dict", json.dumps(keys), *[below] * len({*keys}))
    args = node("builtins.tuple", "null", named)
    whole = node("builtins.tuple", "null", args, node("builtins.dict", "[]"))
    return json.dumps([1, whole])


def with_nesting(program: bytes, text: str) -> bytes:
    """A program that says its inputs are nested as ``text``."""
    file = deserialize_pte_binary(program)
    file.program.execution_plan[0].container_meta_type.encoded_inp_str = text
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
    call = next(
        each
        for each in chain.instructions
        if isinstance(each.instr_args, KernelCall)
        and plan.operators[each.instr_args.op_index].name.startswith("aten::")
    )
    call.instr_args.args = [len(plan.values) - 1, *call.instr_args.args]
    chain.instructions = [call] * count
    return bytes(serialize_pte_binary(file))
