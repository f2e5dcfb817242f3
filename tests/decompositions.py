"""PyTorch's list of operators that decompose by themselves, which each lowering makes several times.

Upstream asks the dispatcher for all of them once per namespace, some seventy times for one list: a
third of what lowering a small model takes. Here it is asked once per list.
"""

from __future__ import annotations

import typing
from typing import Any


def ask_once() -> None:
    """Have PyTorch ask once per list, in this process."""
    import torch
    from torch._export import utils
    from torch.export import decomp_utils, exported_program

    ask, collect = utils._materialize_cpp_cia_ops, utils._collect_all_valid_cia_ops
    asked = False

    def ask_unless_asked() -> None:
        if not asked:
            ask()

    def ask_and_collect() -> Any:
        nonlocal asked
        ask()
        asked = True
        try:
            return collect()
        finally:
            asked = False

    utils._materialize_cpp_cia_ops = ask_unless_asked
    for module in (utils, decomp_utils, exported_program):
        module._collect_all_valid_cia_ops = ask_and_collect
    # It annotates 12,000 functions per list; typing's keeps what it has made.
    torch._ops.Callable = typing.Callable
