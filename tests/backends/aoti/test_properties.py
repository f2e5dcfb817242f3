"""Partitions of random graphs: convex, as few as can be, never more than upstream's."""

from __future__ import annotations

import copy
import operator
from graphlib import CycleError, TopologicalSorter

import pytest
import torch
from executorch.exir.backend.backend_api import to_backend
from executorch.exir.delegate import executorch_call_delegate
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.export import ExportedProgram, export
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule
from torch.fx.passes.utils.fuser_utils import validate_partition
from torch.utils import _pytree as pytree

from torchtrt_executorch.overlay.upstream import load_upstream

UPSTREAM = load_upstream("executorch.backends.aoti.aoti_partitioner")
INPUTS = 2


@st.composite
def shapes(draw, largest=12):
    """A list of nodes: whether each is foreign, and which one or two values it reads."""
    nodes = []
    for index in range(draw(st.integers(1, largest))):
        value = st.integers(0, INPUTS + index - 1)
        nodes.append(
            (draw(st.booleans()), draw(st.lists(value, min_size=1, max_size=2)))
        )
    return nodes


class Sum(torch.nn.Module):
    def forward(self, x, y):
        return (x + y,)


@pytest.fixture(scope="module")
def build():
    """Builds programs whose foreign nodes are real delegates."""
    template = export(Sum(), (torch.ones(2), torch.ones(2)))
    delegate = to_backend("ForeignTestBackend", template, [])
    value = next(iter(template.graph.nodes)).meta["val"]

    def build(nodes, dead_ends=False):
        graph, root = Graph(), torch.nn.Module()
        root.lowered_module_0 = delegate
        values = [graph.placeholder(f"input_{index}") for index in range(INPUTS)]
        for foreign, (first, *rest) in nodes:
            operands = (values[first], values[rest[0] if rest else first])
            if foreign:
                lowered = graph.get_attr("lowered_module_0")
                call = graph.call_function(
                    executorch_call_delegate, (lowered, *operands)
                )
                call.meta["val"] = [value]
                values.append(graph.call_function(operator.getitem, (call, 0)))
            else:
                values.append(graph.call_function(torch.ops.aten.add.Tensor, operands))
        for node in values:
            node.meta["val"] = value
        leaves = [node for node in values[INPUTS:] if not node.users]
        outputs = leaves[-1:] if dead_ends else leaves
        graph.output(tuple(outputs))
        signature = ExportGraphSignature(
            [
                InputSpec(InputKind.USER_INPUT, TensorArgument(node.name), None)
                for node in values[:INPUTS]
            ],
            [
                OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(node.name), None)
                for node in outputs
            ],
        )
        in_spec = pytree.tree_structure((tuple(values[:INPUTS]), {}))
        out_spec = pytree.tree_structure(tuple(outputs))
        calls = ModuleCallSignature([], [], in_spec, out_spec)
        module = GraphModule(root, graph)
        return ExportedProgram(
            root=module,
            graph=module.graph,
            graph_signature=signature,
            state_dict={},
            range_constraints={},
            module_call_graph=[ModuleCallEntry("", calls)],
        )

    return build


def is_ours(node):
    return node.target is torch.ops.aten.add.Tensor


def tag_of(node):
    return node.meta.get("delegation_tag")


def most_entries(graph):
    """How often the path that does so most often enters the claimed nodes: all paths, one by one."""

    def walk(node, inside, entered):
        entered += is_ours(node) and not inside
        following = [walk(user, is_ours(node), entered) for user in node.users]
        return max(following, default=entered)

    return max(walk(node, False, 0) for node in graph.find_nodes(op="placeholder"))


def assert_fusable(graph, joined=()):
    """All partitions together become one node each without a cycle, the joined ones one node."""
    fused = {node: tag_of(node) or node for node in graph.nodes}
    fused |= {node: joined for node, tag in fused.items() if tag in joined}
    order = TopologicalSorter()
    for node in graph.nodes:
        order.add(
            fused[node], *{fused[i] for i in node.all_input_nodes} - {fused[node]}
        )
    order.prepare()  # raises CycleError
    for tag in {tag_of(node) for node in graph.nodes} - {None}:
        assert validate_partition([node for node in graph.nodes if tag_of(node) == tag])


@settings(max_examples=300, deadline=None)
@given(nodes=shapes())
def test_partitions_are_convex_and_as_few_as_can_be(build, second, nodes):
    program = build(nodes)
    result = second.partition(program)
    for node in program.graph.nodes:
        assert (tag_of(node) in result.partition_tags) == is_ours(node)
    assert_fusable(program.graph)
    assert len(result.partition_tags) == most_entries(program.graph)


@settings(max_examples=300, deadline=None)
@given(nodes=shapes())
def test_partitions_that_hand_a_tensor_over_can_not_be_joined(build, second, nodes):
    """Each such pair needs to be kept in order at run time; a way round by others parts it."""
    program = build(nodes)
    second.partition(program)
    pairs = {
        (tag_of(producer), tag_of(node))
        for node in filter(is_ours, program.graph.nodes)
        for producer in filter(is_ours, node.all_input_nodes)
        if tag_of(producer) != tag_of(node)
    }
    for pair in pairs:
        with pytest.raises(CycleError):
            assert_fusable(program.graph, joined=pair)


@pytest.mark.skipif(
    not hasattr(UPSTREAM, "CapabilityBasedPartitioner"),
    reason="upstream's partitioner claims foreign delegates before executorch 1.4",
)
@settings(max_examples=200, deadline=None)
@given(nodes=shapes(largest=25))
def test_never_more_partitions_than_upstream(build, second, nodes):
    program = build(nodes)
    theirs = UPSTREAM.AotiPartitioner("AotiTestBackend", []).partition(
        copy.deepcopy(program)
    )
    ours = second.partition(program)
    assert len(ours.partition_tags) <= len(theirs.partition_tags)


@settings(max_examples=200, deadline=None)
@given(nodes=shapes())
def test_what_is_left_out_is_dead(build, second, nodes):
    program = build(nodes, dead_ends=True)
    second.partition(program)
    assert_fusable(program.graph)
    (output,) = program.graph.find_nodes(op="output")
    alive = {output}
    for node in reversed(program.graph.nodes):
        if node in alive:
            alive.update(node.all_input_nodes)
            assert tag_of(node) is not None or not is_ours(node)


@settings(max_examples=25, deadline=None)
@given(nodes=shapes())
def test_lowered_random_graphs_compute_the_same(build, second, nodes):
    program = build(nodes)
    inputs = (torch.tensor([1.0, -2.0]), torch.tensor([0.5, 3.0]))
    expected = program.module()(*inputs)
    lowered = to_backend(program, second)
    assert not [node for node in lowered.graph.nodes if is_ours(node)]
    torch.testing.assert_close(lowered.module()(*inputs), expected)
