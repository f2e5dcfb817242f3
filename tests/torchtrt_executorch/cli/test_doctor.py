"""``torchtrt-executorch doctor``: what it says of environments in which something isn't installed."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.cli.doctor import TENSORRT_RTX_RELEASES
from torchtrt_executorch.nogpu.builder.installed import TENSORRT_RTX, installed_builder
from torchtrt_executorch.nogpu.target.gpu_description import own_platform
from torchtrt_executorch.overlay.patch import State

from ... import pruned
from ...loading import ROOT, load_file

#: Without CUDA's toolkit, what the commands say in a process of its own.
REPORTS = """
import pathlib, sys
from torchtrt_executorch.nogpu.cross import requirements
requirements.TOOLKIT = pathlib.Path("/no/toolkit")
from torchtrt_executorch.cli import app
for command in sys.argv[1:]:
    assert not app(command.split(), standalone_mode=False)
    print("and")
"""

#: The same on a device: its GPU, and its platform.
ON_DEVICE = """
import os, sys, torch
import torchtrt_executorch.cli.doctor
from torchtrt_executorch.nogpu.host import present
present.cuda_device = lambda: True
torch.cuda.get_device_capability = lambda: (9, 0)
own = lambda: os.environ["PLATFORM"]
sys.modules["torchtrt_executorch.cli.doctor"].own_platform = own
"""

HERE, OTHERS = (
    f"CUDA libraries, {own_platform()}",
    "CUDA libraries, linux-aarch64, windows-x86_64",
)
ENGINES, EMULATED = "TensorRT-RTX engines", "emulated engines, to be built there"
PROGRAM, HOST = "a program for ExecuTorch", "a C++ host"

pytestmark = pytest.mark.skipif(
    own_platform() != "linux-x86_64"
    or not all(map(importlib.util.find_spec, ("triton", "nvidia", "ziglang"))),
    reason="pip install torchtrt-executorch[cuda,cross]",
)


def _reports(
    folder: Path,
    without: tuple[str, ...],
    *commands: str,
    path: str = "",
    platform: str = "",
) -> list[str]:
    python = pruned.environment(folder, *without)
    env = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA", "PYTHON"))}
    env |= {"COLUMNS": "400", "PATH": path or "/usr/bin:/bin", "PLATFORM": platform}
    command = [python, "-c", (ON_DEVICE if platform else "") + REPORTS, *commands]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.split("\nand\n")[:-1]


def _rows(report: str) -> dict[str, Any]:
    return {row["what"]: row for row in json.loads(report)}


#: Beginnings of distributions' names; what can't be done without; what the command that is told has in it.
MISSING: dict[str, tuple[tuple[str, ...], set[str], str]] = {
    "Triton": (("triton",), {HERE, OTHERS}, r"\[cuda\]\" triton=="),
    "CUDA's headers": (("nvidia",), {HERE, OTHERS}, r"\[cuda\]"),
    "zig": (("ziglang",), {OTHERS}, r"\[cross\]"),
    "executorch": (("executorch",), {PROGRAM, "XNNPACK's delegates", HOST}, "pip install executorch=="),
    "Torch-TensorRT": (
        ("torch-tensorrt", "tensorrt"),
        {ENGINES, EMULATED},
        "pip install --no-deps torch-tensorrt-rtx==",
    ),
    "TensorRT-RTX": (
        ("tensorrt-rtx",),
        {ENGINES, EMULATED},
        "pip install --no-deps torch-tensorrt-rtx==.* tensorrt-rtx-cu13-libs==",
    ),
    "transformers": (("transformers",), {"export and generate"}, r"\[transformers\]"),
    "torchao": (("torchao",), {"quantized models"}, "pip install torchao=="),
    "jinja2": (("jinja2",), {"inspect --html"}, "pip install jinja2"),
}  # fmt: skip


@pytest.mark.parametrize("what", MISSING)
def test_what_is_not_installed_is_said_with_one_command(
    what: str, tmp_path: Path
) -> None:
    without, lost, installs = MISSING[what]
    if what == "TensorRT-RTX" and installed_builder() is not TENSORRT_RTX:
        pytest.skip("needs TensorRT-RTX, to do without")
    everything, words = _reports(tmp_path / "venv", without, "doctor --json", "doctor")
    rows = _rows(everything)
    with_all = {n for n, r in _here().items() if r["can"]}
    assert {n for n, r in rows.items() if not r["can"]} & with_all == lost & with_all
    for name in lost & {*rows}:
        assert re.search(installs, rows[name]["command"]), rows[name]
        assert rows[name]["about"]
        assert words.count(rows[name]["command"]) == 1, words
    assert all("\n" not in row["command"] for row in rows.values())


def _here() -> dict[str, Any]:
    return _rows(CliRunner().invoke(app, ["doctor", "--json"]).stdout)


def test_without_pytorch_it_says_what_comes_first(tmp_path: Path) -> None:
    (report,) = _reports(tmp_path / "venv", ("torch",), "doctor --json")
    rows = _rows(report)
    assert not any(row["can"] for row in rows.values() if row["kind"] == "build")
    assert rows[PROGRAM]["about"] == "PyTorch is missing"
    assert rows["a .pte in Python"]["command"].startswith("pip install torch==")


def test_without_a_compiler(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    commands, path = ("doctor --json", "status --json"), str(tmp_path / "bin")
    report, status = _reports(tmp_path / "venv", (), *commands, path=path)
    rows = _rows(report)
    assert "g++" in rows[HERE]["about"]
    assert "apt-get install g++" in rows[HERE]["command"]
    assert rows[OTHERS]["can"]
    assert rows[HOST]["command"] == "apt-get install cmake g++"
    states = {row["name"]: row["state"] for row in json.loads(status)["patches"]}
    assert states["cuda-without-gpu"] == "incomplete"


@pytest.mark.parametrize("without", [("triton", "nvidia"), ("ziglang",)])
def test_status_and_targets_agree_with_it(
    without: tuple[str, ...], tmp_path: Path
) -> None:
    commands = "doctor --json", "targets --json", "status --json"
    doctor, machines, status = _reports(tmp_path / "venv", without, *commands)
    rows = _rows(doctor)
    for row in json.loads(machines):
        own = row["target"].startswith(own_platform())
        assert (row["libraries"] == "yes") == rows[HERE if own else OTHERS]["can"]
    states = {row["name"]: row["state"] for row in json.loads(status)["patches"]}
    complete = State.IN_FORCE.value if rows[HERE]["can"] else "incomplete"
    assert states["cuda-without-gpu"] == states["cuda-operators"] == complete
    triton = f"triton=={importlib.metadata.version('triton')}"
    assert (triton in rows[HERE]["command"]) == ("triton" in without)


@pytest.mark.parametrize("platform", ["linux-x86_64", "linux-aarch64"])
@pytest.mark.parametrize("libraries", [True, False])
def test_on_a_device_it_advises_what_the_device_can_have(
    libraries: bool, platform: str, tmp_path: Path
) -> None:
    without = ("torch-tensorrt", *(() if libraries else ("tensorrt",)))
    (report,) = _reports(tmp_path / "venv", without, "doctor --json", platform=platform)
    rows = _rows(report)
    rtx, standard = rows["TensorRT-RTX's engines"], rows["TensorRT's engines"]
    is_rtx = installed_builder() is TENSORRT_RTX
    assert rtx["can"] == (libraries and is_rtx)
    assert rtx["can"] or "tensorrt-rtx-cu13-libs==" in rtx["command"]
    assert "torch-tensorrt-rtx" not in rtx["command"]
    if not libraries:
        assert not standard["can"]
        assert standard["command"].startswith("pip install torch-tensorrt==")
    built = rows["TensorRT engines"]
    assert not built["can"] and built["about"]
    assert built["command"].startswith("pip install torch-tensorrt==")
    if platform == "linux-aarch64":
        assert not rows[ENGINES]["command"], "there is no wheel"
        assert rows[EMULATED]["command"] == built["command"]
    else:
        assert "torch-tensorrt-rtx==" in rows[ENGINES]["command"]
    assert not any("torchtrt-executorch" in r["command"] for r in rows.values())


def test_what_builds_on_the_device_is_not_uninstalled(tmp_path: Path) -> None:
    (report,) = _reports(
        tmp_path / "venv", (), "doctor --json", platform=own_platform()
    )
    assert not any("uninstall" in row["command"] for row in _rows(report).values())


def test_here() -> None:
    rows = _here()
    assert {row["kind"] for row in rows.values()} == {"build", "run", "check"}
    assert rows[PROGRAM]["can"] and rows["run --compare"]["can"]
    if installed_builder() is TENSORRT_RTX:
        assert rows[ENGINES]["about"].startswith("for sm_75, ")
    assert rows[HOST]["can"] == (
        shutil.which("cmake") is not None
        and shutil.which("g++") is not None
        and importlib.metadata.version("executorch") >= "1.5"
    )
    if "executorch" in rows[HOST]["about"]:  # the one that exports here stays
        assert "--target" in rows[HOST]["command"]
    said = CliRunner().invoke(app, ["doctor"], env={"COLUMNS": "400"}).output
    assert all(name in said for name in rows)


def test_releases_are_those_of_the_lanes() -> None:
    pins = load_file("tools/environment.py").pins
    lanes = [pins(ROOT / "constraints" / f"{n}.txt") for n in ("2.13-rtx", "2.14-rtx")]
    assert {
        ".".join(lane["torch"].split(".")[:2]): (
            lane["torch-tensorrt-rtx"],
            lane["tensorrt-rtx-cu13"],
        )
        for lane in lanes
    } == TENSORRT_RTX_RELEASES
