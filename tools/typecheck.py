"""Runs mypy over the packages as they are installed.

    python tools/typecheck.py

The patch files stand at their upstream paths. ``setup.py`` maps them into this distribution's
package, and mypy has to see them there: by their upstream names they would hide upstream.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from unittest.mock import patch

ROOT = Path(__file__).resolve().parent.parent


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
        installed = Path(folder)
        _link(ROOT / "torchtrt_executorch", installed / "torchtrt_executorch")
        for name, source in package_folders().items():
            _link(source, installed / name.replace(".", "/"))
        command = [
            sys.executable,
            "-m",
            "mypy",
            "--config-file",
            ROOT / "pyproject.toml",
        ]
        cache = ROOT / ".mypy_cache"
        return subprocess.run(
            [*command, "--cache-dir", cache], cwd=installed
        ).returncode


def _link(source: Path, target: Path) -> None:
    """Mirror the Python files below ``source`` as links below ``target``."""
    for file in source.rglob("*.py"):
        link = target / file.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(file)


if __name__ == "__main__":
    sys.exit(main())
