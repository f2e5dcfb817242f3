"""Engines of a TensorRT that is known to compute wrong values say so in a report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch_tensorrt

from torchtrt_executorch.inspection.model.known_defects import known_defects
from torchtrt_executorch.inspection.report import MethodReport, Report

WRONG = (
    "aten.embedding_bag.default",
    "aten.permute.default",
    "aten.upsample_bicubic2d.vec",
)


@pytest.mark.parametrize("version", ["11.1.0.106", "11.2.1.2"])
def test_wrong_values_are_warned_of(version: str) -> None:
    (warning,) = known_defects(f"TensorRT {version}", WRONG)
    method = MethodReport("forward", [], [], warnings=[warning])
    assert "NVIDIA/TensorRT#4846" in str(Report({"forward": method}))


@pytest.mark.parametrize(
    ("payload", "operators"),
    [
        ("TensorRT 11.0.0.114", WRONG),
        ("TensorRT 11.3.0.99", WRONG),
        ("TensorRT-RTX 1.6.1.120", WRONG),
        ("EMULATED", WRONG),
        *(("TensorRT 11.1.0.106", [e for e in WRONG if e != left]) for left in WRONG),
    ],
)
def test_other_engines_are_not(payload: str, operators: list[str]) -> None:
    assert not [*known_defects(payload, operators)]


def test_one_converter_alone_makes_conditionals() -> None:
    """Another one would be another operator to warn of."""
    files = Path(torch_tensorrt.__path__[0], "dynamo", "conversion").rglob("*.py")
    found = {file.name for file in files if "add_if_conditional" in file.read_text()}
    assert found == {"embedding.py"}
