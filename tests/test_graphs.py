"""A graph's code is upstream's, in a file of its own."""

from __future__ import annotations

import linecache
import os
from pathlib import Path

import torch
from torch.fx import GraphModule, graph_module

from . import fresh
from .graphs import make_once

CODE = r"""
import re

import torch
from tests.graphs import make_once


class Model(torch.nn.Module):
    def forward(self, x, *rest, scale=2.0):
        return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,)), x.clamp(max=scale).add(1), rest


def written():
    model, x = Model(), torch.ones(2)
    graphs = [
        torch.fx.symbolic_trace(torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(2, 2))).graph,
        torch.export.export(model, (x, x + 1)).graph,
    ]
    codes = [each.python_code("self", verbose=verbose) for each in graphs for verbose in (False, True)]
    # Each trace is named after how many there were.
    return [(re.sub(r"eval_with_key>\.\d+", "", each.src), sorted(each.globals), each._lineno_map) for each in codes]


before = written()
print("cond" in before[-1][0])
make_once()
print(written() == before)
print(written() == before)
"""


def traced() -> GraphModule:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.relu() + 1

    return torch.fx.symbolic_trace(Model())


def test_what_is_written_is_upstream_s() -> None:
    """In a process of its own, before and after."""
    done = fresh.run(
        CODE, env=dict(os.environ), cwd=Path(__file__).parents[1], once=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True", "True"]


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
