"""The one table of patches. ``torchtrt-executorch status`` prints it."""

from __future__ import annotations

from torchtrt_executorch.overlay.patch import Patch

_TORCH_TENSORRT = {"torch-tensorrt": ">=2.12,<2.15"}
_EXECUTORCH = {"executorch": ">=1.3,<1.6"}
_BOTH = {**_TORCH_TENSORRT, **_EXECUTORCH}

PATCHES: tuple[Patch, ...] = (
    Patch(
        name="propagate-device-pass",
        summary="Device labels and device copies, each value across at most once",
        pull_request="pytorch/executorch#18078",
        releases=_EXECUTORCH,
        upstream="labels from 1.3, copies from 1.4, one per delegate that reads the value",
        stands="1.5.1 still copies a shared value once for every delegate",
        replaces=("executorch.exir.passes.propagate_device_pass",),
    ),
    Patch(
        name="aoti-partitioner",
        summary="Composes after any partitioner, fewest partitions, linear time",
        pull_request="pytorch/executorch#20077",
        releases=_EXECUTORCH,
        upstream="skips foreign delegates from 1.4 on, in quadratic time",
        stands="1.5.1 still proposes partitions in quadratic time",
        replaces=("executorch.backends.aoti.aoti_partitioner",),
    ),
)
