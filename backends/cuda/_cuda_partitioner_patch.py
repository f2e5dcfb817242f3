"""Amends ``cuda_partitioner``: compile specs are checked, and what can't be compiled is left to others."""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Collection, Mapping, Sequence
from types import ModuleType
from typing import Any

from executorch.exir.backend._compile_specs import check_compile_specs
from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch.fx import Node

from torchtrt_executorch.host.described_gpu import GPU_COMPILE_SPEC_KEY, DescribedGpu

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
    GPU_COMPILE_SPEC_KEY,
    "target_device",
    "platform",
    "shim_library_path",
    "needs_shared_stream",
)


def apply(module: ModuleType) -> None:
    """Have ``CudaPartitioner`` check its specs, and try operators on its backend before it claims them."""
    initialize = module.CudaPartitioner.__init__

    @functools.wraps(initialize)
    def checked(self: Any, compile_spec: list[CompileSpec]) -> None:
        _check(compile_spec)
        initialize(self, compile_spec)

    module.CudaPartitioner.__init__ = checked  # type: ignore[attr-defined]

    def unsupported(
        self: Any,
        nodes: Sequence[Node],
        numbers: Mapping[Node, Any],
        constants: Collection[Node],
    ) -> Mapping[Node, str]:
        from executorch.backends.cuda._trial import Trials

        if not hasattr(self, "_trials"):
            self._trials = Trials(self.delegation_spec.compile_specs)
        return self._trials.refused(nodes, numbers, constants)

    partitioner: Any = module.CudaPartitioner
    partitioner.unsupported = unsupported
    partitioner.delegates_in_branches = False  # they take device memory alone


def _check(specs: Sequence[CompileSpec]) -> None:
    """Check what ``CudaPartitioner`` is given.

    Raises:
        ValueError: No method is named, a key is misspelled, or a value is wrong.
    """
    check_compile_specs("CudaPartitioner", specs, _known(), _SWITCHES)
    if all(spec.key != _METHOD for spec in specs):
        raise ValueError(
            "CudaPartitioner is to be told its method: pass "
            'CudaBackend.generate_method_name_compile_spec("forward") among the compile specs'
        )
    for spec in specs:
        if spec.key == GPU_COMPILE_SPEC_KEY:
            DescribedGpu.parse_list(bytes(spec.value).decode())


@functools.cache
def _known() -> frozenset[str]:
    """Keys that we read, and that the installed release does: each stands in its source."""
    from executorch.backends.cuda import cuda_backend

    read = re.findall(r'spec\.key == "(\w+)"', inspect.getsource(cuda_backend))
    return frozenset((*_SWITCHES, *_OTHERS, *read))
