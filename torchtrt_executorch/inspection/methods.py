"""Read one method: what its values are, and what its instructions read and write."""

from __future__ import annotations

from typing import Any, Sequence

import torch
from executorch.exir import schema

from torchtrt_executorch.inspection.facts import (
    HOST,
    Arena,
    Delegate,
    Instruction,
    Method,
    Value,
)
from torchtrt_executorch.inspection.payloads import delegate_facts
from torchtrt_executorch.runtime.delegates import Payload
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import ProgramFile
from torchtrt_executorch.runtime.layout import CPU, device_of, read_layout
from torchtrt_executorch.runtime.placement import ArenaDevices

#: The two operators that move a value between devices.
COPIES = {"et_copy::_h2d_copy", "et_copy::_d2h_copy"}

#: Lists are taken apart where they are used; more than this is no exporter's doing.
_MOST_USES = 20_000_000

_KINDS: dict[type, str] = {
    schema.Null: "none",
    schema.Int: "int",
    schema.Bool: "bool",
    schema.Double: "float",
    schema.String: "string",
    schema.IntList: "int list",
    schema.BoolList: "bool list",
    schema.DoubleList: "float list",
    schema.TensorList: "tensor list",
    schema.OptionalTensorList: "tensor list",
}


def external_name(value: Any) -> str | None:
    """Return what a tensor in a data file is called there; None for anything else."""
    extra = value.extra_tensor_info if isinstance(value, schema.Tensor) else None
    if extra is None or extra.location is not schema.TensorDataLocation.EXTERNAL:
        return None
    return extra.fully_qualified_name or ""


class MethodReader:
    """One method being read. Raises ``ProgramError`` for what refers to nothing."""

    def __init__(self, file: ProgramFile, plan: schema.ExecutionPlan) -> None:
        self._plan = plan
        self._name = plan.name or ""
        self._arenas = ArenaDevices(plan)
        self._delegates: list[Delegate] = [
            delegate_facts(Payload.of(file, plan, index), index)
            for index in range(len(plan.delegates))
        ]
        self._values = [self._value(i, e.val) for i, e in enumerate(plan.values)]
        self._known = {v.index for v in self._values if v.initialized or not v.dtype}
        self._known.update(plan.inputs)
        self._operators = [_operator(each) for each in plan.operators]
        self._writes = [_written(name) for name in self._operators]
        self._uses_left = _MOST_USES
        self._inputs: dict[int, int] = {}  # of delegates, from their first calls

    def method(self) -> Method:
        """Return the facts of the method."""
        calls = [
            i.instr_args for chain in self._plan.chains for i in chain.instructions
        ]
        self._known.update(self._written_back(calls))
        return Method(
            name=self._name,
            inputs=tuple(self._index(i, "an input") for i in self._plan.inputs),
            outputs=tuple(self._index(i, "an output") for i in self._plan.outputs),
            values=self._values,
            instructions=[self._instruction(i, call) for i, call in enumerate(calls)],
            delegates=self._delegates,
            arenas=[
                Arena(index, self._arena_device(index), size)
                for index, size in enumerate(self._plan.non_const_buffer_sizes)
                if index  # ExecuTorch leaves the first one empty
            ],
        )

    def _written_back(self, calls: Sequence[Any]) -> list[int]:
        """Buffers, which ``aten::copy_`` writes back: they are read before they are written."""
        return [
            call.args[0]
            for call in calls
            if isinstance(call, schema.KernelCall)
            and call.args
            and self._at(self._operators, call.op_index, "operator") == "aten::copy_"
        ]

    def _arena_device(self, index: int) -> str:
        for entry in self._plan.non_const_buffer_device or ():
            if entry.buffer_idx == index:
                return _shown(device_of(entry.device_type, entry.device_index))
        return HOST

    def _value(self, index: int, value: Any) -> Value:
        if not isinstance(value, schema.Tensor):
            return Value(index, _KINDS.get(type(value), "unknown"))
        extra, where = value.extra_tensor_info, value.allocation_info
        # Planned memory is the host's where no arena has a device, whatever the label says.
        device, _ = self._arenas.locate(value)
        if where and not self._plan.non_const_buffer_device:
            device = CPU
        layout = read_layout(value, f"value {index} of {self._name}", device)
        external = external_name(value) is not None
        holds = external or value.data_buffer_idx != 0
        storage = "planned" if where else "external" if external else "constant"
        return Value(
            index=index,
            kind="tensor",
            name=(extra.fully_qualified_name or "") if extra else "",
            shape=layout.sizes,
            dtype=str(layout.dtype).removeprefix("torch."),
            nbytes=layout.nbytes,
            dynamic=not layout.static,
            device=_shown(device),
            storage=storage if where or holds else "caller",
            arena=where.memory_id if where else 0,
            offset=where.memory_offset if where else 0,
            initialized=holds,
        )

    def _instruction(self, index: int, call: Any) -> Instruction:
        if isinstance(call, schema.KernelCall):
            return self._kernel(index, call)
        if isinstance(call, schema.DelegateCall):
            return self._delegate(index, call)
        if isinstance(call, schema.MoveCall):
            source, target = self._index(call.move_from), self._index(call.move_to)
            return Instruction(index, "move", "move", HOST, (source,), (target,))
        if isinstance(call, schema.JumpFalseCall):
            condition = (self._index(call.cond_value_index),)
            to = call.destination_instruction
            return Instruction(
                index, "jump", "jump if false", HOST, condition, destination=to
            )
        value = self._index(call.value_index)
        return Instruction(index, "free", "free", HOST, (), (value,))

    def _kernel(self, index: int, call: schema.KernelCall) -> Instruction:
        name = self._at(self._operators, call.op_index, "operator")
        given = [self._index(each) for each in call.args]
        outs = {i for i in self._writes[call.op_index] if i < len(given)}
        # The last argument is what the kernel returns: its outputs once more, or a number.
        written = self._leaves([given[i] for i in sorted(outs)] + given[-1:])
        reads = self._leaves([v for i, v in enumerate(given[:-1]) if i not in outs])
        if "out" not in name.rpartition(".")[2]:  # in place: what it writes it reads
            reads = self._leaves(given[:-1])
        self._known.update(written)
        copy = name.partition(".")[0] in COPIES
        device = self._values[written[0]].device if copy and written else HOST
        reads = tuple(v for v in reads if not (copy and v in written))
        kind = "copy" if copy else "kernel"
        return Instruction(index, kind, name, device, reads, written)

    def _delegate(self, index: int, call: schema.DelegateCall) -> Instruction:
        delegate = self._at(self._delegates, call.delegate_index, "delegate")
        given = [self._index(each) for each in call.args]
        count = len(delegate.inputs) if delegate.inputs or delegate.outputs else None
        if count is None or count + len(delegate.outputs) != len(given):
            count = self._inputs.setdefault(
                call.delegate_index, self._unknown_from(given)
            )
        reads, writes = self._leaves(given[:count]), self._leaves(given[count:])
        self._known.update(writes)
        return Instruction(
            index,
            "delegate",
            delegate.backend,
            delegate.device,
            reads,
            writes,
            call.delegate_index,
        )

    def _unknown_from(self, given: Sequence[int]) -> int:
        """How many arguments are inputs: outputs come last, and nobody has written them yet."""
        count = len(given)
        while count and given[count - 1] not in self._known:
            count -= 1
        return count

    def _leaves(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Values, lists of values taken apart, each once."""
        found: dict[int, None] = {}
        for index in indices:
            held = self._plan.values[index].val
            inside = [index]
            if isinstance(held, (schema.TensorList, schema.OptionalTensorList)):
                inside = [self._index(each) for each in held.items if each != -1]
            self._uses_left -= len(inside)
            if self._uses_left < 0:
                raise ProgramError(
                    f"{self._name}: instructions use the same lists over and over; no ExecuTorch "
                    "exporter writes that"
                )
            found.update(dict.fromkeys(inside))
        return tuple(found)

    def _index(self, index: int, what: str = "an instruction") -> int:
        if not 0 <= index < len(self._plan.values):
            raise ProgramError(
                f"{self._name}: {what} refers to value {index} of {len(self._plan.values)}, which "
                "does not exist"
            )
        return index

    def _at(self, items: Sequence[Any], index: int, what: str) -> Any:
        if not 0 <= index < len(items):
            raise ProgramError(
                f"{self._name}: there is no {what} {index}, an instruction calls it"
            )
        return items[index]


def _shown(device: torch.device) -> str:
    return HOST if device.type == "cpu" else f"{device.type}:{device.index or 0}"


def _operator(operator: schema.Operator) -> str:
    name = operator.name or ""
    return f"{name}.{operator.overload}" if operator.overload else name


def _written(name: str) -> tuple[int, ...]:
    """Which arguments an operator writes to, by torch's schema of it; none if it has none here."""
    operator, _, overload = name.partition(".")
    try:
        schemas = torch._C._jit_get_schemas_for_operator(operator)
    except RuntimeError:  # no operator could be called that
        return ()
    for known in schemas:
        if known.overload_name == overload:
            return tuple(
                index
                for index, argument in enumerate(known.arguments)
                if argument.alias_info is not None and argument.alias_info.is_write
            )
    return ()
