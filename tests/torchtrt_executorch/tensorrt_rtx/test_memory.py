"""A large engine that TensorRT-RTX built, from the compiled module to the blob."""

from __future__ import annotations

import sys

import pytest
import torch
import torch_tensorrt
from torch import nn

from ...lowering import compile_engines, delegates, engines
from ...memory import forget_peak, resident

pytestmark = pytest.mark.builds

SIZE = 512 << 20


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_lowering_peaks_below_two_copies() -> None:
    x = torch.ones(1, 8192)
    model = nn.Linear(8192, SIZE // 4 // 8192, bias=False).eval()
    compiled = compile_engines(model, [x])
    (name,) = engines(compiled)
    plan = compiled.get_submodule(name).serialized_engine
    size = len(plan)
    assert plan[:4] == b"vtrt" and size > SIZE
    del model, plan
    before = resident()
    forget_peak()
    edge = torch_tensorrt.executorch.export(compiled, arg_inputs=[x])
    peak = resident(peak=True) - before
    assert len(delegates(edge)[0].processed_bytes) > size
    assert peak < 2.2 * size, peak / size
