"""Checks who imports whom, by ``[tool.importlinter]`` in ``pyproject.toml``, and that no folder has too many modules.

    python tools/imports.py

Files under ``py/``, ``backends/`` and ``exir/`` stand under their upstream names for it, as they are imported.
"""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from typecheck import ROOT, link_sources

#: Modules that a folder of the product may have beside its ``__init__``.
DOZEN = 12


def crowded_folders() -> list[str]:
    """Folders of the product with more modules than a reader can hold in the head."""
    modules = [
        path.parent
        for root in ("torchtrt_executorch", "py", "backends", "exir")
        for path in (ROOT / root).rglob("*.py")
        if path.name != "__init__.py"
    ]
    return [
        f"{folder.relative_to(ROOT)}: {count} modules, at most {DOZEN}: give some of them a folder"
        for folder, count in Counter(modules).items()
        if count > DOZEN
    ]


def main() -> int:
    if crowded := crowded_folders():
        print("\n".join(crowded))
        return 1
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
