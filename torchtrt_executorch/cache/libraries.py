"""Cached CUDA libraries, keyed by partition, weights, compile specs and GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir._serialize.data_serializer import DataEntry
from executorch.exir.backend.backend_details import PreprocessResult
from torch.export import ExportedProgram

from torchtrt_executorch.cache import kept, limit
from torchtrt_executorch.cache.keys import key


def kept_library(
    program: ExportedProgram,
    compile_specs: Sequence[Any],
    gpu: Any,
    build: Callable[[], PreprocessResult],
) -> PreprocessResult:
    """Return what ``build`` returns, or returned before for the same partition.

    Args:
        program: The partition, in the edge dialect.
        compile_specs: The backend's.
        gpu: The GPU that is compiled for, where it isn't the one at hand, and what is known of it.
        build: Compiles the partition.
    """

    def key_of_library() -> str | None:
        specs = [[spec.key, bytes(spec.value)] for spec in compile_specs]
        return key("library", program, specs, repr(gpu))

    found: PreprocessResult = kept(
        "the CUDA library", key_of_library, build, _parts_of, _from_parts
    )
    return found


def _parts_of(result: PreprocessResult) -> tuple[Any, list[bytes]] | None:
    store = result.data_store_output
    if store is None or result.debug_handle_map or result._delegate_info_meta:
        return None
    if sum(map(len, store.buffers)) > limit():
        return None  # nor read into memory
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
    return entries, [result.processed_bytes, *map(in_memory, store.buffers)]


def in_memory(data: Any) -> Any:
    """Return the bytes of named data, which executorch 1.5 keeps in files."""
    return data.to_bytes() if hasattr(data, "to_bytes") else data


def _from_parts(entries: Any, parts: list[bytes]) -> PreprocessResult:
    processed, *buffers = parts
    inside: dict[str, DataEntry] = {}
    external: dict[str, dict[str, DataEntry]] = {}
    for file, name, index, alignment in entries:
        named = inside if file is None else external.setdefault(file, {})
        named[name] = DataEntry(index, alignment, None)
    return PreprocessResult(
        processed_bytes=processed,
        data_store_output=NamedDataStoreOutput(buffers, inside, external),
    )
