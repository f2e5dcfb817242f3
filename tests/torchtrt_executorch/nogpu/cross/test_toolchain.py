"""What the extra brings is enough: CUDA's headers and programs from PyPI, with no toolkit."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from torchtrt_executorch.nogpu.cross import toolchain
from torchtrt_executorch.payloads.cuda_library import capabilities

from ....backends.cuda.conftest import delegates, needs_compilers

pytestmark = pytest.mark.builds


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The folder in site-packages, with no toolkit beside it and nothing compiled before."""
    found = [f for f in toolchain.folders() if "site-packages" in f.parts]
    if not found:
        pytest.skip("CUDA's headers are not installed from PyPI")
    monkeypatch.setattr(toolchain, "folders", lambda: iter(found))
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    return found[0]


@needs_compilers
@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_the_headers_of_the_extra_are_enough(
    lower: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[str] = []
    start = subprocess.Popen.__init__

    def noted(self: Any, args: Any, *others: Any, **kwargs: Any) -> None:
        commands.append(args if isinstance(args, str) else " ".join(map(str, args)))
        start(self, args, *others, **kwargs)

    monkeypatch.setattr(subprocess.Popen, "__init__", noted)
    x = torch.ones(4, 6)
    (delegate,) = delegates(lower(torch.nn.Softplus(), (x,), gpu="sm_87:16GiB"))
    assert capabilities(delegate.library) == ["sm_87", "compute_87"]
    compiled = [command for command in commands if "wrapper.cpp" in command]
    assert any(f"{home}/include" in command for command in compiled)
    assert any(command.startswith(f"{home}/bin/fatbinary") for command in commands)
    assert not [command for command in commands if "/usr/local/cuda" in command]
