"""Compile the host code that all AOTInductor libraries share once, and link it into each.

Most of a small program's source is AOTInductor's container of models, and the C functions around it. Inductor
writes them before each program's own code, from one file. They are compiled once, with the templates that they
instantiate, next to Inductor's precompiled header of the same options, and linked with the rest.
"""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

import torch

logger = logging.getLogger(__name__)

_MODEL = (
    "template class torch::aot_inductor::AOTInductorModelBase<"
    "torch::aot_inductor::AOTInductorModel>;"
)


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the override that compiles a library's host code in two parts."""
    from torch._inductor import codegen, cpp_builder
    from torch._inductor.exc import CppCompileError

    compile_whole = cpp_builder.run_compile_cmd
    interface = Path(codegen.__path__[0], "aoti_runtime", "interface.cpp")

    def compile_in_parts(command: str, cwd: str) -> None:
        def run(arguments: list[str]) -> None:
            compile_whole(shlex.join(arguments), cwd)

        try:
            compiled = _compiled(shlex.split(command), interface.read_text(), run)
        except (OSError, CppCompileError, subprocess.CalledProcessError) as error:
            logger.info("compiled as a whole: %s", error)
            compiled = False
        if not compiled:
            compile_whole(command, cwd)

    return {"torch._inductor.cpp_builder:run_compile_cmd": compile_in_parts}


def _compiled(
    arguments: list[str], interface: str, run: Callable[[list[str]], None]
) -> bool:
    """Compile the command ``arguments`` in parts; return False if it can't be split."""
    source = next(
        (argument for argument in arguments if argument.endswith(".wrapper.cpp")), ""
    )
    if not source or not {"-c", "-o", "-include"} <= set(arguments):
        return False
    before, separator, own = Path(source).read_text().partition(interface)
    if not separator:
        return False
    output = arguments[arguments.index("-o") + 1]
    # Named by its compiler, its options and what is in it, and kept for all programs. What is compiled
    # here includes more of PyTorch than the precompiled header does.
    header = Path(arguments[arguments.index("-include") + 1])
    lines = interface.splitlines(keepends=True)
    included = "".join(line for line in lines if line.startswith("#include"))

    def build(code: str, target: Path) -> None:
        file = target.with_suffix(".cpp")
        file.write_text(code)
        paths = {source: str(file), output: str(target)}
        run([paths.get(argument, argument) for argument in arguments])

    with tempfile.TemporaryDirectory(dir=header.parent) as folder:
        shared = f"{before}{interface}\n{_MODEL}\n"
        options = [
            argument for argument in arguments if argument not in (source, output)
        ]
        key = sha256("\0".join([shared, *options, *_headers()]).encode()).hexdigest()
        common, staged = Path(folder, "shared.o"), Path(folder, "kept.o")
        for cached in header.parent.glob(f"{key}-*.o"):
            shutil.copyfile(cached, common)
            if cached.name == _name(key, common):
                break
        else:
            build(shared, common)
            shutil.copyfile(common, staged)
            os.replace(staged, header.with_name(_name(key, common)))
        rest = Path(folder, "own.wrapper.o")
        build(f"{before}{included}extern {_MODEL}\n{own}", rest)
        run([arguments[0], "-r", "-nostdlib", "-o", output, str(rest), str(common)])
    return True


def _name(key: str, file: Path) -> str:
    """Return an object file's name, with its digest: the linker accepts an empty file without an error."""
    return f"{key}-{sha256(file.read_bytes()).hexdigest()}.o"


@cache
def _headers() -> tuple[str, ...]:
    """Return AOTInductor's headers of the installed PyTorch, which host code includes."""
    folder = Path(torch.__path__[0], "include", "torch", "csrc", "inductor")
    return tuple(
        header_file.read_text()
        for header_file in sorted(folder.glob("aoti_runtime/*.h"))
    )
