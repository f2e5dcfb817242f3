"""Runs mypy over this project's packages and over its files for upstream's.

    python tools/typecheck.py

The files under ``py/``, ``backends/`` and ``exir/`` import each other by upstream's names, so
mypy sees them there. Of what else upstream has it knows no types: it doesn't ship any.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent
UPSTREAM = ("torch_tensorrt", "executorch")


def package_folders() -> dict[str, Path]:
    """Return the folder of each package that ``setup.py`` maps."""
    mapped: dict[str, str] = {}
    with patch(
        "setuptools.setup", lambda **options: mapped.update(options["package_dir"])
    ):
        exec(
            compile((ROOT / "setup.py").read_text(), "setup.py", "exec"),
            {"__name__": "setup"},
        )
    return {name: ROOT / folder for name, folder in mapped.items()}


def main() -> int:
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        link_sources(tree)
        for package in UPSTREAM:
            _leave_open(tree / package)
        packages = ("torchtrt_executorch", *UPSTREAM)
        command = [
            *(sys.executable, "-m", "mypy", "--config-file", ROOT / "pyproject.toml"),
            *("--cache-dir", ROOT / ".mypy_cache"),
            *(argument for package in packages for argument in ("-p", package)),
        ]
        return subprocess.run(command, cwd=tree).returncode


def link_sources(tree: Path) -> None:
    """Link all of our Python files below ``tree``, those for upstream under upstream's names."""
    _link(ROOT / "torchtrt_executorch", tree / "torchtrt_executorch")
    for package, source in package_folders().items():
        upstream = package.removeprefix("torchtrt_executorch.patches.")
        _link(source, tree / upstream.replace(".", "/"))


def _link(source: Path, target: Path) -> None:
    """Mirror the Python files below ``source`` as links below ``target``."""
    for file in source.rglob("*.py"):
        link = target / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)


def _leave_open(package: Path) -> None:
    """Let mypy take what the packages from ``package`` on don't have for something of any type."""
    for folder in (package, *(path for path in package.rglob("*") if path.is_dir())):
        (folder / "__init__.py").unlink(missing_ok=True)
        (folder / "__init__.pyi").write_text(
            "from typing import Any\n\ndef __getattr__(name: str) -> Any: ...\n"
        )


if __name__ == "__main__":
    sys.exit(main())
