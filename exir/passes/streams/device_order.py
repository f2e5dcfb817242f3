"""Per backend: which delegates are asynchronous, and what orders them, in ExecuTorch's C++ runtime.

A table of facts, read in upstream's sources, for `delegate_streams` and for who checks a file.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from packaging.specifiers import SpecifierSet

TORCH_TENSORRT = "torch-tensorrt"


@dataclass(frozen=True)
class Streams:
    """Stream behavior of a backend's delegates, or of copies to a device.

    Attributes:
        asynchronous: Work of a delegate goes on after its ``execute`` has returned, on some host.
        device_synchronizing: A delegate waits for whatever else was enqueued on its device.
        releases: The releases of ``package`` that this is true of.
        evidence: Where upstream's source shows that.
        takes_host_memory: A delegate on a device also takes tensors in host memory.
        writes_last: Outputs are written after all that reads inputs is done, so that one may lie
            where the other does.
        shared_stream: All delegates of the backend are on one stream, so they run in order.
        ordered_after_copies: A delegate comes after a copy to its device that was enqueued before it. If
            not, it only comes after those that a later copy to the host has waited for, and a copy
            to the device doesn't order it after anything else.
        package: The package that the delegate's sources are released with.
    """

    asynchronous: bool
    device_synchronizing: bool
    releases: str
    evidence: str
    takes_host_memory: bool = True
    writes_last: bool = False
    shared_stream: bool = False
    ordered_after_copies: bool = True
    package: str = "executorch"


#: The default for unknown backends, and upstream's assumption for all.
IN_ORDER = Streams(
    asynchronous=False,
    device_synchronizing=True,
    releases=">=0",
    evidence="upstream's PropagateDevicePass puts nothing between two delegates",
)

#: A copy to a device comes after all that was enqueued there before, on every host.
COPY_TO_DEVICE = Streams(
    asynchronous=True,
    device_synchronizing=True,
    releases=">=1.4",
    evidence=(
        "cuda_allocator.cpp: inside a CallerStreamGuard a cudaMemcpyAsync on the caller's stream, "
        "which returns once it has read memory that isn't pinned; else a cudaMemcpy"
    ),
)

_KNOWN = {
    "CudaBackend": (
        Streams(
            asynchronous=True,
            device_synchronizing=False,
            releases=">=1.4",
            evidence=(
                "backends/cuda/runtime/cuda_backend.cpp: init gives every delegate a stream from "
                "cudaStreamCreate, execute enqueues on it and returns; one stream for all with the "
                "backend option use_shared_cuda_stream, or inside a CallerStreamGuard. "
                "execute refuses tensors that are not in the device's memory. "
                "cuda_allocator.cpp: et_copy is a cudaMemcpy on the legacy default stream, which "
                "comes after all of that and before whatever is enqueued next. "
                "execute has AOTInductor allocate the outputs, and then enqueues copies of them "
                "into the program's tensors on the same stream"
            ),
            takes_host_memory=False,
            writes_last=True,
        ),
    ),
    "TensorRTBackend": (
        Streams(
            asynchronous=False,
            device_synchronizing=False,
            releases=">=2.14",
            evidence=(
                "pytorch/TensorRT#4454, cpp/src/torch_tensorrt/executorch/TensorRTBackend.cpp: execute "
                "enqueues on cudaStreamPerThread, which the legacy default stream waits for and which waits "
                "for that, and synchronizes with it; inside a CallerStreamGuard on the caller's stream, which "
                "CUDA delegates and copies are on as well, without synchronizing"
            ),
            shared_stream=True,
            package=TORCH_TENSORRT,
        ),
        Streams(
            asynchronous=True,
            device_synchronizing=False,
            releases="<2.14",
            evidence=(
                "torch-tensorrt 2.13, cpp/src/torch_tensorrt/executorch/TensorRTBackend.cpp: execute "
                "enqueues on cudaStreamPerThread and synchronizes with that; the caller's stream "
                "instead, without synchronizing, inside a CudaStreamGuard. "
                "cuda_allocator.cpp: inside a CallerStreamGuard alone, which 2.13 knows nothing of, "
                "a copy to the device is a cudaMemcpyAsync on the caller's stream that nobody waits "
                "for, behind whatever CUDA delegates have enqueued there; one to the host is waited for"
            ),
            shared_stream=True,
            ordered_after_copies=False,
            package=TORCH_TENSORRT,
        ),
    ),
}

#: Distributions of a package: the delegate that runs a program is of the release that exported it.
_DISTRIBUTIONS = {TORCH_TENSORRT: (TORCH_TENSORRT, f"{TORCH_TENSORRT}-rtx")}


def streams_of(backend_id: str) -> Streams:
    """Return the stream behavior of a backend's delegates in the installed releases; in order if unknown."""
    for streams in _KNOWN.get(backend_id, ()):
        if _includes(streams.releases, release_of(streams.package)):
            return streams
    return IN_ORDER


@cache
def release_of(package: str) -> str:
    """Return the installed release of a package; the newest there could be of one that isn't installed."""
    for distribution in _DISTRIBUTIONS.get(package, (package,)):
        try:
            return version(distribution)
        except PackageNotFoundError:  # or a source tree on the path
            continue
    return "999"


@cache
def _includes(releases: str, release: str) -> bool:
    return SpecifierSet(releases).contains(release, prereleases=True)


def runs_after(later: Streams, earlier: Streams) -> bool:
    """Whether each delegate of the one kind runs after all that were called before it of the other."""
    if not earlier.asynchronous or later.device_synchronizing:
        return True
    if earlier is COPY_TO_DEVICE:
        return later.ordered_after_copies
    return earlier == later and later.shared_stream
