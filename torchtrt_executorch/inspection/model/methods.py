"""Facts of one method, from the runtime's plan."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Mapping, Sequence

from torchtrt_executorch.inspection.model.facts import (
    HOST,
    Arena,
    Delegate,
    Instruction,
    Method,
    Value,
)
from torchtrt_executorch.inspection.model.names import input_names
from torchtrt_executorch.inspection.model.payloads import delegate_facts, shown
from torchtrt_executorch.runtime.delegates import about
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.operators.kernels import has_executorch_kernel
from torchtrt_executorch.runtime.plans.analysis import fences
from torchtrt_executorch.runtime.plans.placement_check import find_violations
from torchtrt_executorch.runtime.plans.plan import Operation, Plan, PlanValue
from torchtrt_executorch.runtime.reading.common_state import CommonState


def method_facts(plan: Plan, one_stream: bool, common: CommonState) -> Method:
    """Return the facts of a method, for a host that runs all delegates on one stream, or not.

    Buffers that it has in common with other methods are called what ``common`` calls them.
    """
    shared: dict[Any, str] = {
        locations.get(plan.name): name for name, locations in common.buffers.items()
    }
    delegates = [
        delegate_facts(delegate, i) for i, delegate in enumerate(plan.delegates)
    ]
    for operation in plan.operations:
        if operation.delegate is not None:
            known = delegates[operation.delegate]
            delegates[operation.delegate] = replace(
                known, largest=_largest(plan, operation, known)
            )
    ordering = fences(plan)
    instructions = [
        _instruction(index, operation, plan, delegates, index in ordering)
        for index, operation in enumerate(plan.operations)
    ]
    return Method(
        name=plan.name,
        inputs=plan.inputs,
        outputs=plan.outputs,
        values=[_value(value, shared) for value in plan.values],
        instructions=instructions,
        delegates=delegates,
        arenas=[
            Arena(arena.index, shown(arena.device), arena.nbytes)
            for arena in plan.arenas
            if arena.index  # ExecuTorch leaves the first one empty
        ],
        faults=_faults(plan, one_stream),
        input_names=input_names(plan.input_tree, len(plan.inputs)),
        without_kernel=[
            step.index
            for step in instructions
            if step.kind == "kernel" and not has_executorch_kernel(step.name)
        ],
    )


def _largest(
    plan: Plan, call: Operation, known: Delegate
) -> Mapping[str, tuple[int, ...]]:
    """Return the largest shapes of an engine's inputs, of those that may have several."""
    if len(call.reads) != len(known.inputs):
        return {}
    layouts = [plan.values[index].layout for index in call.reads]
    return {
        name: tuple(layout.sizes)
        for name, layout in zip(known.inputs, layouts, strict=True)
        if layout is not None and not layout.static
    }


def _faults(plan: Plan, one_stream: bool) -> Sequence[tuple[int, str]]:
    """Return the violations of device rules; none for a method with damaged payloads."""
    try:
        return find_violations(plan, about, one_stream)
    except ProgramError:
        return []


def _value(value: PlanValue, shared: Mapping[Any, str]) -> Value:
    layout, place, stored = value.layout, value.place, value.stored
    if layout is None:
        return Value(value.index, value.kind)
    storage = "caller"
    if place is not None:
        storage = "planned"
    elif stored is not None:
        storage = "constant" if stored.key is None else "external"
    return Value(
        index=value.index,
        kind=value.kind,
        name=value.qualified_name
        or (place and shared.get((place.arena, place.start)) or ""),
        shape=layout.sizes,
        dtype=str(layout.dtype).removeprefix("torch."),
        nbytes=layout.nbytes,
        dynamic=not layout.static,
        device=shown(layout.device),
        storage=storage,
        arena=place.arena if place else 0,
        offset=place.start if place else 0,
        initialized=stored is not None,
    )


def _instruction(
    index: int,
    operation: Operation,
    plan: Plan,
    delegates: list[Delegate],
    orders: bool,
) -> Instruction:
    kind, name, device = operation.kind.value, operation.name, HOST
    if operation.is_copy:
        kind = "copy"
        for target in plan.tensors(operation.writes):
            assert target.layout is not None
            device = shown(target.layout.device)
    elif operation.delegate is not None:
        delegate = delegates[operation.delegate]
        name, device = delegate.backend, delegate.device
    return Instruction(
        index,
        kind,
        name,
        device,
        operation.reads,
        operation.writes,
        operation.delegate,
        operation.destination,
        orders,
    )
