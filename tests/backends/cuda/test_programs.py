"""What the backend takes, compiled here and run here: on a host without a GPU, through stand-ins.

The libraries themselves run on a GPU, from the same files: ``tests/gpu/cuda_programs.py``.
"""

from __future__ import annotations

import copy

import pytest
import torch

from torchtrt_executorch import runtime

from ...loading import load_file
from .conftest import needs_compilers, without_gpu

pytestmark = [needs_compilers, without_gpu]

models, programs = (
    load_file(f"tests/gpu/{name}.py") for name in ("cuda_models", "cuda_programs")
)

#: One of each kind: state over several calls, sizes, an LSTM and the pieces of a product, convolutions, two methods, Triton's attention.
NAMES = (
    "decoder-kv-cache-bf16",
    "mlp-dynamic-batch",
    "recurrent",
    "separable-fp16",
    "two-methods-bf16",
    "triton-attention-bf16",
)


@pytest.mark.parametrize("name", NAMES)
def test_a_program_computes_what_eager_does(name: str) -> None:
    (case,) = (case for case in models.CASES if case.name == name)
    built = programs.lower(case)
    data = [bytes(weights) for weights in built._tensor_data.values()]
    program = runtime.load(bytes(built.buffer), data, simulate_devices=True)
    modules, calls = case.build()
    with torch.no_grad():
        for method, each in calls.items():
            eager = copy.deepcopy(modules[method])
            for inputs in each:
                (result,) = program.method(method)(*inputs)
                torch.testing.assert_close(result, eager(*inputs), rtol=2e-2, atol=2e-2)
    assert len(program.stats().stand_ins) == len(modules)
