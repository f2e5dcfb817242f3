"""The files under ``py/``, ``backends/`` and ``exir/``, by the upstream names they serve.

Installed they are here. In a clone, which Python takes before what is installed where a script or the
shell is in its folder, they are at the upstream paths.
"""

from pathlib import Path

_ROOT = Path(__file__).parents[2]
if (_ROOT / "py" / "torch_tensorrt").is_dir():
    __path__.append(str(_ROOT / "py"))
