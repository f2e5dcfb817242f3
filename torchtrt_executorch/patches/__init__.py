"""The files under ``py/``, ``backends/`` and ``exir/``, by the upstream names they serve.

In an installation they are here. In a clone, which precedes the installed package on Python's path if a script or the
shell is in its folder, they are at the upstream paths.
"""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

if "__file__" in globals():  # a frozen module has none, and is no clone's
    _HERE, _ROOT = Path(__file__).parent, Path(__file__).parents[2]
    for _name, _folder in (
        ("torch_tensorrt", "py/torch_tensorrt"),
        ("executorch.backends", "backends"),
        ("executorch.exir", "exir"),
    ):
        _file = _ROOT / _folder / "__init__.py"
        if _file.is_file() and not (_HERE / _name.replace(".", "/")).is_dir():
            _spec = spec_from_file_location(f"{__name__}.{_name}", _file)
            if _spec is not None:  # packages of docstrings
                sys.modules[_spec.name] = module_from_spec(_spec)
