"""Read a method's plan, validating every index, with the reads and writes of each instruction."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Callable, Iterator, Sequence

import torch

from torchtrt_executorch.runtime.errors import ProgramError, item, shortened
from torchtrt_executorch.runtime.plans.analysis import Written
from torchtrt_executorch.runtime.plans.plan import (
    FROM_DEVICE,
    TO_DEVICE,
    VIEW,
    Allocation,
    Arena,
    Initializer,
    Kind,
    Operation,
    Payload,
    Plan,
    PlanValue,
)
from torchtrt_executorch.runtime.reading.files import ProgramFile
from torchtrt_executorch.runtime.reading.schemas import schema
from torchtrt_executorch.runtime.tensors.layout import CPU, device_of, read_layout

#: From a payload to how many inputs it takes, if its bytes tell.
InputsOf = Callable[[Payload], "int | None"]

#: Classes of values other than tensors: kind, and the field with the value.
_OTHERS: dict[type, tuple[str, str | None]] = {
    schema.Null: ("none", None),
    schema.Int: ("int", "int_val"),
    schema.Bool: ("bool", "bool_val"),
    schema.Double: ("float", "double_val"),
    schema.String: ("string", "string_val"),
    schema.BoolList: ("bool list", "items"),
    schema.DoubleList: ("float list", "items"),
    schema.IntList: ("int list", "items"),
    schema.TensorList: ("tensor list", "items"),
    schema.OptionalTensorList: ("tensor list", "items"),
}
#: The classes that are lists of other values' indices.
_LISTS = (schema.IntList, schema.TensorList, schema.OptionalTensorList)
#: Writes its first argument, and is followed by no result.
_COPY_INDEX = "executorch_prim::et_copy_index.tensor"


def read_plans(file: ProgramFile, inputs_of: InputsOf) -> dict[str, Plan]:
    """Return the methods of a program, by name. Raises ``ProgramError`` for what refers to nothing."""
    if not file.program.execution_plan:
        raise ProgramError("the program has no methods")
    plans: dict[str, Plan] = {}
    for plan in file.program.execution_plan:
        if plan.name is None or plan.name in plans:
            raise ProgramError(f"a method name is missing or repeated: {plan.name!r}")
        plans[plan.name] = _Reader(file, plan, inputs_of).read()
    return plans


class _Reader:
    """One method being read."""

    def __init__(
        self, file: ProgramFile, plan: schema.ExecutionPlan, inputs_of: InputsOf
    ) -> None:
        if len(plan.chains) > 1:
            raise ProgramError("plans of more than one chain are not supported")
        self._plan = plan
        self._inputs_of = inputs_of
        self._budget = file.budget
        self._devices = {
            entry.buffer_idx: device_of(entry.device_type, entry.device_index)
            for entry in plan.non_const_buffer_device or ()
        }
        self._delegates = [
            _payload(file, plan, index) for index in range(len(plan.delegates))
        ]
        self._values = [
            self._value(i, value.val) for i, value in enumerate(plan.values)
        ]
        self._check_items()
        self._operators = [self._operator(operator) for operator in plan.operators]
        self._calls = [
            i.instr_args for chain in plan.chains for i in chain.instructions
        ]
        self._written = Written(self._values, _last_named(self._calls))
        self._counts: dict[tuple[int, int], int] = {}

    def read(self) -> Plan:
        plan = self._plan
        inputs = tuple(
            self._index(value_index, "an input") for value_index in plan.inputs
        )
        outputs = tuple(
            self._index(value_index, "an output") for value_index in plan.outputs
        )
        self._written.mark(inputs)
        self._written.mark(self._written_back())
        operations = []
        for index, call in enumerate(self._calls):
            try:
                operation = self._operation(call)
            except ProgramError as error:
                where = f"{plan.name}: instruction {index}"
                raise type(error)(f"{where}: {error}") from error
            self._written.by(operation.reads, operation.writes)
            operations.append(operation)
        meta = plan.container_meta_type
        sizes = enumerate(plan.non_const_buffer_sizes)
        return Plan(
            name=plan.name,
            values=self._values,
            operations=operations,
            inputs=inputs,
            outputs=outputs,
            delegates=self._delegates,
            arenas=[Arena(i, self._devices.get(i, CPU), size) for i, size in sizes],
            places_devices=bool(self._devices),
            input_tree=(meta.encoded_inp_str if meta else None) or "",
            output_tree=(meta.encoded_out_str if meta else None) or "",
        )

    def _operator(self, operator: schema.Operator) -> str:
        """Its name. The prims' default overload is written out, torch's is left empty."""
        name, overload = operator.name or "", operator.overload or ""
        self._budget.spend(len(name) + len(overload), "the names of operators")
        return f"{name}.{overload}".removesuffix(".")

    def _value(self, index: int, val: Any) -> PlanValue:
        name = f"value {index}"
        if isinstance(val, schema.Tensor):
            return self._tensor(index, name, val)
        if type(val) not in _OTHERS:
            raise ProgramError(f"{name} is of the unknown kind {type(val).__name__}")
        kind, field = _OTHERS[type(val)]
        literal: Any = None if field is None else getattr(val, field)
        if isinstance(val, _LISTS):
            left_out = -1 if isinstance(val, schema.OptionalTensorList) else None
            items = tuple(
                None if i == left_out else self._index(i, name) for i in literal
            )
            return PlanValue(index, kind, name, items=items)
        if kind == "float":  # the schema's class has infinity as text
            literal = float(literal)
        elif kind == "string":
            literal = literal or ""
        return PlanValue(index, kind, name, literal=literal)

    def _check_items(self) -> None:
        """Lists are of tensors or of numbers: one of lists would unfold into any number of them."""
        for value in self._values:
            kind = value.kind.removesuffix(" list")
            for index in value.items or ():
                if index is not None and self._values[index].kind != kind:
                    raise ProgramError(
                        f"{value.name}, a list of {kind}s, holds value {index}, of kind "
                        f"{self._values[index].kind}"
                    )

    def _tensor(self, index: int, name: str, tensor: schema.Tensor) -> PlanValue:
        extra, where = tensor.extra_tensor_info, tensor.allocation_info
        qualified = (extra.fully_qualified_name or "") if extra else ""
        if qualified:
            name = f"{name} ({shortened(qualified)})"
        device = device_of(extra.device_type, extra.device_index) if extra else CPU
        label: torch.device | None = device
        if where is not None:
            # Before executorch 1.4, and without device planning, all that is planned is the host's.
            device = self._devices.get(where.memory_id, CPU)
            label = label if self._devices else None
        layout = read_layout(tensor, name, device)
        place = None if where is None else self._place(name, where, layout)
        stored: Initializer | None = None
        if extra is not None and extra.location is schema.TensorDataLocation.EXTERNAL:
            stored = Initializer(key=extra.fully_qualified_name or "")
        elif tensor.data_buffer_idx:
            segment = extra.mutable_data_segments_idx if extra else 0
            index_there = tensor.data_buffer_idx
            stored = Initializer(index=index_there, segment=segment if place else None)
        return PlanValue(
            index, "tensor", name, qualified, None, None, layout, label, place, stored
        )

    def _place(
        self, name: str, where: schema.AllocationDetails, layout: Any
    ) -> Allocation:
        """Return the planned bytes of a tensor, which are its arena's."""
        sizes, arena = self._plan.non_const_buffer_sizes, where.memory_id
        start = where.memory_offset_low | where.memory_offset_high << 32
        end = start + layout.nbytes
        if not 0 < arena < len(sizes):
            raise ProgramError(f"{name} is planned into arena {arena} of {len(sizes)}")
        if end > sizes[arena]:
            raise ProgramError(
                f"{name} is planned into bytes {start} to {end} of arena {arena}, which has "
                f"{sizes[arena]} bytes"
            )
        if start % layout.dtype.itemsize:
            raise ProgramError(
                f"{name} is planned at byte {start}, unaligned for {layout.dtype}"
            )
        return Allocation(arena, layout.device, start, end)

    def _written_back(self) -> Iterator[int]:
        """Yield the values that ``aten::copy_`` writes back to: they are read before they are written."""
        copies = {i for i, name in enumerate(self._operators) if name == "aten::copy_"}
        for call in self._calls:
            if isinstance(call, schema.KernelCall) and call.op_index in copies:
                yield from (i for i in call.args[:1] if 0 <= i < len(self._values))

    def _operation(self, call: object) -> Operation:
        if isinstance(call, schema.KernelCall):
            return self._kernel(call)
        if isinstance(call, schema.DelegateCall):
            return self._delegate(call)
        if isinstance(call, schema.MoveCall):
            both = tuple(
                self._index(i, "a move") for i in (call.move_from, call.move_to)
            )
            source, target = both[:1], both[1:]
            return Operation(Kind.MOVE, "move", both, source, target, target, both)
        if isinstance(call, schema.JumpFalseCall):
            to, count = call.destination_instruction, len(self._calls)
            if not 0 <= to <= count:
                raise ProgramError(f"jumps to instruction {to} of {count}")
            asked = (self._index(call.cond_value_index, "a jump"),)
            return Operation(Kind.JUMP, "jump if false", asked, asked, destination=to)
        if isinstance(call, schema.FreeCall):
            freed = (self._index(call.value_index, "a free"),)
            gone = freed if self._values[freed[0]].free else ()
            return Operation(Kind.FREE, "free", freed, (), freed, gone)
        raise ProgramError(f"is of the unknown kind {type(call).__name__}")

    def _kernel(self, call: schema.KernelCall) -> Operation:
        name = item(self._operators, call.op_index, "calls operator")
        args = tuple(self._index(arg, "an argument") for arg in call.args)
        if not args:
            raise ProgramError(f"{name} is given no values")
        if name in (TO_DEVICE, FROM_DEVICE) and len(args) != 3:
            raise ProgramError(f"{name} takes 3 values, but is given {len(args)}")
        if name == _COPY_INDEX:
            reads, writes = self._leaves(args), self._leaves(args[:1])
            return Operation(Kind.KERNEL, name, args, reads, writes)
        # The last argument is what the kernel returns: its outputs once more, or something else.
        *values, returned = args
        out_variant = "out" in name.rpartition(".")[2]
        outs, results = _outputs(name), self._leaves([returned])
        if outs is None and out_variant:
            outs = [
                i for i, v in enumerate(values) if {*self._leaves([v])} & {*results}
            ]
        written = [values[i] for i in outs or () if i < len(values)]
        reads, writes = self._leaves(values), self._leaves([*written, returned])
        new = not outs or not {*results} <= {*reads}
        if out_variant:  # else in place: what it writes it reads
            reads = tuple(v for v in reads if v not in {*writes})
        aliases = (args[0], returned) if name == VIEW else ()
        return Operation(
            Kind.KERNEL, name, args, reads, writes, (returned,) if new else (), aliases
        )

    def _delegate(self, call: schema.DelegateCall) -> Operation:
        index = call.delegate_index
        payload = item(self._delegates, index, "calls delegate")
        args = tuple(self._index(arg, "an argument") for arg in call.args)
        key = index, len(args)
        if key not in self._counts:
            told = self._inputs_of(payload)
            if told is None or told > len(args):
                told = self._written.count_inputs(args)
            self._counts[key] = told
        count = self._counts[key]
        reads, writes = self._leaves(args[:count]), self._leaves(args[count:])
        return Operation(
            Kind.DELEGATE,
            payload.name,
            args,
            reads,
            writes,
            delegate=index,
            inputs=count,
        )

    def _leaves(self, indices: Sequence[int]) -> tuple[int, ...]:
        """Values, lists of values taken apart, each once."""
        leaves: dict[int, None] = {}
        for index in indices:
            items = self._values[index].items
            inside = (index,) if items is None else items
            self._budget.spend(len(inside), "the arguments of instructions")
            leaves.update((leaf, None) for leaf in inside if leaf is not None)
        return tuple(leaves)

    def _index(self, index: int, what: str) -> int:
        item(self._plan.values, index, f"{what} refers to value")
        return index


def _last_named(calls: Sequence[Any]) -> dict[int, int]:
    """By value, the last instruction that names it."""
    last_named: dict[int, int] = {}
    for index, call in enumerate(calls):
        if isinstance(call, schema.MoveCall):
            last_named[call.move_from] = index
        last_named.update(dict.fromkeys(getattr(call, "args", ()), index))
    return last_named


def _payload(file: ProgramFile, plan: schema.ExecutionPlan, index: int) -> Payload:
    delegate = plan.delegates[index]
    backend_id = delegate.id or ""
    copied = sum(len(spec.value) for spec in delegate.compile_specs)
    file.budget.spend(copied, "the compile specs of delegates")
    return Payload(
        backend_id=backend_id,
        name=f"{shortened(plan.name)}/{index} ({shortened(backend_id)})",
        file_bytes=file.delegate_blob(delegate),
        compile_specs={
            spec.key or "": bytes(spec.value) for spec in delegate.compile_specs
        },
        named_data=file.named_data,
    )


@lru_cache(maxsize=4096)
def _outputs(name: str) -> Sequence[int] | None:
    """Return the arguments that an operator writes to, by torch's schema; None if it has no schema here."""
    if name in (TO_DEVICE, FROM_DEVICE):
        return (1,)
    operator, _, overload = name.partition(".")
    try:
        schemas = torch._C._jit_get_schemas_for_operator(operator)
    except RuntimeError:  # no operator could be called that
        return None
    for known in schemas:
        if known.overload_name == overload:
            aliases = [argument.alias_info for argument in known.arguments]
            return [i for i, alias in enumerate(aliases) if alias and alias.is_write]
    return None
