"""CUDA delegates for other operating systems and processors, loaded there and watched.

The library of each machine is loaded on it, by qemu and wine, over libraries that stand in for CUDA's and
ExecuTorch's and write down what they are asked: images by digest, kernels, grids, blocks, shared memory,
the bytes of every argument, weights. That has to be what this machine's own library asks.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import resource
import subprocess
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from torchtrt_executorch.nogpu.target.gpu_description import PLATFORMS, own_platform
from torchtrt_executorch.payloads import native_library
from torchtrt_executorch.payloads.cuda_library import capabilities

from ....backends.cuda.conftest import delegates, needs_compilers
from . import cross_machines as machines

needs_zig = pytest.mark.skipif(
    not importlib.util.find_spec("ziglang"),
    reason="compiled by zig: pip install torchtrt-executorch[cross]",
)


class Model(torch.nn.Module):
    """Two kernels, a value between them, and two outputs."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 48, dtype=dtype)
        self.down = torch.nn.Linear(48, 32, dtype=dtype)

    def forward(
        self, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.relu(self.up(x)) + y
        return torch.softmax(self.down(hidden), -1), hidden.sum(0)


@needs_compilers
@needs_zig
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str
)
def test_another_machine_s_library_asks_for_the_same(
    lower: Callable[..., Any], dtype: torch.dtype
) -> None:
    rows = torch.export.Dim("rows", max=512)
    inputs = torch.randn(8, 64, dtype=dtype), torch.randn(8, 48, dtype=dtype)
    model = Model(dtype)
    said, shapes = {}, ({0: rows}, {0: rows})
    for platform in sorted(PLATFORMS, key=lambda each: each != own_platform()):
        gpu = f"{platform}:sm_89:8GiB"
        (delegate,) = delegates(lower(model, inputs, dynamic_shapes=shapes, gpu=gpu))
        found = native_library.read(delegate.library)
        assert found.platform == platform
        own = found.glibc is None or platform == own_platform()
        assert own or found.glibc <= (2, 28)
        assert capabilities(delegate.library) == ["sm_89", "compute_89"]
        if machines.can_run(platform):
            given = [machines.described((24, width), dtype) for width in (64, 48)]
            loaded = machines.Loaded(delegate.library, delegate.weights, tuple(given))
            said[platform] = machines.recorded(platform, loaded)
    if len(said) < 2:
        missing = "qemu-user-static with libc6-arm64-cross nor wine is installed"
        pytest.skip(f"neither {missing}")
    first, *others = said.values()
    assert "cuLaunchKernel" in first and "sha256" in first
    for other in others:
        assert other.splitlines() == first.splitlines()
    launches = first.count("cuLaunchKernel")
    print(f"{dtype}: {launches} launches compared on {', '.join(said)}")


@needs_zig
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_compiler_identifies_itself(platform: str, tmp_path: Path) -> None:
    """Each way in which Inductor asks for it: with zig 0.15 none was answered for Linux."""
    from torch._inductor import config, cpp_builder

    from torchtrt_executorch.nogpu.cross import compiler

    program = str(compiler.find(platform, lambda: tmp_path).program)
    with config.patch({"cpp.cxx": (program,)}):
        assert cpp_builder.get_cpp_compiler() == program
        # What they remember is of this process's own compiler.
        assert cpp_builder.is_clang.__wrapped__()
        assert not cpp_builder.is_gcc.__wrapped__()
    release = importlib.metadata.version("ziglang").partition(".post")[0]
    told = cpp_builder.get_compiler_version_info(program)
    assert release in told and "error" not in told
    for question in ("--version", "-v", "-dumpversion"):
        asked = subprocess.run(
            [program, question], capture_output=True, text=True, check=True
        )
        assert release in asked.stdout and not asked.stderr


@pytest.mark.parametrize(
    "platform", [each for each in PLATFORMS if each != own_platform()]
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    from torchtrt_executorch.nogpu.cross import compiler
    from torchtrt_executorch.nogpu.cross.requirements import CROSS

    monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(compiler.NoCrossCompilerError) as raised:
        compiler.find(platform, lambda: Path("/nowhere"))
    assert platform in str(raised.value) and CROSS in str(raised.value)


def test_a_compiler_that_there_is_no_room_for_is_not_left_in_part(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from torchtrt_executorch.nogpu.cross import compiler

    def find(said: str) -> Path:
        spec = SimpleNamespace(origin=f"/{said}/__init__.py")
        monkeypatch.setattr(compiler.importlib.util, "find_spec", lambda name: spec)
        return compiler.find("linux-aarch64", lambda: tmp_path).program

    there = find("zig").read_bytes()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(there) // 2, before[1]))
    try:
        with pytest.raises(OSError):
            find("another")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    left = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert left == [there]
    program = find("another")
    assert b"another" in program.read_bytes() and os.access(program, os.X_OK)
    assert find("zig").read_bytes() == there  # each environment has its own
    assert b"another" in program.read_bytes()


def test_a_gpu_of_jetsons_in_a_library_for_this_machine() -> None:
    """It is compiled, as it was asked for, and said to be of no use."""
    from executorch.backends.cuda.tuning.gpu_properties import properties

    from torchtrt_executorch.nogpu.cuda_backend import cross_compiler
    from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription

    if own_platform().endswith("aarch64"):
        pytest.skip("this machine may be one")
    with pytest.warns(RuntimeWarning, match="linux-aarch64:sm_87"):
        assert cross_compiler(properties(GpuDescription.parse("sm_87:16GiB"))) is None
