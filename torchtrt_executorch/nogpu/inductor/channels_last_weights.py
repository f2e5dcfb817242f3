"""Store convolution weights channels-last where Inductor's layout optimization would convert them in each call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from torchtrt_executorch.nogpu.inductor.host_weights import is_stand_in, stand_in

#: Suffix of a converted weight's name: methods share weights by name, and another may read the unconverted one.
SUFFIX = "channels_last"


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the override of ``GraphLowering.get_attr``."""
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
    """Whether only 2D convolutions with a kernel larger than 1x1 read the weight."""
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
