"""Programs that can't be partitioned: an error that names the node, and no tag written."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner

from ...lowering import lower

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def edge(*partners):
    manager = lower(lambda x: torch.sin(torch.relu(x) + 1) * 2, (X,), *partners)
    return manager.exported_program()


def tags(program):
    return {
        node.name: node.meta["delegation_tag"]
        for node in program.graph.nodes
        if "delegation_tag" in node.meta
    }


def test_tags_of_a_partitioner_whose_partitions_were_not_lowered(second):
    program = edge()
    XnnpackPartitioner().partition(program)
    found = tags(program)
    with pytest.raises(ValueError, match="another partitioner") as error:
        second.partition(program)
    assert any(name in str(error.value) for name in found)
    assert tags(program) == found


def test_tag_clash(second):
    program = edge()
    (sin,) = [node for node in program.graph.nodes if "sin" in node.name]
    sin.meta["delegation_tag"] = "aoti_1"
    with pytest.raises(ValueError, match=f"{sin.name}.*'aoti_1'"):
        second.partition(program)


def test_second_run_writes_the_same_tags(second, foreign):
    program = edge(foreign("sin"))
    first = second.partition(program).partition_tags
    found = tags(program)
    assert second.partition(program).partition_tags == first
    assert tags(program) == found


def test_node_without_val_that_leaves_a_partition(second, foreign):
    program = edge(foreign("sin"))
    (add,) = [node for node in program.graph.nodes if "add" in node.name]
    del add.meta["val"]
    with pytest.raises(ValueError, match=f"{add.name}.*val"):
        second.partition(program)
    assert not tags(program)


def test_node_without_val_inside_a_partition_is_the_backends_concern(second):
    program = edge()
    (add,) = [node for node in program.graph.nodes if "add" in node.name]
    del add.meta["val"]
    assert add.name in tags(second.partition(program).tagged_exported_program)
