"""Which operators a file may name: those that ExecuTorch has kernels for.

A program that runs on a device names no others, and torch has thousands: some trust the values that
they are given, open files, or do what no model does. ExecuTorch's package lists its kernels.
"""

from __future__ import annotations

import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

#: Inside of ExecuTorch's package, where it keeps the lists that its kernels are built from.
_LISTS = (
    "kernels/portable/functions.yaml",
    "kernels/portable/custom_ops.yaml",
    "kernels/quantized/quantized.yaml",
)
#: Those of its optimized kernels that have no portable twin: their list isn't in the package.
_OPTIMIZED = {"aten::_fft_c2r.out", "aten::_fft_r2c.out", "aten::linear.out"}

_ENTRY = re.compile(r"^- (?:op|func): ([\w:.]+)", re.MULTILINE)


@lru_cache(maxsize=1)
def executorch_kernels() -> frozenset[str]:
    """Return the names of the operators that ExecuTorch has kernels for.

    A name is ``namespace::operator``, and ``.overload`` if it has one. ExecuTorch's own operators,
    which :mod:`~torchtrt_executorch.runtime.prims` knows, are left out.
    """
    spec = find_spec("executorch")
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    names = set(_OPTIMIZED)
    for folder in folders:
        for path in (Path(folder, name) for name in _LISTS):
            if path.is_file():
                names.update(_ENTRY.findall(path.read_text(encoding="utf-8")))
    return frozenset(name if "::" in name else f"aten::{name}" for name in names)
