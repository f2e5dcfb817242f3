"""A graph's code is upstream's, in a file of its own."""

from __future__ import annotations

import linecache

import torch
from torch.fx import GraphModule, graph_module

from .graphs import make_once


def traced() -> GraphModule:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() + 1

    return torch.fx.symbolic_trace(Model())


def test_code_that_is_the_same_is_in_two_files() -> None:
    make_once()
    first, second = traced(), traced()
    assert first.code == second.code
    assert torch.equal(first(torch.ones(2)), second(torch.ones(2)))
    codes = [each.forward.__func__.__code__ for each in (first, second)]
    assert codes[0].co_code == codes[1].co_code
    files = {each.co_filename for each in codes}
    assert len(files) == 2
    assert all("relu" in "".join(linecache.getlines(each)) for each in files)


def test_annotations_are_types() -> None:
    make_once()
    source = "def forward(x: int):\n    def inner(y: int): pass\n    return inner"
    forward = graph_module._forward_from_src(source, {})
    assert forward.__annotations__ == {"x": int}
    assert forward(1).__annotations__ == {"y": int}
    assert forward(1).__code__.co_filename == forward.__code__.co_filename != ""
