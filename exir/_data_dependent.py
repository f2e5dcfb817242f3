"""Nodes and programs with data-dependent shapes (unbacked symbols)."""

from __future__ import annotations

from torch._guards import detect_fake_mode
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree


def has_data_dependent_shape(node: Node) -> bool:
    """Whether a size in the value of ``node`` depends on data, as in ``nonzero``."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return any(free_unbacked_symbols(value) for value in values if value is not None)


def forget_unclaimed_symbols(program: ExportedProgram) -> None:
    """Remove pending unbacked symbols, so that a program with data-dependent shapes can be traced again.

    Each of ExecuTorch's passes traces such an operator anew and makes new symbols, which it
    leaves pending in the program's shape environment. The next trace, of the program or of a
    part of it, takes them for its own and fails (executorch 1.3.1 to 1.5.1).
    """
    mode = detect_fake_mode([node.meta.get("val") for node in program.graph.nodes])
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()
