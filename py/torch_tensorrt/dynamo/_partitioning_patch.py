"""Amends ``partitioning``: partitions again where a node has no converter in the partition it got.

Upstream: ``torch_tensorrt.dynamo.partitioning``, pytorch/TensorRT#4355.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.engines_built import expect_engines
from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap the two partitioners."""
    from torch_tensorrt.dynamo._branches import partition_without_branches
    from torch_tensorrt.dynamo._partition_support import engines_of, partitioned

    def counted(
        partition: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        result = partitioned(partition, args, kwargs)
        expect_engines(len(engines_of(result[0])))
        return result

    vars(module).update(
        fast_partition=wrapped(module.fast_partition, counted),
        global_partition=wrapped(
            wrapped(module.global_partition, counted), partition_without_branches
        ),
    )
