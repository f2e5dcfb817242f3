"""What two packages have to say alike, and can't have from one another.

A patch of Torch-TensorRT and one of ExecuTorch are merged apart, and the runtime works where neither
is in force: what they share is written twice then, and held equal here.
"""

from __future__ import annotations

import operator
import re
from importlib import resources
from typing import Any

import pytest
import torch
from executorch.exir.dialects._ops import ops as edge_ops
from executorch.exir.passes.devices import labels
from executorch.exir.passes.devices import nodes as device_nodes
from executorch.exir.passes.streams import delegate_streams
from torch.fx import Graph
from torch_tensorrt.executorch.engines import nodes, record

from torchtrt_executorch.runtime.plans import plan

SIGNED = {"byte": 8, "int8": 8, "short": 16, "int16": 16, "int": 32, "int32": 32}


def test_the_largest_device_index_is_what_the_schema_can_hold() -> None:
    schema = resources.files("executorch.exir._serialize") / "program.fbs"
    found = re.search(r"\bdevice_index\s*:\s*(\w+)", schema.read_text())
    assert found is not None
    assert 2 ** (SIGNED[found[1]] - 1) - 1 == labels.MAX_DEVICE_INDEX
    assert record.MAX_DEVICE_INDEX == labels.MAX_DEVICE_INDEX


@pytest.mark.parametrize(
    "target",
    [
        torch.ops.aten.add.Tensor,
        torch.ops.aten.add.out,
        edge_ops.edge.aten.add.Tensor,
        torch.ops.aten.add,
        torch.ops.higher_order.cond,
        operator.getitem,
        torch.relu,
    ],
    # not its repr, which may have an address in it: workers of a parallel run would differ
    ids=lambda target: target.__name__,
)
def test_an_operator_has_one_name(target: Any) -> None:
    node = Graph().call_function(target)
    assert nodes.schema_name(target) == device_nodes.operator_name(node)


def test_a_delegate_asks_for_one_stream_by_one_key() -> None:
    ours, runtimes = (
        delegate_streams.SHARED_STREAM_COMPILE_SPEC_KEY,
        plan.NEEDS_SHARED_STREAM,
    )
    assert ours == runtimes
