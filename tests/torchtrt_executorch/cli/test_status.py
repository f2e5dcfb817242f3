"""``torchtrt-executorch status``, as a table and as JSON."""

from __future__ import annotations

import importlib.metadata
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import State, patch_status, patch_statuses

from ... import fresh
from ...without_torch_tensorrt import reason


def process(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "torchtrt_executorch.cli", "status", *options],
        env={**os.environ, "COLUMNS": "600", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def status(*options: str, **environment: str) -> str:
    """What it prints in a process of its own: this one has long engaged the overlay."""
    done = process(*options, **environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows(**environment: str) -> dict[str, Any]:
    return by_name(status("--json", **environment))


def by_name(report: str) -> dict[str, Any]:
    """Each patch's row by its name; all there is under the empty name."""
    found = json.loads(report)
    return {row["name"]: row for row in found["patches"]} | {"": found}


#: The report in both forms: most of what a process takes is to find out what it says.
BOTH = """
from torchtrt_executorch.cli import app
assert not app(["status", "--json"], standalone_mode=False)
print("and", flush=True)
assert not app(["status"], standalone_mode=False)
"""


def both(env: dict[str, str]) -> tuple[dict[str, Any], str]:
    """The rows, and the table."""
    done = fresh.python(BOTH, env={**env, "COLUMNS": "600"})
    assert done.returncode == 0, done.stderr
    report, _, table = done.stdout.partition("\nand\n")
    return by_name(report), table


def test_a_line_for_each_patch() -> None:
    """State, name, and why not, or what it does: in 80 columns."""
    lines = status(COLUMNS="80").splitlines()
    assert max(map(len, lines)) <= 80
    expected = patch_statuses(PATCHES)
    for patch in PATCHES:
        (line,) = [each for each in lines if f"  {patch.name}  " in each]
        here = expected[patch.name]
        assert line.startswith(here.state.value)
        words = line.partition(f"  {patch.name}  ")[2].strip().removesuffix("…")
        assert len(words) > 20 and (here.reason or patch.summary).startswith(words)
    assert f"torch: {importlib.metadata.version('torch')}" in lines
    assert not any("The overlay is off" in line for line in lines)
    assert any("sources let expect" in line for line in lines)


def test_all_about_every_patch() -> None:
    words = status("--verbose")
    for patch in PATCHES:
        assert patch.name in words
        assert patch.pull_request in words
        assert patch.kept_because in words
        assert all(module in words for module in patch.modules)
    assert State.IN_FORCE.value in words


def test_all_about_one_patch() -> None:
    first, other = PATCHES[0], PATCHES[-1]
    words = status(first.name, COLUMNS="80")
    assert words.startswith(f"{first.name}: ") and other.name not in words
    assert all(module in words for module in first.modules)
    assert max(map(len, words.splitlines())) <= 80
    (row,) = json.loads(status(first.name, "--json"))["patches"]
    assert row["name"] == first.name


def test_no_such_patch() -> None:
    done = process("nothing")
    assert done.returncode == 2
    assert "there is no patch 'nothing'" in done.stderr and "host" in done.stderr


def test_json_is_the_manifest_and_what_is_in_force() -> None:
    found, expected = rows(), patch_statuses(PATCHES)
    for patch in PATCHES:
        row, here = found[patch.name], expected[patch.name]
        assert (row["state"], row["reason"]) == (here.state.value, here.reason)
        assert row["pull_request"] == patch.pull_request
        assert row["modules"] == list(patch.modules)
        assert row["releases"] == dict(patch.releases)
        assert bool(row["reason"]) == (here.state is not State.IN_FORCE)
    installed = found[""]["installed"]
    assert installed["executorch"] == importlib.metadata.version("executorch")
    assert found[""]["active"] is True


def test_what_is_turned_off() -> None:
    name = next(p.name for p in PATCHES if patch_status(p).state is State.IN_FORCE)
    off = {"TORCHTRT_EXECUTORCH": "0", "TORCHTRT_EXECUTORCH_SKIP": name}
    found, words = both({**os.environ, **off})
    assert found[""]["active"] is False
    assert found[name]["state"] == "not applicable"
    assert "TORCHTRT_EXECUTORCH_SKIP" in found[name]["reason"]
    states = {row["state"] for row in found[""]["patches"]}
    assert State.IN_FORCE.value not in states and "off" in states
    assert "The overlay is off: TORCHTRT_EXECUTORCH=0" in words


def test_pytorch_calls_no_plug_ins() -> None:
    """With PyTorch's own switch off nothing is in force, as the process that tries it finds."""
    switch = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    read, words = both({**os.environ, **switch})
    for found in (read, by_name(status("--json", "--try", **switch))):
        assert found.pop("")["active"] is False
        assert all(row["state"] != State.IN_FORCE.value for row in found.values())
    asked = (
        "import sys, torch; print(any(type(f).__module__.startswith('torchtrt_executorch')"
        " for f in sys.meta_path))"
    )
    tried = fresh.python(asked, env={**os.environ, **switch})
    assert tried.stdout.strip() == "False", tried.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in words


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.name)
def test_every_row_says_why(patch: Any) -> None:
    repository, number = patch.pull_request.split("#")
    assert repository in ("pytorch/TensorRT", "pytorch/executorch")
    assert number.isdigit()
    assert patch.summary and patch.upstream and patch.kept_because


@pytest.mark.parametrize(
    "environment",
    [
        {},
        {"TORCHTRT_EXECUTORCH": "0"},
        {"TORCHTRT_EXECUTORCH_SKIP": "host"},
        {"TORCHTRT_GPU": "sm_87:16GiB"},
        {"TORCHTRT_GPU": "a large one"},
        {"CC": "/no/such/compiler", "XDG_CACHE_HOME": "elsewhere"},
    ],
    ids=str,
)
def test_it_says_when_the_import_would_fail(
    environment: dict[str, str], tmp_path: Path
) -> None:
    """It says so if, and only if, a process that tries it does fail."""
    if "XDG_CACHE_HOME" in environment:
        environment = {**environment, "XDG_CACHE_HOME": str(tmp_path)}
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("TORCHTRT_")}
    env = {**inherited, "CUDA_VISIBLE_DEVICES": "", **environment}

    found, words = both(env)
    import_errors = found[""]["import_errors"]
    tried = fresh.run("import torch, torch_tensorrt", env=env)
    happened = import_errors, tried.stderr[-2000:]
    assert bool(import_errors) == (tried.returncode != 0), happened
    shown = " ".join(words.split())
    assert ("import torch_tensorrt would fail" in shown) == bool(import_errors)


#: A preparation of cuda-without-gpu raises.
BROKEN = """
from torchtrt_executorch.overlay import engage
resolve = engage.resolve
def broken(function):
    if 'quiet:prepare' in function:
        raise OSError('broken')
    return resolve(function)
engage.resolve = broken
"""


def test_it_says_what_happened(tmp_path: Path) -> None:
    """What fails when it runs is in no report that reads sources, and in the one that tries."""
    (tmp_path / "sitecustomize.py").write_text(BROKEN)
    environment = {"PYTHONPATH": str(tmp_path)}
    assert rows(**environment)["cuda-without-gpu"]["state"] == "in force"
    done = process("--json", "--try", **environment)
    assert done.returncode == 1  # a patch has failed
    found = by_name(done.stdout)
    assert_failed(found)
    for name in ("whole-operators", *([] if reason() else ["target-executorch"])):
        assert (found[name]["state"], found[name]["reason"]) == ("in force", "")


def assert_failed(found: dict[str, Any]) -> None:
    assert found["cuda-without-gpu"]["state"] == "failed"
    assert "OSError('broken')" in found["cuda-without-gpu"]["reason"]


def test_what_happened_in_this_very_process() -> None:
    """Where upstream was imported, the report is of that, and needs no trial."""
    code = BROKEN + (
        "import json, torch, executorch.exir\n"
        "from torchtrt_executorch.cli import app\n"
        "from torchtrt_executorch.cli.status import report\n"
        "print(json.dumps(report()))\n"
        "app(['status'])\n"
    )
    done = fresh.run(code, env={**os.environ, "COLUMNS": "600"})
    said = done.stdout.splitlines()
    line, *table = [each for each in said if "[TRT]" not in each]  # TensorRT's logger's
    assert any(row.startswith("failed") and "cuda-without-gpu" in row for row in table)
    found = by_name(line)
    assert found[""]["tried"] is True and found[""]["active"] is True
    assert_failed(found)


def test_the_target() -> None:
    """What is compiled for where there is no GPU."""
    jetson = "linux-aarch64:sm_87:16GiB"
    reported, words = both({**os.environ, "TORCHTRT_GPU": jetson})
    found = reported[""]
    assert found["targets"] == [jetson]
    assert f"without a GPU, for: {jetson}" in words
    assert rows(TORCHTRT_GPU="")[""]["targets"][0].count(":") == 2


@pytest.mark.parametrize("target", ["foo", "sm_87", "sm_87:0GiB", "beos:sm_87:16GiB"])
def test_a_target_that_is_none(target: str) -> None:
    found = rows(TORCHTRT_GPU=target)[""]
    assert found["targets"] == []
    *_, problem = found["problems"]
    assert repr(target) in problem and "Write the compute capability" in problem
    assert (found["import_errors"] == [problem]) == (not reason())
    assert problem in status(TORCHTRT_GPU=target)


def test_a_compiler_that_is_missing_is_said() -> None:
    found, _ = both({**os.environ, "CXX": "/no/such/compiler"})
    assert found["cuda-without-gpu"]["state"] == "incomplete"
    reason = found["cuda-without-gpu"]["reason"]
    assert "/no/such/compiler" in reason and "g++" in reason
