"""Says at the end of a run why tests were skipped, and fails CI's where nobody has said that they may be."""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path

import pytest

#: Patterns, one a line, each of all reasons of its kind.
ALLOWED = Path(__file__).with_name("allowed_skips.txt")


def allowed(reason: str) -> bool:
    """Whether a test may be skipped for ``reason`` where all that can be installed is."""
    lines = ALLOWED.read_text().splitlines()
    patterns = [line for line in lines if line and not line.startswith("#")]
    return any(re.fullmatch(pattern, reason) for pattern in patterns)


def _reasons(config: pytest.Config) -> Counter[str]:
    reporter = config.pluginmanager.getplugin("terminalreporter")
    found: Counter[str] = Counter()
    for report in reporter.stats.get("skipped", ()) if reporter else ():
        if isinstance(report.longrepr, tuple):
            found[report.longrepr[2].removeprefix("Skipped: ")] += 1
    return found


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    if found := _reasons(config):
        terminalreporter.section("skipped, by reason")
        for reason, count in found.most_common():
            mark = " " if allowed(reason) else "!"
            terminalreporter.line(f"{count:5} {mark} {reason}")


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Fail where something that could be installed isn't, in CI, whose script installs all of it."""
    is_worker = hasattr(session.config, "workerinput")
    if is_worker or exitstatus != pytest.ExitCode.OK or not os.environ.get("CI"):
        return
    if strange := [each for each in _reasons(session.config) if not allowed(each)]:
        print(f"\nnot in {ALLOWED.name}: {'; '.join(strange)}")
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
