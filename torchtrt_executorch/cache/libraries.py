"""Cached CUDA libraries, keyed by partition, weights, compile specs and GPU.

A library's weights that are the partition's own aren't cached: the caller has them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.backend.backend_details import PreprocessResult
from torch.export import ExportedProgram

from torchtrt_executorch.cache import Blob
from torchtrt_executorch.cache.any_memory import TARGET, get_or_build_for_any_memory
from torchtrt_executorch.cache.keys import key_for_gpu
from torchtrt_executorch.cache.store import LARGE, in_memory
from torchtrt_executorch.digests import digest_of, large_tensors


def kept_library(
    program: ExportedProgram,
    compile_specs: Sequence[Any],
    gpu: Any,
    build: Callable[[], PreprocessResult],
    tiles: Sequence[str] = (),
) -> PreprocessResult:
    """Return what ``build`` returns, or returned before for the same partition.

    Args:
        program: The partition, in the edge dialect.
        compile_specs: The backend's.
        gpu: The properties of the GPU that is compiled for, where it isn't the one at hand.
        build: Compiles the partition.
        tiles: The digests of the tile measurements that it goes by.
    """

    def key_of_library(gpu: Any) -> str | None:
        specs = [[s.key, bytes(s.value)] for s in compile_specs if s.key != TARGET]
        return key_for_gpu("library", program, specs, repr((gpu, [*tiles])))

    weights = _large_weights(program)  # which compilation replaces
    result: PreprocessResult = get_or_build_for_any_memory(
        "the CUDA library",
        key_of_library,
        gpu,
        build,
        lambda result: _parts_of(result, weights),
        lambda facts, parts: _from_parts(facts, parts, weights),
    )
    return result


def _large_weights(program: ExportedProgram) -> Mapping[str, torch.Tensor]:
    """Return what of a partition's weights isn't kept, by its name."""
    if not _in_files():
        return {}
    return large_tensors(program, LARGE)


def _in_files() -> bool:
    """Whether ExecuTorch takes data that isn't in memory, as 1.5 does."""
    try:
        import executorch.exir._serialize._mapped_data  # noqa: F401
    except ImportError:
        return False
    return True


def _parts_of(
    result: PreprocessResult, weights: Mapping[str, torch.Tensor]
) -> tuple[Any, list[Any]] | None:
    store = result.data_store_output
    if store is None or result.debug_handle_map or result._delegate_info_meta:
        return None
    files = {None: store.pte_data, **store.external_data}
    entries = [
        [file, name, entry.buffer_index, entry.alignment]
        for file, named in files.items()
        for name, entry in named.items()
    ]
    if any(
        getattr(entry, "tensor_layout", None) is not None
        for named in files.values()
        for entry in named.values()
    ):
        return None
    names = {digest_of(tensor): name for name, tensor in weights.items()}
    parts: list[Any] = [result.processed_bytes]
    buffers: list[int | str] = []
    for buffer in store.buffers:
        name = names.get(buffer.sha256()) if hasattr(buffer, "sha256") else None
        buffers.append(name or len(parts))
        if name is None:
            small = hasattr(buffer, "to_bytes") and len(buffer) < LARGE
            parts.append(buffer.to_bytes() if small else buffer)
    return [entries, buffers], parts


def _from_parts(
    facts: Any, parts: list[bytes | Blob], weights: Mapping[str, torch.Tensor]
) -> PreprocessResult:
    entries, places = facts
    processed = in_memory(parts[0])
    buffers = [
        _stored(weights[place]) if isinstance(place, str) else _loaded(parts[place])
        for place in places
    ]
    inside: dict[str, DataEntry] = {}
    external: dict[str, dict[str, DataEntry]] = {}
    for file, name, index, alignment in entries:
        named = inside if file is None else external.setdefault(file, {})
        named[name] = DataEntry(index, alignment, None)
    return PreprocessResult(
        processed_bytes=processed,
        data_store_output=NamedDataStoreOutput(buffers, inside, external),
    )


def _stored(weight: torch.Tensor) -> Any:
    from executorch.exir._serialize._mapped_data import large_constant

    return large_constant(weight)


def _loaded(part: bytes | Blob) -> Any:
    if isinstance(part, bytes):
        return part
    if not _in_files():
        return part.take()
    from executorch.exir._serialize._cord import FileBackedData

    return FileBackedData(
        str(part.path), cleanup=True, sha256=bytes.fromhex(part.sha256)
    )
