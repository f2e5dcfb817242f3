"""Raise one error where an engine would be built or run without a complete TensorRT.

Upstream's entry points are checked before they do any work: what is missing won't appear
while they trace and lower. Where TensorRT's libraries are missing, its classes
raise the same error when they are instantiated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any, NoReturn

from torchtrt_executorch.nogpu.builder.installed import installed_builder
from torchtrt_executorch.nogpu.emulation import SWITCH, emulation_enabled
from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.stubs import plugin_registry
from torchtrt_executorch.nogpu.target import engine_targets

#: Classes of the bindings that hold an object made by a TensorRT library.
BINDINGS_CLASSES = (
    "Builder",
    "OnnxParser",
    "OnnxParserRefitter",
    "Refitter",
    "Runtime",
)


class TensorRTUnavailableError(OSError):
    """This host can't build or run TensorRT engines.

    An ``OSError``, which is about the machine: no other program and no other partition would fare
    better, so that nothing falls back from it. Not a ``RuntimeError``: upstream's ``torch.compile``
    backend takes one as a failed build of one engine, and goes on in PyTorch.
    """

    def __init__(self) -> None:
        missing = []
        if not present.cuda_device():
            missing.append("CUDA device")
        if not present.tensorrt_libraries():
            soname = present.library_soname("nvinfer", str(present.bindings_version()))
            missing.append(f"TensorRT libraries ({soname})")
        super().__init__(
            f"This host can't build or run TensorRT engines: it has no {' and no '.join(missing)}. "
            f"Three ways on: compile with dryrun=True, which stops short of building engines; "
            f"compile within `with torchtrt_executorch.emulated_engines():`, or with "
            f"{SWITCH}=1 set, for engines that PyTorch executes; or use a machine with TensorRT."
        )


class NeedsGpuError(AttributeError):
    """The operation needs a GPU that engines run on; building them may not.

    An ``AttributeError``, so that ``hasattr`` of an engine is False.

    Args:
        what: The operation that needs a GPU, as the start of a sentence: ``"refitting an engine"``.
    """

    def __init__(self, what: str) -> None:
        builder = installed_builder()
        ways = "do it there"
        if not builder.needs_gpu:
            ways += ", or build the engine in this process, which then keeps a stand-in for it"
        super().__init__(
            f"{what} takes a GPU that {builder.name} supports, and this host has none: {ways}",
        )


def check_can_build(dryrun: Any) -> None:
    """Check that engines can be built here, for the GPUs that are asked for; or don't have to be.

    Args:
        dryrun: The setting, which stops short of building engines.

    Raises:
        TensorRTUnavailableError: They can't.
        UntargetableGpuError: They can't for such a GPU.
    """
    if not dryrun and not emulation_enabled():
        if not present.can_build_engines():
            raise TensorRTUnavailableError
        engine_targets.check()


@contextlib.contextmanager
def bindings_without_libraries(bindings: ModuleType) -> Iterator[None]:
    """Scope of ``tensorrt_bindings``: its classes raise the error, if it runs on link stubs.

    By itself pybind11 reports the null pointer that a stub returned, or makes None of it.
    """
    yield
    if not present.tensorrt_libraries():
        plugin_registry.apply(bindings, TensorRTUnavailableError)
        for name in BINDINGS_CLASSES:
            if hasattr(bindings, name):
                getattr(bindings, name).__init__ = _unavailable


def _unavailable(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
    raise TensorRTUnavailableError
