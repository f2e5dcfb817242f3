"""Select Torch-TensorRT's Python-only mode where its C++ runtime can't run.

``libtorchtrt.so`` needs CUDA's and TensorRT's libraries; with link stubs instead, it
crashes the process. Upstream runs without it if the file doesn't exist, which it checks by
``os.path.isfile`` in the body of ``_features``, and again in a function of the package.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType
from typing import Any
from unittest import mock

import torch

from torchtrt_executorch.nogpu.host import present

_RUNTIME_LIBRARY = re.compile(r"(lib)?torchtrt(_\w+)?\.(so|dll)")


@contextlib.contextmanager
def runtime_libraries_hidden(features: ModuleType) -> Iterator[None]:
    """Scope of ``torch_tensorrt._features``: to it, the C++ runtime is not installed.

    ``os.path.isfile`` answers false for ``libtorchtrt*.so`` of this package and is otherwise
    unchanged. Afterwards the package, which is half-way through its own body, registers
    nothing with PyTorch; the libraries are all that it would register.
    """
    if present.can_run_engines():
        yield
        return
    hidden = os.path.join(os.path.dirname(str(features.__file__)), "lib")
    isfile = os.path.isfile

    @functools.wraps(isfile)
    def isfile_but_runtime(path: Any) -> bool:
        directory, name = os.path.split(path) if isinstance(path, str) else ("", "")
        if directory == hidden and _RUNTIME_LIBRARY.fullmatch(name):
            return False
        return isfile(path)

    with mock.patch.object(os.path, "isfile", isfile_but_runtime):
        yield
    package: Any = sys.modules["torch_tensorrt"]
    package._register_with_torch = _register_nothing


@contextlib.contextmanager
def runtime_registrations_skipped(register_meta_ops: ModuleType) -> Iterator[None]:
    """Scope of ``register_meta_ops``: nothing is registered for what the C++ runtime defines.

    That is a fake class for ``tensorrt::Engine`` and, where no operator written in Python has
    its name, a fake kernel for ``tensorrt::execute_engine``. PyTorch refuses both for what
    isn't there, and with them would go the rest of the module, which an export needs.
    """
    if runtime_is_loaded():
        yield
        return
    absent = {"tensorrt::Engine"}
    if not hasattr(torch.ops.tensorrt, "execute_engine"):
        absent.add("tensorrt::execute_engine")
    with contextlib.ExitStack() as scope:
        for owner, name in (
            (torch._library, "register_fake_class"),
            (torch.library, "register_fake"),
        ):
            skipping = _skipping(getattr(owner, name), absent)
            scope.enter_context(mock.patch.object(owner, name, skipping))
        yield


def register_fake_kernels() -> None:
    """Register the fake kernel of the operator that calls engines, without the C++ runtime.

    It stands in ``register_meta_ops``. Upstream imports that with the C++
    runtime, and otherwise with the first export to ExecuTorch. Whoever traced a compiled module
    before that got the sizes that the engine was recorded with, -1 where they are dynamic.
    """
    if not runtime_is_loaded():
        import_module("torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops")


def runtime_is_loaded() -> bool:
    features: Any = sys.modules["torch_tensorrt._features"]
    return bool(features.ENABLED_FEATURES.torch_tensorrt_runtime)


def _register_nothing() -> None:
    """Stand in for the function that loads the C++ runtime."""


def _skipping(register: Callable[..., Any], absent: set[str]) -> Callable[..., Any]:
    """Wrap ``register``, a decorator whose first argument is a name, so that it ignores ``absent`` names."""

    @functools.wraps(register)
    def skipping(name: Any, *args: Any, **kwargs: Any) -> Any:
        if name in absent:
            return lambda decorated: decorated
        return register(name, *args, **kwargs)

    return skipping
