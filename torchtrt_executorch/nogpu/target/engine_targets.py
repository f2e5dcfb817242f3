"""GPUs that TensorRT-RTX builds for, on a host without one.

By default it builds one engine for most of the GPUs that it supports. With a GPU description,
``TORCHTRT_GPU=sm_75:8GiB``, it only builds for that GPU, or for all of several. Where there is a GPU it
builds for that one, if it supports it.

ExecuTorch's TensorRT delegate is for Linux. From 1.6 on there is TensorRT-RTX for Arm, and its engines
are the same, byte for byte: five networks in three types, for three GPUs and by default, were built
by its release for aarch64, under qemu, and by that for x86-64.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from packaging.version import Version

from torchtrt_executorch.nogpu.builder.installed import TENSORRT_RTX, installed_builder
from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.target.gpu_description import (
    GpuDescription,
    chosen,
    own_platform,
)

#: The first release for each kind of machine that runs engines in ExecuTorch.
_FIRST = {"linux-x86_64": "1.0", "linux-aarch64": "1.6"}
#: ``torch_tensorrt._enums.Platform`` by operating system and processor.
_PLATFORMS = {
    "linux-x86_64": "LINUX_X86_64",
    "linux-aarch64": "LINUX_AARCH64",
    "windows-x86_64": "WIN_X86_64",
}
_MEMBER = re.compile(r"SM(?P<capability>\d+)")


class UntargetableGpuError(OSError):
    """TensorRT-RTX can't build for the GPU that is here, or for one that is described.

    An ``OSError``, which is about the machine. Not a ``RuntimeError``: upstream's ``torch.compile``
    backend takes one as a failed build of one engine, and goes on in PyTorch.

    Attributes:
        about_the_target: Whether it is one that is described. Other partitioners may serve it.
    """

    def __init__(self, message: str, about_the_target: bool = False) -> None:
        super().__init__(message)
        self.about_the_target = about_the_target


def is_unsupported_here() -> bool:
    """Whether there is a GPU, and TensorRT-RTX has no engines for it."""
    if installed_builder() is not TENSORRT_RTX or not present.cuda_device():
        return False
    import torch

    capability = torch.cuda.get_device_capability()
    known = [known for known, _ in _targets()]
    return capability not in known and capability < max(known)


def check() -> None:
    """Check that engines can be built for the GPU that is here, or the described ones.

    Raises:
        UntargetableGpuError: They can't; with what they can be built for.
    """
    if gpus := chosen():
        if not _is_here(gpus):
            check_target(gpus)
    elif is_unsupported_here():
        import torch

        major, minor = torch.cuda.get_device_capability()
        raise UntargetableGpuError(
            f"{installed_builder().name} {present.bindings_version()} doesn't support the GPU that "
            f"is here, sm_{major}{minor}; it does {_known()} and later ones: install "
            "torch-tensorrt in the place of torch-tensorrt-rtx, or hide the GPU with "
            "CUDA_VISIBLE_DEVICES= to build for others"
        )


def _is_here(gpus: Sequence[GpuDescription]) -> bool:
    """Whether there is a GPU like the one that is named, so that TensorRT can build for it."""
    if installed_builder() is TENSORRT_RTX or not present.cuda_device():
        return False
    import torch

    here = torch.cuda.get_device_capability()
    return [(gpu.capability, gpu.platform) for gpu in gpus] == [(here, own_platform())]


def check_target(gpus: Sequence[GpuDescription]) -> None:
    """Check that the installed TensorRT can build engines for ``gpus`` without one of them.

    Raises:
        UntargetableGpuError: It can't; with what it can build for.
    """
    builder = installed_builder()
    what = f"{builder.name} {present.bindings_version()}"
    if builder is not TENSORRT_RTX:
        raise UntargetableGpuError(
            f"{what} only builds engines on the GPU that runs them", True
        )
    platform = gpus[0].platform
    if not runs_on(platform, present.bindings_version()):
        raise UntargetableGpuError(
            f"{what} can't build engines for {platform}: in ExecuTorch they run on "
            f"{_platforms()}, the latter with {builder.name} {_FIRST['linux-aarch64']} and later",
            True,
        )
    known = [capability for capability, _ in _targets()]
    for gpu in gpus:
        if gpu.capability not in known:
            raise UntargetableGpuError(
                f"{what} can't build engines for sm_{gpu.major}{gpu.minor}: it builds "
                f"for {_known()}, and where no GPU is named for {builder.default_targets} at once",
                True,
            )


def runs_on(platform: str, version: str | None) -> bool:
    """Whether engines of a release of TensorRT-RTX run on an operating system and processor."""
    if version is None or platform not in _FIRST:
        return False
    return Version(version) >= Version(_FIRST[platform])


def for_targets(configuration: Any) -> Any:
    """Return TensorRT-RTX's builder configuration, told of the GPUs that are asked for.

    Raises:
        UntargetableGpuError: It can't build for one of them.
    """
    gpus = chosen() if installed_builder() is TENSORRT_RTX else ()
    if gpus:
        check_target(gpus)
        known = dict(_targets())
        configuration.num_compute_capabilities = len(gpus)
        for index, gpu in enumerate(gpus):
            configuration.set_compute_capability(known[gpu.capability], index)
    return configuration


def recorded_platform(here: Any) -> Any:
    """Return the platform that an engine records: the target's.

    Args:
        here: This machine's, as ``torch_tensorrt._enums.Platform``.
    """
    gpus = chosen()
    if not gpus or gpus[0].platform == own_platform():
        return here
    return type(here)[_PLATFORMS[gpus[0].platform]]


def loadable_platform(here: str, recorded: str) -> str:
    """Return the platform that an engine has to record to be loaded: any where stand-ins run it.

    Args:
        here: This machine's, as engines record it.
        recorded: The engine's.
    """
    return here if present.can_run_engines() else recorded


def engines_for() -> str:
    """Return what engines can be built for without its GPU, in words; empty for nothing."""
    if installed_builder() is not TENSORRT_RTX:
        return ""
    try:
        return f"{_known()}, on {_platforms(present.bindings_version())}"
    except (ImportError, OSError):  # it isn't there, or doesn't load
        return ""


def _platforms(version: str | None = None) -> str:
    """Return the platforms that engines run on, of a release or of any, in words."""
    platforms = [
        platform for platform in _FIRST if version is None or runs_on(platform, version)
    ]
    return " and ".join(platforms)


def _known() -> str:
    return ", ".join(f"sm_{major}{minor}" for (major, minor), _ in _targets())


def _targets() -> Iterator[tuple[tuple[int, int], Any]]:
    """Yield the compute capabilities that the installed TensorRT-RTX can build for."""
    import tensorrt_rtx

    for name, value in tensorrt_rtx.ComputeCapability.__members__.items():
        if match := _MEMBER.fullmatch(name):
            major, minor = divmod(int(match["capability"]), 10)
            yield (major, minor), value
