"""Which delegates of a device run in order, one after another, in ExecuTorch's C++ runtime.

A table of facts, read in upstream's sources, for `delegate_order_pass`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from executorch.exir import memory
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes._aliases import elided_root, elided_views, producer
from executorch.exir.passes._device_nodes import (
    H2D,
    is_delegate,
    lowered_module,
    operator_name,
)
from packaging.specifiers import SpecifierSet
from torch.fx import GraphModule, Node

#: Key of the compile spec by which a delegate says that its program is right only on a host that
#: runs all delegates on one stream. No backend reads it.
SHARED_STREAM_COMPILE_SPEC_KEY = "needs_shared_stream"
#: Key of the compile spec by which one says how many inputs it takes, in digits, where the program
#: doesn't tell: its last is a view that is planned away, which nothing seems to have written. No
#: backend reads it.
NUM_INPUTS_COMPILE_SPEC_KEY = "num_inputs"


@dataclass(frozen=True)
class Streams:
    """How the delegates of a backend, or copies to a device, use the streams of that device.

    Attributes:
        leaves_running: Work of a delegate goes on after its ``execute`` has returned, on some host.
        waits: A delegate waits for whatever else was enqueued on its device.
        releases: The ExecuTorch releases that this is true of.
        evidence: Where that is to be seen.
        takes_host_memory: A delegate on a device also takes tensors in host memory.
        writes_last: Outputs are written after all that reads inputs is done, so that one may lie
            where the other does.
        one_stream: All delegates of the backend are on one stream, so they run in order.
        follows_copies: A delegate comes after a copy to its device that was enqueued before it. If
            not, it comes after those alone that a later copy to the host has waited for, and a copy
            to the device doesn't order it behind anything else.
    """

    leaves_running: bool
    waits: bool
    releases: str
    evidence: str
    takes_host_memory: bool = True
    writes_last: bool = False
    one_stream: bool = False
    follows_copies: bool = True


#: What upstream's pass takes for granted of every backend, and this one of those that it doesn't know.
IN_ORDER = Streams(
    leaves_running=False,
    waits=True,
    releases=">=0",
    evidence="upstream's PropagateDevicePass puts nothing between two delegates",
)

#: A copy to a device comes after all that was enqueued there before, on every host.
COPY_TO_DEVICE = Streams(
    leaves_running=True,
    waits=True,
    releases=">=1.4",
    evidence=(
        "cuda_allocator.cpp: inside a CallerStreamGuard a cudaMemcpyAsync on the caller's stream, "
        "which returns once it has read memory that isn't pinned; else a cudaMemcpy"
    ),
)

_KNOWN = {
    "CudaBackend": (
        Streams(
            leaves_running=True,
            waits=False,
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
            leaves_running=True,
            waits=False,
            releases=">=1.4",
            evidence=(
                "torch-tensorrt 2.13 and newer, cpp/src/torch_tensorrt/executorch/"
                "TensorRTBackend.cpp: execute enqueues on cudaStreamPerThread and synchronizes "
                "with that; the caller's stream instead, without synchronizing, inside a "
                "CudaStreamGuard (2.13) or CallerStreamGuard (pytorch/TensorRT#4454). "
                "cuda_allocator.cpp: inside a CallerStreamGuard alone, which 2.13 knows nothing of, "
                "a copy to the device is a cudaMemcpyAsync on the caller's stream that nobody waits "
                "for, behind whatever CUDA delegates have enqueued there; one to the host is waited for"
            ),
            one_stream=True,
            follows_copies=False,
        ),
    ),
}


@cache
def streams_of(backend_id: str) -> Streams:
    """What the installed ExecuTorch's release is known to do with a backend's delegates."""
    try:
        release = version("executorch")
    except PackageNotFoundError:  # a source tree on the path
        release = "999"
    for streams in _KNOWN.get(backend_id, ()):
        if SpecifierSet(streams.releases).contains(release, prereleases=True):
            return streams
    return IN_ORDER


def takes_turns(module: GraphModule, one: Node, other: Node) -> bool:
    """Whether a delegate runs after another, or after a copy, on every host, with nothing between."""
    return one is other or runs_after(
        streams_in(module, other), streams_in(module, one)
    )


def runs_after(later: Streams, earlier: Streams) -> bool:
    """Whether any delegate of a kind does."""
    if not earlier.leaves_running or later.waits:
        return True
    if earlier is COPY_TO_DEVICE:
        return later.follows_copies
    return earlier == later and later.one_stream


def orders(copies_to_host: bool, later: Streams) -> bool:
    """Whether a copy between has a delegate come after all that was enqueued before that copy."""
    return copies_to_host or later.follows_copies


def streams_in(module: GraphModule, node: Node) -> Streams:
    """What is known of a delegate that a graph calls, or of a copy to a device."""
    if operator_name(node) == H2D:
        return COPY_TO_DEVICE
    lowered = lowered_module(module, node)
    assert lowered is not None  # device_of_delegate has seen to that
    return streams_of(lowered.backend_id)


def writes_in_place(module: GraphModule, write_back: Node) -> bool:
    """Whether a buffer's new value may be made in the old one's memory.

    That is if one delegate alone reads the old value and makes the new one, and writes it last. All
    views in the graph are elided ones.
    """
    old, new = write_back.all_input_nodes
    made_by = producer(elided_root(new))
    if not is_delegate(made_by) or not streams_in(module, made_by).writes_last:
        return False
    readers = {user for each in (old, *elided_views(old)) for user in each.users}
    return {each for each in readers if each.target is not memory.view} == {
        made_by,
        write_back,
    }


def needs_shared_stream(lowered: LoweredBackendModule) -> bool:
    """Whether a delegate says that its program needs a host with one stream."""
    return any(
        spec.key == SHARED_STREAM_COMPILE_SPEC_KEY for spec in lowered.compile_specs
    )


def declare(lowered: LoweredBackendModule, key: str, value: bytes = b"true") -> None:
    """Has a delegate say something. Its partitioner's list of compile specs may be others' as well."""
    if all(spec.key != key for spec in lowered.compile_specs):
        lowered._compile_specs = [*lowered.compile_specs, CompileSpec(key, value)]
