"""Programs with device delegates, and what the pass made of them."""

from __future__ import annotations

import copy
import operator
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from executorch.exir import EdgeCompileConfig, EdgeProgramManager, to_edge
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.passes.delegate_order_pass import DelegateOrderPass
from executorch.exir.passes.device_state_pass import DeviceStatePass
from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig
from executorch.exir.passes.propagate_device_pass import PropagateDevicePass
from executorch.exir.passes.spec_prop_pass import SpecPropPass
from executorch.exir.schema import DeviceType, Program, Tensor
from executorch.exir.tensor import TensorSpec
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram, export

from ...loading import load_benchmark

#: The benchmark's partitioner, scenarios and counters, which the tests share.
bench = load_benchmark("propagate_device_pass")
ADD = (bench.EDGE.add.Tensor,)


def lower(
    model: torch.nn.Module,
    inputs: tuple[Any, ...],
    devices: Sequence[str | None] = ("cuda:0",),
    targets: Sequence[Any] = ADD,
    **export_options: Any,
) -> EdgeProgramManager:
    """Lowers a model whose target operators, additions by default, are delegates of their own.

    By `to_edge` and `to_backend`, which decompose once where `to_edge_transform_and_lower` does
    twice; the benchmark's scenarios take that way.
    """
    return to_edge(
        export(model, inputs, **export_options),
        compile_config=EdgeCompileConfig(_check_ir_validity=False),
    ).to_backend(bench.EachAlone(targets, devices, own_constants=False))


lowered_module = bench.lowered_module


class Sketch:
    """A graph of calls on tensors of one shape; its delegates are `lowered_module`'s.

    Attributes:
        x: Its input.
    """

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.owner, self.graph = torch.nn.Module(), torch.fx.Graph()
        self.owner.lowered = lowered_module("cuda:0", shape)
        with FakeTensorMode():
            self.value = torch.empty(shape)
        self.x = self.graph.placeholder("x")
        self.x.meta["val"] = self.value

    def call(self, target: Any, *args: Any) -> torch.fx.Node:
        node = self.graph.call_function(target, args)
        node.meta["val"] = self.value
        return node

    def delegate(self, *args: torch.fx.Node) -> torch.fx.Node:
        """The first output of a delegate."""
        lowered = self.graph.get_attr("lowered")
        node = self.call(executorch_call_delegate, lowered, *args)
        node.meta["val"] = [self.value, self.value]
        return self.call(operator.getitem, node, 0)

    def module(self, *outputs: torch.fx.Node) -> torch.fx.GraphModule:
        """The graph as a module, with specs."""
        self.graph.output(outputs)
        return SpecPropPass()(torch.fx.GraphModule(self.owner, self.graph)).graph_module


def place(program: ExportedProgram, **options: Any) -> torch.fx.GraphModule:
    """Runs the device passes on a copy of a program as `to_executorch` does, device planning on."""
    specs = SpecPropPass()
    module = specs(copy.deepcopy(program.graph_module)).graph_module
    specs.update_placeholder_tensor_specs(program, module)
    placed, _ = run_passes(module, **options)
    placed.graph.lint()
    return placed


def run_passes(
    module: torch.fx.GraphModule, shared_stream: bool = False, **options: bool
) -> tuple[torch.fx.GraphModule, bool]:
    """Runs the device passes on a graph, in place; says whether one of them changed something."""
    options = {"enable_non_cpu_memory_planning": True, **options}
    placing = PropagateDevicePass(**options)
    planning = options["enable_non_cpu_memory_planning"]
    changed = False
    for each in (
        DeviceStatePass(placing, planning),
        placing,
        DelegateOrderPass(planning, shared_stream),
    ):
        result = each(module)
        module, changed = result.graph_module, changed | result.modified
    return module, changed


def run(program: ExportedProgram, module: torch.fx.GraphModule, *inputs: Any) -> Any:
    """Runs a graph of the program in Python: buffer mutations first, then outputs, as a tuple."""
    signature = program.graph_signature
    lifted = {**program.state_dict, **program.constants}
    names = {
        **signature.inputs_to_parameters,
        **signature.inputs_to_buffers,
        **signature.inputs_to_lifted_tensor_constants,
    }
    caller = iter(inputs)
    placeholders = [n for n in module.graph.nodes if n.op == "placeholder"]
    args = [
        lifted[names[n.target]].clone() if n.target in names else next(caller)
        for n in placeholders
    ]
    return module(*args)


def placing(**options: Any) -> ExecutorchBackendConfig:
    """A configuration with options of ``PropagateDeviceConfig``."""
    devices = PropagateDeviceConfig(**options)
    return ExecutorchBackendConfig(propagate_device_config=devices)


def emitted_program(edge: EdgeProgramManager, **options: Any) -> Program:
    """The program that is emitted by options of ``ExecutorchBackendConfig``, as a runtime reads it."""
    buffer = edge.to_executorch(ExecutorchBackendConfig(**options)).buffer
    return bench.deserialize_pte_binary(buffer).program


def device(spec: TensorSpec) -> str:
    if spec.device == DeviceType.CPU:
        assert spec.device_index == 0
        return "cpu"
    return f"{spec.device.name.lower()}:{spec.device_index}"


def device_of(node: torch.fx.Node) -> str:
    """The label of a node with one tensor."""
    return device(node.meta["spec"])


def labels_of(node: torch.fx.Node) -> list[str]:
    """The labels of all tensors of a node."""
    specs = torch.utils._pytree.tree_leaves(node.meta.get("spec"))
    return [device(each) for each in specs if isinstance(each, TensorSpec)]


def find(module: torch.fx.GraphModule, name: str) -> list[torch.fx.Node]:
    """The nodes that call an operator, by a part of its name; delegates are "delegate"."""
    return [
        node
        for node in module.graph.nodes
        if node.op == "call_function"
        and (
            name in str(node.target)
            or (name == "delegate" and node.target is executorch_call_delegate)
        )
    ]


def copies(module: torch.fx.GraphModule) -> tuple[int, int]:
    """The numbers of copies to a device and to the host."""
    return len(find(module, "h2d_copy")), len(find(module, "d2h_copy"))


def placed_labels(program: Program, method: int = 0) -> list[tuple[str, str]]:
    """For each planned tensor of an emitted method: its own label and its buffer's."""
    plan = program.execution_plan[method]
    buffers = {
        each.buffer_idx: f"{each.device_type.name.lower()}:{each.device_index}"
        for each in plan.non_const_buffer_device or []
    }
    labels = []
    for tensor in (value.val for value in plan.values):
        if isinstance(tensor, Tensor) and tensor.allocation_info is not None:
            info, own = tensor.extra_tensor_info, "cpu"
            if info is not None and info.device_type != DeviceType.CPU:
                own = f"{info.device_type.name.lower()}:{info.device_index}"
            labels.append((own, buffers.get(tensor.allocation_info.memory_id, "cpu")))
    return labels


@pytest.fixture(scope="session")
def kit() -> ModuleType:
    """This module, for test files that are not in a package."""
    return sys.modules[__name__]
