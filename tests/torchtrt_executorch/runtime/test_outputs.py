"""Outputs in the nesting that a model was exported with, and inputs by the keywords that it was exported with."""

from __future__ import annotations

import json
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.export import export
from torch.utils._pytree import tree_leaves, tree_structure, treespec_dumps

from torchtrt_executorch.runtime import InputError, Program, load
from torchtrt_executorch.runtime.nesting import Nesting

from ...lowering import lower, lower_emulated

X, SCALE = torch.linspace(-1, 1, 8).reshape(2, 4), torch.tensor([2.0])


@dataclass
class Boxes:
    corners: Tensor
    masks: Tensor | None = None
    scores: Tensor | None = None


torch.export.register_dataclass(Boxes, serialized_type_name="tests.test_outputs.Boxes")


class Model(nn.Module):
    def forward(self, x: Tensor, *, scale: Tensor, shift: Tensor) -> Any:
        y = x.sin() * scale + shift
        return {
            "last": y,
            "list": [y * 2, (x + 1,)],
            "ordered": OrderedDict(b=x.cos(), a=y - 1),
            "boxes": Boxes(y + 3, scores=y.sum()),
        }


def expected(x: Tensor, scale: Tensor, shift: Tensor) -> Any:
    found = Model()(x, scale=scale, shift=shift)
    boxes = found["boxes"]
    return {**found, "boxes": {"corners": boxes.corners, "scores": boxes.scores}}


KEYWORDS = {"scale": SCALE, "shift": SCALE - 1}


@pytest.fixture(scope="module", params=["executorch", "torch_tensorrt"])
def program(request: pytest.FixtureRequest) -> Program:
    if request.param == "executorch":
        edge = to_edge_transform_and_lower(export(Model(), (X,), KEYWORDS))
    else:
        edge = lower_emulated(Model(), (X,), kwarg_inputs=KEYWORDS)
    return load(edge.to_executorch().buffer, emulated_engines=True)


def test_a_program_returns_what_the_model_did(program: Program) -> None:
    for scale, shift in ((SCALE, SCALE - 1), (SCALE * 3, SCALE)):
        wanted = expected(X, scale, shift)
        for found in (
            program.run(X, scale=scale, shift=shift),
            program.run(X, shift=shift, scale=scale),
            program.run(X, scale, shift=shift),
            program.run(X, scale, shift),
        ):
            assert tree_structure(found) == tree_structure(wanted)
            assert type(found["ordered"]) is OrderedDict
            torch.testing.assert_close(tree_leaves(found), tree_leaves(wanted))
    flat = program.method()(X, **KEYWORDS)
    assert type(flat) is tuple and len(flat) == 7


@pytest.mark.parametrize(
    ("given", "named", "message"),
    [
        ((X,), {"scale": SCALE}, "is not given the keyword 'shift'"),
        ((X,), {**KEYWORDS, "scales": SCALE}, "no keyword 'scales'.*'scale', 'shift'"),
        ((X, SCALE), KEYWORDS, "'scale' by position and by keyword"),
        ((X,), {}, r"takes 3 inputs \(keywords: 'scale', 'shift'\) and is given 1"),
        ((), KEYWORDS, "takes 1 input by position and the keywords .* 0 by position"),
        ((X, X, X, X), KEYWORDS, "is given 4 by position"),
    ],
)
def test_other_keywords_are_refused(
    program: Program, given: tuple[Tensor, ...], named: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        program.run(*given, **named)


@pytest.mark.parametrize("returned", [lambda x: x, lambda x: (x,), lambda x: [x]])
def test_flat_outputs_are_a_tuple(returned: Any) -> None:
    edge = lower(lambda x: returned(x.sin()), (X,))
    found = load(edge.to_executorch().buffer).run(X)
    assert type(found) is tuple
    torch.testing.assert_close(found, (X.sin(),))


KEYS = st.text(max_size=3) | st.integers()
TREES = st.recursive(
    st.integers(),
    lambda below: st.one_of(
        st.lists(below, max_size=3),
        st.lists(below, max_size=3).map(tuple),
        st.dictionaries(KEYS, below, max_size=3),
        st.dictionaries(KEYS, below, max_size=3).map(OrderedDict),
    ),
    max_leaves=9,
)


@given(TREES)
@settings(max_examples=200, deadline=None)
def test_any_nesting(tree: Any) -> None:
    text = treespec_dumps(tree_structure(tree))
    leaves = tuple(tree_leaves(tree))
    found = Nesting(text, len(leaves))(leaves)
    if not isinstance(tree, (tuple, list, dict)):
        assert found == (tree,)
    else:
        assert found == (tuple(tree) if isinstance(tree, list) else tree)
        assert isinstance(found, OrderedDict) == isinstance(tree, OrderedDict)
    assert Nesting(text, len(leaves) + 1)((*leaves, 0)) == (*leaves, 0)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda below: st.lists(below)
    | st.dictionaries(
        st.sampled_from(["type", "context", "children_spec"]) | st.text(), below
    ),
)


@given(JSON.map(json.dumps) | JSON.map(lambda x: json.dumps([1, x])) | st.text())
@settings(max_examples=300, deadline=None)
def test_what_is_no_description_nests_nothing(text: str) -> None:
    assert Nesting(text, 2)((1, 2)) in ((1, 2), [1, 2])


def test_a_type_that_names_no_fields_is_a_tuple() -> None:
    def node(kind: str | None, context: Any, *children: Any) -> dict[str, Any]:
        return {"type": kind, "context": context, "children_spec": [*children]}

    leaf = node(None, None)
    for context in ('"no list"', '["x"]', "no JSON", None, {"dict_context": []}):
        text = json.dumps([1, node("somebody.Point", context, leaf, leaf)])
        assert Nesting(text, 2)((1, 2)) == (1, 2)
    text = json.dumps([1, node("builtins.dict", '["x"]', leaf, leaf)])
    assert Nesting(text, 2)((1, 2)) == (1, 2)
    assert Nesting("[" * 99999, 2)((1, 2)) == (1, 2)
