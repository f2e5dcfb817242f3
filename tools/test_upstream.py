"""Runs upstream's own tests, as its wheels ship them, with the overlay on and off, and compares.

    python tools/test_upstream.py

Test by test: what fails alike on both sides is upstream's, or this machine's, and only counted.
Where the two differ, ``upstream_differences.json`` has the test with the reason, or the run fails;
and it fails for what is listed there and differs no more. No network is needed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path
from typing import Any

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


class Side:
    """Upstream's tests in a process of their own, with the overlay on or off."""

    def __init__(self, overlay: bool, folder: Path, suites: list[Path]) -> None:
        self.name = "on" if overlay else "off"
        self._results = folder / f"{self.name}.json"
        self._log = folder / f"{self.name}.log"
        command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull]
        command += ["--rootdir", str(executorch()), "-p", "no:cacheprovider"]
        command += ["-p", "upstream_plugin", "--import-mode=importlib"]
        command += ["--continue-on-collection-errors", *map(str, suites)]
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("TORCHTRT_")
        }
        (folder / self.name).mkdir()
        self._process = subprocess.Popen(
            command,
            cwd=folder / self.name,  # some of the tests write files
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
        if not self._results.is_file():
            sys.exit(f"pytest ended early, overlay {self.name}:\n{self._tail()}")
        found: dict[str, Any] = json.loads(self._results.read_text())
        if not found["outcomes"]:
            sys.exit(f"no test was found, overlay {self.name}:\n{self._tail()}")
        return found

    def _tail(self) -> str:
        return "\n".join(self._log.read_text().splitlines()[-30:])


def executorch() -> Path:
    """Return where the installed executorch is."""
    spec = importlib.util.find_spec("executorch")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("executorch is not installed")
    return Path(next(iter(spec.submodule_search_locations)))


def known_differences(release: str) -> dict[str, str]:
    """Return the reason for each test that is known to differ on ``release``."""
    return {
        row["test"]: row["reason"]
        for row in json.loads(DIFFERENCES.read_text())
        if SpecifierSet(row["executorch"]).contains(release, prereleases=True)
    }


def compare(off: dict[str, Any], on: dict[str, Any], release: str) -> int:
    """Print what differs and return the exit code."""
    known = known_differences(release)
    unknown = 0
    tests = sorted(off["outcomes"].keys() | on["outcomes"].keys())
    differing = [
        test for test in tests if off["outcomes"].get(test) != on["outcomes"].get(test)
    ]
    for test in differing:
        change = f"{off['outcomes'].get(test)} -> {on['outcomes'].get(test)}"
        if test in known:
            print(f"known    {change}  {test}\n         {known[test]}")
            continue
        unknown += 1
        side = on if test in on["reasons"] else off
        print(f"UNKNOWN  {change}  {test}\n         {side['reasons'].get(test, '')}")
    stale = sorted(known.keys() - {*differing})
    for test in stale:
        print(f"STALE    {test} is listed in {DIFFERENCES.name}, and doesn't differ")
    for name, side in (("off", off), ("on", on)):
        counts = Counter(side["outcomes"].values())
        words = ", ".join(f"{counts[each]} {each}" for each in sorted(counts))
        print(f"overlay {name}: {words}")
    print(
        f"executorch {release}: {len(differing) - unknown} known differences, {unknown} unknown"
    )
    return 1 if unknown or stale else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("suites", nargs="*", help="only these, below executorch")
    chosen = parser.parse_args().suites or SUITES
    suites = [path for each in chosen if (path := executorch() / each).exists()]
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        sides = [Side(overlay, Path(folder), suites) for overlay in (False, True)]
        off, on = (side.finish() for side in sides)
    ours = [
        side["module"] and str(executorch()) not in side["module"] for side in (off, on)
    ]
    if ours != [False, True]:
        sys.exit(f"the two sides ran {off['module']} and {on['module']}")
    code = compare(off, on, version("executorch"))
    print(f"{time.monotonic() - started:.0f} s")
    return code


if __name__ == "__main__":
    sys.exit(main())
