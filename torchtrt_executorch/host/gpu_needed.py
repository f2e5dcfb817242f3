"""One sentence where upstream would run, refit or capture an engine, on a host that can't.

Building engines may not take a GPU, and running them does, as does building one that can be
refitted: TensorRT-RTX runs what it makes of the weights then. What is asked of an engine itself is
answered by the engine (:mod:`torchtrt_executorch.stand_ins.engine`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

from torchtrt_executorch.host import present
from torchtrt_executorch.host.building import NeedsGpuError

#: Upstream functions that run engines, by module, and what they do.
FUNCTIONS = {
    "torch_tensorrt.dynamo._refit": {"refit_module_weights": "refitting an engine"},
    "torch_tensorrt.runtime._cudagraphs": {
        "enable_cudagraphs": "capturing a CUDA graph",
        "set_cudagraphs_mode": "capturing CUDA graphs",
    },
}


def apply(module: ModuleType) -> None:
    """Amend a module of :data:`FUNCTIONS`: where no engine can run, its functions raise."""
    if present.can_run_engines():
        return
    for name, what in FUNCTIONS[module.__name__].items():
        setattr(module, name, _refused(getattr(module, name), what))


def apply_to_interpreter(module: ModuleType) -> None:
    """Amend ``...conversion._TRTInterpreter``: where no engine can run, none can be refitted."""
    if present.can_run_engines():
        return
    configure = module.TRTInterpreter._populate_trt_builder_config

    @functools.wraps(configure)
    def configure_immutable(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not self.compilation_settings.immutable_weights:
            raise NeedsGpuError(
                "building an engine that can be refitted, with immutable_weights=False,"
            )
        return configure(self, *args, **kwargs)

    module.TRTInterpreter._populate_trt_builder_config = configure_immutable


def apply_to_mutable_module(module: ModuleType) -> None:
    """Amend ``..._MutableTorchTensorRTModule``: where it can't refit it builds again, as it does
    for weights of other shapes.
    """
    if present.can_run_engines():
        return
    build = module.dynamo_compile

    @functools.wraps(build)
    def build_immutable(*args: Any, **kwargs: Any) -> Any:
        return build(*args, **kwargs | {"immutable_weights": True})

    vars(module).update(dynamo_compile=build_immutable)


def _refused(function: Callable[..., Any], what: str) -> Callable[..., Any]:
    @functools.wraps(function)
    def refused(*args: Any, **kwargs: Any) -> Any:
        if False in (*args, *kwargs.values()) and len(args) + len(kwargs) == 1:
            return function(*args, **kwargs)  # turned off, as it is
        raise NeedsGpuError(what)

    return refused
