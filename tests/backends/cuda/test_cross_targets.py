"""CUDA delegates for other operating systems and processors, loaded there and watched.

The library of each machine is loaded on it, by qemu and wine, over libraries that stand in for CUDA's and
ExecuTorch's and write down what they are asked: images by digest, kernels, grids, blocks, shared memory,
the bytes of every argument, weights. That has to be what this machine's own library asks.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from executorch.backends.cuda import _cross_driver

from torchtrt_executorch import cache, native_library
from torchtrt_executorch.cuda_library import capabilities
from torchtrt_executorch.host.described_gpu import PLATFORMS, own_platform

from .conftest import delegates, needs_compilers

SOURCES = Path(__file__).parent / "cross"
SYSROOT = "/usr/aarch64-linux-gnu"
#: What runs a program there, and what has to be installed for it.
MACHINES = {
    "linux-x86_64": ([], "true"),
    "linux-aarch64": (["qemu-aarch64-static", "-L", SYSROOT], "qemu-aarch64-static"),
    "windows-x86_64": (["wine"], "wine"),
}
PARTS = {
    "linux": {
        "CUDART": "libcudart.so.13",
        "CUDA": "libcuda.so.1",
        "SHIMS": "libaoti_cuda_shims.so",
    },
    "windows": {
        "CUDART": "cudart64_13.dll",
        "CUDA": "nvcuda.dll",
        "SHIMS": "aoti_cuda_shims.dll",
    },
}
NUMBERS = {torch.float32: 6, torch.float16: 5, torch.bfloat16: 15}

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


def driver(platform: str, *arguments: str) -> None:
    """The compiler that delegates are compiled with, as a user's cache has it."""
    import ziglang

    zig = Path(ziglang.__file__).with_name("zig")
    kept = cache.folder() / "cross"
    assert not _cross_driver.main(str(zig), platform, str(kept), *arguments)


@pytest.fixture(scope="session")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a machine's recorder and loader."""
    made: dict[str, Path] = {}

    def build(platform: str) -> Path:
        if platform in made:
            return made[platform]
        folder = tmp_path_factory.mktemp(platform)
        import ziglang

        zig = str(Path(ziglang.__file__).with_name("zig"))
        system = platform.partition("-")[0]
        windows = system == "windows"
        target = _cross_driver.triple(platform)
        compiler = [zig, "cc", "-target", target, "-O1", "-Wno-everything"]
        environment = _cross_driver.caches(str(cache.folder() / "cross"))
        parts = PARTS[system]
        for part, name in parts.items():
            command = [
                *compiler,
                "-shared",
                f"-DPART_{part}",
                str(SOURCES / "recorder.c"),
            ]
            command += ["-o", str(folder / name), "-fno-sanitize=undefined"]
            if windows:
                command.append(f"-Wl,--out-implib,{folder / name}.a")
                command += [f"{folder / parts['CUDART']}.a"] if part == "SHIMS" else []
            else:
                command += ["-fPIC", f"-Wl,-soname,{name}"]
                command += [str(folder / parts["CUDART"])] if part == "SHIMS" else []
            subprocess.run(command, check=True, env=environment)
        loader = folder / ("loader.exe" if windows else "loader")
        command = [
            *compiler,
            "-fno-sanitize=undefined",
            str(SOURCES / "loader.c"),
            "-o",
            str(loader),
        ]
        subprocess.run(
            [*command, *([] if windows else ["-ldl"])], check=True, env=environment
        )
        made[platform] = folder
        return folder

    return build


def recorded(
    folder: Path, platform: str, library: bytes, weights: bytes, *inputs: str
) -> str:
    """What the library asks for when it is loaded, given its weights, and run once."""
    runner, _ = MACHINES[platform]
    windows = platform.startswith("windows")
    model = folder / ("model.dll" if windows else "libmodel.so")
    model.write_bytes(library)
    (folder / "weights").write_bytes(weights)
    log = folder / "log.txt"
    log.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "RECORDER_LOG": log.name,
        "WINEDEBUG": "-all",
        "WINEPREFIX": str(folder / "wine"),
        "DISPLAY": "",
    }
    command = list(runner)
    if platform == "linux-aarch64":
        command += ["-E", f"LD_LIBRARY_PATH={folder}"]
    elif not windows:
        environment["LD_LIBRARY_PATH"] = str(folder)
    command += [
        "./loader.exe" if windows else "./loader",
        f"./{model.name}",
        "./weights",
        *inputs,
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, (done.stderr, log.read_text() if log.exists() else "")
    return log.read_text().replace("\r\n", "\n")


@needs_compilers
@needs_zig
@pytest.mark.slow
@pytest.mark.timeout(3000)
@pytest.mark.parametrize("dtype", list(NUMBERS), ids=str)
def test_another_machine_s_library_asks_for_the_same(
    lower: Callable[..., Any], recorder: Callable[[str], Path], dtype: torch.dtype
) -> None:
    rows = torch.export.Dim("rows", max=512)
    inputs = torch.randn(8, 64, dtype=dtype), torch.randn(8, 48, dtype=dtype)
    model, number = Model(dtype), NUMBERS[dtype]
    said = {}
    for platform in [
        own_platform(),
        *(each for each in PLATFORMS if each != own_platform()),
    ]:
        manager = lower(
            model,
            inputs,
            dynamic_shapes=({0: rows}, {0: rows}),
            gpu=f"{platform}:sm_89:8GiB",
        )
        (delegate,) = delegates(manager)
        found = native_library.read(delegate.library)
        assert found.platform == platform
        assert (
            found.glibc is None or platform == own_platform() or found.glibc <= (2, 28)
        )
        assert capabilities(delegate.library) == ["sm_89", "compute_89"]
        if shutil.which(MACHINES[platform][1]):
            folder = recorder(platform)
            said[platform] = recorded(
                folder,
                platform,
                delegate.library,
                delegate.weights,
                f"{number},24,64",
                f"{number},24,48",
            )
    if len(said) < 2:
        pytest.skip(
            "neither qemu-user-static with libc6-arm64-cross nor wine is installed"
        )
    first, *others = said.values()
    assert "cuLaunchKernel" in first and "sha256" in first
    for other in others:
        assert other.splitlines() == first.splitlines()
    print(
        f"{dtype}: {first.count('cuLaunchKernel')} launches compared on {', '.join(said)}"
    )


@pytest.mark.parametrize(
    "platform", [each for each in PLATFORMS if each != own_platform()]
)
def test_what_is_missing_is_said(
    monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    from executorch.backends.cuda import _cross_compiler

    monkeypatch.setattr(_cross_compiler.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(_cross_compiler.NoCrossCompilerError) as raised:
        _cross_compiler.find(platform, lambda: Path("/nowhere"))
    assert platform in str(raised.value) and "[cross]" in str(raised.value)


def test_a_gpu_of_jetsons_in_a_library_for_this_machine() -> None:
    """It is compiled, as it was asked for, and said to be of no use."""
    from executorch.backends.cuda._gpu_properties import properties

    from torchtrt_executorch.host.described_gpu import DescribedGpu
    from torchtrt_executorch.patches.executorch.backends.cuda._cuda_backend_patch import (
        cross_compiler,
    )

    if own_platform().endswith("aarch64"):
        pytest.skip("this machine may be one")
    with pytest.warns(RuntimeWarning, match="linux-aarch64:sm_87"):
        assert cross_compiler(properties(DescribedGpu.parse("sm_87:16GiB"))) is None
