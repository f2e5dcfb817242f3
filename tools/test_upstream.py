"""Runs upstream's own tests, as its wheels ship them, with the overlay on, and what fails with it off.

    python tools/test_upstream.py

What passes with the overlay needs no comparison. What doesn't is run again on both sides, side by
side: what comes out alike is upstream's, or this machine's, and only counted. Where the two differ,
``upstream_differences.json`` has the test with the reason, or the run fails; and it fails for what is
listed there and differs no more. No network is needed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Iterable

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
)
#: Slow, and nothing of the overlay is in their way: they plan memory for whole models, which
#: ``tests/exir/passes`` does as well.
LEFT_OUT = (
    "exir/tests/test_memory_planning.py::TestMemoryPlanning::test_graph_input_output",
)
#: How many tests are named that took longest.
_SLOWEST = 5


class Session:
    """Some of upstream's tests in a process of their own.

    Args:
        overlay: Whether it is on.
        tests: Files and tests, as the node ids of pytest, below executorch.
        folder: An empty one, where some of the tests write files.
    """

    def __init__(self, overlay: bool, tests: Iterable[str], folder: Path) -> None:
        self.overlay = overlay
        self._results = folder / "results.json"
        self._log = folder / "log"
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull]
        command += ["--rootdir", str(executorch()), "-p", "no:cacheprovider"]
        command += ["-p", "upstream_plugin", "--import-mode=importlib"]
        command += ["--continue-on-collection-errors"]
        command += [f"--deselect={test}" for test in LEFT_OUT]
        command += [str(executorch() / test) for test in tests]
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TORCHTRT_")
        }
        self._process = subprocess.Popen(
            command,
            cwd=folder,
            env={
                **inherited,
                SWITCH: "1" if overlay else "0",
                "OMP_NUM_THREADS": "1",
                "PYTHONPATH": str(TOOLS),
                "UPSTREAM_TEST_RESULTS": str(self._results),
            },
            stdout=self._log.open("w"),
            stderr=subprocess.STDOUT,
        )

    def finish(self) -> dict[str, Any]:
        """Wait for it, and return what the plugin wrote."""
        self._process.wait()
        side = "on" if self.overlay else "off"
        if not self._results.is_file():
            sys.exit(f"pytest ended early, overlay {side}:\n{self._tail()}")
        found: dict[str, Any] = json.loads(self._results.read_text())
        if not found["outcomes"]:
            sys.exit(f"no test was found, overlay {side}:\n{self._tail()}")
        if (served := found["module"]) and (
            str(executorch()) in served
        ) is self.overlay:
            sys.exit(f"overlay {side}, and the tests ran {served}")
        return found

    def _tail(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-30:])


def executorch() -> Path:
    """Return where the installed executorch is."""
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("executorch is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def run(
    shares: Iterable[tuple[bool, Iterable[str]]], folder: Path
) -> list[dict[str, Any]]:
    """Run sessions at once, each with the overlay on or off; return what they found, in order."""
    sessions = []
    for index, (overlay, tests) in enumerate(shares):
        own = folder / str(index)
        own.mkdir(parents=True)
        sessions.append(Session(overlay, tests, own))
    return [session.finish() for session in sessions]


def shares_of(suites: Iterable[str], count: int) -> list[list[str]]:
    """Return the files of ``suites`` in ``count`` shares of about the same work."""
    paths = [executorch() / suite for suite in suites]
    files = {
        file
        for path in paths
        for file in ([path] if path.is_file() else path.rglob("test_*.py"))
    }
    ordered = sorted(files, key=lambda file: (-file.stat().st_size, file))
    named = [str(file.relative_to(executorch())) for file in ordered]
    return [share for i in range(count) if (share := named[i::count])]


def known_differences(release: str, tests: set[str]) -> dict[str, str]:
    """Return the reason for each of ``tests`` that is known to differ on ``release``."""
    return {
        row["test"]: row["reason"]
        for row in json.loads(DIFFERENCES.read_text())
        if SpecifierSet(row["executorch"]).contains(release, prereleases=True)
        and row["test"] in tests
    }


def compare(
    off: dict[str, Any], on: dict[str, Any], known: dict[str, str]
) -> tuple[int, int]:
    """Print what differs; return how many known differences, and how many mistakes, there are."""
    tests = sorted(off["outcomes"].keys() | on["outcomes"].keys())
    differing = [
        test for test in tests if off["outcomes"].get(test) != on["outcomes"].get(test)
    ]
    for test in differing:
        change = f"{off['outcomes'].get(test)} -> {on['outcomes'].get(test)}"
        if test in known:
            print(f"known    {change}  {test}\n         {known[test]}")
        else:
            side = on if test in on["reasons"] else off
            print(
                f"UNKNOWN  {change}  {test}\n         {side['reasons'].get(test, '')}"
            )
    stale = sorted(known.keys() - {*differing})
    for test in stale:
        print(f"STALE    {test} is listed in {DIFFERENCES.name}, and doesn't differ")
    expected = len(known.keys() & {*differing})
    return expected, len(differing) - expected + len(stale)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", help="only these, below executorch")
    parser.add_argument("--jobs", type=int, default=2, help="processes at once")
    options = parser.parse_args()
    present = [s for s in options.suites or SUITES if (executorch() / s).exists()]
    release, started = version("executorch"), time.monotonic()
    with TemporaryDirectory() as folder:
        shares = shares_of(present, options.jobs)
        found = run([(True, share) for share in shares], Path(folder) / "all")
        outcomes = {k: v for part in found for k, v in part["outcomes"].items()}
        again = [test for test, outcome in outcomes.items() if outcome != "passed"]
        mistakes, expected = 0, 0
        known = known_differences(release, {*outcomes})
        if again := sorted({*again, *known}):
            sides = [(False, again), (True, again)]
            off, on = run(sides, Path(folder) / "again")
            expected, mistakes = compare(off, on, known)
    counts = Counter(outcomes.values())
    words = ", ".join(f"{counts[each]} {each}" for each in sorted(counts))
    print(f"executorch {release}, overlay on: {words}")
    seconds = {k: v for part in found for k, v in part["seconds"].items()}
    slowest = sorted(seconds, key=lambda test: -seconds[test])[:_SLOWEST]
    print("\n".join(f"{seconds[test]:7.1f} s  {test}" for test in slowest))
    alike = len(again) - expected - mistakes
    print(
        f"with it off: {alike} of these the same, {expected} known differences, "
        f"{mistakes} unknown or stale"
    )
    print(f"{time.monotonic() - started:.0f} s")
    return 1 if mistakes else 0


if __name__ == "__main__":
    sys.exit(main())
