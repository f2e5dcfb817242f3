"""What the command says: in its own options, and in numbers that fit their nouns."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from torchtrt_executorch import runtime
from torchtrt_executorch.cli.output.comparison import Comparison
from torchtrt_executorch.cli.output.formatting import as_options
from torchtrt_executorch.cli.run import run
from torchtrt_executorch.inspection.formatting import counted


def messages() -> Iterator[str]:
    """Yield the strings of the runtime, whose errors the command prints, docstrings aside."""
    documentable = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for file in Path(runtime.__file__).parent.rglob("*.py"):
        nodes = list(ast.walk(ast.parse(file.read_text())))
        documented = {
            ast.get_docstring(node, clean=False)
            for node in nodes
            if isinstance(node, documentable)
        }
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                parts = [getattr(part, "value", "") for part in node.values]
                yield "".join(
                    part if isinstance(part, str) else "..." for part in parts
                )
            elif isinstance(node, ast.Constant) and node.value not in documented:
                yield str(node.value)


def test_every_error_speaks_of_options() -> None:
    """Whatever an error advises of ``load``, the command has as an option."""
    arguments = "|".join(list(inspect.signature(runtime.load).parameters)[1:])
    of_python = re.compile(rf"\b({arguments})=|\bload\(|emulated_engines\(\)")
    advising = [message for message in messages() if of_python.search(message)]
    assert advising
    options = {
        f"--{name.replace('_', '-')}" for name in inspect.signature(run).parameters
    }
    for message in advising:
        said = as_options(message)
        assert not of_python.search(said), said
        assert set(re.findall(r"--[a-z-]+", said)) <= options, said


@pytest.mark.parametrize(
    ("message", "said"),
    [
        ("pass the .ptd as data_files=[...]", "pass the .ptd as --data"),
        ("load it with simulate_devices=True to check", "load it with --simulate-devices to check"),
        (
            "Allow it with load(..., emulated_engines=True), inside of emulated_engines(), or "
            "TORCHTRT_EMULATE=1",
            "Allow it with --emulated-engines, or TORCHTRT_EMULATE=1",
        ),
        ("name the stand-ins (stand_ins=FILE)", "name the stand-ins (--stand-ins)"),
        ("an input has 3 rows", "an input has 3 rows"),
    ],
)  # fmt: skip
def test_as_options(message: str, said: str) -> None:
    assert as_options(message) == said


def test_counted() -> None:
    assert [counted(n, "output") for n in (0, 1, 2)] == [
        "0 outputs",
        "1 output",
        "2 outputs",
    ]


def compare(outputs: list[object], expected: object) -> Comparison:
    return Comparison(outputs, expected, rtol=1e-3, atol=1e-4)


def test_the_largest_difference_is_said() -> None:
    found = compare(
        [torch.ones(2), torch.zeros(3)], (torch.ones(2) + 2e-5, [torch.zeros(3)])
    )
    assert not found.differences
    assert found.largest == pytest.approx(2e-5, rel=1e-2)
    assert "2 outputs agree, the largest difference is 2e-05" in found.summary()


@pytest.mark.parametrize(
    "held",
    [float("inf"), 2**40, True, 3 + 4j, torch.tensor([float("inf"), -1.0])],
    ids=str,
)
def test_equal_outputs_of_any_kind(held: object) -> None:
    found = compare([held], held)
    assert not found.differences and found.largest == 0
    assert "1 output agrees" in found.summary()


@pytest.mark.parametrize("outputs", [[], [torch.empty(0, 4)], [torch.empty(0)] * 2])
def test_nothing_is_no_agreement(outputs: list[torch.Tensor]) -> None:
    (difference,) = compare(outputs, tuple(outputs)).differences
    assert "nothing was compared" in difference


def test_an_empty_output_beside_others() -> None:
    outputs = [torch.empty(0, 4), torch.ones(1)]
    found = compare(outputs, outputs)
    assert not found.differences
    assert "1 output agrees" in found.summary()
    assert "1 output without elements" in found.summary()
    (difference,) = compare(outputs, [torch.ones(1, 4), torch.ones(1)]).differences
    assert "output 0" in difference
    (difference,) = compare(outputs, torch.ones(1)).differences
    assert difference == "2 outputs where 1 is expected"
