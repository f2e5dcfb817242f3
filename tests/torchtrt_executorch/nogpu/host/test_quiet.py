"""What a plain compile, export and run says on a host without a GPU, and what it doesn't."""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest
import torch

from torchtrt_executorch.nogpu import host
from torchtrt_executorch.nogpu.builder import installed
from torchtrt_executorch.nogpu.host import present, quiet

from .... import fresh

PLAIN = """
import sys
import torch, torch_tensorrt
from torchtrt_executorch import emulated_engines, runtime

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.nonzero(torch.relu(x) * 2 > 1)

x = torch.randn(4, 8)
with emulated_engines():
    compiled = torch_tensorrt.compile(
        Model().eval(), ir="dynamo", arg_inputs=[x], min_block_size=1, target_executorch=True
    )
edge = torch_tensorrt.executorch.export(compiled, arg_inputs=[x])
edge.to_executorch().save(sys.argv[1])
runtime.load(sys.argv[1], emulated_engines=True).run(x)
"""

ALONE = """
import torch
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

program = torch.export.export(torch.nn.Linear(8, 8), (torch.randn(4, 8),))
to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
"""


def said(
    folder: Path,
    program: str = PLAIN,
    run: Callable[..., fresh.Done] = fresh.python,
    **environment: str,
) -> list[str]:
    """What the program prints, lines without anything left out."""
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": "", **environment}
    if sys.version_info[:3] == (3, 13, 0):  # which PyTorch has something against
        env["PYTHONWARNINGS"] = "ignore:Guards may run slower:RuntimeWarning"
    done = run(program, str(folder / "model.pte"), env=env, once=True)
    assert done.returncode == 0, done.stderr
    return [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]


@pytest.mark.skipif(torch.cuda.is_available(), reason="a host with a GPU is not quiet")
def test_a_plain_program(tmp_path: Path) -> None:
    """Only what is the user's business is left: that the engines are emulated.

    And what TensorRT's own logger says, which is none of Python's.
    """
    lines = [line for line in said(tmp_path) if "[TRT]" not in line]
    for problem in installed.problems():  # of releases that aren't made for each other
        (at,) = (i for i, line in enumerate(lines) if problem in line)
        del lines[at : at + 2]
    assert all("emulated" in line.lower() for line in lines), lines
    noisy = said(tmp_path, run=fresh.run, **{quiet.VARIABLE: "1"})
    assert len(noisy) >= len(lines) + 5
    # 2.13 is known to say it of tree specs in this program; other lanes say it of something.
    word = "treespec" if version("torch").startswith("2.13.") else ""
    assert any(word in line and "is deprecated" in line for line in noisy)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a host with a GPU is not quiet")
def test_executorch_alone(tmp_path: Path) -> None:
    assert not said(tmp_path, ALONE)


CONVERTERS = "torch_tensorrt.dynamo.conversion.aten_ops_converters"


@pytest.mark.parametrize(
    ("name", "message", "heard"),
    [
        ("torchao", "Failed to load /a/_C.abi3.so: Could not load this library", False),
        ("torchao", "quantization went wrong", True),
        ("torch.utils._pytree", "something else about Enum", True),
        (CONVERTERS, "Unable to import quantize op. Please install modelopt library", False),
        (CONVERTERS, "Unable to convert", True),
    ],
)  # fmt: skip
def test_the_rest_is_heard(
    name: str, message: str, heard: bool, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger(name)
    before = list(logger.filters)
    try:
        with warnings.catch_warnings():
            quiet.quieten()
            quiet.quieten()
        assert len(logger.filters) - len(before) in (0, 1)
        logger.addHandler(caplog.handler)
        logger.warning(message)
        assert (message in caplog.text) == heard
    finally:
        logger.removeHandler(caplog.handler)
        logger.filters[:] = before


def test_other_warnings_are_heard() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        quiet.quieten()
        known = "var_to_val is deprecated, use backed_var_to_val"
        warnings.warn(known, FutureWarning, 1)
        warnings.warn(known, UserWarning, 1)
        warnings.warn("something is deprecated", FutureWarning, 1)
    assert [str(each.message)[:9] for each in caught] == ["var_to_va", "something"]


@pytest.mark.parametrize("gpu", [True, False])
def test_only_without_a_gpu(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before an import, and for as long as a host is completed."""
    called: list[bool] = []
    for name in ("cuda_device", "cuda_device_listed"):
        monkeypatch.setattr(present, name, lambda: gpu)
    monkeypatch.setattr(present, "tensorrt_libraries", lambda: True)
    monkeypatch.setattr(quiet, "quieten", lambda: called.append(True))
    quiet.prepare("executorch.exir")
    assert bool(called) != gpu
    called.clear()
    with host.complete_host(sys):  # type: ignore[arg-type]
        assert bool(called) != gpu
