"""A ``.pte``, made from compiled modules, read back and run."""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch
import torch_tensorrt
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.schema import DelegateCall, KernelCall, Tensor
from torch.export import ExportedProgram
from torch_tensorrt.executorch.serialization import (
    deserialize_engine,
)

from torchtrt_executorch import runtime

from .conftest import callable_in_a_program

Model = Callable[[Sequence[torch.nn.Module]], torch.nn.Module]


def program_of(
    model: Model, modules: Sequence[Any], *inputs: torch.Tensor
) -> ExportedProgram:
    """Return ``model`` over compiled ``modules``, exported."""
    return torch.export.export(
        model([callable_in_a_program(each) for each in modules]), inputs
    )


def pte_of(source: Any, **options: Any) -> bytes:
    """Return the ``.pte`` of a program, or of one per method, exported with ``options``."""
    edge = torch_tensorrt.executorch.export(source, **options)
    return bytes(edge.to_executorch().buffer)


def load(pte: bytes) -> runtime.Program:
    """Load a ``.pte``; if it has device memory, it raises if a tensor isn't where its reader works."""
    return runtime.load(pte, simulate_devices=True, emulated_engines=True)


class Delegate:
    """One delegate of a ``.pte``: its engine, its compile specs, its arguments' tensors."""

    def __init__(self, file: Any, plan: Any, call: DelegateCall) -> None:
        delegate = plan.delegates[call.delegate_index]
        data = file.program.backend_delegate_data[delegate.processed.index].data
        self.engine, self.metadata = deserialize_engine(bytes(data))
        self.specs = {spec.key: bytes(spec.value) for spec in delegate.compile_specs}
        values = [plan.values[i].val for i in call.args]
        self.tensors = [value for value in values if isinstance(value, Tensor)]

    @property
    def inputs(self) -> list[str]:
        """Names of the input bindings, in the blob's order."""
        return [each.name for each in self.metadata.io_bindings if each.is_input]

    def lives_on(self, device: int) -> bool:
        """Whether its arguments are labelled with GPU ``device``, where it is planned all of them."""
        labels = {_label(tensor) for tensor in self.tensors}
        return labels == {("CUDA", device)}


def _label(tensor: Tensor) -> tuple[str, int]:
    extra = tensor.extra_tensor_info
    return (extra.device_type.name, extra.device_index) if extra else ("CPU", 0)


def delegates(pte: bytes, method: str = "forward") -> list[Delegate]:
    """Return a method's delegates in the order in which it calls them."""
    file = deserialize_pte_binary(pte)
    (plan,) = [plan for plan in file.program.execution_plan if plan.name == method]
    return [
        Delegate(file, plan, instruction.instr_args)
        for chain in plan.chains
        for instruction in chain.instructions
        if isinstance(instruction.instr_args, DelegateCall)
    ]


def copies(pte: bytes) -> list[str]:
    """Return the device copies of the only method, in order: ``h2d`` and ``d2h``."""
    (plan,) = deserialize_pte_binary(pte).program.execution_plan
    calls = [
        plan.operators[instruction.instr_args.op_index].name
        for chain in plan.chains
        for instruction in chain.instructions
        if isinstance(instruction.instr_args, KernelCall)
    ]
    return [name[len("et_copy::_") :][:3] for name in calls if "et_copy" in name]
