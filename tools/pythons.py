"""The Pythons that there are here, of those that this project is for."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PYTHONS = ("3.10", "3.11", "3.12", "3.13")


def find(version: str) -> str | None:
    """Return the interpreter of a version such as ``3.12``: on the path, or of pyenv; None without."""
    name = f"python{version}"
    pyenv = sorted(Path.home().glob(f".pyenv/versions/{version}.*/bin/{name}"))
    for found in (shutil.which(name), *map(str, pyenv)):
        # A shim of pyenv's is there for versions that aren't in use.
        if (
            found
            and not subprocess.run([found, "--version"], capture_output=True).returncode
        ):
            return found
    return None
