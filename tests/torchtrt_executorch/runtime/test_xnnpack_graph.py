"""How many inputs XNNPACK's payloads take is read in their bytes."""

from __future__ import annotations

import pytest
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir.lowered_backend_module import get_lowered_submodules
from torch import Tensor, nn
from torch.export import Dim

from torchtrt_executorch.runtime.reading.xnnpack_graph import count_inputs

from ...lowering import assert_same_as_eager, lower


class Recognizer(nn.Module):
    """A text recognizer's end: what a delegate returns takes the memory of what another value had."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, 16, 3, 2, 1)
        self.lstm = nn.LSTM(16, 8, bidirectional=True, batch_first=True)
        self.last = nn.Linear(16, 11)

    def forward(self, x: Tensor) -> Tensor:
        x = nn.functional.adaptive_max_pool2d(self.first(x), (1, 16))
        x = self.lstm(x.squeeze(2).transpose(1, 2))[0]
        return self.last(x).log_softmax(-1)


@torch.no_grad()
def test_inputs_are_told_from_outputs() -> None:
    model, x = Recognizer().eval(), torch.randn(2, 1, 16, 32)
    shapes = ({0: Dim("batch", min=1, max=8)},)
    edge = lower(model, (x,), XnnpackPartitioner(), dynamic_shapes=shapes)
    delegates = get_lowered_submodules(edge.exported_program().graph_module)
    assert len(delegates) > 2
    for _, module, call in delegates:
        payload = memoryview(module.processed_bytes)
        assert count_inputs(payload) == len(call.args) - 1
        for end in (0, 7, 20, 60):
            assert count_inputs(payload[:end]) is None
    calls = [(torch.randn(batch, 1, 16, 32),) for batch in (2, 1, 8)]
    assert_same_as_eager(edge, model, *calls)


@pytest.mark.parametrize("junk", [b"", b"XH00", bytes(64), b"\xff" * 64])
def test_junk_tells_nothing(junk: bytes) -> None:
    assert not count_inputs(memoryview(junk))
