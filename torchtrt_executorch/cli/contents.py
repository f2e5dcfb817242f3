"""What is in a ``.pte``: methods, delegates, engines, kernels. Nothing of it is executed."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Iterator

from executorch.exir import schema
from rich.table import Table
from rich.text import Text

from torchtrt_executorch.cli.words import counted
from torchtrt_executorch.cuda_library import capabilities
from torchtrt_executorch.engine_blob import deserialize_engine
from torchtrt_executorch.plans import origin
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.files import ProgramFile
from torchtrt_executorch.runtime.streams import NEEDS_SHARED_STREAM

TENSORRT, CUDA = "TensorRTBackend", "CudaBackend"


@dataclass(frozen=True)
class DelegateRow:
    """One delegate of a method.

    Attributes:
        backend: The id of its backend.
        device: Its ``target_device``, empty if it has none.
        nbytes: Size of its payload.
        notes: For a TensorRT engine what has built it, and its bindings; for a CUDA library the
            GPUs that it has code for; that it needs a host which runs all delegates on one stream.
    """

    backend: str
    device: str
    nbytes: int
    notes: str = ""


def delegates(file: ProgramFile, plan: schema.ExecutionPlan) -> list[DelegateRow]:
    """Return the delegates of a method, in the file's order.

    Raises:
        ProgramError: A payload is not in the file.
    """
    rows = []
    for delegate in plan.delegates:
        blob = file.delegate_blob(delegate)
        specs = {spec.key: bytes(spec.value) for spec in delegate.compile_specs}
        device = specs.get("target_device", b"").decode(errors="replace")
        notes = [_engine_notes(blob)] if delegate.id == TENSORRT else []
        if delegate.id == CUDA:
            notes.append(_library_notes(file, blob, specs))
        if NEEDS_SHARED_STREAM in specs:
            notes.append("needs a host with one stream for all delegates")
        rows.append(DelegateRow(str(delegate.id), device, len(blob), "; ".join(notes)))
    return rows


def kernels(plan: schema.ExecutionPlan) -> Counter[str]:
    """Return how many instructions of a method call each operator.

    Raises:
        ProgramError: An instruction calls an operator that isn't there.
    """
    calls: Counter[str] = Counter()
    for chain in plan.chains:
        for instruction in chain.instructions:
            arguments = instruction.instr_args
            if isinstance(arguments, schema.KernelCall):
                calls[_operator(plan, arguments.op_index)] += 1
    return calls


def _operator(plan: schema.ExecutionPlan, index: int) -> str:
    if not 0 <= index < len(plan.operators):
        raise ProgramError(f"{plan.name}: there is no operator {index}")
    operator = plan.operators[index]
    return (
        f"{operator.name}.{operator.overload}"
        if operator.overload
        else str(operator.name)
    )


def _engine_notes(blob: memoryview) -> str:
    try:
        engine, metadata = deserialize_engine(blob)
    except ValueError as error:
        return f"damaged: {error}"
    names = {True: [], False: []}  # type: dict[bool, list[str]]
    for binding in metadata.io_bindings:
        names[binding.is_input].append(binding.name)
    notes = f"{', '.join(names[True])} -> {', '.join(names[False])}, on cuda:{metadata.device_id}"
    return f"{origin(engine).text}, {notes}"


def _library_notes(file: ProgramFile, blob: memoryview, specs: dict[str, bytes]) -> str:
    name = specs.get("method_name", b"forward").decode(errors="replace")
    # executorch 1.3 names the library after the method, and leaves the payload empty.
    key = bytes(blob).partition(b"\n")[0].decode(errors="replace") or f"{name}_so_blob"
    if key not in file.named_data:
        return "its library is not in the file"
    found = capabilities(file.named_data[key].data)
    machine = [name for name in found if name.startswith("sm_")]
    notes = f"machine code for {', '.join(machine) or 'no GPU'}"
    for name in found[len(machine) :]:
        notes += f", PTX for {name.replace('compute', 'sm')} and later"
    return notes


def tables(file: ProgramFile) -> Iterator[Table]:
    """Yield a table per method, and one of named data if there is any.

    What the file calls things is shown as it stands: a name like ``[red]`` is no markup.

    Raises:
        ProgramError: The program refers to what is not in the file.
    """
    for plan in file.program.execution_plan:
        inputs, outputs = len(plan.inputs), len(plan.outputs)
        sizes = f"{counted(inputs, 'input')}, {counted(outputs, 'output')}"
        table = Table(title=Text(f"{plan.name}: {sizes}"))
        for heading, justify in (
            ("delegate", "left"),
            ("device", "left"),
            ("bytes", "right"),
        ):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]
        table.add_column("engine", overflow="fold")
        for row in delegates(file, plan):
            cells = row.backend, row.device, f"{row.nbytes:,}", row.notes
            table.add_row(*map(Text, cells))
        for name, count in kernels(plan).most_common():
            table.add_row(
                Text(f"kernel {name}"), "cpu", "", f"called {counted(count, 'time')}"
            )
        yield table
    if file.named_data:
        table = Table("named data", "bytes")
        for key, entry in file.named_data.items():
            table.add_row(Text(key), f"{len(entry.held):,}")
        yield table
