"""Inputs in the nesting that a model was exported with, whatever order a dictionary is in."""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import cache
from typing import Any

import pytest
import torch
from executorch.exir import to_edge
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.export import export
from torch.utils._pytree import tree_leaves, tree_structure, treespec_dumps

from torchtrt_executorch.runtime import InputError, Method, load
from torchtrt_executorch.runtime.inputs import flatten, read_tree


class Model(nn.Module):
    def forward(self, pair: Any, named: Any) -> torch.Tensor:
        return pair[0] - named["b"] * 10 + named["a"]["x"] * 100 - pair[1] * 1000


NAMED = {"b": torch.tensor([2.0]), "a": {"y": torch.zeros(1), "x": torch.tensor([3.0])}}
PAIR = [torch.tensor([1.0]), torch.tensor([4.0])]


@cache
def method() -> Method:
    exported = export(Model(), (PAIR, NAMED))
    return load(to_edge(exported).to_executorch().buffer).method()


def test_a_dictionary_in_another_order() -> None:
    right = Model()(PAIR, NAMED)
    inner = {"x": NAMED["a"]["x"], "y": NAMED["a"]["y"]}
    for named in (
        NAMED,
        {"a": inner, "b": NAMED["b"]},
        OrderedDict(a=inner, b=NAMED["b"]),
    ):
        for pair in (PAIR, tuple(PAIR)):
            assert torch.equal(method()(pair, named)[0], right)
    assert torch.equal(method()(*tree_leaves((PAIR, NAMED)))[0], right)


@pytest.mark.parametrize("named", [{}, {"b": 1}, {**NAMED, "c": 1}, {"b": 1, "A": 2}])
def test_other_keys_are_refused(named: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"input 1 of forward has the keys .*'a', 'b'"):
        method()(PAIR, named)


TREES = st.recursive(
    st.integers(),
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.tuples(below, below),
        st.dictionaries(st.sampled_from("abcd"), below, max_size=3),
    ),
    max_leaves=8,
)


def shuffled(tree: Any, draw: Any) -> Any:
    """The same, with the keys of each dictionary in another order."""
    if isinstance(tree, dict):
        keys = draw(st.permutations(list(tree)))
        return {key: shuffled(tree[key], draw) for key in keys}
    if isinstance(tree, (list, tuple)):
        return type(tree)(shuffled(each, draw) for each in tree)
    return tree


@given(st.lists(TREES, max_size=3), st.data())
@settings(max_examples=200, deadline=None)
def test_any_nesting(args: list[Any], data: Any) -> None:
    spec = tree_structure((tuple(args), {}))
    tree = read_tree(treespec_dumps(spec))
    given_ = [shuffled(each, data.draw) for each in args]
    assert flatten(given_, tree, "forward") == tree_leaves(tuple(args))


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=3),
    lambda below: st.lists(below, max_size=3)
    | st.dictionaries(
        st.sampled_from(["type", "context", "children_spec", "x"]), below, max_size=4
    ),
    max_leaves=12,
)


@given(JSON, st.binary(max_size=20))
@settings(max_examples=200, deadline=None)
def test_what_a_file_may_hold_in_its_place(tree: Any, noise: bytes) -> None:
    for text in (
        json.dumps([1, tree]),
        json.dumps(tree),
        noise.decode("latin1"),
        "[" * 99_999,
    ):
        found = read_tree(text)
        assert found is None or flatten([1, {"a": 2}], found, "forward") == [1, 2]
