"""Concatenations that extend earlier ones are what they were, and a dense block copies its results a few times alone."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.cuda._concatenations import extend_earlier
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from .conftest import compiles_delegates

aten = torch.ops.aten


def _cats(graph: torch.fx.Graph) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.target is aten.cat.default]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 3), min_size=1, max_size=24),
            st.sampled_from((0, -1, 1)),
        ),
        min_size=1,
        max_size=5,
    ),
    st.integers(0, 24),
)
def test_values_stay(lists: list[tuple[list[int], int]], shared: int) -> None:
    """Lists of four tensors, by their indices, of which each begins as the one before."""

    def concatenated(*tensors: Tensor) -> list[Tensor]:
        results, before = [], list[int]()
        for indices, dim in lists:
            before = [*before[:shared], *indices]
            results.append(torch.cat([tensors[each] for each in before], dim))
        return results

    inputs = [torch.full((2, 2), float(each)) for each in range(4)]
    module = make_fx(concatenated)(*inputs)
    for node in module.graph.nodes:
        node.meta.setdefault("val", torch.empty(2, 2))
    extend_earlier(module.graph)
    module.graph.lint()
    module.recompile()
    for found, wanted in zip(module(*inputs), concatenated(*inputs), strict=True):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("step", [1, 2, 3])
def test_each_reads_eight_at_most_and_few_are_written(step: int) -> None:
    def dense(x: Tensor) -> list[Tensor]:
        results, found = [x], list[Tensor]()
        for layer in range(24):
            results += [x + layer + each for each in range(step)]
            found.append(torch.cat(results))
        return found

    module = make_fx(dense)(torch.zeros(2))
    extend_earlier(module.graph)
    cats = _cats(module.graph)
    assert max(len(each.args[0]) for each in cats) <= 8
    extended = [each for each in cats if any(user in cats for user in each.users)]
    assert len(extended) <= len(cats) * step / 7 + step


class DenseBlock(nn.Module):
    """(1, 16, 8, 8) to 16 channels more for each of ten layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self._layer(16 * (i + 1)) for i in range(10))

    @staticmethod
    def _layer(channels: int) -> nn.Module:
        norm = nn.BatchNorm2d(channels)
        return nn.Sequential(norm, nn.ReLU(), nn.Conv2d(channels, 16, 3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        results = [x]
        for layer in self.layers:
            results.append(layer(torch.cat(results, 1)))
        return torch.cat(results, 1)


@compiles_delegates
def test_a_dense_block_copies_few_results(
    lower: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor.graph import GraphLowering

    sources: list[str] = []
    codegen: Any = GraphLowering.codegen_with_cpp_wrapper

    def keep(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = codegen(self, *args, **kwargs)
        sources.append(found[0].value)
        return found

    monkeypatch.setattr(GraphLowering, "codegen_with_cpp_wrapper", keep)
    lower(DenseBlock().eval(), (torch.randn(1, 16, 8, 8),), gpu="sm_90:80GiB")
    calls = re.findall(r"^\s+call_triton_\w+\(", sources[-1], re.MULTILINE)
    # 41 where each result is copied for each layer. PyTorch 2.13 fuses no ReLU with what reads more than two of them.
    most = 41 if Version(torch.__version__) < Version("2.14") else 35
    assert len(calls) <= most, calls
