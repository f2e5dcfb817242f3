"""What this host has: the predicates that every decision in this package rests on.

Each is decided once per process. A later answer could differ for the wrong reason (a link
stub that is loaded under the real soname looks like the real library), and upstream, too,
decides once, while it is imported.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import importlib.util
import sys

#: Distributions that hold the compiled bindings, the one that upstream depends on first.
BINDINGS_DISTRIBUTIONS = (
    "tensorrt-cu13-bindings",
    "tensorrt-cu12-bindings",
    "tensorrt-bindings",
)


@functools.cache
def cuda_device() -> bool:
    """Whether PyTorch can use a CUDA device here."""
    import torch

    return torch.cuda.is_available()


@functools.cache
def bindings_version() -> str | None:
    """Version of the installed TensorRT Python bindings, such as ``11.0.0.114``.

    ``None`` when none of the known distributions is installed: TensorRT then comes from
    elsewhere (a system package, a tar file) or not at all.
    """
    for name in BINDINGS_DISTRIBUTIONS:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def library_soname(library: str, version: str) -> str:
    """Name under which bindings of ``version`` ask the loader for ``library``."""
    return f"lib{library}.so.{version.partition('.')[0]}"


@functools.cache
def tensorrt_libraries() -> bool:
    """Whether the bindings, once imported, find the real TensorRT libraries.

    They do with the package ``tensorrt_libs``, which loads its own copies, and with any
    library that the dynamic loader finds by its soname. Bindings of unknown origin are
    taken to come with their libraries, and so are those on platforms other than Linux.
    """
    version = bindings_version()
    if version is None or not sys.platform.startswith("linux"):
        return True
    if importlib.util.find_spec("tensorrt_libs") is not None:
        return True
    try:
        ctypes.CDLL(library_soname("nvinfer", version))
    except OSError:
        return False
    return True


def can_build_engines() -> bool:
    """Whether TensorRT can build an engine here: it needs its libraries and a GPU."""
    return tensorrt_libraries() and cuda_device()
