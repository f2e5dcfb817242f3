"""Amends ``_runtime_cache``: an engine can be freed while another model is traced.

Upstream saves an engine's runtime cache when the engine is freed, and makes an empty tensor even
where there is no cache, which is always so but in TensorRT-RTX. The garbage collector runs when
it likes: in the middle of a ``torch.export`` that tensor becomes an operator of the program,
ahead of its inputs, and the export fails with an ``IndexError``.

Upstream: ``torch_tensorrt.runtime._runtime_cache``, 2.13 and 2.14.
"""

from __future__ import annotations

import functools
from types import ModuleType
from typing import Any


def apply(module: ModuleType) -> None:
    """Wrap the saving: without a cache there is nothing to save."""
    autosave = module.RuntimeCache._autosave_if_enabled

    @functools.wraps(autosave)
    def autosave_if_any(self: Any) -> None:
        if self.has_cache():
            autosave(self)

    module.RuntimeCache._autosave_if_enabled = autosave_if_any
