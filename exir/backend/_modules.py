"""Restrict a partitioner to modules of a model, by the compile spec ``modules``."""

from __future__ import annotations

import difflib
import re
import warnings
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

MODULES_COMPILE_SPEC_KEY = "modules"
"""Paths of modules as ``named_modules()`` has them, or patterns of such, separated by commas."""

OTHER_MODULES = "it is of none of the modules that the partitioner is given"


def outside_of_modules(
    program: ExportedProgram, specs: Sequence[CompileSpec]
) -> list[Node]:
    """Return the operators, in all graphs of ``program``, outside of the modules that ``specs`` list.

    None without the compile spec. Operators of enclosing modules count as inside if they only read results of
    listed modules, or only compute inputs for them: a reshape between the last layer and the head.

    Args:
        program: Before or after it was decomposed; nodes know their modules by ``nn_module_stack``.
        specs: Compile specs of the partitioner.
    """
    patterns = _patterns(specs)
    nodes = [*_operators(program)] if patterns else []
    paths = {node: _module_paths(node) for node in nodes}
    named = {
        p for prefixes in paths.values() for p in prefixes if _matches(p, patterns)
    }
    around = {parent for path in named for parent in _parents(path)}
    inside = {node for node in nodes if not named.isdisjoint(paths[node])}
    between = [n for n in nodes if n not in inside and (paths[n] or [""])[-1] in around]
    for node in between:
        producers = _producers(node)
        if producers and inside.issuperset(producers):
            inside.add(node)
    # One that drops out, for a producer or a user elsewhere, may take others of either side with it.
    ahead, count = {node for node in between if node.users}, -1
    while len(ahead) != count:
        count = len(ahead)
        for node in between:
            if not all(
                producer in inside or producer in ahead for producer in _producers(node)
            ):
                ahead.discard(node)
        for node in reversed(between):
            if not all(user in inside or user in ahead for user in node.users):
                ahead.discard(node)
    inside |= ahead
    return [node for node in nodes if node not in inside]


def warn_of_unknown_modules(
    who: str, program: ExportedProgram, specs: Sequence[CompileSpec]
) -> None:
    """Warn of modules in ``specs`` that have no operator in ``program``, which isn't decomposed yet.

    It may be misspelled, or all an earlier partitioner's.

    Args:
        who: Whose they are, as ``"CudaPartitioner"``.
    """
    patterns = _patterns(specs)
    nodes = _operators(program) if patterns else ()
    known = {path for node in nodes for path in _module_paths(node)}
    for pattern in patterns:
        if not any(_matches(path, [pattern]) for path in known):
            close = difflib.get_close_matches(pattern, sorted(known), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else ""
            warnings.warn(
                f"{who}: no operator of the program is of the module {pattern!r}, which the compile spec "
                f"{MODULES_COMPILE_SPEC_KEY!r} names{hint}",
                stacklevel=2,
            )


def check_modules(who: str, specs: Sequence[CompileSpec]) -> None:
    """Check the compile spec.

    Raises:
        ValueError: It names nothing, or nothing between two commas.
    """
    if not all(_patterns(specs)):
        raise ValueError(
            f"{who}: the compile spec {MODULES_COMPILE_SPEC_KEY!r} takes paths of modules, separated by "
            f"commas, as 'encoder,decoder.layers.*', not {','.join(_patterns(specs))!r}"
        )


def _patterns(specs: Sequence[CompileSpec]) -> list[str]:
    for spec in specs:
        if spec.key == MODULES_COMPILE_SPEC_KEY:
            return [name.strip() for name in bytes(spec.value).decode().split(",")]
    return []


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(path, pattern) for pattern in patterns)


def _operators(program: ExportedProgram) -> Iterator[Node]:
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            yield from (n for n in module.graph.nodes if n.op == "call_function")


def _producers(node: Node) -> list[Node]:
    return [
        input_node
        for input_node in node.all_input_nodes
        if input_node.op == "call_function"
    ]


def _parents(path: str) -> Iterator[str]:
    """Yield the paths of the modules around one, the model's, which is empty, last."""
    while path:
        path = path.rpartition(".")[0]
        yield path


def _module_paths(node: Node) -> list[str]:
    """Return the paths of the modules that a node is of, outermost first."""
    stack = node.meta.get("nn_module_stack") or {}
    # A module that is called again is told apart by a number behind its path.
    return [re.sub(r"@\d+", "", str(path)) for path, _ in stack.values() if path]
