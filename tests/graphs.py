"""What PyTorch makes of a graph again, as often as a pass looks at it: kept, in the tests' processes."""

from __future__ import annotations

import builtins
import functools
import inspect
from types import CodeType, SimpleNamespace
from typing import Any


def make_once() -> None:
    """Have PyTorch compile a graph's code once per text, and ask a function once for its parameters."""
    from torch.fx import graph, graph_module
    from torch.fx.traceback import NodeSource

    flags = getattr(getattr(graph_module, "annotations", None), "compiler_flag", 0)

    def compile_once(source: Any, name: str, mode: str, **options: bool) -> Any:
        inherited = 0 if options.get("dont_inherit") else flags
        return _named(_compiled(source, mode, inherited), name)

    # Where upstream has no such line any more, nobody asks for it.
    graph_module.compile = compile_once
    graph.inspect = SimpleNamespace(**{**vars(inspect), "signature": _signature})
    # Where a node came from is copied with all that it came from, for each node made of it. Nobody changes it.
    NodeSource.__deepcopy__ = lambda self, memo: self


@functools.lru_cache(maxsize=10_000)
def _compiled(source: Any, mode: str, flags: int) -> CodeType:
    return builtins.compile(source, "", mode, flags, dont_inherit=True)


def _named(code: CodeType, name: str) -> CodeType:
    """Return the code as it is when compiled from a file of this name."""
    constants = (
        _named(each, name) if isinstance(each, CodeType) else each
        for each in code.co_consts
    )
    return code.replace(co_filename=name, co_consts=(*constants,))


_of_function = functools.lru_cache(maxsize=1_000)(inspect.signature)


def _signature(function: Any, **options: Any) -> inspect.Signature:
    """Return the signature, of a method with its first parameter: upstream looks options up by their names."""
    if options or not inspect.ismethod(function):
        return inspect.signature(function, **options)
    return _of_function(function.__func__)
