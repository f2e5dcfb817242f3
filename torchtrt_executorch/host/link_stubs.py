"""Link stubs: what lets the real TensorRT bindings load where TensorRT itself is missing.

The bindings' extension module asks the dynamic loader for three libraries and nine symbols.
A link stub is a library with the same soname and symbols and nothing behind them, as the
CUDA toolkit has one of ``libcuda``. Enums, versions and upstream's converter registries are
then the real ones, while everything that would create a TensorRT object gets a null pointer,
which the bindings answer with an exception.

The stubs are compiled on first use and kept in the user's cache directory, per TensorRT
major version, machine type and content.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

from torchtrt_executorch.host.present import library_soname

logger = logging.getLogger(__name__)

#: Symbols that the bindings import, by library. All of them return a pointer, an ``int`` or
#: a ``bool``, so that one C type serves them all.
SYMBOLS = {
    "nvinfer": (
        "createInferBuilder_INTERNAL",
        "createInferRefitter_INTERNAL",
        "createInferRuntime_INTERNAL",
        "getBuilderPluginRegistry",
        "getPluginRegistry",
    ),
    "nvinfer_plugin": ("initLibNvInferPlugins",),
    "nvonnxparser": (
        "createNvOnnxParser_INTERNAL",
        "createNvOnnxParserRefitter_INTERNAL",
        "getNvOnnxParserVersion",
    ),
}


class LinkStubError(ImportError):
    """The link stubs can't be built or loaded, so ``tensorrt`` can't be imported."""


def source(library: str) -> str:
    """C source of the stub of ``library``, a key of :data:`SYMBOLS`."""
    return "".join(f"long {name}(void) {{ return 0; }}\n" for name in SYMBOLS[library])


def cache_directory(version: str) -> Path:
    """Where the stubs for bindings of ``version`` are kept.

    Below ``$XDG_CACHE_HOME``, or ``~/.cache`` without it. The name changes with anything that
    changes the stubs, so that what is found there never needs to be checked.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if os.path.isabs(base) else Path.home() / ".cache"
    content = "".join(map(source, SYMBOLS))
    digest = hashlib.sha256(content.encode()).hexdigest()[:8]
    major = version.partition(".")[0]
    name = f"tensorrt-{major}-link-stubs-{platform.machine()}-{digest}"
    return root / "torchtrt-executorch" / name


def build(version: str) -> Path:
    """Return the directory that holds the stubs for ``version``, compiled if need be.

    Safe with concurrent processes: the directory is made under a temporary name and appears
    under its own, complete, by one rename; whoever comes second uses the first one's.

    Raises:
        LinkStubError: no C compiler, it failed, or the cache directory can't be written.
    """
    directory = cache_directory(version)
    if directory.is_dir():
        return directory
    compiler = _compiler()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(
            dir=directory.parent, prefix=".building-", ignore_cleanup_errors=True
        ) as building:
            staged = Path(building) / "stubs"
            staged.mkdir()
            for library in SYMBOLS:
                _compile(compiler, library, staged / library_soname(library, version))
            with contextlib.suppress(FileExistsError):
                _rename(staged, directory)
    except OSError as error:
        raise LinkStubError(
            f"TensorRT's libraries are not installed, and the link stubs that stand in for "
            f"them can't be kept in {directory.parent}: {error}. Set XDG_CACHE_HOME to a "
            f"directory that can be written, or install TensorRT."
        ) from error
    return directory


def load(version: str) -> None:
    """Load the stubs into this process, ahead of the bindings of ``version``.

    The dynamic loader gives a library that is already loaded to whoever asks for its soname.
    Must not be called where the real libraries can be found.

    Raises:
        LinkStubError: as for :func:`build`, or a stub does not load.
    """
    directory = build(version)
    for library in SYMBOLS:
        path = directory / library_soname(library, version)
        try:
            ctypes.CDLL(str(path))
        except OSError as error:
            raise LinkStubError(
                f"The link stub {path} does not load: {error}. Remove the directory "
                f"{directory} and try again."
            ) from error
    logger.info(
        "TensorRT is not installed: its bindings use link stubs of %s", directory
    )


def _compiler() -> list[str]:
    """Command line of the C compiler, from ``$CC`` or ``cc``."""
    command = shlex.split(os.environ.get("CC", "")) or ["cc"]
    if shutil.which(command[0]) is None:
        raise LinkStubError(
            f"TensorRT's libraries are not installed, and to build the link stubs that stand "
            f"in for them a C compiler is needed: {command[0]!r} was not found. Install one "
            f"(Debian and Ubuntu: apt-get install gcc), or set CC to one, or install TensorRT."
        )
    return command


def _compile(compiler: list[str], library: str, output: Path) -> None:
    # Without the standard library: the stubs call nothing, and a compiler without the C
    # library's headers and start files is enough then.
    flags = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{output.name}"]
    command = [*compiler, *flags, "-x", "c", "-", "-o", str(output)]
    result = subprocess.run(
        command, input=source(library), text=True, capture_output=True, check=False
    )
    if result.returncode != 0:
        raise LinkStubError(
            f"TensorRT's libraries are not installed, and building the link stub "
            f"{output.name} that stands in for one failed.\n$ {shlex.join(command)}\n"
            f"{result.stderr.strip()}\nSet CC to a working C compiler, or install TensorRT."
        )


def _rename(source_directory: Path, target: Path) -> None:
    """Rename a directory; ``FileExistsError`` when another process was first."""
    try:
        source_directory.rename(target)
    except OSError as error:
        # A directory that is not empty makes rename(2) fail with ENOTEMPTY on Linux, for
        # which Python has no class of its own.
        if target.is_dir():
            raise FileExistsError(str(target)) from error
        raise
