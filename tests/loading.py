"""Files that tests share with what runs by itself: benchmarks, tools, scripts for other machines."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def load_file(path: str, name: str = "") -> Any:
    """Return the module in a file, the same one to everybody who asks.

    Args:
        path: The file, below the repository's root.
        name: What the module is called; as its file, like a script beside others, by default.
    """
    name = name or Path(path).stem
    if name not in sys.modules:
        spec = spec_from_file_location(name, ROOT / path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


def load_benchmark(name: str) -> Any:
    """Return a module of the benchmarks."""
    load_file("benchmarks/__init__.py", "benchmarks")
    return import_module(f"benchmarks.{name}")
