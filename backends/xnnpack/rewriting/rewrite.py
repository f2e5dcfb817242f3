"""Rewrite operators into others that XNNPACK supports, where that keeps a delegate in one piece."""

from __future__ import annotations

import operator
from collections.abc import Callable, Container, Iterator, Mapping
from typing import Any

import torch
from executorch.backends.xnnpack.rewriting import masks, views
from executorch.backends.xnnpack.rewriting.constants import (
    constants_of,
    fold_constants,
    is_weight,
    remove_unread,
)
from executorch.backends.xnnpack.rewriting.graph_builder import (
    Constants,
    GraphBuilder,
    edge,
)
from executorch.backends.xnnpack.rewriting.rollback import Delegation, ProgramState
from executorch.backends.xnnpack.rewriting.rules import (
    BROADCASTING,
    RULES,
    Rule,
    Written,
)
from executorch.backends.xnnpack.utils.quant_utils import is_dequant, is_quant
from executorch.exir.backend.canonical_partitioners.config_partitioner import (
    format_target_name,
)
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

#: Operators that only move values: a delegate of nothing else is no gain.
_MOVES = (
    edge.cat.default,
    edge.clone.default,
    edge.permute_copy.default,
    edge.slice_copy.Tensor,
    edge.unsqueeze_copy.default,
    edge.view_copy.default,
)


#: Attempts at rolling back parts of a program before all of it is rolled back.
_ATTEMPTS = 3


def rewrite(program: ExportedProgram, partitioner: Any) -> None:
    """Replace operators next to XNNPACK's by ones that it has, where that adds no delegates or host calls.

    The partitioner is asked about the program with and without: what would have more delegates or more operators on the
    host is left as it was, by parts where they can be told apart, as a whole else.

    Args:
        program: In edge dialect, with what the partitioners before have left. It is changed.
        partitioner: XNNPACK's, which has its configurations by operator in ``target_partitioner_configs``.
    """
    configs: Mapping[str, Any] = partitioner.target_partitioner_configs

    def supports(node: Node) -> bool:
        config = configs.get(format_target_name(getattr(node.target, "__name__", "")))
        return config is not None and config.check_constraints(node, program)

    before = ProgramState(program)
    unchanged: set[str] = set()
    for _ in range(_ATTEMPTS):
        rewriting = _rewrite_but(program, supports, unchanged)
        worse = _worse(program, partitioner, before, rewriting)
        if not worse:
            return
        unchanged |= worse
        before.restore(program)


def _rewrite_but(
    program: ExportedProgram, supports: Callable[[Node], bool], unchanged: set[str]
) -> _Rewriting:
    """Rewrite a program but for the nodes of some names."""
    fold_constants(program)
    _remove_noops(program)
    constants = {
        node: constant for node, constant in constants_of(program).items() if node.users
    }
    rewriting = _Rewriting(program, supports, constants)
    rewriting.run(unchanged)
    fold_constants(program)  # bounds by masks that are constants
    remove_unread(program, {*constants})
    program.graph.lint()
    program.graph_module.recompile()
    return rewriting


def _worse(
    program: ExportedProgram,
    partitioner: Any,
    before: ProgramState,
    rewriting: _Rewriting,
) -> set[str]:
    """Return the names of rewrites to roll back; empty if a program is no worse than before."""
    if not rewriting.replaced:
        return set()
    after = Delegation(program, partitioner)
    worse = {
        name
        for name, (calls, count) in rewriting.replaced.items()
        if sum(call in after.host for call in calls) > count
    }
    if worse:
        return worse
    delegates = after.delegates
    with before.restored(program):
        original = Delegation(program, partitioner)
        is_worse = len(after.host) > len(original.host) or (
            delegates > original.fewest and delegates > original.delegates
        )
    return {*rewriting.replaced} if is_worse else set()


def _remove_noops(program: ExportedProgram) -> None:
    for node in [*program.graph.nodes]:
        if (
            node.op == "call_function"
            and not _is_left(node)
            and views.is_noop(node)
            and not is_weight(node)
            and all(user.op != "output" for user in node.users)
        ):
            node.replace_all_uses_with(node.args[0])
            program.graph.erase_node(node)


class _Rewriting:
    """Of one program: what can be rewritten, and what of it is."""

    def __init__(
        self,
        program: ExportedProgram,
        supports: Callable[[Node], bool],
        constants: Mapping[Node, torch.Tensor],
    ) -> None:
        self._program = program
        self._supports = supports
        self._constants = Constants(program, constants)
        self._written: dict[Node, tuple[GraphBuilder, Written]] = {}
        self._group: dict[Node, Node] = {}
        self._erased: set[Node] = set()
        #: By name of the replaced node: the calls that replace it, and the number of host operators that this removes.
        self.replaced: dict[str, tuple[list[Node], int]] = {}

    def run(self, unchanged: Container[str]) -> None:
        """Build replacements of nodes, and replace those next to XNNPACK's operators, except for some names."""
        calls = [n for n in self._program.graph.nodes if n.op == "call_function"]
        supported = {node for node in calls if self._supports(node)}
        for node in calls:
            if node.name not in unchanged and _is_floating(node) and not _is_left(node):
                self._write(node, node in supported)
        members = [node for node in calls if node in supported or node in self._written]
        for node in members:
            for read in self._reads(node):
                if read in supported or read in self._written:
                    self._join(node, read)
        computing = {
            self._root(node)
            for node in members
            if node in supported and node.target not in _MOVES
        }
        for node, (builder, written) in self._written.items():
            if self._root(node) in computing and node not in self._erased:
                erased = {*self._erased}
                self._substitute(node, written)
                hosts = self._erased - erased - supported
                count = sum(host.target is not operator.getitem for host in hosts)
                self.replaced[node.name] = builder.calls, count
        for builder, _ in self._written.values():
            for call in reversed(builder.calls):  # of what isn't replaced
                self._erase_unread(call)
        self._constants.remove_unread()

    def _write(self, node: Node, is_supported: bool) -> None:
        if is_supported:
            rules: tuple[Rule, ...] = ()
            if node.target in BROADCASTING:
                rules = (views.without_expansion,)
        else:
            rules = RULES.get(node.target, ())
        for rule in rules:
            builder = GraphBuilder(node, self._constants)
            written = rule(builder)
            if written is not None and self._is_taken(builder, written):
                self._written[node] = builder, written
                return
            builder.erase()

    def _is_taken(self, builder: GraphBuilder, written: Written) -> bool:
        """Whether XNNPACK supports the inserted nodes, except for those that compute bounds from a mask."""
        is_new = isinstance(written, dict) or written in builder.calls
        if not is_new and any(user.op == "output" for user in builder.node.users):
            return False  # what was there before can't be known as another output
        return all(
            call.target in masks.ON_THE_HOST or self._supports(call)
            for call in builder.calls
        )

    def _reads(self, node: Node) -> Iterator[Node]:
        """Yield the nodes that a node reads, or its replacement; for one result of several, the node that has them."""
        builder, _ = self._written.get(node, (None, None))
        calls = builder.calls if builder is not None and builder.calls else [node]
        for call in calls:
            for read in call.all_input_nodes:
                is_result = read.target is operator.getitem
                yield read.all_input_nodes[0] if is_result else read

    def _substitute(self, node: Node, written: Written) -> None:
        results = written if isinstance(written, dict) else {node: written}
        for old, new in results.items():
            for spec in self._program.graph_signature.output_specs:
                if spec.arg.name == old.name:
                    spec.arg.name = new.name
            old.replace_all_uses_with(new)
            self._erase_unread(old)

    def _erase_unread(self, node: Node) -> None:
        """Erase a node that nothing reads, and what nothing reads then."""
        pending = [node]
        while pending:
            candidate = pending.pop()
            is_call = candidate.op == "call_function" and candidate not in self._erased
            if is_call and not candidate.users:
                pending += candidate.all_input_nodes
                candidate.graph.erase_node(candidate)
                self._erased.add(candidate)

    def _root(self, node: Node) -> Node:
        while node in self._group:
            node = self._group[node]
        return node

    def _join(self, node: Node, other: Node) -> None:
        first, second = self._root(node), self._root(other)
        if first is not second:
            self._group[first] = second


def _is_floating(node: Node) -> bool:
    """Whether a node returns floating-point numbers, first: XNNPACK has no integers, but of quantized patterns."""
    value = node.meta.get("val")
    if isinstance(value, (tuple, list)):
        value = value[0] if value else None
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def _is_left(node: Node) -> bool:
    """Whether a node is one of a quantized pattern's, whose operators are matched as they are, or of sizes that data decide."""
    if is_quant(node) or is_dequant(node):
        return True
    if any(map(is_dequant, node.all_input_nodes)) or any(map(is_quant, node.users)):
        return True
    sources = node.meta.get("source_fn_stack") or ()
    if sources and sources[-1][1] in (nn.Linear, nn.functional.linear):
        return True  # its parts are claimed together
    values = (involved.meta.get("val") for involved in (node, *node.all_input_nodes))
    return any(map(has_free_unbacked_symbols, values))
