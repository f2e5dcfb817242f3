"""Partitioner for AOTInductor-driven backends that composes after any other partitioner.

Served as ``executorch.backends.aoti.aoti_partitioner`` (pytorch/executorch#20077), where
``CudaPartitioner`` and ``MetalPartitioner`` find it.
"""

from __future__ import annotations

import operator
from typing import Callable, Collection, Container, Iterator, Mapping

import torch
from executorch.backends.aoti._constant_owners import constant_owners
from executorch.backends.aoti._convex_partitions import (
    convex_partitions,
    leave_crossing_sizes,
)
from executorch.backends.aoti._sizes import is_size, leave_sizes_to_host
from executorch.exir._data_dependent import (
    forget_unclaimed_symbols,
    has_data_dependent_shape,
)
from executorch.exir._warnings import experimental
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.graph_module import get_control_flow_submodules
from torch._library.fake_class_registry import FakeScriptObject
from torch.export import ExportedProgram
from torch.export.graph_signature import CustomObjArgument
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

_TAG = "delegation_tag"

#: Key of the compile spec that says, ``ON`` or ``OFF``, whether a delegate may keep the mutable buffers
#: that no other delegate uses. ``OFF`` leaves them to memory planning, where other delegates can read them.
KEEP_MUTABLE_BUFFERS_COMPILE_SPEC_KEY = "keep_mutable_buffers"


@experimental("AOTInductor-driven backends are experimental, and so is this API.")
class AotiPartitioner(Partitioner):
    """Delegates to an AOTInductor-driven backend whatever no earlier partitioner has lowered.

    The partitions are convex, as few as convex partitions can be, and found in time linear in the
    size of the graph. Alone it makes one partition. What stays outside: delegates of others and
    what unpacks them; control-flow operators with such a delegate in a branch, whose branches are
    partitioned instead; operators on custom objects, which no delegate can be handed; operators
    whose output's shape depends on data, for which these backends have no kernels; assertions;
    and the nodes that :meth:`unsupported` returns.

    Args:
        backend_name: Name of the backend's class, ``"CudaBackend"``.
        compile_spec: Compile specs that every partition is lowered with.
    """

    delegates_in_branches = True
    """Whether the backend's delegates run on host memory, into which ExecuTorch plans branches. If not,
    control flow that can't be delegated as a unit stays on the host with its branches."""

    def __init__(self, backend_name: str, compile_spec: list[CompileSpec]) -> None:
        super().__init__()
        self.delegation_spec = DelegationSpec(backend_name, compile_spec)

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the nodes of each partition, from ``aoti_0`` in the order in which they run.

        Only the metadata of nodes changes, and none of it if an error is raised. A second run
        writes the same tags again.

        Args:
            exported_program: Program to partition, edge or ATen dialect.

        Returns:
            The same program, and the delegation spec of each tag.

        Raises:
            ValueError: A node has the tag of another partitioner, a value that leaves a partition
                has no ``val``, two partitions share a branch module, or a compile spec is wrong.
        """
        forget_unclaimed_symbols(exported_program)  # lowering traces each partition
        tags: dict[Node, str] = {}
        names: list[str] = []
        unsupported = self.unsupported(exported_program)
        graphs = list(self._graphs(exported_program.graph_module, unsupported))
        for graph_module, claimed in graphs:
            own = len(names)
            for nodes in convex_partitions(graph_module.graph, claimed):
                names.append(f"aoti_{len(names)}")
                tags.update(dict.fromkeys(nodes, names[-1]))
            if graph_module is exported_program.graph_module and names[own:]:
                tags.update(
                    constant_owners(
                        exported_program, tags, names[own], self._keeps_state()
                    )
                )
            tags.update(_branch_owners(graph_module, tags))
            _check(graph_module, tags)
        for graph_module, _ in graphs:
            _write(graph_module, tags)
        return PartitionResult(
            exported_program, dict.fromkeys(names, self.delegation_spec)
        )

    def _keeps_state(self) -> bool:
        """Return whether the compile spec ``keep_mutable_buffers`` is ``ON``, its default."""
        for spec in self.delegation_spec.compile_specs:
            if spec.key == KEEP_MUTABLE_BUFFERS_COMPILE_SPEC_KEY:
                value = bytes(spec.value).decode().upper()
                if value not in ("ON", "OFF"):
                    raise ValueError(
                        f"Invalid {spec.key}: {value}. Expected 'ON' or 'OFF'."
                    )
                return value == "ON"
        return True

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Return the operators to preserve: AOTInductor decomposes them itself.

        An operator is listed only if no call of it stays on the host, whose kernels exist only for the
        decomposition. In branches delegated with their control flow, only those without a decomposition
        are listed. Omitted too: operators that return expanded tensors without declaring a view
        (``broadcast_tensors``): the host rejects strides of 0.

        Returns:
            The operators in the order of the graph, and no filter.
        """
        preserved: dict[torch._ops.OpOverload, None] = {}
        decomposed: set[torch._ops.OpOverload] = set()
        unsupported = self.unsupported(ep)
        graphs = [*self._graphs(ep.graph_module, unsupported)]
        for graph_module, claimed in graphs:
            for node in graph_module.graph.nodes:
                if not isinstance(node.target, torch._ops.OpOverload) or is_size(node):
                    continue
                if node in claimed and not _returns_expanded(node):
                    preserved[node.target] = None
                else:
                    decomposed.add(node.target)
        preserved.update(
            dict.fromkeys(_nondecomposable_in_branches(ep, [g for g, _ in graphs]))
        )
        return [operator for operator in preserved if operator not in decomposed], None

    def unsupported(self, program: ExportedProgram) -> Collection[Node]:
        """Return the nodes, in all graphs of ``program``, that the backend can't compile.

        The base class returns none.
        """
        return ()

    def _graphs(
        self,
        graph_module: GraphModule,
        unsupported: Container[Node],
        inner: bool = False,
    ) -> Iterator[tuple[GraphModule, set[Node]]]:
        """Yield each graph that is partitioned, outermost first, with its claimed nodes."""
        claimed: set[Node] = set()
        for node in graph_module.graph.nodes:
            if inner and not self.delegates_in_branches:
                break
            if is_claimable(node, claimed, unsupported):
                claimed.add(node)
        leave_sizes_to_host(graph_module.graph, claimed)
        leave_crossing_sizes(graph_module.graph, claimed)
        yield graph_module, claimed
        for _, branch, control_flow in get_control_flow_submodules(graph_module):
            if control_flow not in claimed:
                yield from self._graphs(branch, unsupported, inner=True)


def _returns_expanded(node: Node) -> bool:
    """Whether a non-view operator returns a tensor with a stride of 0."""
    if node.target.is_view:  # type: ignore[union-attr]
        return False
    values = pytree.tree_leaves(node.meta.get("val"))
    strides = (tensor.stride() for tensor in values if isinstance(tensor, torch.Tensor))
    return any(
        step == 0 for steps in strides for step in steps if isinstance(step, int)
    )


def _nondecomposable_in_branches(
    program: ExportedProgram, partitioned_graphs: Collection[GraphModule]
) -> Iterator[torch._ops.OpOverload]:
    """Yield the operators without a decomposition in the branches outside of ``partitioned_graphs``."""
    branches = [
        m for m in program.graph_module.modules() if m not in partitioned_graphs
    ]
    table = torch.export.default_decompositions() if branches else {}
    for module in branches:
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            target = node.target
            if isinstance(target, torch._ops.OpOverload) and target not in table:
                yield target


def is_claimable(
    node: Node, claimed: Container[Node], unsupported: Container[Node]
) -> bool:
    if node.op != "call_function" or node.target is executorch_call_delegate:
        return False
    if node in unsupported:
        return False
    if node.target is operator.getitem:  # goes with what it unpacks
        return node.args[0] in claimed
    if has_data_dependent_shape(node) or _is_assertion(node):
        return False
    return not any(
        _is_custom_object(producer) or _contains_undelegatable(producer, unsupported)
        for producer in node.all_input_nodes
    )


def _is_assertion(node: Node) -> bool:
    """Whether it returns nothing: an assertion on sizes, which stays on the host."""
    schema = getattr(node.target, "_schema", None)
    return schema is not None and not schema.returns


def _is_custom_object(node: Node) -> bool:
    return isinstance(node.meta.get("val"), (CustomObjArgument, FakeScriptObject))


def _contains_undelegatable(node: Node, unsupported: Container[Node]) -> bool:
    """Whether ``node`` is a branch module that contains a delegate or an unsupported node."""
    module = branch_module(node)
    return module is not None and any(
        inner.target is executorch_call_delegate or inner in unsupported
        for graph_module in module.modules()
        if isinstance(graph_module, GraphModule)
        for inner in graph_module.graph.nodes
    )


def branch_module(node: Node) -> torch.nn.Module | None:
    if node.op != "get_attr":
        return None
    attribute = operator.attrgetter(str(node.target))(node.graph.owning_module)
    return attribute if isinstance(attribute, torch.nn.Module) else None


def _branch_owners(
    graph_module: GraphModule, tags: Mapping[Node, str]
) -> dict[Node, str]:
    """Return the partition of each branch module: that of the operator that reads it."""
    owners: dict[Node, str] = {}
    for node in graph_module.graph.nodes:
        if branch_module(node) is None:
            continue
        partitions = {tags.get(user) for user in node.users}
        if len(partitions) > 1:
            raise ValueError(
                f"branch module {node.target} (node {node}) is read by operators of different "
                f"partitions, {', '.join(map(str, node.users))}, and can only move into one: "
                "give each operator a branch module of its own"
            )
        owner = partitions.pop() if partitions else None
        if owner is not None:
            owners[node] = owner
    return owners


def _check(graph_module: GraphModule, tags: Mapping[Node, str]) -> None:
    """Raise ValueError for what lowering would get wrong, or fail on without naming the node."""
    for node in graph_module.graph.nodes:
        earlier_tag, tag = node.meta.get(_TAG), tags.get(node)
        leaves = any(tags.get(user) != tag for user in node.users)
        if earlier_tag not in (None, tag) and not _is_delegate_output(node):
            raise ValueError(
                f"node {node} has the delegation tag {earlier_tag!r} of another partitioner, whose "
                "partitions have not been lowered: lower them first, with one to_backend for "
                "each partitioner, or partition a program without tags"
            )
        if (
            node.op == "call_function"
            and tag is not None
            and "val" not in node.meta
            and leaves
        ):
            raise ValueError(
                f"node {node} ({node.target}) leaves partition {tag} without meta['val']: the "
                "pass that made the node has to set it to the node's fake value"
            )


def _write(graph_module: GraphModule, tags: Mapping[Node, str]) -> None:
    for node in graph_module.graph.nodes:
        node.meta.pop(_TAG, None)
        if node in tags:
            node.meta[_TAG] = tags[node]


def _is_delegate_output(node: Node) -> bool:
    """Tell whether ``node`` unpacks a delegate: lowering leaves tags on these inside branches."""
    return (
        node.target is operator.getitem
        and isinstance(source := node.args[0], Node)
        and source.target is executorch_call_delegate
    )
