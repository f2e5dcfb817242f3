"""Amends ``replace_int64_floordiv``: integers are divided rightly in branches of control flow, too."""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any

from torch.fx import GraphModule
from torch.fx.passes.infra.pass_base import PassResult


def apply(module: ModuleType) -> None:
    """Have ``ReplaceInt64FloorDivWithFloatPass`` take branches as it does the graph around them."""
    replacing: Any = module.ReplaceInt64FloorDivWithFloatPass
    replace = replacing.call

    @functools.wraps(replace)
    def call(self: Any, graph_module: GraphModule) -> PassResult:
        graphs = [m for m in graph_module.modules() if isinstance(m, GraphModule)]
        modified = [replace(self, each).modified for each in graphs]
        return PassResult(graph_module, any(modified))

    replacing.call = call
