"""What the backend takes, compiled here and run here: on a host without a GPU, through stand-ins.

The libraries themselves run on a GPU, from the same files: ``tests/gpu/cuda_programs.py``.
"""

from __future__ import annotations

import copy
import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torchtrt_executorch import runtime

from .conftest import needs_compilers

pytestmark = [
    needs_compilers,
    pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU"),
]

GPU_TESTS = Path(__file__).resolve().parents[2] / "gpu"


def _load(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, GPU_TESTS / f"{name}.py")
    assert spec is not None and spec.loader is not None
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


models, programs = _load("cuda_models"), _load("cuda_programs")

#: One of each kind: state over several calls, sizes, convolutions, two methods, Triton's attention.
NAMES = (
    "decoder-kv-cache-bf16",
    "mlp-dynamic-batch",
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
