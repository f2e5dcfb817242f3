"""Converters for the time of a test, and what ended up in which engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_ATEN_CONVERTERS

Register = Callable[[Any, Any], None]


@pytest.fixture
def register() -> Iterator[Register]:
    """Replace a target's entry in upstream's registry of converters, until the test is over."""
    before: dict[Any, Any] = {}

    def replace(target: Any, entry: Any) -> None:
        before.setdefault(target, DYNAMO_ATEN_CONVERTERS.get(target))
        DYNAMO_ATEN_CONVERTERS[target] = entry

    yield replace
    for target, entry in before.items():
        if entry is None:
            del DYNAMO_ATEN_CONVERTERS[target]
        else:
            DYNAMO_ATEN_CONVERTERS[target] = entry


@pytest.fixture
def dry_run() -> Callable[..., torch.fx.GraphModule]:
    """Partition a model in upstream's dry run: engines stay the partitions they'd be made of."""

    def compile(
        model: torch.nn.Module, inputs: tuple[torch.Tensor, ...], **settings: Any
    ) -> torch.fx.GraphModule:
        settings = {"min_block_size": 1, "dryrun": True, **settings}
        return torch_tensorrt.compile(
            model.eval(), ir="dynamo", arg_inputs=list(inputs), **settings
        )

    return compile


def placed(compiled: torch.fx.GraphModule) -> tuple[list[str], list[str]]:
    """Return the operators in engines and those in PyTorch, each sorted, with repetitions.

    The operators of engines that are built already aren't seen.
    """
    engines: list[str] = []
    pytorch: list[str] = []
    for name, partition in compiled.named_children():
        if isinstance(partition, torch.fx.GraphModule):
            side = engines if "_run_on_acc" in name else pytorch
            side.extend(_operators(partition))
    pytorch.extend(_operators(compiled))
    return sorted(engines), sorted(pytorch)


def _operators(module: torch.fx.GraphModule) -> list[str]:
    return [
        str(node.target)
        for node in module.graph.nodes
        if isinstance(node.target, torch._ops.OpOverload)
    ]
