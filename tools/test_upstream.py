"""Runs upstream's own tests, as its wheels ship them, with the overlay on, and what fails with it off.

    python tools/test_upstream.py

What passes with the overlay needs no comparison. What doesn't is run again with it off: what fails
with the same words is upstream's, or this machine's, and only counted. Where the two differ,
``upstream_differences.json`` has the test with the reason, or the run fails; and it fails for what is
listed there and differs no more. No network is needed.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Iterable

from packaging.specifiers import SpecifierSet

TOOLS = Path(__file__).resolve().parent
DIFFERENCES = TOOLS / "upstream_differences.json"
SWITCH = "TORCHTRT_EXECUTORCH"
#: Below the package ``executorch``. A release may lack some.
SUITES = (
    "exir/tests",
    "exir/backend/test",
    "backends/cuda/tests/test_cuda_partitioner.py",
    "backends/cuda/tests/test_cuda_export.py",
    "backends/xnnpack/test/test_xnnpack_partitioner.py",
    "backends/xnnpack/test/passes",
)
#: Slow, and nothing of the overlay is in their way: they plan memory for whole models, which
#: ``tests/exir/passes`` does as well.
LEFT_OUT = (
    "exir/tests/test_memory_planning.py::TestMemoryPlanning::test_graph_input_output",
)
#: How many tests are named that took longest.
_SLOWEST = 5


@dataclass
class Results:
    """What became of some of upstream's tests, by their node ids below executorch.

    Attributes:
        outcomes: ``passed``, ``skipped``, or ``failed`` and how: the first line that the error says.
        seconds: How long each took.
    """

    outcomes: dict[str, str]
    seconds: dict[str, float]


def run(overlay: bool, tests: Iterable[str], jobs: int) -> Results:
    """Run tests in processes of their own: those of XNNPACK load operators that others find missing.

    Args:
        overlay: Whether it is on.
        tests: Files, folders and tests, as the node ids of pytest, below executorch.
        jobs: How many files to run at once.
    """
    results = Results({}, {})
    for _, group in itertools.groupby(sorted(tests), lambda test: test.split("/")[:2]):
        found = _run_together(overlay, group, jobs)
        results.outcomes.update(found.outcomes)
        results.seconds.update(found.seconds)
    return results


def _run_together(overlay: bool, tests: Iterable[str], jobs: int) -> Results:
    side = "on" if overlay else "off"
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull]
    command += ["--rootdir", str(executorch()), "-p", "no:cacheprovider"]
    command += ["-p", "upstream_plugin", "--import-mode=importlib"]
    command += ["-n", str(jobs), "--dist", "loadfile"]
    command += ["--continue-on-collection-errors"]
    command += [f"--deselect={test}" for test in LEFT_OUT]
    command += [str(executorch() / test) for test in tests]
    inherited = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("TORCHTRT_")
    }
    with TemporaryDirectory() as folder:  # some of the tests write files
        results = Path(folder) / "results.json"
        environment = {
            **inherited,
            SWITCH: "1" if overlay else "0",
            "OMP_NUM_THREADS": "1",
            "PYTHONHASHSEED": "0",  # errors name what is in sets
            "PYTHONPATH": str(TOOLS),
            "UPSTREAM_TEST_RESULTS": str(results),
        }
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True
        )
        said = "\n".join((done.stdout + done.stderr).splitlines()[-30:])
        if not results.is_file():
            sys.exit(f"pytest ended early, overlay {side}:\n{said}")
        found = json.loads(results.read_text())
    if not found["outcomes"]:
        sys.exit(f"no test was found, overlay {side}:\n{said}")
    if found["overlay"] is not overlay:
        sys.exit(f"the tests ran as if the overlay weren't {side}")
    return Results(found["outcomes"], found["seconds"])


def executorch() -> Path:
    """Return where the installed executorch is."""
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("executorch is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def known_differences(release: str) -> dict[str, str]:
    """Return the tests that are known to differ on ``release``, each with the reason."""
    return {
        row["test"]: row["reason"]
        for row in json.loads(DIFFERENCES.read_text())
        if SpecifierSet(row["executorch"]).contains(release, prereleases=True)
    }


def report(off: Results, on: Results, known: dict[str, str]) -> tuple[int, int]:
    """Print what differs; return how many known differences, and how many mistakes, there are."""
    different = differing(off, on)
    for test in different:
        change = f"{off.outcomes.get(test)} -> {on.outcomes.get(test)}"
        if test in known:
            print(f"known    {test}\n         {change}\n         {known[test]}")
        else:
            print(f"UNKNOWN  {test}\n         {change}")
    stale = sorted(known.keys() - different)
    for test in stale:
        print(f"STALE    {test} is listed in {DIFFERENCES.name}, and doesn't differ")
    expected = len(known.keys() & different)
    return expected, len(different) - expected + len(stale)


def differing(off: Results, on: Results) -> list[str]:
    """Return the tests of ``off`` that come out otherwise with the overlay on."""
    return sorted(
        test for test, found in off.outcomes.items() if on.outcomes.get(test) != found
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", help="only these, below executorch")
    parser.add_argument("--jobs", type=int, default=2, help="files at once")
    options = parser.parse_args()
    present = [s for s in options.suites or SUITES if (executorch() / s).exists()]
    release, started = version("executorch"), time.monotonic()
    on = run(True, present, options.jobs)
    counts = Counter(outcome.split(":")[0] for outcome in on.outcomes.values())
    words = ", ".join(f"{counts[each]} {each}" for each in sorted(counts))
    print(f"executorch {release}, overlay on: {words}")
    slowest = sorted(on.seconds, key=lambda test: -on.seconds[test])[:_SLOWEST]
    print("\n".join(f"{on.seconds[test]:7.1f} s  {test}" for test in slowest))
    known = {
        test: reason
        for test, reason in known_differences(release).items()
        if test in on.outcomes
    }
    again = {test for test, outcome in on.outcomes.items() if outcome != "passed"}
    expected, mistakes = 0, 0
    if again := sorted(again | known.keys()):
        off = run(False, again, options.jobs)
        if unknown := sorted({*differing(off, on)} - known.keys()):
            # Not what the tests before them left behind?
            on.outcomes.update(run(True, unknown, options.jobs).outcomes)
        expected, mistakes = report(off, on, known)
    print(
        f"with it off: {len(again) - expected - mistakes} of those the same, "
        f"{expected} known differences, {mistakes} unknown or stale"
    )
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
