"""A program of one method, made anew from a few instructions of another.

Whatever memory the instructions share with others they share here: each tensor of theirs is an input
without planned memory, which ExecuTorch has point to where the caller's tensor is, whether it is read
there or written. So nothing is copied on the way in or out, and tensors that overlap in the plan's
arenas go on overlapping. Numbers come in as tensors of one element and go out as results, as do the
sizes of tensors whose shape isn't known before.

What delegates write is the exception. Backends check shapes, but write elements as wide as their
payload has them: where a damaged program claims a narrower dtype, that has to stay inside of memory
of their own. It is copied to its place from there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Callable, Mapping, Sequence

from executorch.exir import schema
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.tensor import make_allocation_info

from torchtrt_executorch.runtime.delegates import Payload
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.segments.serialized import (
    NUMBERS,
    backend_delegate,
    bare_tensor,
    literal,
    tensor_of,
)
from torchtrt_executorch.runtime.values import Boxed, Value

_ALIGNMENT = 16
#: Bytes of an element of the widest dtype.
_WIDEST = 16


@dataclass(frozen=True)
class Call:
    """One instruction: an operator that ExecuTorch has a kernel for, or a delegate.

    Attributes:
        name: ``namespace::operator.overload``, or the delegate's name.
        args: All of its arguments, outputs included.
        reads: Those that are read, lists and tensors that are changed in place included.
        writes: Tensors and numbers that are written as a whole.
        payload: The delegate's.
    """

    name: str
    args: Sequence[Value]
    reads: Sequence[Value]
    writes: Sequence[Value]
    payload: Payload | None = None


@dataclass
class Carved:
    """What was carved, and what to do before and after each run of it.

    Attributes:
        program: The program. Its inputs are ``tensors``, then one for each of ``cells``.
        tensors: Values whose memory it works on.
        shaped: Those of them whose shape changes, and which are read before they are written.
        cells: Numbers that it reads.
        numbers: Numbers that it returns.
        sizes: Tensors whose sizes it returns after the numbers.
        settled: Whether what it returns follows from shapes and numbers alone.
    """

    program: PTEFile
    tensors: list[Value] = field(default_factory=list)
    shaped: list[Value] = field(default_factory=list)
    cells: list[Value] = field(default_factory=list)
    numbers: list[Value] = field(default_factory=list)
    sizes: list[Value] = field(default_factory=list)
    settled: bool = True

    def serialize(self) -> bytes:
        """The program's ``.pte``."""
        return bytes(serialize_pte_binary(self.program, extract_delegate_segments=True))


def carve(
    calls: Sequence[Call],
    lists: Mapping[int, type],
    computed: frozenset[int],
    leaves: Callable[[Value], bool],
) -> Carved:
    """Make a program of ``calls``.

    ``lists`` has the schema's class for each list of values, by ``id``, ``computed`` the ``id`` of
    each number that some instruction of the method computes, and ``leaves`` says whether another
    instruction, or the caller, uses a value. Raises ``ProgramError`` for values that can't be handed
    over.
    """
    return _Carver(lists, computed).carve(calls, leaves)


class _Carver:
    def __init__(self, lists: Mapping[int, type], computed: frozenset[int]) -> None:
        self._lists = lists
        self._computed = computed
        self._values: list[schema.EValue] = []
        self._places: dict[int, int] = {}
        self._inputs: list[int] = []
        self._cells: list[int] = []
        self._operators: dict[str, int] = {}
        self._delegates: list[schema.BackendDelegate] = []
        self._blobs: list[schema.BackendDelegateInlineData] = []
        self._named = NamedDataStore()
        self._named_keys: set[str] = set()
        self._arena = 0
        self._before: list[schema.Instruction] = []
        self._instructions: list[schema.Instruction] = []
        self._made = Carved(PTEFile(program=None))  # type: ignore[arg-type]

    def carve(self, calls: Sequence[Call], leaves: Callable[[Value], bool]) -> Carved:
        written: dict[int, Value] = {}
        for call in calls:
            for value in flat(call.reads):
                if grows(value) and not {id(value)} & (
                    written.keys() | self._places.keys()
                ):
                    self._made.shaped.append(value)
                self._place(value, computed_before=id(value) not in written)
            written.update((id(value), value) for value in call.writes)
            for value in call.writes:
                self._place(value, computed_before=False)
            if call.payload is None:
                self._kernel(call.name, [self._place(v) for v in call.args])
            else:
                self._delegate(call, call.payload)
        outputs = self._outputs([v for v in written.values() if leaves(v)])
        self._made.program.program = self._program(outputs)
        self._made.program.named_data = self._named.get_named_data_store_output()
        return self._made

    def _outputs(self, leaving: Sequence[Value]) -> list[int]:
        """The numbers that ``leaving`` are, and the sizes of the tensors that can have several."""
        outputs = []
        for value in leaving:
            if value.layout is None:
                self._made.numbers.append(value)
                outputs.append(self._place(value))
        for value in leaving:
            if grows(value):
                assert value.layout is not None
                self._made.sizes.append(value)
                for dim in range(len(value.layout.sizes)):
                    at, size = self._add(schema.Int(dim)), self._add(schema.Int(0))
                    self._kernel("aten::sym_size.int", [self._place(value), at, size])
                    outputs.append(size)
        return outputs

    def _add(self, val: Any) -> int:
        self._values.append(schema.EValue(val))
        return len(self._values) - 1

    def _place(self, value: Value, computed_before: bool = False) -> int:
        """The index of a value. ``computed_before``: if it is a number, it may come from outside."""
        key = id(value)
        if key not in self._places:
            self._places[key] = self._make(value, computed_before)
        return self._places[key]

    def _make(self, value: Value, computed_before: bool) -> int:
        data = value.data
        if value.layout is not None:
            index = self._add(tensor_of(value))
            self._inputs.append(index)
            self._made.tensors.append(value)
            return index
        if type(data) is Boxed:
            items = [-1 if v is None else self._place(v, True) for v in data.items]
            return self._add(self._lists[id(value)](items))
        if id(value) in self._computed:
            if type(data) not in NUMBERS:
                raise ProgramError(f"{value.name} is no number")
            dtype, wrap = NUMBERS[type(data)]
            index = self._add(wrap(data))
            if computed_before:
                cell = self._add(bare_tensor(dtype, (), ()))
                self._cells.append(cell)
                self._made.cells.append(value)
                load = self._call("aten::_local_scalar_dense", [cell, index])
                self._before.append(load)
            return index
        return self._add(literal(value))

    def _call(self, name: str, args: list[int]) -> schema.Instruction:
        index = self._operators.setdefault(name, len(self._operators))
        return schema.Instruction(schema.KernelCall(index, args))

    def _kernel(self, name: str, args: list[int]) -> None:
        self._instructions.append(self._call(name, args))

    def _delegate(self, call: Call, payload: Payload) -> None:
        """Have it write to memory of its own, and copy that to where it belongs."""
        args, copies, used = [self._place(value) for value in call.args], [], 0
        first = len(call.args) - len(call.writes)
        for index, value in enumerate(call.args[first:], first):
            if value.layout is None:
                raise ProgramError(
                    f"{value.name} is a delegate's output, but no tensor"
                )
            own = tensor_of(value)
            own.allocation_info = make_allocation_info(1, used)
            used += math.prod(value.layout.sizes) * _WIDEST + _ALIGNMENT
            args[index], target = self._add(own), args[index]
            copies.append((args[index], target))
        self._arena = max(self._arena, used)
        # XNNPACK infers shapes from shapes; what others do isn't known.
        self._made.settled &= payload.backend_id == "XnnpackBackend"
        blob = bytes(payload.payload)
        self._name_data(payload, blob)
        self._delegates.append(backend_delegate(payload, len(self._blobs)))
        self._blobs.append(schema.BackendDelegateInlineData(blob))
        self._instructions.append(
            schema.Instruction(schema.DelegateCall(len(self._delegates) - 1, args))
        )
        for own_index, target in copies:
            at_once, same_order = self._add(schema.Bool(False)), self._add(
                schema.Null()
            )
            self._kernel(
                "dim_order_ops::_clone_dim_order.out",
                [own_index, at_once, same_order, target, target],
            )

    def _name_data(self, payload: Payload, blob: bytes) -> None:
        """Add the blobs that the payload names; all of them if it names none.

        A payload says which it wants by their keys. To leave out the others' keeps the memory of a
        program with many delegates linear.
        """
        named = {k: v for k, v in payload.named_data.items() if k.encode() in blob}
        for key, entry in (named or payload.named_data).items():
            if key not in self._named_keys:
                self._named_keys.add(key)
                self._named.add_named_data(key, bytes(entry.data), alignment=_ALIGNMENT)

    def _program(self, outputs: list[int]) -> schema.Program:
        operators = [
            schema.Operator(*name.partition(".")[::2]) for name in self._operators
        ]
        chain = schema.Chain(
            inputs=[],
            outputs=[],
            instructions=[*self._before, *self._instructions],
            stacktrace=None,
        )
        plan = schema.ExecutionPlan(
            name="forward",
            container_meta_type=schema.ContainerMetadata("", ""),
            values=self._values,
            inputs=[*self._inputs, *self._cells],
            outputs=outputs,
            chains=[chain],
            operators=operators,
            delegates=self._delegates,
            non_const_buffer_sizes=[0, self._arena],
        )
        return schema.Program(
            version=0,
            execution_plan=[plan],
            constant_buffer=[schema.Buffer(b"")],
            backend_delegate_data=self._blobs,
            segments=[],
            constant_segment=schema.SubsegmentOffsets(0, []),
        )


def flat(values: Sequence[Value]) -> list[Value]:
    """``values``, and before each list what is in it."""
    flat = []
    for value in values:
        if type(value.data) is Boxed:
            flat += [item for item in value.data.items if item is not None]
        flat.append(value)
    return flat


def grows(value: Value) -> bool:
    """Whether it is a tensor whose shape changes from call to call."""
    return value.layout is not None and not value.layout.static
