"""Find the builder that Torch-TensorRT uses here: TensorRT or TensorRT-RTX.

Torch-TensorRT comes as two distributions of one package. ``torch-tensorrt`` is driven by TensorRT,
which needs a GPU to build an engine; ``torch-tensorrt-rtx`` by TensorRT-RTX, which doesn't. Upstream
goes by the distribution's name, and so is it done here.
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
from collections.abc import Iterator
from dataclasses import dataclass

from packaging.requirements import Requirement

from torchtrt_executorch.overlay import warn
from torchtrt_executorch.overlay.upstream import distribution_release


@dataclass(frozen=True)
class Builder:
    """TensorRT, or TensorRT-RTX.

    Attributes:
        name: Its product name.
        distribution: The Torch-TensorRT that it drives.
        package: Its Python package, and what Torch-TensorRT requires it by.
        bindings: Distributions that hold its compiled bindings, the one that upstream depends on
            first.
        libraries: The package that loads its libraries where pip has installed them.
        library: The library that the bindings ask the loader for.
        needs_gpu: Whether building takes a GPU.
        default_gpus: Targets where there is no GPU, and none is named. Engines are built
            for all of them; CUDA libraries have code for the first, which runs on the others as it
            is, or translated by the driver.
        default_targets: The GPUs that it builds one engine for unless it is told; empty if that is
            the GPU at hand.
    """

    name: str
    distribution: str
    package: str
    bindings: tuple[str, ...]
    libraries: str
    library: str
    needs_gpu: bool
    default_gpus: str
    default_targets: str = ""

    def installed_version(self) -> str | None:
        """Return the version of the installed bindings, such as ``11.0.0.114``.

        None when none of the known distributions is installed: it then comes from elsewhere (a
        system package, a tar file) or not at all.
        """
        releases = map(distribution_release, self.bindings)
        return next((version for version in releases if version), None)


TENSORRT = Builder(
    name="TensorRT",
    distribution="torch-tensorrt",
    package="tensorrt",
    bindings=(
        "tensorrt-cu13-bindings",
        "tensorrt-cu12-bindings",
        "tensorrt-bindings",
    ),
    libraries="tensorrt_libs",
    library="nvinfer",
    needs_gpu=True,
    default_gpus="sm_90:80GiB",
)
TENSORRT_RTX = Builder(
    name="TensorRT-RTX",
    distribution="torch-tensorrt-rtx",
    package="tensorrt_rtx",
    bindings=("tensorrt-rtx-cu13-bindings", "tensorrt-rtx-cu12-bindings"),
    libraries="tensorrt_rtx_libs",
    library="tensorrt_rtx",
    needs_gpu=False,
    default_gpus="sm_80:24GiB,sm_86:24GiB,sm_89:24GiB,sm_120:24GiB",
    default_targets="sm_80, sm_86, sm_89, sm_120 and later",
)
BUILDERS = (TENSORRT, TENSORRT_RTX)


class BrokenInstallError(ImportError):
    """The engine builder is incompletely installed, or can't be loaded."""


@functools.cache
def installed_builder() -> Builder:
    """Return the builder of the installed Torch-TensorRT; TensorRT where there is none."""
    is_rtx = distribution_release(TENSORRT_RTX.distribution) is not None
    return TENSORRT_RTX if is_rtx else TENSORRT


def problems() -> Iterator[str]:
    """Yield the problems of the installed distributions, a sentence each."""
    releases = {b.distribution: distribution_release(b.distribution) for b in BUILDERS}
    names = " and ".join(releases)
    if not any(releases.values()):
        yield (
            f"neither {' nor '.join(releases)} is installed. {TENSORRT_RTX.name} builds engines "
            f"without a GPU: pip install {TENSORRT_RTX.distribution}. {TENSORRT.name}'s own "
            f"libraries come from NVIDIA's index, with pip install {TENSORRT.distribution}; without "
            "a GPU its bindings do: pip install setuptools wheel dllist psutil filelock numpy, then "
            f"pip install --no-deps --no-build-isolation {TENSORRT.distribution} tensorrt-cu13 "
            f"{TENSORRT.bindings[0]}, in the releases that the PyTorch here goes with"
        )
        return
    if all(releases.values()):
        yield (
            f"{names} are both installed and share one package, so that one has overwritten the "
            f"other: pip uninstall {' '.join(releases)}, and pip install one of them"
        )
        return
    builder = installed_builder()
    version = builder.installed_version()
    for wanted in _requirements(builder):
        if version and not wanted.specifier.contains(version, prereleases=True):
            yield (
                f"{builder.distribution} {releases[builder.distribution]} is made for "
                f"{builder.name} {wanted.specifier}, and {version} is installed: pip install "
                f"'{builder.bindings[0]}{wanted.specifier}', and the libraries of that version"
            )


def _requirements(builder: Builder) -> Iterator[Requirement]:
    for line in importlib.metadata.requires(builder.distribution) or ():
        requirement = Requirement(line)
        if requirement.name.replace("-", "_") == builder.package:
            yield requirement


@functools.cache
def check_installed() -> None:
    """Warn of the problems here, once, and load TensorRT-RTX: there are no stubs for it.

    Raises:
        BrokenInstallError: It is not there, or can't be loaded; with the command that mends it.
    """
    for problem in problems():
        warn(problem)
    builder = installed_builder()
    if builder is not TENSORRT_RTX:
        return
    try:
        importlib.import_module(builder.package)
    except (ImportError, OSError) as error:
        version = builder.installed_version()
        pin = f"=={version}" if version else ""
        pieces = ("", "-bindings", "-libs")
        names = " ".join(f"tensorrt-rtx-cu13{piece}{pin}" for piece in pieces)
        raise BrokenInstallError(
            f"{builder.name}, which {builder.distribution} builds engines with, can't be loaded "
            f"({error}): pip install --force-reinstall --no-deps {names}, with 250 MB of disk free"
        ) from error
