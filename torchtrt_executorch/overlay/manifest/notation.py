"""How the rows of the manifest are written: names that several use, and amendments in short."""

from __future__ import annotations

from torchtrt_executorch.overlay.patch import Amendment

DYNAMO = "torch_tensorrt.dynamo"
CONVERSION = f"{DYNAMO}.conversion"
RUNTIME = f"{DYNAMO}.runtime"
META_OPS = f"{RUNTIME}.meta_ops.register_meta_ops"
BACKEND = "torch_tensorrt.executorch"
EXIR = "executorch.exir"
PROGRAM = f"{EXIR}.program._program"

#: Modules that several patches add; each is upstream's name for one of our files.
WRITES = tuple(f"{DYNAMO}.{name}" for name in ("_graph_copies", "_writes"))
LIFTING = (
    f"{DYNAMO}._attribute_names",
    *WRITES,
    f"{DYNAMO}._fake_values",
    f"{DYNAMO}._lifting",
)
ENGINE_BYTES = f"{RUNTIME}._engine_bytes"
SYMBOLS = f"{EXIR}._data_dependent"

_OURS = "torchtrt_executorch.patches"


def amended(by: str, *modules: str) -> tuple[Amendment, ...]:
    """Return amendments of ``modules`` by one function, ``"package.module:function"``."""
    return tuple(Amendment(module, by) for module in modules)


def patched(by: str, *modules: str) -> tuple[Amendment, ...]:
    """Return amendments by a function in one of our files for upstream, named as it is there."""
    return amended(f"{_OURS}.{by}", *modules)


def patched_beside(*modules: str) -> tuple[Amendment, ...]:
    """Return amendments by ``apply`` in the file beside each upstream module that has its name.

    ``torch_tensorrt.dynamo._settings`` is amended in ``torch_tensorrt/dynamo/_settings_patch.py``.
    """
    found: list[Amendment] = []
    for module in modules:
        package, _, name = module.rpartition(".")
        found += patched(f"{package}._{name.lstrip('_')}_patch:apply", module)
    return tuple(found)
