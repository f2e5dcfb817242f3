"""Device copies, bytes moved, planned memory and pass time, beside upstream's own pass."""

from __future__ import annotations

import copy
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, final
from unittest import mock

import torch
from executorch.exir import EdgeCompileConfig, to_edge, to_edge_transform_and_lower
from executorch.exir._serialize._program import deserialize_pte_binary
from executorch.exir.backend.backend_api import to_backend
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.backend.utils import tag_constant_data
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.dialects._ops import ops as exir_ops
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes.propagate_device_pass import (
    TARGET_DEVICE_COMPILE_SPEC_KEY,
    PropagateDevicePass,
)
from executorch.exir.program import EdgeProgramManager, _program
from executorch.exir.schema import JumpFalseCall, KernelCall, MoveCall, Program
from executorch.exir.tensor import get_scalar_type
from rich.console import Console
from rich.table import Table
from torch.export import ExportedProgram, export

from torchtrt_executorch.overlay.upstream import load_upstream

EDGE = exir_ops.edge.aten
PASS_MODULE = "executorch.exir.passes.propagate_device_pass"


@final
class NamedDeviceBackend(BackendDetails):
    """A backend whose blob is a marker: device placement never looks into it."""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"placed")


class EachAlone(Partitioner):
    """Makes every node of the given targets a delegate of its own.

    Args:
        targets: Edge operators to delegate.
        devices: The ``target_device`` of the delegates in graph order, repeated as needed; None
            leaves the compile spec out.
        own_constants: Whether constants move into the delegates that read them.
    """

    def __init__(
        self,
        targets: Sequence[Any],
        devices: Sequence[str | None],
        own_constants: bool = True,
    ) -> None:
        super().__init__()
        self.targets = set(targets)
        self.devices = devices
        self.own_constants = own_constants

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        graphs = [
            module.graph
            for module in exported_program.graph_module.modules()
            if isinstance(module, torch.fx.GraphModule)
        ]
        partition_tags = {}
        nodes = (n for graph in graphs for n in graph.nodes if n.target in self.targets)
        for index, node in enumerate(nodes):
            device = self.devices[index % len(self.devices)]
            specs = (
                [CompileSpec(TARGET_DEVICE_COMPILE_SPEC_KEY, device.encode())]
                if device
                else []
            )
            node.meta["delegation_tag"] = f"alone{index}"
            partition_tags[f"alone{index}"] = DelegationSpec(
                NamedDeviceBackend.__name__, specs
            )
        if self.own_constants:
            tag_constant_data(exported_program)
        return PartitionResult(exported_program, partition_tags)


@dataclass
class Cost:
    """What one method costs per inference.

    Attributes:
        copies: Copies by operator, in any call but the first.
        first: Copies by operator that the first call alone makes.
        moved: Bytes by operator.
        planned: Planned bytes by device.
        unordered: Copies that are missing between delegates of ExecuTorch's C++ runtime.
        seconds: The pass's time.
    """

    copies: Counter[str] = field(default_factory=Counter)
    first: Counter[str] = field(default_factory=Counter)
    moved: Counter[str] = field(default_factory=Counter)
    planned: Counter[str] = field(default_factory=Counter)
    unordered: int = 0
    seconds: float = 0.0


def cost_of(program: Program, method: int = 0) -> Cost:
    """Counts what an emitted or deserialized program says, at the upper bound of its shapes."""
    plan = program.execution_plan[method]
    cost = Cost()
    calls = [i.instr_args for chain in plan.chains for i in chain.instructions]
    once = _first_call_alone(calls)
    for index, call in enumerate(calls):
        if not isinstance(call, KernelCall):
            continue
        name = plan.operators[call.op_index].name
        if name.startswith("et_copy::"):
            tensor: Any = plan.values[call.args[0]].val
            kind = name.removeprefix("et_copy::_").removesuffix("_copy")
            if index in once:
                cost.first[kind] += 1
                continue
            cost.copies[kind] += 1
            cost.moved[kind] += math.prod(tensor.sizes) * (
                get_scalar_type(tensor.scalar_type).itemsize
            )
    devices = {
        each.buffer_idx: f"{each.device_type.name.lower()}:{each.device_index}"
        for each in plan.non_const_buffer_device or []
    }
    for index, size in enumerate(plan.non_const_buffer_sizes):
        cost.planned[devices.get(index, "cpu")] += size
    return cost


def _first_call_alone(calls: Sequence[Any]) -> set[int]:
    """The instructions after a jump that end by giving its condition another value."""
    once: set[int] = set()
    for index, call in enumerate(calls):
        if isinstance(call, JumpFalseCall):
            last = calls[call.destination_instruction - 1]
            if isinstance(last, MoveCall) and last.move_to == call.cond_value_index:
                once.update(range(index, call.destination_instruction))
    return once


def measure(
    edge: EdgeProgramManager,
    pass_class: type,
    config: ExecutorchBackendConfig | None = None,
) -> Cost:
    """Emits a copy of an edge program with the given pass, and reads the .pte back."""
    seconds = 0.0

    class Timed(pass_class):  # type: ignore[misc]
        def call(self, graph_module: torch.fx.GraphModule) -> Any:
            nonlocal seconds
            start = time.perf_counter()
            result = super().call(graph_module)
            seconds += time.perf_counter() - start
            return result

    with mock.patch.object(_program, "PropagateDevicePass", Timed):
        executorch = copy.deepcopy(edge).to_executorch(config)
    cost = cost_of(deserialize_pte_binary(executorch.buffer).program)
    cost.seconds = seconds
    from executorch.exir.passes.delegate_order_pass import missing_fences

    cost.unordered = missing_fences(executorch.exported_program().graph_module)
    return cost


class SumAndDifference(torch.nn.Module):
    def forward(
        self, a: torch.Tensor, b: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return a + b, a - b


@cache
def lowered_module(target: str, shape: tuple[int, ...]) -> LoweredBackendModule:
    """A real lowered module for a device: two float tensors in, their sum and difference out."""
    inputs = (torch.zeros(shape), torch.zeros(shape))
    program = to_edge(
        export(SumAndDifference(), inputs),
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    ).exported_program()
    specs = [CompileSpec(TARGET_DEVICE_COMPILE_SPEC_KEY, target.encode())]
    return to_backend(NamedDeviceBackend.__name__, program, specs)


class Chain(torch.nn.Module):
    """Delegates that hand a value on, with a host operator after every fourth."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        for step in range(32):
            x = x + y
            if step % 4 == 3:
                x = torch.relu(x)
        return x


class FanOut(torch.nn.Module):
    """Delegates that share one host value, and have a method input of their own each."""

    def forward(self, x: torch.Tensor, *own: torch.Tensor) -> list[torch.Tensor]:
        shared = torch.relu(x)
        return [shared + each for each in own]


class Block(torch.nn.Module):
    """A pre-norm transformer block; its products are delegated, the rest runs on the host."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(width) for _ in range(2))
        shapes = [(width, width)] * 4 + [(width, 4 * width), (4 * width, width)]
        self.weights = torch.nn.ParameterList(
            0.02 * torch.randn(*shape) for shape in shapes
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value, out, up, down = self.weights
        h = self.norms[0](x)
        q, k, v = torch.mm(h, query), torch.mm(h, key), torch.mm(h, value)
        scores = torch.softmax(torch.mm(q, k.t()) / math.sqrt(x.shape[-1]), -1)
        x = x + torch.mm(torch.mm(scores, v), out)
        h = self.norms[1](x)
        return x + torch.mm(torch.nn.functional.gelu(torch.mm(h, up)), down)


class Transformer(torch.nn.Module):
    def __init__(self, blocks: int = 4, width: int = 64) -> None:
        super().__init__()
        self.blocks = torch.nn.Sequential(*(Block(width) for _ in range(blocks)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.blocks(x)


class Pipeline(torch.nn.Module):
    """Two stages on a GPU each; both read the input, and the second reads views of the first's."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        h = x
        for _ in range(8):
            h = h + y
        first = h
        for _ in range(8):
            h = h + y
        h = h + first.view(first.shape)
        return (h.view(-1, 16) + first.view(-1, 16)).view(x.shape)


@dataclass
class Scenario:
    name: str
    model: torch.nn.Module
    inputs: tuple[torch.Tensor, ...]
    targets: tuple[Any, ...]
    devices: tuple[str, ...] = ("cuda:0",)

    def edge(self, backend_id: str | None = None) -> EdgeProgramManager:
        """The edge program, with delegates that go by the id of a backend that the pass knows."""
        edge = to_edge_transform_and_lower(
            export(self.model.eval(), self.inputs),
            partitioner=[EachAlone(self.targets, self.devices)],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        for lowered in edge.exported_program().graph_module.children():
            if backend_id and isinstance(lowered, LoweredBackendModule):
                lowered._backend_id = backend_id
        return edge


def scenarios() -> list[Scenario]:
    def grid(rows: int = 32, columns: int = 32) -> torch.Tensor:
        return torch.randn(rows, columns)

    add = (EDGE.add.Tensor,)
    two = ("cuda:0",) * 8 + ("cuda:1",) * 10
    return [
        Scenario("chain of 32", Chain(), (grid(), grid()), add),
        Scenario("fan-out to 64", FanOut(), tuple(grid() for _ in range(65)), add),
        Scenario(
            "transformer, 4 blocks", Transformer(), (grid(16, 64),), (EDGE.mm.default,)
        ),
        Scenario("two-GPU pipeline", Pipeline(), (grid(), grid()), add, two),
    ]


def main() -> None:
    """Prints one row per scenario and pass."""
    console = Console(width=110)
    try:
        PropagateDevicePass(enable_non_cpu_memory_planning=True)
    except RuntimeError as error:
        console.print(f"PropagateDevicePass: nothing to compare. {error}")
        return

    passes: dict[str, type] = {
        "upstream": load_upstream(PASS_MODULE).PropagateDevicePass,
        "ours": PropagateDevicePass,
        "ours, one stream": PropagateDevicePass,
    }
    edges = {scenario.name: scenario.edge("CudaBackend") for scenario in scenarios()}
    devices = ("cpu", "cuda:0", "cuda:1")
    headings = (
        "to device",
        "to host",
        "unordered",
        "KiB moved",
        *(f"KiB {d}" for d in devices),
        "ms",
    )
    table = Table(
        "program",
        "pass",
        title="PropagateDevicePass: copies, planned memory, pass time",
    )
    for heading in headings:
        table.add_column(heading, justify="right")
    for program, edge in edges.items():
        for name, pass_class in passes.items():
            config = ExecutorchBackendConfig()
            config.propagate_device_config.shared_stream = "one stream" in name
            cost = measure(edge, pass_class, config)
            table.add_row(
                program if name == "upstream" else "",
                name,
                str(cost.copies["h2d"]),
                str(cost.copies["d2h"]),
                str(cost.unordered),
                f"{sum(cost.moved.values()) / 1024:.0f}",
                *(f"{cost.planned[device] / 1024:.0f}" for device in devices),
                f"{cost.seconds * 1e3:.1f}",
            )
        table.add_section()
    console.print(table)


if __name__ == "__main__":
    main()
