"""Runs what it is the turn of: tests that take long, another lane, another Python, or C++.

    python3 tools/turn.py            # by the number of commits
    python3 tools/turn.py 1          # that one

CI has half an hour: for the default lane's tests, and for one turn. PyTorch from 2.14 on is a CUDA build of 5 GB.
"""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from clean_install import CHAPTERS
from pythons import find

ROOT = Path(__file__).resolve().parent.parent
_OWN = "tests/torchtrt_executorch"

#: What the builder can matter to: PyTorch, ExecuTorch, its CUDA backend, the runtime, transformers and
#: how Python loads the overlay are the same on every lane of one PyTorch.
BUILDER = (
    "tests/py",
    f"{_OWN}/cli",
    f"{_OWN}/nogpu/emulation",
    f"{_OWN}/nogpu/host",
    f"{_OWN}/nogpu/stubs",
    f"{_OWN}/nogpu/target",
    f"{_OWN}/overlay/test_[!eo]*.py",
    f"{_OWN}/test_[!t]*.py",
)
#: What the tests themselves replace in PyTorch, to be quicker, beside what PyTorch does.
QUICKER = ("tests/test_decompositions.py", "tests/test_graphs.py")
#: What Python can matter to: how modules are loaded, processes, files, pickles, the command line.
PYTHON = (
    *QUICKER,
    f"{_OWN}/cache",
    f"{_OWN}/nogpu/stand_ins",
    f"{_OWN}/tensorrt_rtx/test_apart.py",
    f"{_OWN}/overlay/test_activation.py",
    f"{_OWN}/overlay/test_served.py",
    f"{_OWN}/overlay/test_edits.py",
    f"{_OWN}/overlay/test_anchors.py",
    f"{_OWN}/nogpu/stubs/test_link_stubs.py",
    f"{_OWN}/nogpu/target/test_gpu_description.py",
    f"{_OWN}/cli/output/test_formatting.py",
    f"{_OWN}/cli/test_command.py",
    f"{_OWN}/cli/test_run.py",
    f"{_OWN}/test_failing_writes.py",
    f"{_OWN}/payloads/test_engine_header.py",
)


#: What a release can matter to: what upstream does by itself there, and that the overlay fits it.
RELEASE = (
    *QUICKER,
    f"{_OWN}/overlay/test_served.py",
    f"{_OWN}/overlay/test_anchors.py",
    f"{_OWN}/test_patch_set.py",
    "tests/exir/passes/control_flow/test_branch_results.py",
    "tests/exir/program/test_saved_files.py",
    "tests/exir/passes/devices/test_labels.py",
    "tests/py/torch_tensorrt/dynamo/state/test_mutations.py",
    "tests/py/torch_tensorrt/executorch/test_static_cache.py",
)


#: What runs where there is no Torch-TensorRT: the patches of ExecuTorch by themselves.
ALONE = (
    *QUICKER,
    "tests/test_lanes.py",
    "tests/exir/passes",
    "tests/exir/program/test_external_data.py",
    "tests/exir/program/test_saved_files.py",
    "tests/backends/aoti",
    "tests/backends/cuda/test_recipes.py",
    "tests/torchtrt_executorch/nogpu/inductor/test_patch_points.py",
    "tests/backends/cuda/test_weights_by_name.py",
)


@dataclass(frozen=True)
class Turn:
    """A lane, a Python, and what is run there; the usual ones where empty.

    Attributes:
        lane: Of ``constraints/``.
        python: Such as ``3.12``.
        tests: Of ``make test``.
        marks: Which of them, as pytest takes it.
        pages: Of ``make clean-install``.
        target: What ``make`` makes in the place of the tests, several with spaces between.
        needed: Whether docs/needed.md is checked as well.
    """

    lane: str = ""
    python: str = ""
    tests: tuple[str, ...] = PYTHON
    marks: str = "not slow"
    pages: tuple[str, ...] = ()
    target: str = "test"
    needed: bool = False

    def commands(self, interpreter: str) -> list[list[str]]:
        """Return the commands that run it."""
        options = []
        if self.lane:
            options.append(f"LANE={self.lane}")
        if self.python:
            lane = f"-{self.lane}" if self.lane else ""
            options += [f"PYTHON={interpreter}", f"VENV=.venv{lane}-py{self.python}"]
        chosen = []
        if self.target == "test":
            chosen = [f"TESTS={' '.join(self.tests)}", f"MARKS={self.marks}"]
        if self.pages:
            chosen = [f"PAGES={' '.join(self.pages)}"]
        found = [["make", *self.target.split(), *chosen, *options]]
        if self.needed:
            found.append(["make", "needed", *options])
        return found


#: The guides' pages that compile for other machines, and all others: each half of ``make clean-install``.
PAGES = tuple(
    tuple(page for c in CHAPTERS if ("cross" in c.extras) is cross for page in c.pages)
    for cross in (True, False)
)
#: What takes long, in parts of about as many minutes.
LONG = (
    ("tests/backends",),
    tuple(
        f"tests/{name}"
        for name in ("examples", "exir", "fuzz", "gpu", "py", "random_models")
    ),
    (_OWN, "tests/test_*.py"),
)

TURNS = (
    Turn(target="test-upstream test-cpp"),
    Turn(lane="2.14", tests=BUILDER, needed=True),
    Turn(tests=LONG[0], marks="long and not slow"),
    Turn(target="clean-install", pages=PAGES[0]),
    Turn(lane="2.13-rtx", tests=("tests",), marks="not slow and not long", needed=True),
    Turn(tests=LONG[1], marks="long and not slow"),
    Turn(python="3.12"),
    Turn(lane="2.15", python="3.12", tests=ALONE),
    Turn(tests=LONG[2], marks="long and not slow"),
    Turn(target="needed"),
    Turn(target="clean-install", pages=PAGES[1]),
    Turn(
        lane="2.14-executorch-1.4",
        tests=(*RELEASE, f"{_OWN}/runtime/test_upstream_runtime.py"),
    ),
    Turn(python="3.10"),
    Turn(lane="2.13-rtx", tests=LONG[0], marks="long and not slow"),
    Turn(lane="2.14-rtx-1.7", tests=(f"{_OWN}/tensorrt_rtx", *RELEASE)),
    Turn(python="3.13"),
    Turn(lane="2.13-rtx", tests=LONG[1], marks="long and not slow"),
    Turn(target="zoo-sample"),
    Turn(lane="2.13-rtx", tests=LONG[2], marks="long and not slow"),
)


def main() -> int:
    chosen = int(sys.argv[1]) if len(sys.argv) > 1 else number() % len(TURNS)
    turn = TURNS[chosen]
    interpreter = find(turn.python) if turn.python else sys.executable
    if interpreter is None:
        print(
            f"It would be the turn of Python {turn.python}, which isn't here: {TURNS[0]}"
        )
        turn, interpreter = TURNS[0], sys.executable
    print(
        f"The turn of {turn.target} on lane {turn.lane or 'as usual'}, "
        f"Python {turn.python or 'as usual'}",
        flush=True,
    )
    for command in turn.commands(interpreter):
        if status := subprocess.run(command, cwd=ROOT).returncode:
            return status
    return 0


def number() -> int:
    """Return how many commits there are, or the day where there is no history."""
    command = ["git", "rev-list", "--count", "HEAD"]
    try:
        counted = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        return int(counted.stdout)
    except (OSError, ValueError):
        return int(time.time()) // 86_400


if __name__ == "__main__":
    sys.exit(main())
