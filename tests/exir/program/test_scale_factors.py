"""Resizing by scale factors: ExecuTorch's own runtime computes what PyTorch's CPU kernels do."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge, to_edge_transform_and_lower
from executorch.exir.program._scale_factors import with_ratios_of_sizes
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export

from ...executorch_runtime import UpstreamMethod

F = nn.functional
MODES = {
    1: ("nearest", "nearest-exact", "linear"),
    2: ("nearest", "nearest-exact", "bilinear", "bicubic"),
    3: ("nearest", "nearest-exact", "trilinear"),
}
#: By dimension: sizes that stay, are doubled, grow and shrink by other ratios.
FACTORS = ((1.1, 2.1, 1.3), (2.1, 1.05, 0.6), (0.7, 1.3, 2.5))


class Resizing(nn.Module):
    """One resizing for each set of options."""

    def __init__(self, *options: dict[str, Any]) -> None:
        super().__init__()
        self.options = options

    def forward(self, x: Tensor) -> list[Tensor]:
        return [F.interpolate(2 * x, **each) for each in self.options]


def run(buffer: bytes, x: Tensor) -> list[Tensor]:
    method = UpstreamMethod(buffer)
    return [*method.execute([x])]


def check(program: ExportedProgram, inputs: Iterable[Tensor], **options: Any) -> None:
    buffer = to_edge_transform_and_lower(program, **options).to_executorch().buffer
    for x in inputs:
        wanted = program.module()(x)
        torch.testing.assert_close(run(buffer, x), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("rank", "mode"), [(rank, mode) for rank in MODES for mode in MODES[rank]]
)
def test_the_host_computes_what_eager_does(rank: int, mode: str) -> None:
    corners: Sequence[bool | None] = [None] if "nearest" in mode else [False, True]
    choices = itertools.product(FACTORS, corners, [None, True])
    model = Resizing(
        *(
            {
                "mode": mode,
                "scale_factor": factors[:rank],
                "align_corners": corner,
                "recompute_scale_factor": recompute,
            }
            for factors, corner, recompute in choices
        )
    )
    x = torch.randn(1, 2, *[6] * rank)
    check(export(model, (x,)), [x])


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_xnnpack_computes_what_eager_does(layout: torch.memory_format) -> None:
    corners = {"nearest": None, "bilinear": False}  # all that is computed by images
    model = Resizing(
        *(
            {"mode": mode, "scale_factor": (1.1, 2.1), "align_corners": corner}
            for mode, corner in corners.items()
        )
    )
    x = torch.randn(1, 2, 6, 6).contiguous(memory_format=layout)
    check(export(model, (x,)), [x], partitioner=[XnnpackPartitioner()])


def test_to_edge_does_too() -> None:
    model, x = Resizing({"scale_factor": (1.1, 2.1)}), torch.randn(1, 2, 6, 6)
    program = to_edge(export(model, (x,))).to_executorch()
    torch.testing.assert_close(run(program.buffer, x), model(x))


def resized(mode: str, factor: float, lower: int, upper: int | None) -> ExportedProgram:
    corners = None if "nearest" in mode else False
    shapes = ({2: Dim("height", min=lower, max=upper)},)
    options = {"scale_factor": (factor, 1.3), "align_corners": corners}
    model = Resizing({"mode": mode, **options})
    example = torch.randn(1, 2, lower + 1, 5)
    return export(model, (example,), dynamic_shapes=shapes)


def factors_of(program: ExportedProgram) -> list[float]:
    (call,) = [n for n in program.graph.nodes if "upsample" in n.name]
    found = call.args[-1]
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("mode", "factor", "lower", "upper", "ratio"),
    [
        ("bilinear", 1.1, 2, 9, 1.0),
        ("nearest", 1.1, 2, 9, 1.0),
        ("nearest", 2.1, 2, 9, 2.0),
        ("bilinear", 2.1, 2, 9, 2.1),
        ("bilinear", 1.1, 10, 40, 1.1),
        ("nearest", 2.1, 10, None, 2.1),
        ("nearest", 1.2, 10, None, 1.2),
    ],
)
def test_dynamic_sizes(
    mode: str, factor: float, lower: int, upper: int | None, ratio: float
) -> None:
    program = resized(mode, factor, lower, upper)
    found = with_ratios_of_sizes({"forward": program})["forward"]
    assert factors_of(found) == [ratio, 1.3]
    assert factors_of(program) == [factor, 1.3]
    if upper is None:
        return
    check(program, [torch.randn(1, 2, size, 5) for size in range(lower, upper + 1)])


def test_sizes_that_differ_are_named(caplog: pytest.LogCaptureFixture) -> None:
    program = resized("nearest", 1.1, 4, 40)
    with caplog.at_level(logging.WARNING):
        found = with_ratios_of_sizes(program)
    assert factors_of(found) == [1.1, 1.3]
    assert "a scale factor of 1.1" in caplog.text and "sizes of 4 to 9" in caplog.text
