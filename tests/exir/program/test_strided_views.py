"""``as_strided`` of permuted and sliced values: ExecuTorch's own runtime reads what PyTorch does."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge, to_edge_transform_and_lower
from torch import Tensor
from torch.export import Dim, export

from ...executorch_runtime import UpstreamMethod
from ...lowering import Function

X = torch.arange(24.0).reshape(4, 6)


VIEWS: dict[str, Callable[[Tensor], Tensor]] = {
    "of an input": lambda x: x.as_strided((2, 3), (6, 2)),
    "of a permuted input": lambda x: x.t().as_strided((2, 3), (2, 1)),
    "of a permuted value": lambda x: (x * 2).t().as_strided((2, 3), (6, 1)) + 1,
    "of what is computed of it": lambda x: (x.t() + 1).as_strided((2, 3), (6, 1)),
    "of a slice": lambda x: (x * 2)[1:].as_strided((2, 3), (6, 1)),
    "of a permuted slice": lambda x: (x * 2).t()[1:].as_strided((2, 3), (6, 2)),
    "with an offset": lambda x: (x * 2).t()[2:].as_strided((2, 3), (6, 1), 1),
    "of an expanded value": lambda x: x[:1].expand(4, 6).as_strided((2, 3), (3, 1)),
    "of another": lambda x: x.t().as_strided((3, 2), (1, 6)).as_strided((2,), (6,)) * 2,
    "copied": lambda x: torch.as_strided_copy(x.t(), (2, 3), (6, 1)),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", VIEWS)
def test_memory_is_read_in_its_order(name: str, dynamic: bool) -> None:
    """By ExecuTorch alone seven of ten were wrong, without a word."""
    model = Function(VIEWS[name])
    shapes = ({0: Dim("rows", min=4, max=8)},) if dynamic else None
    program = export(model, (X,), dynamic_shapes=shapes)
    for edge in (
        to_edge(program),
        to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]),
    ):
        method = UpstreamMethod(edge.to_executorch().buffer)
        for x in (X, torch.arange(48.0).reshape(8, 6)) if dynamic else (X,):
            (found,) = method.execute([x])
            torch.testing.assert_close(found, model(x))


def test_of_channels_last_images() -> None:
    x = torch.arange(2.0 * 3 * 4 * 5).reshape(2, 3, 4, 5)
    x = x.to(memory_format=torch.channels_last)
    model = Function(lambda x: (x + 1).as_strided((2, 5), (60, 3)))
    (found,) = UpstreamMethod(
        to_edge(export(model, (x,))).to_executorch().buffer
    ).execute([x])
    torch.testing.assert_close(found, model(x))


def test_the_program_is_left_as_it_is() -> None:
    program = export(Function(VIEWS["of a permuted input"]), (X,))
    before = program.graph_module.code
    to_edge(program)
    assert program.graph_module.code == before


def test_memory_that_is_not_there_is_warned_of(caplog: Any) -> None:
    """Of a slice that is an input, the rest isn't handed over."""
    with caplog.at_level(logging.WARNING):
        program = export(
            Function(lambda x: x.as_strided((2, 2), (6, 1), 0)), (X[1:, 1:4],)
        )
        to_edge(program)
    assert "write it by slices, or by indices" in caplog.text
