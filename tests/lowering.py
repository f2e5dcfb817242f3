"""Lower a model by partitioners, look at what they took, and compare its program with eager PyTorch."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes import MemoryPlanningPass
from torch import nn
from torch.export import export
from torch.fx import GraphModule

from torchtrt_executorch import emulated_engines, runtime

from .executorch_runtime import UpstreamMethod


class Function(nn.Module):
    """A function as a module. Torch-TensorRT can compile one of one input: it takes ``others`` for one.

    Args:
        function: Called with the inputs, and then with the layers.
        layers: Modules that the function calls or whose weights it reads.
    """

    def __init__(self, function: Callable[..., Any], *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers)

    def forward(self, x: Any, *others: Any) -> Any:
        return self.function(x, *others, *self.layers)


class BaseModel(nn.Module):
    """A module with attributes that its class names: ``class Scaled(BaseModel, scale=lambda: torch.ones(3))``.

    Each is what its function returns for this module; tensors become buffers.
    """

    makers: ClassVar[dict[str, Callable[[], Any]]] = {}

    def __init_subclass__(cls, **makers: Callable[[], Any]) -> None:
        cls.makers = {**cls.makers, **makers}

    def __init__(self) -> None:
        super().__init__()
        for name, value in ((name, make()) for name, make in self.makers.items()):
            buffer = type(value) is torch.Tensor
            (self.register_buffer if buffer else self.__setattr__)(name, value)


def module_of(model: nn.Module | Callable[..., Any]) -> nn.Module:
    """Return a model, or a function as one, in eval mode."""
    return (model if isinstance(model, nn.Module) else Function(model)).eval()


def cuda_partitioner(method: str = "forward", **specs: str) -> Any:
    """Return ``CudaPartitioner`` for a method, with more compile specs by their keys."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    name = CudaBackend.generate_method_name_compile_spec(method)
    more = [CompileSpec(key, value.encode()) for key, value in specs.items()]
    return CudaPartitioner([name, *more])


def lower(
    model: nn.Module | Callable[..., Any],
    inputs: tuple[Any, ...],
    *partitioners: Partitioner,
    dynamic_shapes: Any = None,
    **options: Any,
) -> EdgeProgramManager:
    """Export a copy of a model, or a function, and lower it by partitioners.

    Args:
        options: More of ``to_edge_transform_and_lower``.
    """
    copied = copy.deepcopy(module_of(model))
    with torch.no_grad():
        program = export(copied, inputs, dynamic_shapes=dynamic_shapes)
    return to_edge_transform_and_lower(program, partitioner=[*partitioners], **options)


def compile_engines(
    model: nn.Module | Callable[..., Any], inputs: Sequence[Any], **settings: Any
) -> GraphModule:
    """Compile a model, or a function, by Torch-TensorRT for ExecuTorch, blocks of one operator as well.

    Real engines, unless ``emulated_engines()`` is entered.

    Args:
        settings: More of ``torch_tensorrt.compile``.
    """
    import torch_tensorrt

    settings = {"min_block_size": 1, "target_executorch": True, **settings}
    with torch.no_grad():
        compiled: GraphModule = torch_tensorrt.compile(
            module_of(model), ir="dynamo", arg_inputs=[*inputs], **settings
        )
    return compiled


def compile_emulated(
    model: nn.Module | Callable[..., Any], inputs: Sequence[Any], **settings: Any
) -> GraphModule:
    """:func:`compile_engines`, with engines emulated."""
    with emulated_engines():
        return compile_engines(model, inputs, **settings)


def engines(compiled: nn.Module) -> list[str]:
    """Return the names of a compiled model's engines."""
    modules = compiled.named_modules()
    return [name for name, module in modules if hasattr(module, "serialized_engine")]


def delegates(
    edge: EdgeProgramManager, method: str = "forward"
) -> list[LoweredBackendModule]:
    """Return a method's delegates, those of its branches and loops among them."""
    modules = edge.exported_program(method).graph_module.modules()
    return [module for module in modules if isinstance(module, LoweredBackendModule)]


def backends(edge: EdgeProgramManager, method: str = "forward") -> list[str]:
    """Return the backend of each delegate of a method: ``XnnpackBackend``."""
    return [delegate.backend_id for delegate in delegates(edge, method)]


def operators(graph_module: GraphModule) -> Counter[str]:
    """Count what a graph calls: ``aten.add.Tensor``, ``executorch_call_delegate``."""
    calls = (n.target for n in graph_module.graph.nodes if n.op == "call_function")
    names = (str(getattr(target, "__name__", target)) for target in calls)
    return Counter(name for name in names if name != "getitem")


def host_operators(edge: EdgeProgramManager, method: str = "forward") -> Counter[str]:
    """Count the operators of a method that are in no delegate: ``aten.add.Tensor``."""
    counts = operators(edge.exported_program(method).graph_module)
    del counts["executorch_call_delegate"]
    return counts


def emit(edge: EdgeProgramManager, **options: Any) -> ExecutorchProgramManager:
    """Return a copy's ExecuTorch program; ``to_executorch`` changes what it is called on.

    Args:
        options: More of ``to_executorch``.
    """
    return copy.deepcopy(edge).to_executorch(**options)


def load(program: ExecutorchProgramManager, **options: Any) -> runtime.Program:
    """Load a program, and weights that it would save beside it, in our runtime.

    Args:
        options: More of ``runtime.load``.
    """
    files = [bytes(data) for data in program._tensor_data.values()]
    return runtime.load(bytes(program.buffer), files, **options)


def assert_same_as_eager(
    edge: EdgeProgramManager,
    model: nn.Module | Callable[..., Any],
    *calls: tuple[Any, ...],
    upstream: bool = False,
    **tolerance: float,
) -> runtime.Program:
    """Run a program in our runtime, devices simulated and engines emulated, and compare each call with eager's.

    Args:
        calls: The inputs of each.
        upstream: Whether it is compared in ExecuTorch's own runtime as well.
        tolerance: ``rtol`` and ``atol`` of ``torch.testing.assert_close``.
    """
    program = emit(edge)
    loaded = load(program, simulate_devices=True, emulated_engines=True)
    methods: list[Callable[..., Any]] = [loaded.run]
    if upstream:
        method = UpstreamMethod(program.buffer)
        methods.append(lambda *inputs: method.execute(inputs))
    for inputs in calls:
        with torch.no_grad():
            expected = model(*inputs)
        expected = [expected] if isinstance(expected, torch.Tensor) else [*expected]
        for run in methods:
            torch.testing.assert_close([*run(*inputs)], expected, **tolerance)
    return loaded


def lower_engines(
    model: nn.Module | Callable[..., Any],
    inputs: Sequence[Any],
    *partitioners: Partitioner,
    **settings: Any,
) -> EdgeProgramManager:
    """:func:`compile_engines`, and lower what is outside of the engines by partitioners."""
    from torch_tensorrt.executorch import export as export_engines

    compiled = compile_engines(model, inputs, **settings)
    more: dict[str, Any] = {"partitioners": [*partitioners]} if partitioners else {}
    more["kwarg_inputs"] = settings.get("kwarg_inputs")
    edge: EdgeProgramManager = export_engines(compiled, arg_inputs=[*inputs], **more)
    return edge


def lower_emulated(
    model: nn.Module | Callable[..., Any],
    inputs: Sequence[Any],
    *partitioners: Partitioner,
    **settings: Any,
) -> EdgeProgramManager:
    """:func:`lower_engines`, with engines emulated."""
    with emulated_engines():
        return lower_engines(model, inputs, *partitioners, **settings)


def input_and_output_planning(planned: bool) -> ExecutorchBackendConfig:
    """Return a configuration by which the memory of inputs and outputs is planned, or is the caller's."""
    planning = MemoryPlanningPass(alloc_graph_input=planned, alloc_graph_output=planned)
    return ExecutorchBackendConfig(memory_planning_pass=planning)


def tensorrt_partitioner(*specs: CompileSpec, **settings: Any) -> Any:
    """Return ``TensorRTPartitioner``, which takes blocks of one operator as well."""
    from torch_tensorrt.executorch import TensorRTPartitioner

    settings = {"min_block_size": 1, **settings}
    return TensorRTPartitioner([*specs], compile_settings=settings)
