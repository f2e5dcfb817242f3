"""Keep a partition's unread outputs, for backends that compute all of them.

A pass may remove an output's last reader after the partition was compiled: that of an empty tensor in a ``cat``, say.
By default a partition only returns values that are read outside of it.

Upstream: ``executorch.exir.lowered_backend_module``.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Callable

from torch.fx import GraphModule, Node

RETURNS_ALL_OUTPUTS = "returns_all_outputs"
"""In ``node.meta``: whether the partition of a call of several outputs returns each of them, in their order."""


def returns_all_outputs(create: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``create_submodule_from_nodes`` so that nodes with :data:`RETURNS_ALL_OUTPUTS` keep all outputs."""

    @functools.wraps(create)
    def wrapper(
        gm: GraphModule, node_list: list[Node], *args: Any, **kwargs: Any
    ) -> Any:
        for node in [n for n in node_list if n.meta.get(RETURNS_ALL_OUTPUTS)]:
            outputs = _outputs(gm, node)
            node_list = [n for n in node_list if n not in outputs] + outputs
            with gm.graph.inserting_before(gm.graph.output_node()):
                for output in outputs:
                    if not output.users:
                        gm.graph.call_function(_read, (output,))
        created = create(gm, node_list, *args, **kwargs)
        for reader in gm.graph.find_nodes(op="call_function", target=_read):
            gm.graph.erase_node(reader)
        return created

    return wrapper


def _read(value: Any) -> None:
    """Placeholder reader of an output while its partition is created."""


def _outputs(gm: GraphModule, node: Node) -> list[Node]:
    """Return the ``getitem`` of each output of ``node``, made where there is none."""
    getitems = {n.args[1]: n for n in node.users if n.target is operator.getitem}
    outputs: list[Node] = []
    for index, value in enumerate(node.meta["val"]):
        if index not in getitems:
            with gm.graph.inserting_after(outputs[-1] if outputs else node):
                made = gm.graph.call_function(operator.getitem, (node, index))
            made.meta = {**node.meta, "val": value}
            made.meta.pop(RETURNS_ALL_OUTPUTS)
            getitems[index] = made
        outputs.append(getitems[index])
    return outputs
