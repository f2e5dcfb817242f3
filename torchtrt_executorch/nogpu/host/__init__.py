"""Hosts without a GPU, without TensorRT, or without either: ``import torch_tensorrt`` works.

Engines are built by TensorRT, which needs a GPU for it, or by TensorRT-RTX, which doesn't
(``builder``). Each of the two can be missing by itself, and what is there is used as it is:

==============  ===========================================  ==================================
missing         what upstream gets                           module
==============  ===========================================  ==================================
CUDA device     answers for the described GPU; the CPU       ``configured_gpu``, ``cuda_queries``
TensorRT        the real bindings, over link stubs           ``link_stubs``
either          its own Python-only mode                     ``python_only``
either          one clear error from whatever would build    ``building``
                an engine and can't
==============  ===========================================  ==================================

Three kinds of patch points are needed, by the time of upstream's access.

1. :func:`prepare`, before ``tensorrt`` or ``torch_tensorrt`` is looked for. It only declares
   the scopes of 2, and can't fail.
2. Scopes (:mod:`~torchtrt_executorch.nogpu.host.import_scopes`), while one upstream module executes:
   for what is asked in the module's own body. What is wrong with the host is raised from
   there: a missing compiler (:class:`~torchtrt_executorch.nogpu.stubs.stub_libraries.LinkStubError`), a
   TensorRT-RTX that can't be loaded (:class:`~torchtrt_executorch.nogpu.builder.installed.
   BrokenInstallError`), a malformed ``TORCHTRT_GPU`` (``ValueError``).
3. Edits of upstream's source (``overlay/edits/hosts.py``), for what its functions ask later.

Importing this package imports neither torch nor wrapt.
"""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtrt_executorch.nogpu.host.import_scopes import ScopedImports


def prepare(upstream_name: str = "torch_tensorrt") -> None:
    """Make the host ready for ``tensorrt`` and ``torch_tensorrt``, whichever comes first.

    To be called before either is looked for, or, when it is ``torch_tensorrt`` that imports
    torch, before it imports anything else. Further calls change nothing.

    Args:
        upstream_name: the module that is about to be imported; all are treated alike.
    """
    _scopes().install()


@functools.cache
def _scopes() -> ScopedImports:
    from torchtrt_executorch.nogpu.host import (
        building,
        cuda_queries,
        python_only,
        users,
    )
    from torchtrt_executorch.nogpu.host.import_scopes import ScopedImports

    return ScopedImports(
        {
            "tensorrt": complete_host,
            "tensorrt_bindings": building.bindings_without_libraries,
            "torch_tensorrt": _whole_package,
            # What torch_tensorrt imports next when it is what imported torch: its own scope
            # is too late then, and around its import of tensorrt it replaces our errors.
            "torch_tensorrt._version": complete_host,
            "torch_tensorrt.dynamo._defaults": users.named,
            "torch_tensorrt._utils": cuda_queries.nccl_plugin_unsupported,
            "torch_tensorrt._features": python_only.runtime_libraries_hidden,
            "torch_tensorrt.runtime._utils": cuda_queries.device_properties_name,
            "torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops": (
                python_only.runtime_registrations_skipped
            ),
        }
    )


@contextlib.contextmanager
def _whole_package(module: ModuleType) -> Iterator[None]:
    """Scope of ``torch_tensorrt``, also when an earlier import of it has failed half-way.

    Its submodules are there then. One of them has told the package that failed that there is no
    C++ runtime, and has to tell it to this one.
    """
    sys.modules.pop("torch_tensorrt._features", None)
    with complete_host(module):
        yield


@contextlib.contextmanager
def complete_host(module: ModuleType) -> Iterator[None]:
    """Scope of a module that imports the TensorRT bindings: its requirements are met, or an error is raised."""
    from torchtrt_executorch.nogpu.builder import installed
    from torchtrt_executorch.nogpu.host import present, quiet
    from torchtrt_executorch.nogpu.stubs import link_stubs
    from torchtrt_executorch.nogpu.target.gpu_description import configured_gpu

    if not present.cuda_device():
        configured_gpu()
        quiet.quieten()
    installed.check_installed()
    if not present.tensorrt_libraries():
        version = present.bindings_version()
        assert version is not None  # without bindings, no library is missing
        link_stubs.load(version)
    yield
