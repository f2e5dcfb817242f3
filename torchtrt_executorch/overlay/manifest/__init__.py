"""The table of patches, in the order in which they are applied."""

from __future__ import annotations

from torchtrt_executorch.overlay.manifest.executorch import EXECUTORCH_PATCHES
from torchtrt_executorch.overlay.manifest.hosts import HOST_PATCHES
from torchtrt_executorch.overlay.manifest.torch_tensorrt import TORCH_TENSORRT_PATCHES
from torchtrt_executorch.overlay.manifest.transformers import TRANSFORMERS_PATCHES
from torchtrt_executorch.overlay.patch import Patch

PATCHES: tuple[Patch, ...] = (
    *HOST_PATCHES,
    *TORCH_TENSORRT_PATCHES,
    *EXECUTORCH_PATCHES,
    *TRANSFORMERS_PATCHES,
)
