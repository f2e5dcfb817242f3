"""Patches to executorch, by upstream module name."""

from pathlib import Path

_ROOT = Path(__file__).parents[3]
if (_ROOT / "exir").is_dir():  # a clone, as in the package above
    __path__.append(str(_ROOT))
