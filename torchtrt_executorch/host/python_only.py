"""Upstream's own Python-only mode, on hosts where its C++ runtime can't run.

``libtorchtrt.so`` needs CUDA's and TensorRT's libraries; with link stubs behind it, it
crashes the process. Upstream does without when it finds no such file, which it asks
``os.path.isfile`` in the body of ``_features``, and once more in a function of the package.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import torch

from torchtrt_executorch.host import present

_RUNTIME_LIBRARY = re.compile(r"(lib)?torchtrt(_\w+)?\.(so|dll)")
_ENGINE_CLASS = "tensorrt::Engine"


@contextlib.contextmanager
def runtime_libraries_hidden(features: ModuleType) -> Iterator[None]:
    """Scope of ``torch_tensorrt._features``: to it, the C++ runtime is not installed.

    ``os.path.isfile`` answers false for ``libtorchtrt*.so`` of this package and is otherwise
    unchanged. Afterwards the package, which is half-way through its own body, registers
    nothing with PyTorch; the libraries are all that it would register.
    """
    if present.can_build_engines():
        yield
        return
    hidden = os.path.join(os.path.dirname(str(features.__file__)), "lib")
    isfile = os.path.isfile

    @functools.wraps(isfile)
    def isfile_but_runtime(path: Any) -> bool:
        if isinstance(path, str) and os.path.dirname(path) == hidden:
            if _RUNTIME_LIBRARY.fullmatch(os.path.basename(path)):
                return False
        return isfile(path)

    with _replaced(os.path, "isfile", isfile_but_runtime):
        yield
    setattr(sys.modules["torch_tensorrt"], "_register_with_torch", _register_nothing)


@contextlib.contextmanager
def engine_class_skipped(register_meta_ops: ModuleType) -> Iterator[None]:
    """Scope of ``register_meta_ops``: no fake class for the C++ runtime's ``tensorrt::Engine``.

    PyTorch refuses a fake class for a ``torch::class_`` that isn't there, and with it would
    go the rest of that module, which an export needs.
    """
    if present.can_build_engines():
        yield
        return
    register = torch._library.register_fake_class

    @functools.wraps(register)
    def register_but_engine(name: str, *args: Any) -> Any:
        if name == _ENGINE_CLASS:
            return args[0] if args else _unchanged
        return register(name, *args)

    with _replaced(torch._library, "register_fake_class", register_but_engine):
        yield


def _register_nothing() -> None:
    """Stand in for the function that loads the C++ runtime."""


def _unchanged(cls: type) -> type:
    return cls


@contextlib.contextmanager
def _replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
