"""Build the programs of the support check: independent calls of a partition's operators, each on its own inputs."""

from __future__ import annotations

import copy
import operator
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy
import torch
from executorch.backends.cuda.support.operands import (
    branch_of,
    hint_of,
    results_read,
    sources_of,
)
from executorch.exir.capture._config import EdgeCompileConfig
from executorch.exir.dialects._ops import ops
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.utils import _pytree as pytree

#: Bytes from which on a weight that is made up isn't filled.
_LARGE = 1 << 20


def program_of(
    nodes: Sequence[Node],
    scalar_constants: Mapping[Node, Any],
    made: Collection[Node] = (),
) -> ExportedProgram:
    """Return a program that calls ``nodes`` independently, each on its own inputs.

    Args:
        made: Values computed from constants. Those that ``nodes`` read are computed in the program too, from
            constants of ones.
    """
    graph, root = Graph(), torch.nn.Module()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    behind = {source for node in nodes for source in sources_of(node, made)}
    steps = [step for step in made if step in behind and step.op == "call_function"]
    inputs: list[Node] = []
    returned: list[Node] = []
    constants: dict[Node, Node] = {}
    constant_values: dict[str, Any] = {}
    for producer in dict.fromkeys(
        operand for node in (*steps, *nodes) for operand in node.all_input_nodes
    ):
        if producer in scalar_constants or (producer.op, producer in made) == (
            "placeholder",
            1,
        ):
            # As ``torch.export`` does: where there is a GPU, they are real tensors beside fake inputs.
            placeholder = constants[producer] = graph.placeholder(
                f"constant_{len(constant_values)}"
            )
            placeholder.meta["val"] = value = _like(producer.meta["val"], mode)
            constant_values[placeholder.name] = _filled(
                value, scalar_constants.get(producer, 1)
            )

    def take(node: Node) -> Any:
        if node in constants:
            return constants[node]
        if node in made:
            return node  # until it is there
        if (branch := branch_of(node)) is not None:
            name = f"branch_{len(root._modules)}"
            root.add_module(name, _copied(branch, mode))
            return graph.create_node("get_attr", name)
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return pytree.tree_map(hint_of, value)
        inputs.append(graph.placeholder(f"input_{len(inputs)}"))
        inputs[-1].meta["val"] = _like(value, mode)
        return inputs[-1]

    copies: dict[Node, Node] = {}
    arguments = [map_arg((n.args, n.kwargs), take) for n in (*steps, *nodes)]
    for index, node in enumerate((*steps, *nodes)):
        args, kwargs = map_arg(
            arguments[index], lambda operand: copies.get(operand, operand)
        )
        called = graph.call_function(_in_edge_dialect(node.target), args, kwargs)
        called.meta["val"] = values = _alike(node.meta["val"], mode)
        if index < len(steps):
            copies[node] = called
            continue
        if isinstance(values, torch.Tensor):
            returned.append(called)
            continue
        read = results_read(node)
        for index, value in enumerate(values):
            if isinstance(value, torch.Tensor) and index in read:
                returned.append(graph.call_function(operator.getitem, (called, index)))
                returned[-1].meta["val"] = value
    graph.output(tuple(returned))
    signature = ExportGraphSignature(
        [
            *(
                InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(n.name), n.name)
                for n in constants.values()
            ),
            *(
                InputSpec(InputKind.USER_INPUT, TensorArgument(n.name), None)
                for n in inputs
            ),
        ],
        [
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None)
            for n in returned
        ],
    )
    call = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_flatten((tuple(inputs), {}))[1],
        out_spec=pytree.tree_flatten(tuple(returned))[1],
    )
    return ExportedProgram(
        root=GraphModule(root, graph),
        graph=graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", call)],
        constants=constant_values,
        verifiers=[
            EXIREdgeDialectVerifier(
                EdgeCompileConfig(_check_ir_validity=False), class_only=True
            )
        ],
    )


def _filled(value: torch.Tensor, number: Any) -> torch.Tensor:
    """Return a tensor on the host like ``value``: a large one of zeros, which take no memory until they are written."""
    count = value.numel() and 1 + sum(
        (size - 1) * stride
        for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    if count * value.itemsize < _LARGE:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return made.fill_(number)
    zeros = torch.from_numpy(numpy.zeros(count * value.itemsize, numpy.uint8))
    return zeros.view(value.dtype).as_strided(value.shape, value.stride())


def _copied(branch: GraphModule, mode: FakeTensorMode) -> GraphModule:
    """Return ``branch`` in edge dialect, its values on the host and of the sizes it was exported with."""
    result = copy.deepcopy(branch)
    for module in result.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            node.target = _in_edge_dialect(node.target)
            node.meta["val"] = _alike(node.meta.get("val"), mode)
    return result


def _alike(value: Any, mode: FakeTensorMode) -> Any:
    return pytree.tree_map(
        lambda value: (
            _like(value, mode) if isinstance(value, torch.Tensor) else hint_of(value)
        ),
        value,
    )


def result_types(program: ExportedProgram) -> list[torch.dtype]:
    returned: Any = program.graph.output_node().args[0]
    return [output.meta["val"].dtype for output in returned]


def _in_edge_dialect(target: Any) -> Any:
    """Return the operator that passes of the backend look for."""
    if not isinstance(target, torch._ops.OpOverload):
        return target
    packet = getattr(getattr(ops.edge, target.namespace), target._opname)
    return getattr(packet, target._overloadname)


def _like(value: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """Return a fake tensor of the host's, with the sizes that ``value`` was exported with."""
    sizes, steps = map(hint_of, value.shape), map(hint_of, value.stride())
    with mode:
        return torch.empty_strided([*sizes], [*steps], dtype=value.dtype)
