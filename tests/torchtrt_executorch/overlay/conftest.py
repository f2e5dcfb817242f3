"""Processes of their own, in which other packages may stand ahead of the installed ones."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import pytest

from torchtrt_executorch.nogpu.builder import installed

from ... import fresh


class Process:
    """What a Python process printed as JSON, and the warnings of ours."""

    def __init__(
        self, code: str, ahead: tuple[Path, ...], own: dict[str, str], alone: bool
    ):
        inherited = (n for n in os.environ if not n.startswith("TORCHTRT_"))
        env = {name: os.environ[name] for name in inherited}
        env |= {"PYTHONPATH": os.pathsep.join(map(str, ahead)), "OMP_NUM_THREADS": "1"}
        run = fresh.python if alone else fresh.run
        # Nothing in the current folder stands in for what is installed.
        done = run(code, env={**env, **own}, cwd=sys.prefix)
        assert done.returncode == 0, done.stderr
        self.stderr = done.stderr
        self.facts: Any = json.loads(done.stdout.splitlines()[-1])

    @property
    def warnings(self) -> list[str]:
        """What the overlay warned of, one text per warning, but for what is wrong with this lane as it is."""
        marker = "RuntimeWarning: torchtrt-executorch: "
        lines = (line.partition(marker)[2] for line in self.stderr.splitlines())
        return [each for each in lines if each and each not in installed.problems()]


Run = Callable[..., Process]


@pytest.fixture(scope="session")
def run() -> Run:
    """Run code that ends by printing JSON; ``ahead`` are folders ahead on ``sys.path``.

    What doesn't begin with ``import torch`` is to run ``alone``, in an interpreter of its own.
    """

    def run(
        code: str, *ahead: Path, alone: bool = False, **environment: str
    ) -> Process:
        return Process(code, ahead, environment, alone)

    return run


@pytest.fixture
def variant(tmp_path: Path) -> Callable[..., Path]:
    """Make a package that differs from the installed one in one file, which has to exist.

    Returns the folder to put ahead on the path. All other files are links.
    """

    def variant(package: str, file: str, change: Callable[[str], str]) -> Path:
        spec = PathFinder.find_spec(package)
        if spec is None:  # an editable install
            spec = importlib.import_module(package).__spec__
        assert spec is not None and spec.submodule_search_locations
        original = Path(next(iter(spec.submodule_search_locations)))
        folder = tmp_path / f"ahead_{package}"
        _link(original, folder / package, Path(file))
        text = (original / file).read_text()
        changed = change(text)
        assert changed != text
        (folder / package / file).write_text(changed)
        return folder

    return variant


def _link(original: Path, copy: Path, file: Path) -> None:
    copy.mkdir(parents=True)
    for entry in original.iterdir():
        if entry.name == "__pycache__" or entry.name == str(file):
            continue
        if entry.name == file.parts[0]:
            _link(entry, copy / entry.name, Path(*file.parts[1:]))
        else:
            (copy / entry.name).symlink_to(entry)
