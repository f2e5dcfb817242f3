"""Shorthand for rows of the manifest."""

from __future__ import annotations

from torchtrt_executorch.overlay.patch import Preparation

DYNAMO = "torch_tensorrt.dynamo"
CONVERSION = f"{DYNAMO}.conversion"
RUNTIME = f"{DYNAMO}.runtime"
META_OPS = f"{RUNTIME}.meta_ops.register_meta_ops"
BACKEND = "torch_tensorrt.executorch"
EXIR = "executorch.exir"
PROGRAM = f"{EXIR}.program._program"

#: Modules that several patches add; each is upstream's name for one of our files.
MUTATIONS = (
    f"{DYNAMO}.graphs.copies",
    f"{DYNAMO}.graphs.strides",
    f"{DYNAMO}.state.mutations",
)
LIFTING = (
    *MUTATIONS,
    f"{DYNAMO}.graphs.attribute_names",
    f"{DYNAMO}.graphs.fake_values",
    f"{DYNAMO}.graphs.lifting",
)
ENGINE_BYTES = f"{RUNTIME}._engine_bytes"
SYMBOLS = f"{EXIR}._data_dependent"


def prepared(by: str, *modules: str) -> tuple[Preparation, ...]:
    """Return preparations for ``modules`` by one function, ``"package.module:function"``."""
    return tuple(Preparation(module, by) for module in modules)
