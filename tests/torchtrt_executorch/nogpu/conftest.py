"""Each test host is a process of its own: what it has is decided once per process."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from torchtrt_executorch.cache import SWITCH

from ... import fresh
from ...backends.cuda.conftest import compiled, lower  # noqa: F401

IMPORTS = "import json, os, sys\n"


class Host:
    """Runs code in a fresh process on this machine, with its own environment and cache."""

    def __init__(self, cache: Path, shares_builds: bool = True) -> None:
        self.cache = cache
        self._own = {} if shares_builds else {SWITCH: str(cache)}

    def run(
        self, code: str, *, alone: bool = False, **environment: str
    ) -> subprocess.CompletedProcess[str]:
        """Run ``code``, for which ``json``, ``os`` and ``sys`` are imported, and PyTorch if not ``alone``."""
        inherited = {
            k: v
            for k, v in os.environ.items()
            if k == SWITCH or not k.startswith("TORCHTRT_")
        }
        settings = {
            "TORCHTRT_EXECUTORCH": "1",
            "XDG_CACHE_HOME": str(self.cache),
            "OMP_NUM_THREADS": "1",
            **self._own,
        }
        return (fresh.python if alone else fresh.run)(
            IMPORTS + code, env={**inherited, **settings, **environment}
        )

    def facts(self, code: str, **environment: str) -> Any:
        """Run ``code`` and return the object that it printed as JSON in its last line."""
        result = self.run(code, **environment)
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])


@pytest.fixture(scope="session")
def host(tmp_path_factory: pytest.TempPathFactory) -> Host:
    return Host(tmp_path_factory.mktemp("cache"))


@pytest.fixture
def fresh_host(tmp_path: Path) -> Host:
    """A host on which no link stubs have been built yet."""
    return Host(tmp_path, shares_builds=False)


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str | None], None]:
    """Set a variable, or remove it with ``None``, for this test."""

    def set_variable(name: str, value: str | None) -> None:
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)

    return set_variable
