"""Predict whether ``import torch_tensorrt`` would work, without importing it.

And ``torch_tensorrt.executorch``, without an import of its own.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

from packaging.requirements import Requirement

from torchtrt_executorch.nogpu.builder.installed import (
    TENSORRT_RTX,
    installed_builder,
    problems,
)
from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.stubs import link_stubs
from torchtrt_executorch.nogpu.stubs.stub_libraries import LinkStubError
from torchtrt_executorch.nogpu.target.gpu_description import VARIABLE, GpuDescription
from torchtrt_executorch.overlay.upstream import distribution_release


def subpackage(name: str) -> Any:
    """Return ``torch_tensorrt.executorch``, as ``torch_tensorrt.__getattr__``.

    Without ExecuTorch, too: upstream's subpackage says then what is missing, and how to get it.

    Raises:
        AttributeError: Another name is asked for.
    """
    if name == "executorch":
        return import_module("torch_tensorrt.executorch")
    raise AttributeError(f"module 'torch_tensorrt' has no attribute {name!r}")


def import_errors(patched: bool) -> Iterator[str]:
    """Yield why ``import torch_tensorrt`` would fail, a sentence each.

    Where TensorRT's libraries are missing, the link stubs that the import needs are built, and
    kept for it.

    Args:
        patched: Whether the patch ``host`` is in force.
    """
    distribution = installed_builder().distribution
    if distribution_release(distribution) is None:
        yield from problems()
        return
    lacking = [str(wanted) for wanted in _requirements(distribution) if _lacks(wanted)]
    if lacking:
        names = " ".join(f"'{wanted}'" for wanted in lacking)
        yield f"{distribution} requires what is not installed: pip install {names}"
    if not _has_bindings():
        builder = installed_builder()
        names = f"{builder.package.replace('_', '-')}-cu13 {builder.bindings[0]}"
        yield (
            f"the Python bindings of {builder.name} are not installed: pip install --no-deps "
            f"--no-build-isolation {names}, in the release that {distribution} requires"
        )
    elif installed_builder() is not TENSORRT_RTX and not present.tensorrt_libraries():
        yield from _without_libraries(patched)
    elif not patched and not present.cuda_device():
        yield "there is no CUDA device, and the patch host, which does without, is not in force"
    if patched:
        yield from malformed_target()


def malformed_target() -> Iterator[str]:
    """Yield the problem of the GPU description in the environment, a sentence; nothing if it is well-formed."""
    if os.environ.get(VARIABLE):
        try:
            GpuDescription.parse_list(os.environ[VARIABLE])
        except ValueError as error:
            yield f"where there is no GPU: {error}"


def _requirements(distribution: str) -> Iterator[Requirement]:
    """Yield what a Torch-TensorRT needs at import, but for TensorRT, which comes in parts."""
    for line in importlib.metadata.requires(distribution) or ():
        wanted = Requirement(line)
        applies = wanted.marker is None or wanted.marker.evaluate({"extra": ""})
        if applies and not wanted.name.startswith("tensorrt"):
            yield wanted


def _lacks(wanted: Requirement) -> bool:
    release = distribution_release(wanted.name)
    return release is None or not wanted.specifier.contains(release, prereleases=True)


def _has_bindings() -> bool:
    """Whether there are bindings: of a known distribution, or of a system's own package."""
    if present.bindings_version() is not None:
        return True
    package = installed_builder().package
    return any(os.path.isdir(os.path.join(path, package)) for path in sys.path)


def _without_libraries(patched: bool) -> Iterator[str]:
    if not patched:
        yield (
            "TensorRT's libraries are not installed, and the patch host, which does without, is "
            "not in force"
        )
        return
    try:
        link_stubs.build(str(present.bindings_version()))
    except LinkStubError as error:
        yield str(error)
