"""What takes a GPU says so, in one sentence; what doesn't is done."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch import nn
from torch.fx import GraphModule

from torchtrt_executorch.nogpu import stand_ins
from torchtrt_executorch.nogpu.host.building import NeedsGpuError

from ...lowering import compile_engines, engines

X = torch.linspace(-1, 1, 6).reshape(2, 3)


@pytest.fixture(scope="module")
def compiled() -> GraphModule:
    return compile_engines(nn.Linear(3, 4), [X], target_executorch=False)


def engine(compiled: GraphModule) -> Any:
    (name,) = engines(compiled)
    return compiled.get_submodule(name)


def refit(compiled: GraphModule) -> None:
    program = torch.export.export(nn.Linear(3, 4).eval(), (X,))
    torch_tensorrt.dynamo.refit_module_weights(compiled, program, arg_inputs=[X])


def capture(compiled: GraphModule) -> None:
    with torch_tensorrt.runtime.enable_cudagraphs(compiled) as captured:
        captured(X)


def build_for_refitting(compiled: GraphModule) -> None:
    settings = {"target_executorch": False, "immutable_weights": False}
    compile_engines(nn.Linear(3, 4), [X], **settings)


ACTIONS: dict[str, Callable[[GraphModule], object]] = {
    "profile": lambda compiled: engine(compiled).enable_profiling(),
    "layer information": lambda compiled: engine(compiled).get_layer_info(),
    "refit": refit,
    "capture": capture,
    "capture always": lambda _: torch_tensorrt.runtime.set_cudagraphs_mode(True),
    "build for refitting": build_for_refitting,
}


@pytest.mark.parametrize("action", ACTIONS)
def test_it_says_so(compiled: GraphModule, action: str) -> None:
    with pytest.raises(NeedsGpuError) as raised:
        ACTIONS[action](compiled)
    message = str(raised.value)
    assert "takes a GPU that TensorRT-RTX supports, and this host has none" in message
    assert "\n" not in message and message.count(". ") == 0


def test_turning_cuda_graphs_off_takes_none() -> None:
    torch_tensorrt.runtime.set_cudagraphs_mode(False)


def test_an_engine_from_elsewhere(compiled: GraphModule) -> None:
    """It is loaded, looked at and exported without a GPU, and not run."""
    buffer = io.BytesIO()
    torch.save(engine(compiled).state_dict(), buffer)
    plan = engine(compiled).serialized_engine
    kept = stand_ins.find(stand_ins.digest(plan))
    assert kept is not None
    stand_ins.forget(stand_ins.digest(plan))
    try:
        loaded = torch_tensorrt.runtime.TorchTensorRTModule()
        buffer.seek(0)
        loaded.load_state_dict(torch.load(buffer, weights_only=False))
        assert loaded.engine.serialized_engine == plan
        program = torch.export.export(loaded, (X,))
        with pytest.raises(NeedsGpuError, match="running an engine"):
            loaded(X)
    finally:
        stand_ins.keep(stand_ins.digest(plan), kept.program)
    # What stands in for it comes later, and is found all the same.
    torch.testing.assert_close(loaded(X), compiled(X))
    torch.testing.assert_close(program.module()(X), compiled(X))


def test_copies_find_the_stand_in(compiled: GraphModule) -> None:
    torch.testing.assert_close(copy.deepcopy(compiled)(X), compiled(X))


def test_a_mutable_module_builds_again_where_it_would_refit() -> None:
    first, second = nn.Linear(3, 4).eval(), nn.Linear(3, 4).eval()
    mutable = torch_tensorrt.MutableTorchTensorRTModule(
        first, min_block_size=1, immutable_weights=False
    )
    expected = second(X)
    mutable(X)
    mutable.load_state_dict(second.state_dict())
    torch.testing.assert_close(mutable(X), expected)
