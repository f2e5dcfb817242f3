"""Lift a graph into an ``ExportedProgram`` without retracing it.

Tracing a compiled graph again would ask for example inputs, and would decide anew about shapes
that lowering and partitioning have decided. Here every node keeps its fake tensor; what the graph
reads by ``get_attr`` becomes an input of the program, as ``torch.export`` makes it one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from operator import attrgetter, getitem, itemgetter
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ArgumentSpec,
    ConstantArgument,
    CustomObjArgument,
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    SymIntArgument,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch_tensorrt.dynamo.graphs.attribute_names import unique_name
from torch_tensorrt.dynamo.graphs.copies import copied_graph
from torch_tensorrt.dynamo.graphs.fake_values import mode_of, normalize_values
from torch_tensorrt.dynamo.state.mutations import take_writes

#: The order in which ``torch.export`` lists what it lifts.
_KINDS = (
    InputKind.PARAMETER,
    InputKind.BUFFER,
    InputKind.CONSTANT_TENSOR,
    InputKind.CUSTOM_OBJ,
)
_WRITES = (OutputKind.USER_INPUT_MUTATION, OutputKind.BUFFER_MUTATION)


def lifted_program(module: GraphModule) -> ExportedProgram:
    """Return ``module`` as a program that shares its parameters, buffers and constants.

    ``module`` is left as it is. Its input and output trees are the program's, if it has any.

    Args:
        module: Its nodes carry their fake tensors and symbolic numbers in ``val``.
    """
    graph = Graph()
    lifted, attributes = _lift(module, graph)
    copied_graph(module.graph, into=graph, replacements=lifted)
    _name_inputs(graph, set(lifted.values()))
    normalize_values(graph)
    _index_by_operators(graph)
    mutations = take_writes(graph)
    graph.lint()
    state = {a.path: a.value for a in attributes if a.kind in _KINDS[:2]}
    constants = {a.path: a.value for a in attributes if a.kind in _KINDS[2:]}
    signature = _signature(graph, attributes, mutations)
    return ExportedProgram(
        root=module,
        graph=graph,
        graph_signature=signature,
        state_dict=state,
        range_constraints=_ranges(graph),
        module_call_graph=[_call_entry(module, signature)],
        constants=constants,
    )


@dataclass(frozen=True)
class _Attribute:
    """The value at a path of ``get_attr``, and the kind of input that it is lifted to."""

    path: str
    value: Any
    kind: InputKind


def _attribute(module: GraphModule, path: str) -> _Attribute:
    value = attrgetter(path)(module)
    owner, _, name = path.rpartition(".")
    kind = InputKind.CUSTOM_OBJ
    if isinstance(value, torch.nn.Parameter):
        kind = InputKind.PARAMETER
    elif isinstance(value, torch.Tensor):
        buffers = module.get_submodule(owner)._buffers
        kind = InputKind.BUFFER if name in buffers else InputKind.CONSTANT_TENSOR
    return _Attribute(path, value, kind)


def _lift(
    module: GraphModule, graph: Graph
) -> tuple[dict[Node, Node], list[_Attribute]]:
    """Insert a placeholder into ``graph`` for each attribute that ``module`` reads.

    But for modules, the branches of control flow: a program refers to them as a graph does.
    """
    readers = [
        node
        for node in module.graph.find_nodes(op="get_attr")
        if not isinstance(attrgetter(str(node.target))(module), torch.nn.Module)
    ]
    paths = dict.fromkeys(str(node.target) for node in readers)
    attributes = [_attribute(module, path) for path in paths]
    attributes.sort(key=lambda attribute: _KINDS.index(attribute.kind))
    mode = mode_of(module.graph)
    placeholders = {}
    # Their names become parameters of one function, beside those of the inputs.
    names = {node.target for node in module.graph.find_nodes(op="placeholder")}
    for attribute in attributes:
        # "0.weight" of a torch.nn.Sequential becomes "_0_weight"
        name = unique_name(re.sub(r"\W|^(?=\d)", "_", attribute.path), names)
        names.add(name)
        node = graph.placeholder(name)
        placeholders[attribute.path] = node
        if isinstance(attribute.value, torch.Tensor):
            node.meta["val"] = mode.from_tensor(attribute.value, static_shapes=True)
        else:
            node.meta["val"] = CustomObjArgument(node.name, class_fqn="")
    return {node: placeholders[str(node.target)] for node in readers}, attributes


def _name_inputs(graph: Graph, lifted: set[Node]) -> None:
    """Name the inputs what callers call them.

    A graph has no node of a builtin's name: the input ``input`` is the node ``input_1`` there.
    """
    names = {node.name for node in graph.nodes}
    for node in graph.find_nodes(op="placeholder"):
        if node not in lifted and (wanted := str(node.target)) not in names:
            node.name = wanted
            names.add(wanted)


def _index_by_operators(graph: Graph) -> None:
    """Replace ``tensor[index]``, which is none of ATen's operators, by those that it is made of.

    Upstream's rewrite of complex numbers leaves such nodes: parts of a tensor of (real, imaginary).
    """
    for node in graph.find_nodes(op="call_function", target=getitem):
        tensor, index = node.args
        value_of_tensor = tensor.meta.get("val")
        if not isinstance(value_of_tensor, torch.Tensor):
            continue
        traced = make_fx(itemgetter(index))(value_of_tensor)
        (traced_input,) = traced.graph.find_nodes(op="placeholder")
        with graph.inserting_before(node):
            indexed = graph.graph_copy(traced.graph, {traced_input: tensor})
        node.replace_all_uses_with(indexed)
        graph.erase_node(node)


def _signature(
    graph: Graph, attributes: list[_Attribute], mutations: list[Node]
) -> ExportGraphSignature:
    placeholders = graph.find_nodes(op="placeholder")
    inputs = [
        InputSpec(
            attribute.kind,
            _argument(node),
            attribute.path,
            persistent=True if attribute.kind is InputKind.BUFFER else None,
        )
        for node, attribute in zip(placeholders, attributes, strict=False)
    ]
    user_inputs = placeholders[len(attributes) :]
    inputs += [
        InputSpec(InputKind.USER_INPUT, _argument(node), None) for node in user_inputs
    ]
    outputs = [
        OutputSpec(OutputKind.USER_OUTPUT, _argument(value), None)
        for value in pytree.tree_leaves(graph.output_node().args[0])
    ]
    for spec, written in zip(outputs, mutations, strict=False):
        index = placeholders.index(written)
        is_buffer = index < len(attributes)
        spec.kind = _WRITES[is_buffer]
        spec.target = attributes[index].path if is_buffer else written.name
    return ExportGraphSignature(inputs, outputs)


def _argument(value: Any) -> ArgumentSpec:
    if not isinstance(value, Node):
        return ConstantArgument("", value)
    example = value.meta.get("val")
    if isinstance(example, torch.Tensor):
        return TensorArgument(value.name)
    if isinstance(example, CustomObjArgument):
        return example
    if isinstance(example, torch.SymInt):
        return SymIntArgument(value.name)
    return ConstantArgument(value.name, example)


def _ranges(graph: Graph) -> dict[Any, Any]:
    """Return the range of every symbol in the graph's shapes, as its shape environment has it."""
    ranges: dict[Any, Any] = {}
    for node in graph.nodes:
        value = node.meta.get("val")
        sizes = value.shape if isinstance(value, torch.Tensor) else [value]
        for size in sizes:
            if isinstance(size, torch.SymInt):
                environment = size.node.shape_env
                assert environment is not None
                known = environment.var_to_range
                symbols = size.node.expr.free_symbols
                ranges |= {
                    symbol: known[symbol] for symbol in symbols if symbol in known
                }
    return ranges


def _call_entry(
    module: GraphModule, signature: ExportGraphSignature
) -> ModuleCallEntry:
    info = getattr(module.graph._codegen, "pytree_info", None)
    names = None
    if info is not None:
        in_spec, out_spec = info.in_spec, info.out_spec
        names = [name for name in info.orig_args if name != "self"]
    else:
        inputs = [s for s in signature.input_specs if s.kind is InputKind.USER_INPUT]
        in_spec = pytree.tree_structure(((0,) * len(inputs), {}))
        out_spec = pytree.tree_structure((0,) * len(signature.user_outputs))
    call = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=in_spec,
        out_spec=out_spec,
        forward_arg_names=names,
    )
    return ModuleCallEntry("", call)
