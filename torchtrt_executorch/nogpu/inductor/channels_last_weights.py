"""Store weights of convolutions channels-last where Inductor computes these so, rather than convert them in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtrt_executorch.nogpu.inductor.host_weights import is_stand_in, stand_in

#: Behind the name of a weight: methods share weights by name, and another may read it as it is.
SUFFIX = "channels_last"


def overrides() -> dict[str, Callable[..., Any]]:
    """What takes the place of reading a constant, within a scope."""
    from torch._inductor.graph import GraphLowering, getattr_recursive
    from torch._inductor.virtualized import V

    get_attr = GraphLowering.get_attr

    def get_attr_channels_last(self: Any, target: str, *args: Any) -> Any:
        value: Any = getattr_recursive(self.module, target)
        if not self.layout_opt or not is_stand_in(value):
            return get_attr(self, target, *args)
        if target in self.mutated_named_buffers or not _is_converted(
            self, target, value
        ):
            return get_attr(self, target, *args)
        converted = stand_in(
            value.host_bytes.channels_last(), value.device, V.fake_mode
        )
        return self.add_tensor_constant(converted, f"{target}.{SUFFIX}")

    return {"torch._inductor.graph:GraphLowering.get_attr": get_attr_channels_last}


def _is_converted(graph: Any, target: str, weight: torch.Tensor) -> bool:
    """Whether convolutions of images alone read a weight, with a window of more than a pixel."""
    if weight.ndim != 4 or weight.shape[1] == 1 or weight.shape[2:] == (1, 1):
        return False
    nodes = graph.graph.find_nodes(op="get_attr", target=target)
    readers = [(user, node) for node in nodes for user in node.users]
    return bool(readers) and all(
        user.target is torch.ops.aten.convolution.default
        and user.args[1] is node
        and user.args[0] is not node
        for user, node in readers
    )
