"""Cross-compile the host code of a CUDA library for another target triple.

AOTInductor compiles its source with one C++ compiler, and assumes that its target is this machine. PyPI's
``ziglang`` has a compiler for all targets, with their C and C++ libraries; a script with g++'s command
line calls it (:mod:`.driver`), so that Inductor's own build of the library is unchanged. Symbols of the
target's CUDA and ExecuTorch are linked against stubs, so no files of the target are needed.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import re
import shlex
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchtrt_executorch.nogpu.cross import driver
from torchtrt_executorch.nogpu.cross.requirements import CROSS
from torchtrt_executorch.nogpu.thread_scope import lookup

_LONG = re.compile(r"(?<=\d)L\b")


class NoCrossCompilerError(RuntimeError):
    """No cross-compiler is installed."""


@dataclasses.dataclass(frozen=True)
class CrossCompiler:
    """A C++ compiler for ``platform``.

    Attributes:
        platform: Operating system and processor, as ``linux-aarch64``.
        program: The executable, which is called like g++.
    """

    platform: str
    program: Path

    def overrides(self) -> dict[str, Callable[..., Any]]:
        """Return the overrides for the target's C++; the compiler itself is an option of Inductor's."""
        return _long_integers() if self.platform.startswith("windows") else {}


def find(platform: str, folder: Callable[[], Path]) -> CrossCompiler:
    """Return a compiler for ``platform``.

    Args:
        platform: As ``linux-aarch64``.
        folder: Returns the folder that programs, and what they make once, are kept in, for each platform
            in a folder of its own.

    Raises:
        NoCrossCompilerError: zig isn't installed.
    """
    spec = importlib.util.find_spec("ziglang")
    if spec is None or spec.origin is None:
        raise NoCrossCompilerError(
            f"the host side of CUDA delegates for {platform} is compiled by zig, and it is not "
            f"installed: {CROSS}"
        )
    zig = Path(spec.origin).with_name("zig")
    platform_folder = folder() / platform
    command = [
        sys.executable,
        driver.__file__,
        str(zig),
        platform,
        str(platform_folder),
    ]
    # Inductor knows compilers by their names.
    text = f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n'
    # Each environment has one of its own: it names that one's Python, zig and files.
    digest = hashlib.sha256(text.encode()).hexdigest()[:12]
    program = platform_folder / f"{digest}-clang++"
    _write_program(program, text)
    return CrossCompiler(platform, program)


def _write_program(path: Path, text: str) -> None:
    """Make ``path`` an executable file with ``text``, unless it is."""
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        staged = Path(folder, path.name)
        staged.write_text(text)
        staged.chmod(0o755)
        staged.replace(path)


def _long_integers() -> dict[str, Callable[..., Any]]:
    """Return the overrides that generate 64-bit integers for Windows as ``long long``."""
    names = (
        "torch.utils._sympy.printers:CppPrinter._print_Integer",
        "torch._inductor.codegen.cpp_wrapper_cpu:CppWrapperCpu.val_to_arg_str_for_prim_type",
    )

    def longer(write: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *args, **kwargs: _LONG.sub("LL", write(*args, **kwargs))

    return {name: longer(lookup(name)) for name in names}
