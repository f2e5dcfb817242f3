"""Delegates for programs that are checked without a GPU: a few float operators in a text.

A stand-in lowers to a payload that `standin.cpp` executes in ExecuTorch's C++ runtime, on memory and
streams that stand in for a GPU's, and `StandInDelegate` in ours. It poses under the ids of real backends, by which the device pass
knows what runs in order.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes.propagate_device_pass import TARGET_DEVICE_COMPILE_SPEC_KEY
from torch.export import ExportedProgram

from torchtrt_executorch.runtime import Delegate, DelegateContext, Value

EDGE = exir_ops.edge.aten
OPERATORS = {
    EDGE.add.Tensor: "add",
    EDGE.sub.Tensor: "sub",
    EDGE.mul.Tensor: "mul",
    EDGE.mm.default: "mm",
    EDGE.neg.default: "neg",
    EDGE.relu.default: "relu",
}


@final
class StandInBackend(BackendDetails):
    """Writes a graph of `OPERATORS` as lines ``name operand [operand]``, one value a line.

    The first line has the numbers of inputs and outputs, the last one ``out`` and the outputs.
    """

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        numbers: dict[torch.fx.Node, int] = {}
        lines = []
        outputs: Sequence[torch.fx.Node] = ()
        for node in edge_program.graph.nodes:
            if node.op == "placeholder":
                numbers[node] = len(numbers)
            elif node.op == "output":
                outputs = node.args[0]
            elif node.target is not operator.getitem:
                nodes = (arg for arg in node.args if isinstance(arg, torch.fx.Node))
                operands = (str(numbers[each]) for each in nodes)
                lines.append(" ".join((OPERATORS[node.target], *operands)))
                numbers[node] = len(numbers)
        inputs = len(numbers) - len(lines)
        head = f"{inputs} {len(outputs)}"
        tail = " ".join(("out", *(str(numbers[each]) for each in outputs)))
        return PreprocessResult("\n".join((head, *lines, tail)).encode())


class StandInDelegate(Delegate):
    """Runs what `StandInBackend` wrote, in torchtrt_executorch.runtime."""

    def __init__(self, context: DelegateContext) -> None:
        head, *lines = bytes(context.payload).decode().splitlines()
        self.inputs = int(head.split()[0])
        self.lines = [line.split() for line in lines]

    def execute(self, args: Sequence[Value]) -> None:
        values = [value.tensor.clone() for value in args[: self.inputs]]
        for name, *numbers in self.lines:
            operands = [values[int(number)] for number in numbers]
            if name == "out":
                for value, result in zip(args[self.inputs :], operands, strict=True):
                    value.write(result)
            else:
                values.append(getattr(torch, name)(*operands))


class Groups(Partitioner):
    """Makes a delegate of each run of operators that ``group_of`` gives the same number.

    Args:
        group_of: Called with each call's node in order; None leaves it to the host.
        device: The ``target_device`` of all delegates.
    """

    def __init__(
        self, group_of: Callable[[torch.fx.Node], int | None], device: str = "cuda:0"
    ) -> None:
        super().__init__()
        specs = [CompileSpec(TARGET_DEVICE_COMPILE_SPEC_KEY, device.encode())]
        self.delegation = DelegationSpec(StandInBackend.__name__, specs)
        self.group_of = group_of

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tags = {}
        for node in exported_program.graph.nodes:
            if node.op != "call_function" or (group := self.group_of(node)) is None:
                continue
            node.meta["delegation_tag"] = f"group{group}"
            tags[f"group{group}"] = self.delegation
        return PartitionResult(exported_program, tags)


def ends_and_begins(
    host: tuple[str, ...], begin: tuple[str, ...] = (".neg.", ".sub.")
) -> Any:
    """Groups for `Groups`: what is the host's ends one, and some operators begin one."""
    state = {"group": 0, "used": False}

    def group_of(node: torch.fx.Node) -> int | None:
        name = str(node.target)
        on_host = any(each in name for each in host)
        if state["used"] and (on_host or any(each in name for each in begin)):
            state.update(group=state["group"] + 1, used=False)
        if on_host:
            return None
        state["used"] = True
        return int(state["group"])

    return group_of


def pose(edge: EdgeProgramManager, backend_ids: Sequence[str]) -> EdgeProgramManager:
    """Gives the stand-ins of all methods the ids of real backends, in order, repeated as needed."""
    for method in edge.methods:
        module = edge.exported_program(method).graph_module
        lowered = [
            each
            for each in module.children()
            if isinstance(each, LoweredBackendModule)
            and each.backend_id == StandInBackend.__name__
        ]
        for index, each in enumerate(lowered):
            each._backend_id = backend_ids[index % len(backend_ids)]
    return edge
