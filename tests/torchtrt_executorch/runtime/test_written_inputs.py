"""Programs that write to their inputs: within the tensor that they were given, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import schema
from executorch.exir._serialize._program import (
    PTEFile,
    deserialize_pte_binary,
    serialize_pte_binary,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import Dim

from torchtrt_executorch.runtime import InputError, Program, ProgramError, load

from ...lowering import input_and_output_planning, lower

ROWS = 16


class Model(nn.Module):
    """An input that is read as it is and through a view, and another one of as many rows as may be."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (y + 1) * 2, x.reshape(-1).sin(), x * 3


class Accumulating(nn.Module):
    """Writes to its first input, as the model is meant to."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return x * 2 + y.sum()


@cache
def file(
    delegated: bool, planned: bool = False, model: type[nn.Module] = Model
) -> PTEFile:
    shapes = tuple({0: Dim(name, min=1, max=ROWS)} for name in "xy")
    inputs = (torch.zeros(3, 4), torch.zeros(4, 4))
    partitioners = [XnnpackPartitioner()] if delegated else []
    edge = lower(model(), inputs, *partitioners, dynamic_shapes=shapes)
    program = edge.to_executorch(input_and_output_planning(planned))
    return deserialize_pte_binary(bytes(program.buffer))


def edited(held: PTEFile) -> Iterator[bytes]:
    """The program, and each one in which an instruction has the input or its view in another one's place."""
    yield bytes(serialize_pte_binary(held))
    plan = held.program.execution_plan[0]
    values = enumerate(plan.values)
    tensors = [i for i, value in values if isinstance(value.val, schema.Tensor)]
    first, calls = plan.inputs[0], [
        each.instr_args for each in plan.chains[0].instructions
    ]
    # A delegate is native code, which trusts what it is given to be what it was made for.
    calls = [call for call in calls if isinstance(call, schema.KernelCall)]
    view = [call.args[-1] for call in calls if first in call.args]
    for args in (call.args for call in calls):
        for place in {args[i] for i in range(len(args)) if args[i] in tensors}:
            for other in dict.fromkeys((first, *view)):
                before = list(args)
                args[:] = [other if each == place else each for each in before]
                yield bytes(serialize_pte_binary(held))
                args[:] = before


#: Inputs of (rows, 4) in memory of 32 rows of 8, each as users make them.
VIEWS: dict[str, Callable[[torch.Tensor, int], torch.Tensor]] = {
    "rows": lambda big, rows: big.view(64, 4)[:rows],
    "later rows": lambda big, rows: big.view(64, 4)[20 : 20 + rows],
    "columns": lambda big, rows: big[:rows, 2:6],
    "every other": lambda big, rows: big.view(64, 4)[: 2 * rows : 2],
    "transposed": lambda big, rows: big.view(8, 32)[:4, 8 : 8 + rows].t(),
    "flat": lambda big, rows: big.flatten()[3 : 3 + 4 * rows].view(rows, 4),
    "expanded": lambda big, rows: big[5, :4].expand(rows, 4),
    "strided": lambda big, rows: big.as_strided((rows, 4), (1, 2), 7),
}


def neighbours(big: torch.Tensor, part: torch.Tensor) -> torch.Tensor:
    """What is in the memory that no element of ``part`` is."""
    mine = torch.zeros(256, dtype=torch.bool)
    places = torch.arange(256).as_strided(
        part.shape, part.stride(), part.storage_offset()
    )
    mine[places.flatten()] = True
    return big.flatten()[~mine]


@cache
def programs(delegated: bool) -> list[Program]:
    found = []
    for pte in edited(file(delegated)):
        try:
            program = load(pte)
            program.method()
        except ProgramError:
            continue
        found.append(program)
    return found


@pytest.mark.parametrize("delegated", [False, True])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_neighbours_of_an_input_are_not_written(delegated: bool, data: Any) -> None:
    """Whichever instruction writes to it, however many rows it has and the program makes."""
    kind, rows = data.draw(st.sampled_from([*VIEWS])), data.draw(st.integers(1, ROWS))
    y = torch.ones(data.draw(st.integers(1, ROWS)), 4)
    ran = 0
    for index, program in enumerate(programs(delegated)):
        for _ in range(2):  # the second time it needs no looking at
            big = torch.arange(256.0).view(32, 8)
            x = VIEWS[kind](big, rows)
            before, held = neighbours(big, x).clone(), x.clone()
            shape, size = (x.shape, x.stride()), big.untyped_storage().nbytes()
            try:
                results = program.run(x, y)
                ran += 1
            except (ProgramError, InputError):
                results = ()
            assert torch.equal(neighbours(big, x), before)
            assert (x.shape, x.stride()) == shape
            assert big.untyped_storage().nbytes() == size
            if index == 0:
                assert torch.equal(x, held)
                for result, right in zip(results, Model()(x, y), strict=True):
                    torch.testing.assert_close(result, right)
    assert ran


@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("kind", VIEWS)
def test_a_model_that_writes_to_its_input(kind: str, planned: bool) -> None:
    """It is the caller's where the input is dense and nothing is planned for it, else the program's own."""
    program = load(bytes(serialize_pte_binary(file(False, planned, Accumulating))))
    y = torch.ones(2, 4)
    for rows in (3, 3, 5, ROWS):
        big = torch.arange(256.0).view(32, 8)
        x = VIEWS[kind](big, rows)
        before, held = neighbours(big, x).clone(), x.clone()
        written, result = program.run(x, y)
        torch.testing.assert_close(written, held + 1)
        torch.testing.assert_close(result, (held + 1) * 2 + y.sum())
        mine = not planned and x.is_contiguous()
        torch.testing.assert_close(x, held + 1 if mine else held)
        assert torch.equal(neighbours(big, x), before)
