"""Warning filters for messages of upstream that a host without a GPU can't act on.

Notes from one library to the authors of another, and extras of other packages that this one doesn't
use. They are silenced where there is no CUDA device and nowhere else: on a GPU host everything is
heard as upstream has it. ``TORCHTRT_EXECUTORCH_NOISE=1`` keeps them here, too.
"""

from __future__ import annotations

import logging
import os
import re
import warnings

from torchtrt_executorch.nogpu.host import present

VARIABLE = "TORCHTRT_EXECUTORCH_NOISE"

#: Per logger, what is dropped of it, by how it begins.
LOGGED = {
    # torchao has libraries for GPUs and for other Pythons in its wheel, and tries each.
    "torchao": r"Failed to load .*\.so: ",
    # PyTorch's to Torch-TensorRT's authors, from 2.14 on.
    "torch._opaque_base": r"torch\._opaque_base is deprecated",
    "torch._library.opaque_object": r".* is deprecated, use ",
    "torch.utils._pytree": r".*Calling register_constant\(\) on Enum subclasses is deprecated",
    # For quantized models, with a package that Torch-TensorRT doesn't require.
    "torch_tensorrt.dynamo.conversion.aten_ops_converters": (
        r"Unable to import quantiz\w+ op\. Please install modelopt"
    ),
}
#: Warnings, by how they begin.
WARNED = (
    ("`isinstance(treespec, LeafSpec)` is deprecated", FutureWarning),
    ("var_to_val is deprecated, use backed_var_to_val", FutureWarning),
    ("RuntimeSettings is only honored on TRT-RTX builds", UserWarning),
    ("Attempted to insert a get_attr Node with no underlying reference", UserWarning),
)


class _Dropped(logging.Filter):
    """Drops records whose message begins as ``pattern`` says; the rest passes."""

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self._pattern = re.compile(pattern, re.DOTALL)

    def filter(self, record: logging.LogRecord) -> bool:
        return not self._pattern.match(record.getMessage())


def quieten() -> None:
    """Install the warning filters of this module, for this process; further calls change nothing."""
    if os.environ.get(VARIABLE, "0") == "1":
        return
    for name, pattern in LOGGED.items():
        logger = logging.getLogger(name)
        if not any(isinstance(log_filter, _Dropped) for log_filter in logger.filters):
            logger.addFilter(_Dropped(pattern))
    for message, category in WARNED:
        warnings.filterwarnings("ignore", re.escape(message), category)


def prepare(upstream_name: str) -> None:
    """Silence it before ``upstream_name`` is imported, on a host without a CUDA device."""
    if not present.cuda_device_listed():
        quieten()
