"""Model how a graph's delegates use device streams in ExecuTorch's C++ runtime."""

from __future__ import annotations

from executorch.exir import memory
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.passes._aliases import elided_root, elided_views, producer
from executorch.exir.passes.devices.nodes import (
    H2D,
    is_delegate,
    lowered_module,
    operator_name,
)
from executorch.exir.passes.streams.device_order import (
    COPY_TO_DEVICE,
    Streams,
    streams_of,
)
from torch.fx import GraphModule, Node

#: Key of the compile spec by which a delegate says that its program is right only on a host that
#: runs all delegates on one stream. No backend reads it.
SHARED_STREAM_COMPILE_SPEC_KEY = "needs_shared_stream"
#: Key of the compile spec by which one says how many inputs it takes, in digits, where the program
#: doesn't tell: its last is a view that is planned away, which nothing seems to have written. No
#: backend reads it.
NUM_INPUTS_COMPILE_SPEC_KEY = "num_inputs"


def streams_in(module: GraphModule, node: Node) -> Streams:
    """Return the stream behavior of a delegate call, or of a copy to a device."""
    if operator_name(node) == H2D:
        return COPY_TO_DEVICE
    lowered = lowered_module(module, node)
    assert lowered is not None  # device_of_delegate has seen to that
    return streams_of(lowered.backend_id)


def writes_in_place(module: GraphModule, write_back: Node) -> bool:
    """Whether a buffer's new value may be written over the old one.

    It may if a single delegate reads the old value and produces the new one, and writes it last. All
    views in the graph are elided ones.
    """
    old, new = write_back.all_input_nodes
    made_by = producer(elided_root(new))
    if not is_delegate(made_by) or not streams_in(module, made_by).writes_last:
        return False
    readers = {user for view in (old, *elided_views(old)) for user in view.users}
    return {reader for reader in readers if reader.target is not memory.view} == {
        made_by,
        write_back,
    }


def needs_shared_stream(lowered: LoweredBackendModule) -> bool:
    """Whether a delegate says that its program needs a host with one stream."""
    return any(
        spec.key == SHARED_STREAM_COMPILE_SPEC_KEY for spec in lowered.compile_specs
    )


def declare(lowered: LoweredBackendModule, key: str, value: bytes = b"true") -> None:
    """Add a compile spec to a delegate. The list is copied: other delegates of its partitioner may share it."""
    if all(spec.key != key for spec in lowered.compile_specs):
        lowered._compile_specs = [*lowered.compile_specs, CompileSpec(key, value)]
