"""A pytest plugin for upstream's own tests: what became of each goes to a file, as JSON.

For ``tools/test_upstream.py``, which loads it into the processes that it starts. Tests that
compile for a GPU get as far as the compiler, which is stubbed: neither it nor a GPU is needed to
see what reaches it.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

RESULTS = "UPSTREAM_TEST_RESULTS"
#: A module that upstream doesn't have, and that an edited one of its imports.
_OURS = "executorch.exir.passes.devices.labels"
#: Where a process of pytest-xdist's says whether it has imported that.
_ENGAGED = "engaged"

_outcomes: dict[str, str] = {}
_seconds: dict[str, float] = {}
_engaged: list[bool] = []


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the worst that a test's phases come to: a failure, a skip, or neither."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if _outcomes.get(report.nodeid, "").startswith("failed"):
        return
    if report.failed:
        _outcomes[report.nodeid] = _failure(report)
    elif report.when == "call" or report.skipped:
        _outcomes[report.nodeid] = str(report.outcome)


def pytest_collectreport(report: Any) -> None:
    """A file that can't be collected counts as a test."""
    if report.failed:
        _outcomes[report.nodeid] = _failure(report)


def _failure(report: Any) -> str:
    """Return the first line that the error says, without addresses in memory."""
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longreprtext).strip().splitlines()
    said = lines[0 if crash else -1] if lines else ""
    return "failed: " + re.sub(r"0x[0-9a-f]{9,}", "0x...", re.sub(r"^E\s+", "", said))


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Let the CUDA backend's tests run where there is no GPU, with its compiler stubbed."""
    modules = {item.module.__name__.split(".")[-1]: item.module for item in items}
    if "test_cuda_export" in modules:
        from executorch.backends.cuda.cuda_backend import CudaBackend
        from executorch.exir.backend.backend_details import PreprocessResult

        CudaBackend.preprocess = classmethod(lambda *_: PreprocessResult(b"compiled"))
        modules["test_cuda_export"].TestCudaExport.setUp = lambda self: None


def pytest_testnodedown(node: Any) -> None:
    """Take what a process says of itself."""
    _engaged.append(getattr(node, "workeroutput", {}).get(_ENGAGED, False))


def pytest_sessionfinish(session: Any) -> None:
    """Say whether upstream with our edits was under test, or write what was said."""
    if (output := getattr(session.config, "workeroutput", None)) is not None:
        output[_ENGAGED] = _OURS in sys.modules
        return
    found = {"outcomes": _outcomes, "seconds": _seconds, "overlay": any(_engaged)}
    Path(os.environ[RESULTS]).write_text(json.dumps(found))
