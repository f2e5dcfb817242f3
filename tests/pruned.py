"""Environments like this one, in which some distributions aren't installed."""

from __future__ import annotations

import importlib.metadata
import os
import site
import sys
import venv
from pathlib import Path


def environment(folder: Path, *without: str) -> Path:
    """Make a virtual environment of links to what is installed here; return its Python.

    Args:
        folder: Where it is made.
        without: Beginnings of the names of distributions that it lacks.
    """
    hidden = {"pip", "__pycache__"}
    for each in importlib.metadata.distributions():
        name = str(each.name).lower().replace("_", "-")
        if name.startswith(without):
            hidden |= {file.parts[0] for file in each.files or () if file.parts}
            hidden.add(Path(str(each.locate_file(""))).name)
    venv.create(folder, symlinks=True)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    there = folder / "lib" / version / "site-packages"
    for place in site.getsitepackages():
        for entry in os.scandir(place):
            if entry.name not in hidden:
                there.joinpath(entry.name).symlink_to(entry.path)
    return folder / "bin" / "python"
