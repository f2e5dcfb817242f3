"""Random models, compiled, exported and run as a ``.pte``, beside eager over several calls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch_tensorrt
from hypothesis import given, settings
from torch_tensorrt import _features

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.runtime import load

from .models import Case, cases, tensors

pytestmark = pytest.mark.skipif(
    _features.ENABLED_FEATURES.torch_tensorrt_runtime,
    reason="emulated engines need the Python-only mode",
)
CALLS = 3


def operator_name(name: str) -> str:
    return f"torch.ops.aten.{name}" if "." in name else f"torch.ops.aten.{name}.default"


def check(case: Case) -> None:
    """Compile, export and run a model; each result as eager's, call by call."""
    eager = case.model()

    def compare(run: Any, wanted: list[list[torch.Tensor]], stage: str) -> None:
        for call in range(CALLS):
            args, keywords = case.inputs(call)
            torch.testing.assert_close(
                tensors(run(*args, **keywords)),
                wanted[call],
                rtol=1e-4,
                atol=1e-4,
                msg=lambda text, call=call: f"{stage}, call {call}: {text}",
            )

    with emulated_engines(), torch.no_grad():
        args, keywords = case.inputs(0)
        program = torch.export.export(case.model(), args, keywords)
        compiled = torch_tensorrt.dynamo.compile(
            program,
            arg_inputs=args,
            kwarg_inputs=keywords,
            min_block_size=1,
            target_executorch=True,
            use_fast_partitioner=case.fast,
            torch_executed_ops={operator_name(name) for name in case.in_pytorch},
        )
        options = {"arg_inputs": args, "kwarg_inputs": keywords, "retrace": True}
        edge = torch_tensorrt.executorch.export(
            compiled, allow_no_engine=True, **(options if case.retrace else {})
        )
        pte = load(edge.to_executorch().buffer)
        wanted = []
        for call in range(CALLS):
            given, named = case.inputs(call)
            wanted.append(tensors(eager(*given, **named)))
        compare(lambda *a, **k: pte.run(*tensors((a, k))), wanted, "pte")
        compare(compiled, wanted, "compiled")


@given(cases)
@settings(max_examples=4, derandomize=True)
def test_a_few(case: Case) -> None:
    check(case)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(5))  # each some minutes
@given(case=cases)
@settings(max_examples=30)
def test_many(part: int, case: Case) -> None:
    check(case)
