"""Predicates: which devices, libraries and bindings this host has.

Each is decided once per process. A later answer could differ for the wrong reason (a link
stub that is loaded under the real soname looks like the real library), and upstream, too,
decides once, while it is imported.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import sys

from torchtrt_executorch.nogpu.builder.installed import Builder, installed_builder


@functools.cache
def cuda_device() -> bool:
    """Whether PyTorch can use a CUDA device here."""
    import torch

    return torch.cuda.is_available()


def cuda_device_listed() -> bool:
    """Whether the driver lists a CUDA device: asks without using it, so that processes can still be forked."""
    import torch

    # What ``is_available`` asks with PYTORCH_NVML_BASED_CUDA_CHECK set, which all threads would see.
    return torch.cuda.device_count() > 0


@functools.cache
def bindings_version() -> str | None:
    """Version of the installed Python bindings of TensorRT or TensorRT-RTX, if it is known."""
    return installed_builder().installed_version()


def library_soname(library: str, version: str) -> str:
    """Name under which bindings of ``version`` ask the loader for ``library``."""
    return f"lib{library}.so.{version.partition('.')[0]}"


@functools.cache
def tensorrt_libraries() -> bool:
    """Whether the bindings, once imported, find the real libraries.

    They do with the package that loads its own copies, and with any library that the dynamic
    loader finds by its soname. Bindings of unknown origin are taken to come with their libraries,
    and so are those on platforms other than Linux.
    """
    builder, version = installed_builder(), bindings_version()
    if version is None or not sys.platform.startswith("linux"):
        return True
    return _loadable(builder, version)


def libraries_of(builder: Builder) -> bool:
    """Whether a builder's bindings and libraries are here, which run its engines without Torch-TensorRT."""
    if importlib.util.find_spec(builder.package) is None:
        return False
    version = builder.installed_version()
    return version is None or _loadable(builder, version)


def _loadable(builder: Builder, version: str) -> bool:
    if importlib.util.find_spec(builder.libraries) is not None:
        return True
    try:
        ctypes.CDLL(library_soname(builder.library, version))
    except OSError:
        return False
    return True


def can_build_engines() -> bool:
    """Whether engines can be built here: that needs the libraries, and TensorRT also needs a GPU."""
    return tensorrt_libraries() and (cuda_device() or not installed_builder().needs_gpu)


def can_run_engines() -> bool:
    """Whether engines can be run here: that needs the libraries and a GPU."""
    return tensorrt_libraries() and cuda_device()
