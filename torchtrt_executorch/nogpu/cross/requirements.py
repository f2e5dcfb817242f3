"""Requirements of compiling CUDA delegates without a GPU: what is missing, and how to install it.

It imports neither PyTorch nor ExecuTorch, so that it can be asked before either is imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

#: The Triton that a release of PyTorch is made for. Its CUDA builds say so themselves, CPU builds don't.
_TRITON = {"2.13": "3.7.1", "2.14": "3.8.0", "2.15": "3.9.0"}

#: Path of a toolkit by NVIDIA's installer.
TOOLKIT = Path("/usr/local/cuda")

CROSS = 'pip install "torchtrt-executorch[cross]"'
#: How to install a C++ compiler.
COMPILER = "apt-get install g++, or set CXX to a C++ compiler"


def triton_release() -> str | None:
    """Return the release of Triton that the installed PyTorch is made for; None if it isn't known."""
    try:
        torch = importlib.metadata.distribution("torch")
    except importlib.metadata.PackageNotFoundError:
        return None
    for line in torch.requires or ():
        if match := re.match(r"triton\s*==\s*([\w.]+)", line):
            return match[1]
    return _TRITON.get(".".join(torch.version.split(".")[:2]))


def cuda() -> str:
    """Return the command that installs Triton, in the release that fits PyTorch, and CUDA's headers."""
    release = triton_release()
    return 'pip install "torchtrt-executorch[cuda]"' + (
        f" triton=={release}" if release else ""
    )


def what_is_missing(cross: bool = False) -> str:
    """Return what is missing to compile CUDA delegates, and how to install it; empty if nothing is.

    Args:
        cross: For other operating systems and processors than this machine's.
    """
    by_command: dict[str, list[str]] = {}
    for what, command in missing(cross):
        by_command.setdefault(command, []).append(what)
    return "; ".join(
        f"{' and '.join(names)}: {command}" for command, names in by_command.items()
    )


def missing(cross: bool = False) -> list[tuple[str, str]]:
    """Return each requirement that is missing to compile CUDA delegates, and how to install it.

    Args:
        cross: For other operating systems and processors than this machine's.
    """
    requirements = []
    if importlib.util.find_spec("triton") is None:
        requirements.append(("Triton", cuda()))
    if not any(map(has_headers, folders())):
        requirements.append(("CUDA's headers", cuda()))
    if cross and importlib.util.find_spec("ziglang") is None:
        requirements.append(("zig", CROSS))
    compiler = shlex.split(os.environ.get("CXX") or "g++")[0]
    if not cross and shutil.which(compiler) is None:
        requirements.append((f"a C++ compiler ({compiler})", COMPILER))
    return requirements


def folders() -> Iterator[Path]:
    """Yield the folders that may have CUDA's headers: toolkits, then NVIDIA's packages."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        if folder := os.environ.get(name):
            yield Path(folder)
    if nvcc := shutil.which("nvcc"):
        yield Path(nvcc).parent.parent
    yield TOOLKIT
    spec = importlib.util.find_spec("nvidia")
    for place in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(place).glob("cu[0-9]*"), reverse=True)


def has_headers(folder: Path) -> bool:
    """Whether a folder has CUDA's headers, those that are needed."""
    include = folder / "include"
    needed = ("cuda.h", "cuda_runtime_api.h", "crt/host_config.h")
    return all((include / name).is_file() for name in needed) and any(
        (folder / "nv" / "target").is_file() for folder in (include, include / "cccl")
    )
