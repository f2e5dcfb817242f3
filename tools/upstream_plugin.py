"""A pytest plugin for upstream's own tests: what became of each goes to a file, as JSON.

For ``tools/test_upstream.py``, which loads it into the processes that it starts. Tests that
compile for a GPU get as far as the compiler, which is stubbed: neither it nor a GPU is needed to
see what reaches it.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

RESULTS = "UPSTREAM_TEST_RESULTS"

_outcomes: dict[str, str] = {}
_reasons: dict[str, str] = {}
_seconds: dict[str, float] = {}


def pytest_runtest_logreport(report: Any) -> None:
    """Keep the worst that a test's phases come to: a failure, a skip, or neither."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if report.failed or report.when == "call" or report.skipped:
        outcome = "failed" if report.failed else str(report.outcome)
        if _outcomes.get(report.nodeid) != "failed":
            _outcomes[report.nodeid] = outcome
    if report.failed:
        _reasons[report.nodeid] = str(report.longreprtext).strip().splitlines()[-1]


def pytest_collectreport(report: Any) -> None:
    """A file that can't be collected counts as a test."""
    if report.failed:
        _outcomes[report.nodeid] = "failed"
        _reasons[report.nodeid] = str(report.longreprtext).strip().splitlines()[-1]


def pytest_collection_modifyitems(items: list[Any]) -> None:
    """Let the CUDA backend's tests run where there is no GPU, with its compiler stubbed."""
    modules = {item.module.__name__.split(".")[-1]: item.module for item in items}
    if "test_cuda_export" in modules:
        from executorch.backends.cuda.cuda_backend import CudaBackend
        from executorch.exir.backend.backend_details import PreprocessResult

        CudaBackend.preprocess = classmethod(lambda *_: PreprocessResult(b"compiled"))
        modules["test_cuda_export"].TestCudaExport.setUp = lambda self: None


def pytest_sessionfinish() -> None:
    """Write the outcomes, and whether the overlay's modules were the ones under test."""
    served = sys.modules.get("executorch.exir.passes.propagate_device_pass")
    found = {
        "outcomes": _outcomes,
        "reasons": _reasons,
        "seconds": _seconds,
        "module": getattr(served, "__file__", None),
    }
    Path(os.environ[RESULTS]).write_text(json.dumps(found))
