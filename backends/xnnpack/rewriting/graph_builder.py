"""Graph builder: insert edge operators before a node, with their fake values and the constants that they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from executorch.backends.transforms.utils import (
    create_constant_placeholder,
    delete_constant_placeholder,
)
from executorch.backends.xnnpack.partition._support import WHY_NOT_IN_XNNPACK
from executorch.exir.dialects._ops import ops as exir_ops
from torch._dispatch.python import enable_python_dispatcher
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.fx.node import map_arg

edge = exir_ops.edge.aten

#: An operator is part of a decomposed ``nn.Linear`` by it, and what replaces one isn't.
_SOURCE = "source_fn_stack"


class Constants:
    """The constants of a program, and those that are added to it, each once.

    Attributes:
        values: By placeholder, those that the program had.
    """

    def __init__(
        self, program: ExportedProgram, values: Mapping[Node, torch.Tensor]
    ) -> None:
        self.values = values
        self._program = program
        self._added: dict[tuple[Any, ...], Node] = {}

    def full(self, shape: tuple[int, ...], number: float, dtype: torch.dtype) -> Node:
        """Return a constant that is a number everywhere."""
        # Matmuls that share a weight would be put in one partition, whatever is between them.
        shared = 0 if len(shape) != 2 else len(self._added)
        key = shape, number, dtype, shared
        if key not in self._added:
            # Beyond what float16 holds, infinite, as a choice of it is.
            value = torch.full(shape, number, dtype=torch.float64).to(dtype)
            self._added[key] = self._placeholder(value)
        return self._added[key]

    def tensor(self, value: torch.Tensor) -> Node:
        """Return a constant that is added for one reader."""
        key = (len(self._added),)
        self._added[key] = self._placeholder(value)
        return self._added[key]

    def _placeholder(self, value: torch.Tensor) -> Node:
        graph = self._program.graph
        with graph.inserting_before(next(iter(graph.nodes))):
            # A parameter: lowering only copies these into each delegate.
            return create_constant_placeholder(
                self._program,
                graph,
                f"xnnpack_constant_{len(self._added)}",
                InputKind.PARAMETER,
                value,
            )

    def remove_unread(self) -> None:
        """Remove those that were added and nothing reads."""
        for node in self._added.values():
            if not node.users:
                delete_constant_placeholder(self._program, node)


class GraphBuilder:
    """Writes what may replace a node, in front of it.

    Attributes:
        node: The one that may be replaced.
        constants: The program's.
        calls: The inserted calls, in order.
    """

    def __init__(self, node: Node, constants: Constants) -> None:
        self.node = node
        self.constants = constants
        self.calls: list[Node] = []

    @property
    def args(self) -> tuple[Any, ...]:
        """The node's arguments."""
        return self.node.args

    def call(self, target: Any, *args: Any, **kwargs: Any) -> Node:
        """Write a call of an edge operator."""
        graph = self.node.graph
        with graph.inserting_before(self.node):
            made = graph.call_function(target, args, kwargs)
        made.meta = {k: v for k, v in self.node.meta.items() if k != _SOURCE}
        custom = {**(made.meta.get("custom") or {})}
        custom.pop(WHY_NOT_IN_XNNPACK, None)
        made.meta["custom"] = custom
        with enable_python_dispatcher():  # for symbolic sizes
            made.meta["val"] = target(
                *map_arg(args, value_of), **map_arg(kwargs, value_of)
            )
        self.calls.append(made)
        return made

    def view(self, x: Node, shape: Sequence[Any]) -> Node:
        """Write a view of ``x`` in a shape of which one size may be dynamic; ``x`` itself if it has that shape."""
        if alike(value_of(x).shape, shape):
            return x
        return self.call(edge.view_copy.default, x, sizes_of_view(shape))

    def scalar(self, number: float, like: Node) -> Node:
        """Return a constant of no dimension, in the type of another value."""
        return self.constants.full((), number, value_of(like).dtype)

    def erase(self) -> None:
        """Remove the calls, which nothing else reads."""
        for made in reversed(self.calls):
            self.node.graph.erase_node(made)
        self.calls = []


def sizes_of_view(shape: Sequence[Any]) -> list[int]:
    """Return a shape as ``view``'s argument; one size may be dynamic."""
    return [size if isinstance(size, int) else -1 for size in shape]


def alike(sizes: Sequence[Any], others: Sequence[Any]) -> bool:
    """Whether sizes are the same, whatever the dynamic ones are: asking one whether it equals another would narrow its range."""

    def expression(size: Any) -> Any:
        return size if isinstance(size, int) else size.node.expr

    return [*map(expression, sizes)] == [*map(expression, others)]


def value_of(node: Node) -> Any:
    """Return the fake value of a node."""
    return node.meta["val"]
