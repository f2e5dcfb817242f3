"""Names of what graphs hold: unique, and those of the model wherever they can be."""

from __future__ import annotations

from operator import attrgetter

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.fx import Graph, GraphModule
from torch_tensorrt.dynamo.graphs.attribute_names import HeldAttributes, unique_name

segments = st.sampled_from(["a", "b", "a_b", "a_", "b_", "0"])
paths = st.lists(segments, min_size=1, max_size=3).map(".".join)


@given(st.lists(st.tuples(paths, st.integers(0, 3))))
def test_each_value_is_found_under_its_name(wanted: list[tuple[str, int]]) -> None:
    tensors = [torch.full((1,), float(i)) for i in range(4)]
    held, graph = HeldAttributes(), Graph()
    names = [held.add(path, tensors[i]) for path, i in wanted]
    graph.output([graph.get_attr(name) for name in names])
    module = GraphModule(held.values, graph)
    for name, (_, i) in zip(names, wanted, strict=True):
        assert attrgetter(name)(module) is tensors[i]
    assert len(module.state_dict()) == len(set(names))


@given(st.lists(paths, unique=True))
def test_names_of_one_model_are_kept(wanted: list[str]) -> None:
    through = {path.rpartition(".")[0] for path in wanted} | {
        path.split(".")[0] for path in wanted if "." in path
    }
    leaves = [path for path in wanted if path not in through]
    held = HeldAttributes()
    assert [held.add(path, path) for path in leaves] == leaves


@given(st.lists(segments))
def test_unique_names(wanted: list[str]) -> None:
    taken: set[str] = set()
    for name in wanted:
        found = unique_name(name, taken)
        assert found not in taken and found.rstrip("_") == name.rstrip("_")
        assert found == name or name in taken
        taken.add(found)
