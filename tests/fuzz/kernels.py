"""What a file may do with the kernels that it can name: anything but harm the process.

``python -m tests.fuzz.kernels FIRST COUNT [OPERATOR...]`` runs ``COUNT`` hostile programs for each operator, from
the seed ``FIRST`` on. Their arguments are of the types that the operator's schema asks for, since
anything else is refused before it runs, and otherwise as bad as can be: shapes that don't go
together, indices beyond every end, sizes that overflow. A program may be refused, or run; the process
has to live, and memory around the planned tensors has to stay what it was.
"""

from __future__ import annotations

import random
import struct
import sys
import warnings
from typing import Any

import torch
from executorch.exir import schema
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.tensor import make_allocation_info, scalar_type_enum

from tests.fuzz.operators import DTYPES, INTS, declared
from torchtrt_executorch.runtime import ProgramError, load
from torchtrt_executorch.runtime.operators.kernels import executorch_kernels

GAP = 64
"""Bytes on either side of each planned tensor, which nothing may write."""


class Plan:
    """One method that calls one operator once."""

    def __init__(
        self, name: str, op: torch._ops.OpOverload, rng: random.Random
    ) -> None:
        self.rng = rng
        self.values: list[schema.EValue] = []
        self.buffers: list[bytes] = []
        self.size = 0
        self.gaps = [self.gap()]
        self.outputs: list[int] = []
        self.shape = self.some_shape()
        self.dtype = rng.choice((*DTYPES[:2] * 3, *DTYPES))
        args = [self.argument(a) for a in op._schema.arguments]
        returned = self.outputs[0] if self.outputs else self.add(schema.Null())
        self.args = [*args, returned]

    def add(self, value: Any) -> int:
        self.values.append(schema.EValue(value))
        return len(self.values) - 1

    def gap(self) -> int:
        """Memory that the method returns, and that nothing may have written."""
        gap = tensor(schema.ScalarType.BYTE, [GAP])
        gap.allocation_info = make_allocation_info(1, self.size)
        self.size += GAP
        return self.add(gap)

    def some_shape(self) -> list[int]:
        sizes, rank = (0, 1, 1, 2, 3, 4, 8), self.rng.choice((0, 1, 2, 2, 3, 4, 4))
        return [self.rng.choice(sizes) for _ in range(rank)]

    def argument(self, argument: Any) -> int:
        written = argument.alias_info is not None and argument.alias_info.is_write
        index = self.value(str(argument.real_type), written)
        if written:
            self.outputs.append(index)
        return index

    def value(self, kind: str, written: bool = False) -> int:
        rng = self.rng
        if kind.startswith("Optional["):
            if rng.random() < 0.4:
                return self.add(schema.Null())
            kind = kind[len("Optional[") : -1]
        if kind.startswith("List["):
            return self.list_of(kind[len("List[") : -1], written)
        if kind == "Tensor":
            return self.tensor(written)
        if kind in ("number", "float"):
            number = rng.choice((0.0, 1.5, -1.0, float("nan"), float("inf"), 1e300))
            return self.add(schema.Double(number))
        if kind == "bool":
            return self.add(schema.Bool(rng.random() < 0.5))
        if kind == "str":
            texts = ("none", "tanh", "floor", "trunc", "x", "")
            return self.add(schema.String(rng.choice(texts)))
        if kind in ("ScalarType", "Layout", "MemoryFormat"):
            return self.add(schema.Int(rng.choice((0, 1, 3, 4, 6, 11, 99))))
        if kind == "int":
            return self.add(schema.Int(self.integer()))
        return self.add(schema.Null())

    def integer(self) -> int:
        return self.rng.choice(INTS[:5] if self.rng.random() < 0.8 else INTS)

    def list_of(self, kind: str, written: bool) -> int:
        count = self.rng.choice((0, 1, 2, 2, 3, 4, 5))
        if kind == "bool":
            return self.add(schema.BoolList([self.rng.random() < 0.5] * count))
        if kind == "float":
            return self.add(schema.DoubleList([self.rng.random() * 4] * count))
        items = [self.value(kind, written) for _ in range(count)]
        if kind == "Tensor":
            return self.add(schema.TensorList(items))
        if kind == "Optional[Tensor]":
            empty = [isinstance(self.values[i].val, schema.Null) for i in items]
            pairs = zip(items, empty, strict=True)
            items = [-1 if e else i for i, e in pairs]
            return self.add(schema.OptionalTensorList(items))
        return self.add(schema.IntList(items))

    def tensor(self, written: bool) -> int:
        rng = self.rng
        sizes = list(self.shape) if rng.random() < 0.7 else self.some_shape()
        dtype = self.dtype if rng.random() < 0.8 else rng.choice(DTYPES)
        bounded = written and rng.random() < 0.8
        if bounded and rng.random() < 0.9:  # large enough for most results
            sizes = [16] * len(sizes)
        nbytes = dtype.itemsize
        for size in sizes:
            nbytes *= size
        made = tensor(scalar_type_enum(dtype), sizes)
        if bounded:
            made.shape_dynamism = schema.TensorShapeDynamism.DYNAMIC_BOUND
        if written:
            made.allocation_info = make_allocation_info(1, self.size)
            self.size += -(-nbytes // 16) * 16
            self.gaps.append(self.gap())
        else:
            self.buffers.append(self.content(dtype, nbytes))
            made.data_buffer_idx = len(self.buffers)
        return self.add(made)

    def content(self, dtype: torch.dtype, nbytes: int) -> bytes:
        kind = self.rng.random()
        if dtype in (torch.int32, torch.int64) and kind < 0.8:
            code, choices = ("i", INTS[:10]) if dtype == torch.int32 else ("q", INTS)
            choices, count = (
                INTS[:4] if kind < 0.5 else choices
            ), nbytes // dtype.itemsize
            numbers = [self.rng.choice(choices) for _ in range(count)]
            return struct.pack(f"<{len(numbers)}{code}", *numbers)
        if dtype == torch.bool:
            return bytes(self.rng.choice((0, 1)) for _ in range(nbytes))
        return self.rng.randbytes(nbytes)


def tensor(kind: schema.ScalarType, sizes: list[int]) -> schema.Tensor:
    """A tensor of a shape that stays, which isn't planned and has no data."""
    return schema.Tensor(
        scalar_type=kind,
        storage_offset=0,
        sizes=sizes,
        dim_order=list(range(len(sizes))),
        requires_grad=False,
        layout=0,
        data_buffer_idx=0,
        allocation_info=None,
        shape_dynamism=schema.TensorShapeDynamism.STATIC,
    )


def program(
    method: str,
    name: str,
    values: list[schema.EValue],
    args: list[int],
    outputs: list[int],
    size: int,
    buffers: list[bytes],
) -> bytes:
    """The ``.pte`` of one call of an operator.

    Args:
        values: Of the method, by which ``args`` and ``outputs`` go.
        size: Of the memory that is planned.
        buffers: Of constants, which begin with number 1.
    """
    operator, _, overload = name.partition(".")
    call = schema.Instruction(schema.KernelCall(0, args))
    plan = schema.ExecutionPlan(
        name=method,
        container_meta_type=schema.ContainerMetadata("", ""),
        values=values,
        inputs=[],
        outputs=outputs,
        chains=[schema.Chain([], [], [call], None)],
        operators=[schema.Operator(operator, overload)],
        delegates=[],
        non_const_buffer_sizes=[0, size],
    )
    made = schema.Program(
        version=0,
        execution_plan=[plan],
        constant_buffer=[schema.Buffer(data) for data in (b"", *buffers)],
        backend_delegate_data=[],
        segments=[],
        constant_segment=schema.SubsegmentOffsets(0, []),
    )
    return bytes(serialize_pte_binary(PTEFile(program=made)))


def run(first: int, count: int, *only: str) -> tuple[int, int]:
    """Run programs of every operator, or ``only`` of some. Return how many ran to their end, and how many were refused.

    Raises ``AssertionError`` where memory changed that nothing was planned in.
    """
    import torch.ao.quantization.fx._decomposed  # noqa: F401  registers operators

    ran = refused = 0
    for name in sorted(executorch_kernels()):
        op = declared(name)
        if (only and name not in only) or op is None:
            continue
        for seed in range(first, first + count):
            plan = Plan(name, op, random.Random(f"{name} {seed}"))
            print(f"{name} {seed}", file=sys.stderr, flush=True)
            try:
                parts = plan.values, plan.args, plan.gaps, plan.size, plan.buffers
                method = load(program(name, name, *parts)).method(name)
                assert not any(gap.any() for gap in method()), f"{name} {seed}"
                ran += 1
            except ProgramError:
                refused += 1
    return ran, refused


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    first, count, *rest = sys.argv[1:]
    print(*run(int(first), int(count), *rest))
