"""Link stubs: let the real TensorRT bindings load where TensorRT's libraries are missing.

The bindings' extension module needs three libraries and nine symbols.
A link stub is a library with the same soname and symbols, without implementations, like the
CUDA toolkit's of ``libcuda``. Enums, versions and upstream's converter registries are
then the real ones, while everything that would create a TensorRT object gets a null pointer,
which the bindings answer with an exception.

They are built and kept by :mod:`~torchtrt_executorch.nogpu.stubs.stub_libraries`, per major version.
"""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path

from torchtrt_executorch.nogpu.host.present import library_soname
from torchtrt_executorch.nogpu.stubs.stub_libraries import (
    LinkStubError,
    StubLibraries,
    StubLibrary,
)

__all__ = ["SYMBOLS", "LinkStubError", "build", "cache_directory", "load"]

logger = logging.getLogger(__name__)

#: Symbols that the bindings import, by library.
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


def cache_directory(version: str) -> Path:
    """Return the folder of the stubs for bindings of ``version``."""
    return _stubs(version).directory


def build(version: str) -> Path:
    """Return the directory that holds the stubs for ``version``, compiled if need be.

    Raises:
        LinkStubError: No C compiler, it failed, or the cache directory can't be written.
    """
    return _stubs(version).build()


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


def _stubs(version: str) -> StubLibraries:
    return StubLibraries(
        name=f"tensorrt-{version.partition('.')[0]}",
        missing="TensorRT's libraries are not installed",
        remedy="install TensorRT",
        libraries={
            soname: StubLibrary(soname, symbols)
            for library, symbols in SYMBOLS.items()
            for soname in [library_soname(library, version)]
        },
    )
