"""What plans say about the GPUs that they are for, beside what the builder was asked for."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.payloads.engine_header import origin, targets

from ...lowering import lower_engines

DEFAULT = ("sm_80", "sm_86", "sm_89", "sm_120", "sm_121", "sm_121+")


def plan(*names: str) -> bytes:
    """A plan of one activation, for the compute capabilities ``names``; by default all."""
    trt: Any = pytest.importorskip(
        "tensorrt_rtx", reason="needs torch-tensorrt-rtx, and a host without a GPU"
    )
    builder = trt.Builder(trt.Logger(trt.Logger.ERROR))
    network = builder.create_network(0)
    x = network.add_input("x", trt.float32, (2, 3))
    out = network.add_activation(x, trt.ActivationType.RELU).get_output(0)
    network.mark_output(out)
    config = builder.create_builder_config()
    if names:
        config.num_compute_capabilities = len(names)
        for index, name in enumerate(names):
            member = trt.ComputeCapability.__members__[name]
            config.set_compute_capability(member, index)
    return bytes(builder.build_serialized_network(network, config))


@pytest.fixture(autouse=True)
def known() -> None:
    version = origin(plan()).version
    if not version.startswith(("1.5.", "1.6.", "1.7.")):
        assert targets(plan()) is None  # said to be unknown, and not guessed
        pytest.skip(f"where TensorRT-RTX {version} says its targets is not known")


@pytest.mark.parametrize(
    "names",
    [("SM75",), ("SM80",), ("SM86",), ("SM89",), ("SM120",), ("SM121",), ("SM75", "SM89")],
    ids="+".join,
)  # fmt: skip
def test_what_was_asked_for(names: tuple[str, ...]) -> None:
    expected = tuple(name.replace("SM", "sm_") for name in names)
    assert targets(plan(*names)) == expected


def test_most_by_default() -> None:
    assert targets(plan()) == DEFAULT


def test_advice_for_a_gpu() -> None:
    edge = lower_engines(lambda x: torch.relu(x) * 2, [torch.randn(4, 8)])
    facts = read(bytes(edge.to_executorch().buffer))
    assert facts.methods[0].delegates[0].gpus == DEFAULT
    for gpu in ("sm_86", "sm_130", None, "sm_87", "sm_75"):
        found = [each.name for each in advise(facts, gpu)]
        assert ("gpu" in found) == (gpu in ("sm_87", "sm_75"))
