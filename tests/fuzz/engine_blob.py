"""What must hold for the reader of engine blobs, whatever it is given.

``python tests/fuzz/engine_blob.py`` looks for a counterexample for a minute, guided by coverage,
starting from the corpus beside this file; it needs ``pip install atheris``. With arguments, they are
libFuzzer's: ``-max_total_time=3600 FOUND CORPUS`` to look for an hour, ``-merge=1 CORPUS FOUND`` to take
over into the corpus what covers something new.
"""

from __future__ import annotations

import itertools
import struct
import sys
import tempfile
import tracemalloc
from pathlib import Path

CORPUS = Path(__file__).parent / "corpus" / "engine_blob"
MAX_SIZE = 4096
MAX_MULTIPLE = 32
"""Bytes allocated per byte read."""

FIXED_COST = 65536
"""Bytes allocated whatever is read: error messages, caches of the interpreter."""


def check(blob: bytes, measured: bool = True) -> None:
    """Read ``blob``. Raises AssertionError, or anything but ValueError, if the reader is at fault.

    What is allocated is only looked at if ``measured``.
    """
    from torch_tensorrt.executorch.blob.engine_blob import (
        deserialize_engine,
        serialize_engine,
    )
    from torch_tensorrt.executorch.blob.layout import Layout

    import torchtrt_executorch.payloads.engine_blob  # noqa: F401  without torch_tensorrt
    from torchtrt_executorch.payloads.engine_header import origin

    if measured:
        tracemalloc.start()
    try:
        engine, metadata = deserialize_engine(memoryview(blob))
    except ValueError as error:
        engine = None
        assert str(error).startswith(("engine blob: ", "engine record: ")), error
        assert len(str(error)) < 1000, error
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= MAX_MULTIPLE * len(blob) + FIXED_COST, (peak, len(blob))
    if engine is None:
        return
    assert len(origin(engine).text) < 100
    assert deserialize_engine(blob) == (engine, metadata)
    again = serialize_engine(engine, metadata, layout=Layout.TR02)
    assert deserialize_engine(again) == (engine, metadata)


def framed(text: bytes, engine: bytes = b"", magic: bytes = b"TR01") -> bytes:
    """Return a blob around ``text``, which need not be metadata."""
    padding = -(32 + len(text)) % 16
    header = struct.pack(
        "<4sIIIQ8s",
        magic,
        32,
        len(text),
        32 + len(text) + padding,
        len(engine),
        b"\1" + bytes(7),
    )
    return header + text + bytes(padding) + engine


def mutate(data: bytes, max_size: int, seed: int) -> bytes:
    """Mutate a blob; every other time its JSON alone, so that the header stays right."""
    import atheris

    if seed % 2 == 0 or data[:2] != b"TR" or len(data) < 32:
        return atheris.Mutate(data, max_size)
    _, offset, length, start, _, _ = struct.unpack_from("<4sIIIQ8s", data)
    text = data[offset : min(offset + length, len(data))]
    engine = data[start:]
    room = max(1, max_size - 48 - len(engine))
    return framed(atheris.Mutate(text, room), engine, data[:4])[:max_size]


def fuzz(*options: str) -> None:
    """Run libFuzzer with ``options`` until one of them stops it."""
    import atheris

    with atheris.instrument_imports(include=["torch_tensorrt"]):
        import torchtrt_executorch.payloads.engine_blob  # noqa: F401

    # Merging starts this script again, through a shell.
    itself = f"{sys.executable} {Path(__file__).resolve()}"
    limits = [f"-max_len={MAX_SIZE}", "-timeout=5", "-malloc_limit_mb=64"]
    runs = itertools.count()

    def target(data: bytes) -> None:
        check(data, measured=next(runs) % 32 == 0)  # tracemalloc is slow, and leaks

    atheris.Setup([itself, *limits, *options], target, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    a_minute = ["-max_total_time=60", tempfile.mkdtemp(), str(CORPUS)]
    fuzz(*(sys.argv[1:] or a_minute))
