"""A file for a Jetson with one thing wrong in its bytes: ``inspect --target`` finds it, and nothing else."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from torchtrt_executorch.cli import app

from ...torchtrt_executorch.nogpu.cross.test_cross_targets import Model, needs_zig
from .conftest import needs_compilers

pytestmark = [needs_compilers, needs_zig, pytest.mark.slow, pytest.mark.timeout(3000)]

JETSON = "linux-aarch64:sm_87:16GiB"
_FAT = struct.pack("<I", 0xBA55ED50)


@pytest.fixture(scope="module")
def made(lower: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Path:
    inputs = torch.randn(8, 64), torch.randn(8, 48)
    folder = tmp_path_factory.mktemp("jetson")
    manager = lower(Model(torch.float32), inputs, gpu=JETSON)
    manager.to_executorch().save(folder / "model.pte")
    return folder / "model.pte"


def named(old: bytes, new: bytes) -> Callable[[bytearray], None]:
    """Replace a name in the library's table."""

    def change(data: bytearray) -> None:
        at = data.index(b"\0%s\0" % old) + 1
        data[at : at + len(old)] = new

    return change


def other_processor(data: bytearray) -> None:
    library = data.index(b"\x7fELF\x02\x01")
    struct.pack_into("<H", data, library + 18, 62)  # EM_X86_64


def other_gpu(data: bytearray) -> None:
    """Machine code and assembly for 9.0 in the place of 8.7."""
    for cubin in re.finditer(rb"\x7fELF\x02\x01\x01[\x33\x41]", bytes(data)):
        at = cubin.start() + 0x30
        (flags,) = struct.unpack_from("<I", data, at)
        struct.pack_into("<I", data, at, int(f"{flags:08x}".replace("57", "5a"), 16))
    for fat in re.finditer(re.escape(_FAT), bytes(data)):
        header, size = struct.unpack_from("<HQ", data, fat.start() + 6)
        at, end = fat.start() + header, fat.start() + header + size
        while at < end:
            struct.pack_into("<I", data, at + 28, 90)
            header, size = struct.unpack_from("<IQ", data, at + 4)
            at += header + size


def other_header(data: bytearray) -> None:
    """Machine code for 8.7 as it was, in a fat binary that says 9.0."""
    for fat in re.finditer(re.escape(_FAT), bytes(data)):
        (header,) = struct.unpack_from("<H", data, fat.start() + 6)
        struct.pack_into("<I", data, fat.start() + header + 28, 90)


def more_shared_memory(data: bytearray) -> None:
    """A launch that asks for 256 KiB, in the record behind its kernel."""
    at = data.index(b"torchtrt kernel\1")
    struct.pack_into("<I", data, at + 16, 256 << 10)


def found(program: Path, target: str = JETSON) -> tuple[int, set[str]]:
    """The exit status of ``inspect --strict``, and the warnings."""
    command = ["inspect", str(program), "--target", target, "--strict", "--json"]
    result = CliRunner().invoke(app, command)
    findings = json.loads(result.stdout)["findings"]
    warnings = {each["name"] for each in findings if each["level"] == "warning"}
    assert all(each["advice"] for each in findings)
    return result.exit_code, warnings


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("platform", other_processor),
        ("shim", named(b"aoti_torch_get_data_ptr", b"aoti_torch_get_data_pty")),
        ("glibc", named(b"GLIBC_2.17", b"GLIBC_2.77")),
        ("library", named(b"libdl.so.2", b"libxx.so.2")),
        ("damaged", other_gpu),
        ("damaged", other_header),
        ("damaged", more_shared_memory),
    ],
)
def test_it_is_found(
    made: Path, tmp_path: Path, name: str, change: Callable[[bytearray], None]
) -> None:
    data = bytearray(made.read_bytes())
    change(data)
    (tmp_path / "model.pte").write_bytes(data)
    for weights in made.parent.glob("*.ptd"):
        (tmp_path / weights.name).write_bytes(weights.read_bytes())
    assert found(tmp_path / "model.pte") == (1, {name})


def test_nothing_else_is(made: Path) -> None:
    assert found(made) == (0, set())


@pytest.mark.parametrize(
    ("target", "name"),
    [("windows-x86_64:sm_87:16GiB", "platform"), ("linux-aarch64:sm_72:16GiB", "gpu")],
)
def test_another_machine(made: Path, target: str, name: str) -> None:
    assert found(made, target) == (1, {name})


def test_weights_that_are_missing(made: Path, tmp_path: Path) -> None:
    (tmp_path / "model.pte").write_bytes(made.read_bytes())
    assert "missing-data" in found(tmp_path / "model.pte")[1]
