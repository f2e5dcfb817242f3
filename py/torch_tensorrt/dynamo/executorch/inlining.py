"""Inline the PyTorch parts of a compiled module into the graph around its engines.

Upstream's ``inline_torch_modules`` matches the inputs of a part by name. Where a part reads both an
engine's output and an input of the model, say a mask, the former becomes an additional input of the
model. Here inputs are matched by position, and attributes of a part keep their names in the model
(2.13 and 2.14).
"""

from __future__ import annotations

import copy
import operator
from operator import attrgetter
from typing import Any, Sequence

from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.node import map_arg
from torch_tensorrt.dynamo.graphs.attribute_names import HeldAttributes
from torch_tensorrt.dynamo.state.mutations import buffers_written_back

#: Nodes whose target is a path in the graph's module.
_HELD = ("get_attr", "call_module")


class InTheMaking(GraphModule):
    """Nobody else's graph module, with nothing in it that no graph refers to."""

    def __deepcopy__(self, memo: Any) -> InTheMaking:
        """Return itself: upstream copies what it is about to change, all weights with it."""
        return self

    def delete_all_unused_submodules(self) -> None:
        """Delete what the graph doesn't refer to, whole.

        Upstream would only look for uses in this graph, and take the branches of a branch, which
        the graph of that branch refers to.
        """
        used = {str(n.target).split(".")[0] for n in self.graph.nodes if n.op in _HELD}
        for name in [name for name, _ in self.named_children() if name not in used]:
            delattr(self, name)

    def finished(self) -> GraphModule:
        """Return it as an ordinary graph module, with buffers of its own where it writes."""
        module = GraphModule(self, self.graph)
        module.meta.update(self.meta)
        named = self.meta.get("_copyback_mutation_buffers") or ()  # 2.14
        for path in {*buffers_written_back(module), *named}:
            owner, _, name = path.rpartition(".")
            buffers = module.get_submodule(owner)._buffers
            if (buffer := buffers.get(name)) is not None:
                buffers[name] = buffer.clone()
        return module


def with_torch_parts_inlined(module: GraphModule) -> InTheMaking:
    """Return ``module`` without calls of graph modules; those of engines stay.

    ``module`` is left as it is, and shares its engines, parameters and buffers with the result.

    Args:
        module: As ``torch_tensorrt.compile(..., ir="dynamo")`` returns it.
    """
    inlining = _Inlining()
    placeholders = module.graph.find_nodes(op="placeholder")
    returned = inlining.add(module, [inlining.graph.node_copy(n) for n in placeholders])
    output = inlining.graph.output(returned)
    output.meta.update(module.graph.output_node().meta)
    inlining.graph.set_codegen(copy.deepcopy(module.graph._codegen))
    inlined = InTheMaking(inlining.attributes.values, inlining.graph)
    inlined.meta.update(module.meta)
    return inlined


def finished(module: GraphModule) -> GraphModule:
    """Return the result of :func:`with_torch_parts_inlined` as an ordinary graph module; other modules unchanged."""
    return module.finished() if isinstance(module, InTheMaking) else module


class _Inlining:
    """A graph in the making.

    Attributes:
        attributes: Attributes of its nodes, by target.
    """

    def __init__(self) -> None:
        self.graph = Graph()
        self.attributes = HeldAttributes()

    def add(self, module: GraphModule, arguments: Sequence[Any]) -> Any:
        """Append the graph of ``module``; return what its output returns.

        Args:
            module: Its attributes keep their names, where those are free.
            arguments: For its placeholders, in order.
        """
        values: dict[Node, Any] = {}
        inputs = iter(arguments)

        def value_of(argument: Any) -> Any:
            return map_arg(argument, values.__getitem__)

        for node in module.graph.nodes:
            called = node.op == "call_module" and module.get_submodule(str(node.target))
            if node.op == "placeholder":
                values[node] = next(inputs)
            elif isinstance(called, GraphModule):
                values[node] = self.add(called, value_of(node.args))
            elif node.target is operator.getitem and isinstance(
                values[node.args[0]], (tuple, list)
            ):
                values[node] = values[node.args[0]][node.args[1]]
            elif node.op != "output":
                values[node] = self._copy(module, node, values)
        return value_of(module.graph.output_node().args[0])

    def _copy(self, module: GraphModule, node: Node, values: dict[Node, Any]) -> Node:
        copied = self.graph.node_copy(node, values.__getitem__)
        if node.op in _HELD:
            path = str(node.target)
            copied.target = self.attributes.add(path, attrgetter(path)(module))
        if node.op == "call_module" and isinstance(node.meta.get("val"), Tensor):
            # Upstream counts an engine's outputs by len(); its global partitioner leaves a tensor.
            copied.meta["val"] = [node.meta["val"]]
        return copied
