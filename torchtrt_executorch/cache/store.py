"""Cache folder of entries by key: facts, and parts; large parts are files named by their digest."""

from __future__ import annotations

import atexit
import contextlib
import functools
import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from torchtrt_executorch.cache.sharing import is_trusted, make_folder

logger = logging.getLogger(__name__)

_MAGIC = b"torchtrt-executorch cache 2\n"
#: Bytes from which on a part is a file of its own, which entries have in common and is never read into memory.
LARGE = 1 << 20
_CHUNK = 8 << 20


class InFile(Protocol):
    """Bytes that aren't in memory, as ExecuTorch's ``FileBackedData``."""

    def __len__(self) -> int: ...

    def sha256(self) -> bytes: ...

    def write_to_file(self, outfile: Any) -> None: ...


Parts = Sequence[bytes | bytearray | memoryview | InFile]


@dataclass(frozen=True)
class Blob:
    """A large part of an entry.

    Attributes:
        path: A file of this process's own, which is to be removed by whoever takes it.
        nbytes: Its size.
        sha256: Of its bytes, in hexadecimal, which they were compared with.
    """

    path: Path
    nbytes: int
    sha256: str

    def take(self) -> bytes:
        """Return its bytes, and remove the file."""
        data = self.path.read_bytes()
        self.path.unlink()
        return data


class Store:
    """A folder of entries.

    Args:
        path: The folder; it is made when something is to be written.
        size: The most bytes of all entries.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size

    def read(self, key: str) -> tuple[Any, list[bytes | Blob]] | None:
        """Return the facts and parts of an entry; None if there is none, or it is damaged."""
        file = self.path / key
        in_use: list[bytes | Blob] = []
        try:
            with open(file, "rb") as stream:
                facts, parts = self._read(stream, key, in_use)
            os.utime(file)
            return facts, parts
        except FileNotFoundError:
            _remove(in_use)
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            _remove(in_use)
            logger.warning("%s is damaged, and is built again: %s", file, error)
            with contextlib.suppress(OSError):
                file.unlink()
            return None

    def write(self, key: str, facts: Any, parts: Parts) -> None:
        """Keep an entry, and let others go where there is no room for all.

        Raises:
            OSError: It can't be written; then nothing of it is there.
        """
        large = [len(part) >= LARGE for part in parts]
        header = {
            "key": key,
            "facts": facts,
            "parts": [
                [len(part), sha256_of(part).hex(), is_blob]
                for part, is_blob in zip(parts, large, strict=True)
            ],
        }
        line = json.dumps(header).encode()
        if len(_MAGIC) + len(line) + sum(map(len, parts)) > self.size:
            return
        make_folder(self.path)
        for part, (_, digest, is_blob) in zip(parts, header["parts"], strict=True):
            if is_blob and not self._blob(digest).exists():
                self._put(self._blob(digest), [part])
        inside = [p for p, is_blob in zip(parts, large, strict=True) if not is_blob]
        self._put(self.path / key, [_MAGIC, line, b"\n", *inside])
        self._make_room()

    def _blob(self, digest: str) -> Path:
        return self.path / f"{digest}.part"

    def _put(self, target: Path, parts: Parts) -> None:
        with tempfile.NamedTemporaryFile(
            dir=self.path, prefix=".", delete=False
        ) as file:
            try:
                for part in parts:
                    _write(part, file)
                if is_trusted():  # whom it is shared with read it
                    os.fchmod(file.fileno(), 0o666 & ~_umask())
                file.close()
                os.replace(file.name, target)
            except BaseException:
                os.unlink(file.name)
                raise

    def _make_room(self) -> None:
        entries = []
        for file in self.path.iterdir():
            with contextlib.suppress(
                FileNotFoundError
            ):  # another process drops it, too
                status = file.stat()
                entries.append((status.st_mtime_ns, status.st_size, file))
        nbytes = sum(size for _, size, _ in entries)
        for _, size, file in sorted(entries):
            if nbytes <= self.size:
                return
            file.unlink(missing_ok=True)
            nbytes -= size

    def _read(
        self, stream: BinaryIO, key: str, parts: list[bytes | Blob]
    ) -> tuple[Any, list[bytes | Blob]]:
        """Read an entry, its parts into ``parts``, where they are found if it turns out to be damaged."""
        if stream.read(len(_MAGIC)) != _MAGIC:
            raise ValueError("it is no entry")
        header = json.loads(stream.readline())
        if header["key"] != key:
            raise ValueError("it is another's")
        for length, digest, is_blob in header["parts"]:
            if is_blob:
                parts.append(self._taken(length, digest))
                continue
            part = stream.read(length)
            if len(part) != length or hashlib.sha256(part).hexdigest() != digest:
                raise ValueError("its content isn't what was written")
            parts.append(part)
        return header["facts"], parts

    def _taken(self, length: int, digest: str) -> Blob:
        """Return a large part as a file that nobody else removes, once its bytes are known to be the right ones."""
        source = self._blob(digest)
        path = Path(tempfile.mkdtemp(dir=process_folder()), "part")
        try:
            os.link(source, path)
        except FileNotFoundError:
            raise ValueError("a part of it is missing") from None
        except OSError:  # another file system, or one without links
            shutil.copyfile(source, path)
        state = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(_CHUNK):
                state.update(chunk)
            size = file.tell()
        if size != length or state.hexdigest() != digest:
            for written in (path, source):
                written.unlink(missing_ok=True)
            raise ValueError("a part of it isn't what was written")
        os.utime(source)
        return Blob(path, length, digest)


def in_memory(part: bytes | Blob) -> bytes:
    """Return the bytes of a part."""
    return part if isinstance(part, bytes) else part.take()


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _remove(parts: Sequence[bytes | Blob]) -> None:
    for part in parts:
        if isinstance(part, Blob):
            part.path.unlink(missing_ok=True)


def sha256_of(part: bytes | bytearray | memoryview | InFile) -> bytes:
    """Return the sha256 of bytes, which a file may know of its own."""
    if isinstance(part, (bytes, bytearray, memoryview)):
        return hashlib.sha256(part).digest()
    return part.sha256()


def _write(part: Any, file: Any) -> None:
    if hasattr(part, "write_to_file"):
        part.write_to_file(file)
    else:
        file.write(part)


def process_folder() -> Path:
    """Return a folder of this process's own, which ends with it."""
    return _temporary_folder(os.getpid())


@functools.cache
def _temporary_folder(process: int) -> Path:
    folder = tempfile.mkdtemp(prefix="torchtrt-executorch-")
    atexit.register(_remove_folder, folder, process)
    return Path(folder)


def _remove_folder(folder: str, process: int) -> None:
    # A process that was forked has what its parent calls at the end, too.
    if os.getpid() == process:
        shutil.rmtree(folder, ignore_errors=True)
