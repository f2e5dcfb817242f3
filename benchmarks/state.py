"""Copies and bytes per call of models that keep state on a GPU, beside upstream's pass."""

from __future__ import annotations

import contextlib
import logging
import operator
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from executorch.exir import (
    EdgeCompileConfig,
    EdgeProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes._shared_buffers import STATE_META
from executorch.exir.passes.delegate_order_pass import DelegateOrderPass
from executorch.exir.passes.device_state_pass import DeviceStatePass
from executorch.exir.passes.propagate_device_pass import (
    TARGET_DEVICE_COMPILE_SPEC_KEY,
    PropagateDevicePass,
)
from executorch.exir.tensor import TensorSpec
from rich.console import Console
from rich.table import Table
from torch.export import ExportedProgram, export
from torch.fx.passes.infra.pass_base import PassResult

from benchmarks.propagate_device_pass import (
    PASS_MODULE,
    Cost,
    NamedDeviceBackend,
    lowered_module,
    measure,
)
from torchtrt_executorch.overlay.upstream import load_upstream


class Stages(Partitioner):
    """Makes a delegate of each run of operators that are for one device; constants go with them.

    Args:
        device_of: Called with each operator's node, in order; None leaves it to the host.
    """

    def __init__(self, device_of: Callable[[torch.fx.Node], str | None]) -> None:
        super().__init__()
        self.device_of = device_of

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        tags: dict[str, DelegationSpec] = {}
        before: str | None = None
        for node in exported_program.graph.nodes:
            if node.op != "call_function":
                continue
            device = self.device_of(node)
            if device is not None:
                if device != before:
                    spec = CompileSpec(TARGET_DEVICE_COMPILE_SPEC_KEY, device.encode())
                    name = NamedDeviceBackend.__name__
                    tags[f"stage{len(tags)}"] = DelegationSpec(name, [spec])
                node.meta["delegation_tag"] = f"stage{len(tags) - 1}"
            before = device
        signature = exported_program.graph_signature
        mutable = set(signature.buffers_to_mutate.values())
        inputs = {*signature.user_inputs, *_names(signature.inputs_to_buffers, mutable)}
        for node in exported_program.graph.nodes:
            owners = {user.meta.get("delegation_tag") for user in node.users}
            constant = node.op == "placeholder" and node.name not in inputs
            if constant and len(owners) == 1 and (owner := owners.pop()):
                node.meta["delegation_tag"] = owner
        return PartitionResult(exported_program, tags)


def _names(buffers: dict[str, str], wanted: set[str | None]) -> list[str]:
    return [name for name, buffer in buffers.items() if buffer in wanted]


class Cache(torch.nn.Module):
    """A token's key goes into a cache, and its query reads all of it."""

    def __init__(self, length: int, width: int) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(length, width))

    def forward(self, x: torch.Tensor, position: torch.Tensor) -> torch.Tensor:
        cache = torch.index_copy(self.cache, 0, position, x)
        self.cache.copy_(cache)
        return torch.softmax(x @ cache.t(), -1) @ cache


class Recurrent(torch.nn.Module):
    """A GRU cell that keeps its state."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = torch.nn.GRUCell(width, width)
        self.register_buffer("h", torch.zeros(1, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.cell(x, self.h)
        self.h.copy_(h)
        return h


class Ring(torch.nn.Module):
    """A convolution over the last steps, which a buffer keeps."""

    def __init__(self, steps: int, width: int) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv1d(width, width, steps)
        self.register_buffer("steps", torch.zeros(1, width, steps))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        steps = torch.cat([self.steps[..., 1:], x], -1)
        self.steps.copy_(steps)
        return self.convolution(steps)


@dataclass
class Scenario:
    """A model, and where its operators go.

    Attributes:
        fewest: Copies to devices and to the host that its inputs, outputs and hand-overs need.
    """

    name: str
    program: Callable[[], ExportedProgram]
    fewest: tuple[int, int]
    device_of: Callable[[torch.fx.Node], str | None] = lambda node: "cuda:0"

    def edge(self, backend_id: str) -> EdgeProgramManager:
        """The edge program, with delegates that go by a backend's id."""
        edge = to_edge_transform_and_lower(
            self.program(),
            partitioner=[Stages(self.device_of)],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
        for lowered in edge.exported_program().graph_module.children():
            if isinstance(lowered, LoweredBackendModule):
                lowered._backend_id = backend_id
        return edge


def llama(layers: int, length: int = 256) -> ExportedProgram:
    """A Llama's decode step over transformers' static cache."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
    from transformers.integrations.executorch import (
        TorchExportableModuleWithStaticCache,
    )

    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=128,
            hidden_size=64,
            intermediate_size=128,
            num_hidden_layers=layers,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation="sdpa",
        )
    ).eval()
    cache = {"batch_size": 1, "max_cache_len": length, "device": "cpu"}
    model.generation_config = GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=length,
        cache_config=cache,
    )
    exportable = TorchExportableModuleWithStaticCache(model)
    inputs = {
        "input_ids": torch.tensor([[1]]),
        "cache_position": torch.tensor([0]),
    }
    return export(exportable, (), inputs, strict=True)


class Stack(torch.nn.Module):
    """Recurrent cells, one after another."""

    def __init__(self, cells: int, width: int) -> None:
        super().__init__()
        self.cells = torch.nn.ModuleList(Recurrent(width) for _ in range(cells))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for cell in self.cells:
            x = cell(x)
        return x


def second_gpu_from(cell: str) -> Callable[[torch.fx.Node], str]:
    """A GPU for the cells before the one of that name, and the next for all others."""
    seen = False

    def device_of(node: torch.fx.Node) -> str:
        nonlocal seen
        seen |= any(cell in each.name for each in node.all_input_nodes)
        return f"cuda:{int(seen)}"

    return device_of


def scenarios() -> list[Scenario]:
    def of(model: torch.nn.Module, *inputs: torch.Tensor) -> Callable[[], Any]:
        return lambda: export(model.eval(), inputs)

    step, position = torch.randn(1, 64), torch.tensor([0])
    return [
        Scenario("toy cache, 256", of(Cache(256, 64), step, position), (2, 1)),
        Scenario("toy cache, 4096", of(Cache(4096, 64), step, position), (2, 1)),
        Scenario("GRU", of(Recurrent(64), step), (1, 1)),
        Scenario(
            "two GPUs, 4 GRUs",
            of(Stack(4, 64), step),
            (2, 2),
            second_gpu_from("cells_2"),
        ),
        Scenario("ring buffer", of(Ring(16, 64), torch.randn(1, 64, 1)), (1, 1)),
        *(
            Scenario(f"Llama, {layers} layers", lambda n=layers: llama(n), (2, 1))
            for layers in (2, 8, 32)
        ),
        Scenario("Llama, 2 layers, cache of 2048", lambda: llama(2, 2048), (2, 1)),
    ]


@contextlib.contextmanager
def state_on_the_host() -> Iterator[None]:
    """Lowers as without a place for state on devices."""
    left = mock.Mock(wraps=lambda module: PassResult(module, False))
    with mock.patch.object(DeviceStatePass, "call", left):
        yield


def measured(edge: EdgeProgramManager, name: str) -> Cost:
    """The cost of a program with one of `passes`."""
    with state_on_the_host() if "host" in name else contextlib.nullcontext():
        return measure(edge, passes()[name])


def passes() -> dict[str, type]:
    return {
        "upstream": load_upstream(PASS_MODULE).PropagateDevicePass,
        "ours, state on the host": PropagateDevicePass,
        "ours": PropagateDevicePass,
    }


def _large(nodes: int) -> torch.fx.GraphModule:
    """A line of delegates on one GPU, each with a buffer that it reads and that its result is kept in."""
    value = torch.empty(4, 4)
    owner, graph = torch.nn.Module(), torch.fx.Graph()
    owner.cell = lowered_module("cuda:0", (4, 4))

    def known(node: torch.fx.Node) -> torch.fx.Node:
        node.meta.update(val=value, spec=TensorSpec.from_tensor(value))
        return node

    steps = nodes // 6
    last = known(graph.placeholder("x"))
    states = [known(graph.placeholder(f"state_{step}")) for step in range(steps)]
    for step, state in enumerate(states):
        state.meta[STATE_META] = f"state.{step}"
        delegate = graph.call_function(
            executorch_call_delegate, (graph.get_attr("cell"), last, state)
        )
        delegate.meta.update(
            val=[value, value], spec=[TensorSpec.from_tensor(value) for _ in range(2)]
        )
        last, new = (
            known(graph.call_function(operator.getitem, (delegate, i)))
            for i in range(2)
        )
        known(graph.call_function(torch.ops.aten.copy_.default, (state, new)))
    graph.output((last,))
    return torch.fx.GraphModule(owner, graph)


def pass_times(console: Console) -> None:
    """Prints how long the pass takes for graphs of up to 4,000 nodes, half of them state's."""
    table = Table("pass", title="Seconds of the pass by nodes")
    sizes = (500, 1000, 2000, 4000)
    for size in sizes:
        table.add_column(f"{size:,}", justify="right")
    for name, pass_class in passes().items():
        row = []
        for size in sizes:
            taken = []
            for _ in range(3):
                module = _large(size)
                placing = pass_class(enable_non_cpu_memory_planning=True)
                run = [placing]
                if name == "ours":
                    run = [DeviceStatePass(placing), placing, DelegateOrderPass(True)]
                started = time.process_time()
                for each in run:
                    each(module)
                taken.append(time.process_time() - started)
            row.append(f"{min(taken):.3f}")
        table.add_row(name, *row)
    console.print(table)


def main(names: Sequence[str] = ()) -> None:
    """Prints a table per scenario, or per one whose name has one of these in it, and pass times."""
    logging.getLogger("executorch").setLevel(logging.WARNING)
    console = Console(width=110)
    with torch.no_grad():
        for scenario in scenarios():
            if names and not any(each.strip("-") in scenario.name for each in names):
                continue
            edge = scenario.edge("CudaBackend")
            table = Table(title=f"{scenario.name}: copies per call, after the first")
            for heading in _HEADINGS:
                justify = "left" if heading == "pass" else "right"
                table.add_column(heading, justify=justify)
            for name in passes():
                try:
                    table.add_row(name, *_cells(measured(edge, name)))
                except Exception as error:
                    table.add_row(name, f"refused: {str(error).splitlines()[0][:40]}")
            table.add_row("fewest", *map(str, scenario.fewest))
            console.print(table)
        if not names or any("time" in each for each in names):
            pass_times(console)


_HEADINGS = (
    "pass",
    "to device",
    "to host",
    "bytes",
    "first call",
    "fences",
    "KiB on devices",
    "ms",
)


def _cells(cost: Cost) -> list[str]:
    devices = sum(size for device, size in cost.planned.items() if device != "cpu")
    return [
        str(cost.copies["h2d"]),
        str(cost.copies["d2h"]),
        f"{sum(cost.moved.values()):,}",
        str(sum(cost.first.values())),
        str(cost.unordered),
        f"{devices / 1024:,.0f}",
        f"{cost.seconds * 1e3:.1f}",
    ]


if __name__ == "__main__":
    main()
