"""What all libraries have in common is compiled once, and makes them what they would be as a whole."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch._inductor import codecache

from torchtrt_executorch.nogpu.inductor import host_code

from ....backends.cuda.conftest import delegates, needs_compilers

pytestmark = [pytest.mark.builds, needs_compilers]


def symbols(library: bytes, file: Path) -> set[tuple[str, str]]:
    """Those that it has for others and wants of them, each with its kind."""
    file.write_bytes(library)
    listed = subprocess.run(
        ["nm", "-D", file], check=True, capture_output=True, text=True
    )
    rows = [line.split()[-2:] for line in listed.stdout.splitlines()]
    # Weak ones are templates, which the compiler puts where they are called or not.
    return {(kind, name) for kind, name in rows if kind in ("T", "U")}


@pytest.mark.skipif(torch.cuda.is_available(), reason="this host has a GPU")
def test_in_parts_as_whole(
    lower: Callable[..., Any],
    compiled: list[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    x = torch.ones(4, 6)
    lower(torch.nn.Softplus(), (x,), gpu="sm_87:16GiB")  # by whichever comes first
    compiled.clear()
    (parts,) = delegates(lower(torch.nn.SiLU(), (x,), gpu="sm_87:16GiB"))
    assert "own.wrapper.cpp" in compiled and "shared.cpp" not in compiled
    for kept in Path(codecache._HEADER_DIR).glob("*.o"):
        kept.write_bytes(b"")
    (anew,) = delegates(lower(torch.nn.SiLU(), (x,), gpu="sm_87:16GiB"))
    assert "shared.cpp" in compiled and anew.library == parts.library
    monkeypatch.setattr(host_code, "overrides", lambda: {})
    (whole,) = delegates(lower(torch.nn.SiLU(), (x,), gpu="sm_87:16GiB"))
    assert symbols(parts.library, tmp_path / "parts.so") == symbols(
        whole.library, tmp_path / "whole.so"
    )
    assert len(parts.library) < 1.1 * len(whole.library)


@pytest.mark.parametrize("name", ["other.wrapper.cpp", "kernel.cpp"])
def test_what_has_no_parts_is_compiled_whole(name: str, tmp_path: Path) -> None:
    (compile_command,) = host_code.overrides().values()
    source, output, header = (tmp_path / each for each in (name, "o.o", "h.h"))
    source.write_text("int three() { return 3; }\n")
    header.write_text("")
    compile_command(f"g++ {source} -include {header} -c -o {output}", str(tmp_path))
    assert output.stat().st_size > 0
    assert {each.name for each in tmp_path.iterdir()} == {name, "o.o", "h.h"}
