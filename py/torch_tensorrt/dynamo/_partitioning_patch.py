"""Amends ``partitioning``: partitions again where a node has no converter in the partition it got.

Upstream: ``torch_tensorrt.dynamo.partitioning``, pytorch/TensorRT#4355.
"""

from __future__ import annotations

from types import ModuleType

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap the two partitioners."""
    from torch_tensorrt.dynamo._branches import partition_without_branches
    from torch_tensorrt.dynamo._partition_support import partitioned

    vars(module).update(
        fast_partition=wrapped(module.fast_partition, partitioned),
        global_partition=wrapped(
            wrapped(module.global_partition, partitioned), partition_without_branches
        ),
    )
