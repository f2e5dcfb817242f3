"""Check the compile specs of ``CudaPartitioner``."""

from __future__ import annotations

import functools
import inspect
import re
import warnings
from collections.abc import Sequence

from executorch.exir.backend._compile_specs import check_compile_specs
from executorch.exir.backend._modules import MODULES_COMPILE_SPEC_KEY, check_modules
from executorch.exir.backend.compile_spec_schema import CompileSpec

_METHOD = "method_name"
_SWITCHES = (
    "keep_mutable_buffers",
    "low_memory_mode",
    "triton_kernel_mode",
    "emulate_precision_casts",
    "max_autotune",
    "autotune_at_compile_time",
    "autotune_pointwise",
)
_OTHERS = (
    _METHOD,
    "gpu",
    MODULES_COMPILE_SPEC_KEY,
    "target_device",
    "platform",
    "shim_library_path",
    "needs_shared_stream",
)


def check_cuda_compile_specs(specs: Sequence[CompileSpec]) -> None:
    """Check the compile specs of ``CudaPartitioner``, and warn if none names the method, as lowering needs.

    Raises:
        ValueError: A key is misspelled, or a value is wrong.
    """
    check_compile_specs("CudaPartitioner", specs, _known(), _SWITCHES)
    check_modules("CudaPartitioner", specs)
    if all(spec.key != _METHOD for spec in specs):
        warnings.warn(
            "CudaPartitioner is told no method, without which nothing is lowered: pass "
            'CudaBackend.generate_method_name_compile_spec("forward") among the compile specs',
            RuntimeWarning,
            stacklevel=3,
        )


@functools.cache
def _known() -> frozenset[str]:
    """Keys that we read, and that the installed release does: each stands in its source."""
    from executorch.backends.cuda import cuda_backend

    read = re.findall(r'spec\.key == "(\w+)"', inspect.getsource(cuda_backend))
    return frozenset((*_SWITCHES, *_OTHERS, *read))
