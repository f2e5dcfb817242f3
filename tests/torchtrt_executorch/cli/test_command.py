"""The command itself: its version, its help, completion in shells, and who reads it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from torchtrt_executorch import __version__
from torchtrt_executorch.cli.output.error_handling import EXITS
from torchtrt_executorch.overlay.manifest import PATCHES

#: Beside the interpreter, where pip puts it.
COMMAND = Path(sys.executable).parent / "torchtrt-executorch"
DOC = Path(__file__).parents[3] / "docs" / "inspect.md"


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(COMMAND), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )


def completed(words: str) -> list[str]:
    """What bash is offered after ``words``."""
    at, completes = str(len(words.split(" ")) - 1), "_TORCHTRT_EXECUTORCH_COMPLETE"
    asked = {completes: "complete_bash", "COMP_WORDS": words, "COMP_CWORD": at}
    return run(**asked).stdout.split()


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout) == (0, f"torchtrt-executorch {__version__}\n")


def test_completion() -> None:
    assert completed("torchtrt-executorch ") == [
        *("status", "doctor", "targets", "cache", "inspect"),
        *("run", "export", "build", "generate", "tune"),
    ]
    assert "--html" in completed("torchtrt-executorch inspect --")
    assert completed("torchtrt-executorch status ") == [p.name for p in PATCHES]
    assert run("--help").stdout.count("completion") >= 2


@pytest.mark.parametrize("command", EXITS)
def test_exit_statuses_are_documented(command: str) -> None:
    """In the command's help and in the documentation, in the same words."""
    said = " ".join(run(*command.split(), "--help", COLUMNS="80").stdout.split())
    assert EXITS[command] in said
    assert EXITS[command] in " ".join(DOC.read_text().split())


def test_every_option_is_documented() -> None:
    options = set(re.findall(r"--[a-z]+", run("inspect", "--help").stdout)) - {"--help"}
    assert options <= set(re.findall(r"--[a-z]+", DOC.read_text()))


def test_who_reads_may_leave() -> None:
    done = subprocess.run(
        f"'{COMMAND}' status --json | head -c 10", shell=True, capture_output=True
    )
    assert done.stdout == b'{\n  "activ' and done.stderr == b""


def test_no_torch_for_status() -> None:
    """What says what is wrong with an installation doesn't wait for it, nor fail with it."""
    code = (
        "import sys; from torchtrt_executorch.cli import app; app(['status'], "
        "standalone_mode=False); assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
