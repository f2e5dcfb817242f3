"""External data of a program: size and digest of each key that it expects.

ExecuTorch looks up external data only by key, and two models may have equal keys: a program that is
given the other's file loads and returns wrong results. A ``.pte`` can hold named data, so one that was
saved with external data holds this table (pytorch/TensorRT#4404).
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Mapping, TypeVar

if TYPE_CHECKING:
    from executorch.exir._serialize._named_data_store import NamedDataStoreOutput

T = TypeVar("T")

#: The key of the table in the program's named data.
KEY = "executorch.external_data"


@dataclass(frozen=True)
class Expected:
    """Size and digest of the data that one key of a data file must have.

    Attributes:
        nbytes: Its size in bytes.
        sha256: The digest of its bytes in hexadecimal; empty for weights that training changes.
    """

    nbytes: int
    sha256: str


def expected_data(table: bytes | memoryview) -> dict[str, Expected]:
    """Read the table of a program.

    Raises:
        ValueError: It is damaged.
    """
    try:
        parsed = json.loads(bytes(table))
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(parsed, dict):
        raise ValueError("not a table")
    expected = {}
    for key, row in parsed.items():
        if not isinstance(row, list) or [*map(type, row)] != [int, str]:
            raise ValueError(f"{key!r} has no size and digest")
        expected[key] = Expected(*row)
    return expected


def with_expected_data(
    emitted: Any,
    named: NamedDataStoreOutput | None,
    *,
    mutable_weights: bool,
    shard: int | None = None,
) -> NamedDataStoreOutput | None:
    """Return a program's named data with the table of its external data.

    Without external data it is ``named`` itself. Data of no bytes are put into the program: a delegate
    without weights asks for them by their key, and a file with nothing in it is one more to lose.

    Args:
        emitted: ExecuTorch's ``EmitterOutput``.
        named: Data that delegates store.
        mutable_weights: The weights in data files change after they were written, so they get no digests.
        shard: Bytes of data that a file may hold; each file is cut into as many as that takes.

    Raises:
        ValueError: One of them takes more than that.
    """
    named = named and _without_empty(named)
    if shard is not None:
        named = _in_shards(emitted, named, shard)
    rows: dict[str, tuple[int, str]] = {}
    for keys in emitted.external_constant_map.values():
        for key, index in keys.items():
            data = emitted.external_constant_buffer[index]
            rows[key] = (len(data), "" if mutable_weights else _digest(data))
    for entries in named.external_data.values() if named is not None else ():
        for key, entry in entries.items():
            data = named.buffers[entry.buffer_index]  # type: ignore[union-attr]
            rows[key] = (len(data), _digest(data))
    return with_table(named, KEY, rows) if rows else named


def _without_empty(named: NamedDataStoreOutput) -> NamedDataStoreOutput:
    """Return named data with empty external entries moved into the program."""
    inside, external = dict(named.pte_data), {}
    for file, entries in named.external_data.items():
        not_empty = {
            k: e for k, e in entries.items() if len(named.buffers[e.buffer_index])
        }
        inside.update({k: e for k, e in entries.items() if k not in not_empty})
        if not_empty:
            external[file] = not_empty
    if len(inside) == len(named.pte_data):
        return named
    return replace(named, pte_data=inside, external_data=external)


def _in_shards(
    emitted: Any, named: NamedDataStoreOutput | None, most: int
) -> NamedDataStoreOutput | None:
    """Return named data whose files hold up to ``most`` bytes, and give the emitter's constants such files, too."""
    constants, files = emitted.external_constant_map, (
        named.external_data if named else {}
    )
    sizes: dict[str, dict[str, int]] = {}
    for tag, keys in constants.items():
        buffers: Any = emitted.external_constant_buffer
        sizes.setdefault(tag, {}).update({k: len(buffers[i]) for k, i in keys.items()})
    for tag, entries in files.items():
        buffers = named.buffers  # type: ignore[union-attr]
        size_of = {k: len(buffers[e.buffer_index]) for k, e in entries.items()}
        sizes.setdefault(tag, {}).update(size_of)
    places = {tag: _shards(tag, size_of, most) for tag, size_of in sizes.items()}

    def cut(by_tag: Mapping[str, Mapping[str, T]]) -> dict[str, dict[str, T]]:
        result: dict[str, dict[str, T]] = {}
        for tag, entries in by_tag.items():
            for key, entry in entries.items():
                result.setdefault(places[tag][key], {})[key] = entry
        return result

    emitted.external_constant_map = cut(constants)
    return named and replace(named, external_data=cut(files))


def _shards(tag: str, sizes: Mapping[str, int], most: int) -> dict[str, str]:
    """Return the file of each key: ``tag`` itself where one is enough."""
    shard_of: dict[str, int] = {}
    number = nbytes = 0
    for key, size in sizes.items():
        if size > most:
            raise ValueError(
                f"{key!r} has {size} bytes, and a data file is to hold {most} at most: have it hold more"
            )
        if nbytes + size > most:
            number, nbytes = number + 1, 0
        shard_of[key], nbytes = number, nbytes + size
    if not number:
        return dict.fromkeys(sizes, tag)
    return {k: f"{tag}.{n + 1:05}-of-{number + 1:05}" for k, n in shard_of.items()}


def _digest(data: Any) -> str:
    """Return the sha256 of ``data``: bytes, or from executorch 1.5 on a file that knows its own."""
    digest = getattr(data, "sha256", None)
    return hashlib.sha256(data).hexdigest() if digest is None else digest().hex()


def with_table(
    named: NamedDataStoreOutput | None, key: str, table: Mapping[str, Any]
) -> NamedDataStoreOutput:
    """Return a program's named data with a table of its own, as JSON."""
    # Readers of a program only need the table.
    from executorch.exir._serialize._named_data_store import NamedDataStore

    store = NamedDataStore()
    store.add_named_data(key, json.dumps(table, sort_keys=True).encode())
    own = store.get_named_data_store_output()
    if named is None:
        return own
    entry = replace(own.pte_data[key], buffer_index=len(named.buffers))
    return replace(
        named,
        buffers=[*named.buffers, *own.buffers],
        pte_data={**named.pte_data, key: entry},
    )
