"""How a call's values reach an engine: sorted once, with no GPU needed to see where to."""

from __future__ import annotations

from typing import Any, cast

import pytest
import torch
from executorch.exir import schema

from torchtrt_executorch.runtime.delegates.tensorrt_context import (
    Arguments,
    Binding,
    Context,
)
from torchtrt_executorch.runtime.tensors.layout import CPU, TensorLayout
from torchtrt_executorch.runtime.tensors.values import Value


def binding(on_host: bool = False) -> Binding:
    return Binding("x", on_host, cast(Context, None), CPU)


def value(order: tuple[int, ...] = (0, 1), **kind: Any) -> Value:
    static = schema.TensorShapeDynamism.STATIC
    layout = TensorLayout("x", torch.float32, (2, 3), order, static)
    data = torch.zeros(2, 3) if kind.get("fixed") else None
    return Value("x", data, layout, **kind)


PINNED = {"fixed": True, "planned": True, "pinned": True}


@pytest.mark.parametrize(
    "one, on_host, as_output, as_input",
    [
        (value(delegate_private=True), False, "made", "others"),
        (value(delegate_private=True), True, "others", "others"),
        (value((1, 0), delegate_private=True), False, "others", "others"),
        (value(), False, "others", "others"),
        (value(**PINNED), False, "staged", "staged"),
        (value(**PINNED), True, "others", "others"),
        (value((1, 0), **PINNED), False, "others", "others"),
        (value(fixed=True, planned=True), False, "others", "others"),
    ],
)
def test_each_value_is_in_one_place(
    one: Value, on_host: bool, as_output: str, as_input: str
) -> None:
    """Only outputs are made: an input that another engine has made is where that has put it."""
    written = Arguments.of_outputs([binding(on_host)], [one], CPU)
    read = Arguments.of_inputs([binding(on_host)], [one], True)
    for arguments, place in ((written, as_output), (read, as_input)):
        found = {name: len(items) for name, items in vars(arguments).items()}
        assert found == {"ready": 0, "staged": 0, "made": 0, "others": 0, place: 1}


def test_nothing_is_staged_that_nobody_waits_for() -> None:
    read = Arguments.of_inputs([binding()], [value(**PINNED)], False)
    assert len(read.others) == 1 and not read.staged
