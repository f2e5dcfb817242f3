"""Replace engine objects by tensors, so that ExecuTorch's passes can trace engine calls.

ExecuTorch dispatches every node of a program through operator schemas, which an engine object
does not pass. ``tensorrt::no_op_placeholder_for_execute_engine`` takes the engine's record
instead, spelled out. The engine's bytes become a lifted constant, uint8 of shape (bytes,), so
that they never appear in generated source (pytorch/TensorRT#4329).
"""

from __future__ import annotations

import weakref
from copy import deepcopy
from typing import Any

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch_tensorrt.dynamo.graphs.attribute_names import unique_name
from torch_tensorrt.dynamo.graphs.copies import copied_graph
from torch_tensorrt.dynamo.runtime._engine_bytes import engine_bytes, tensor_of
from torch_tensorrt.executorch.backend import _validate_engine_info
from torch_tensorrt.executorch.engines.nodes import (
    EXECUTE,
    engine_record,
    payload_of,
    schema_name,
)
from torch_tensorrt.executorch.engines.record import Slot, text


def with_engine_placeholders(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` with its engine calls as placeholder calls.

    ``program`` is left as it is, and shares parameters, buffers, constants and fake tensors with
    the result. An engine that several calls share stays one constant. The reshapes that compiling
    left beside the engines, in branches too, become ordinary ones, which ExecuTorch has kernels for. A program with
    nothing to change is returned itself.

    Raises:
        RuntimeError: An engine is not in the program, or needs an output allocator, which
            ExecuTorch does not have.
    """
    branches = {
        name: branch
        for name, branch in program.graph_module.named_children()
        if _reshapes(branch)
    }
    if not branches and not any(
        _is_object_call(node) or _is_reshape(node) for node in program.graph.nodes
    ):
        return program
    import torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops  # noqa: F401  defines it

    graph, copies = copied_graph(program.graph)
    rewrite = _Rewrite(program, graph)
    for node, copy in copies.items():
        if _is_object_call(node):
            rewrite.call(node, copy)
        elif _is_reshape(node):
            copy.target = torch.ops.aten.reshape.default
    result = rewrite.finish()
    for name, branch in branches.items():
        own = deepcopy(branch)
        for node in _reshapes(own):
            node.target = torch.ops.aten.reshape.default
        result.graph_module.add_module(name, own)
    return result


def _reshapes(branch: torch.nn.Module) -> list[Node]:
    """Return the reshapes of a branch of control flow, and of those in it."""
    graphs = (
        module.graph for module in branch.modules() if isinstance(module, GraphModule)
    )
    return [node for graph in graphs for node in graph.nodes if _is_reshape(node)]


def _is_object_call(node: Node) -> bool:
    return node.op == "call_function" and schema_name(node.target) == EXECUTE


def _is_reshape(node: Node) -> bool:
    """Whether Torch-TensorRT's lowering has made ``node`` of a reshape; it has no out variant."""
    return node.target is torch.ops.aten._reshape_copy.default


class _Rewrite:
    """A copy of a program's graph in the making, with its signature and constants."""

    def __init__(self, program: ExportedProgram, graph: Graph) -> None:
        self._program = program
        self._graph = graph
        self._specs = list(program.graph_signature.input_specs)
        self._constants = dict(program.constants)
        self._engines: dict[Node, Any] = {}
        values = [node.meta.get("val") for node in graph.nodes]
        self._mode = detect_fake_mode(values) or FakeTensorMode()

    def call(self, original: Node, node: Node) -> None:
        """Turn ``node``, the copy of the engine call ``original``, into a placeholder call."""
        record = engine_record(self._program, original)
        _validate_engine_info(record, node.name)
        payload = payload_of(node)
        if payload not in self._engines:
            self._engines[payload] = self._engine(payload, record[Slot.ENGINE])
        record[Slot.ENGINE] = self._engines[payload]
        operator = torch.ops.tensorrt.no_op_placeholder_for_execute_engine.default
        slots = [
            value if slot == Slot.ENGINE else text(record, Slot(slot))
            for slot, value in enumerate(record)
        ]
        node.target = operator
        node.args = (node.args[0], *slots)

    def _engine(self, engine: Node, payload: Any) -> Node:
        """Return the constant that the placeholder call passes for the engine of ``engine``."""
        tensor = tensor_of(engine_bytes(payload))
        # Pickled, in an ETRecord, it is an ordinary tensor, which a reader that trusts nobody takes.
        vars(tensor).update(__deepcopy__=_Shared(tensor), __getstate__=dict)
        return self._lift(engine, tensor)

    def _lift(self, engine: Node, tensor: torch.Tensor) -> Node:
        """Add ``tensor`` to the constants, its placeholder ahead of ``engine``."""
        used = self._constants.keys() | self._program.state_dict.keys()
        name = unique_name(f"_trt_engine_{len(self._engines)}", used)
        first = next(iter(self._graph.nodes))
        before = engine if engine.op == "placeholder" else first
        with self._graph.inserting_before(before):
            node = self._graph.placeholder(name)
        node.meta["val"] = self._mode.from_tensor(tensor, static_shapes=True)
        spec = InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(node.name), name)
        placeholders = self._graph.find_nodes(op="placeholder")
        self._specs.insert(placeholders.index(node), spec)
        self._constants[name] = tensor
        return node

    def finish(self) -> ExportedProgram:
        """Return the program, without the engine objects that no call is left for."""
        for engine in self._engines:
            if engine.users:
                continue
            if engine.op == "placeholder":
                spec = next(s for s in self._specs if s.arg.name == engine.name)
                self._specs.remove(spec)
                for name in (spec.target, engine.name, engine.target):
                    self._constants.pop(name, None)
            self._graph.erase_node(engine)
        self._graph.lint()
        program = self._program
        outputs = list(program.graph_signature.output_specs)
        return program._update(
            GraphModule(program.graph_module, self._graph),
            ExportGraphSignature(self._specs, outputs),
            constants=self._constants,
        )


class _Shared:
    """The ``__deepcopy__`` of a read-only tensor: it is its own copy.

    ExecuTorch copies each delegate's program, with all that it holds, before it is lowered.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = weakref.ref(tensor)

    def __call__(self, memo: dict[int, Any]) -> torch.Tensor | None:
        return self._tensor()
