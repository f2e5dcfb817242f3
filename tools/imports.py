"""Checks who imports whom: the rules of ``[tool.importlinter]`` in ``pyproject.toml``.

    python tools/imports.py

Files under ``py/``, ``backends/`` and ``exir/`` stand under their upstream names for it, as they are imported.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from typecheck import ROOT, link_sources


def main() -> int:
    with TemporaryDirectory() as folder:
        tree = Path(folder)
        link_sources(tree)
        for package in ("torch_tensorrt", "executorch"):
            for inner in (tree / package, *(tree / package).rglob("*")):
                if inner.is_dir():
                    (inner / "__init__.py").touch()
        linter = Path(sys.executable).with_name("lint-imports")
        config = ROOT / "pyproject.toml"
        command = (linter, "--config", config, "--no-cache")
        return subprocess.run(command, cwd=tree).returncode


if __name__ == "__main__":
    sys.exit(main())
