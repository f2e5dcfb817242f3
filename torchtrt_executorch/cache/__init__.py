"""Build cache: engines and CUDA libraries, in the user's cache folder.

An entry is found by the digest of everything that goes into it (:mod:`.keys`), so that what is found
is what would have been built. It is one file, written whole, with the lengths and digests of what is
in it: one that is damaged is dropped, and built again. The least recently used go first once all of
them take more than ``TORCHTRT_EXECUTORCH_CACHE_SIZE`` (4 GiB). ``TORCHTRT_EXECUTORCH_CACHE=0`` turns
it off, any other value is the folder for it, but for other words for no; so it is for what else is kept
(:mod:`.folders`). Whatever fails here, something is
built as without it.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import logging
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from torchtrt_executorch import progress

logger = logging.getLogger(__name__)

SWITCH = "TORCHTRT_EXECUTORCH_CACHE"
SIZE = "TORCHTRT_EXECUTORCH_CACHE_SIZE"
DEFAULT_SIZE = 4 << 30
#: A folder of such a name would fill where somebody wanted nothing kept.
_NO = ("0", "off", "no", "false")

_MAGIC = b"torchtrt-executorch cache 1\n"
_UNITS = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}

Parts = Sequence[bytes | bytearray | memoryview]


def folder() -> Path:
    """Return the folder for what can be made again: the one that ``$TORCHTRT_EXECUTORCH_CACHE`` names.

    By default it is below ``$XDG_CACHE_HOME`` or ``~/.cache``; where nothing is to be kept, it is this
    process's own, and ends with it.

    Raises:
        FileNotFoundError: There is no home, as in a container whose user has no entry in passwd.
    """
    if is_off():
        return Path(_own_folder(os.getpid()).name)
    if chosen := os.environ.get(SWITCH, ""):
        return Path(chosen)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base, "torchtrt-executorch")
    try:
        home = Path.home()
    except RuntimeError:
        raise FileNotFoundError("this user has no home folder") from None
    return home / ".cache" / "torchtrt-executorch"


def is_off() -> bool:
    """Whether nothing is to be kept."""
    return os.environ.get(SWITCH, "").lower() in _NO


@functools.cache
def _own_folder(process: int) -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="torchtrt-executorch-")


def kept(
    what: str,
    key: Callable[[], str | None],
    build: Callable[[], Any],
    parts_of: Callable[[Any], tuple[Any, Parts] | None],
    from_parts: Callable[[Any, list[bytes]], Any],
) -> Any:
    """Return what ``build`` builds, or built before.

    Args:
        what: It, in words: ``"the engine"``.
        key: Returns the digest of everything that goes into it; None if that can't be known.
        build: Builds it.
        parts_of: Returns facts about it, in JSON's types, and its bytes, in one part or several; None
            if it isn't to be kept.
        from_parts: Makes it of those.
    """
    store = _store()
    if store is None:
        return build()
    name = _tried(f"{what} is not kept, since what goes into it can't be told", key)
    if name is None:
        return build()
    if (found := store.read(name)) is not None:
        taken = _tried(
            f"{store.path / name} doesn't fit, and {what} is built again",
            lambda: [from_parts(*found)],
        )
        if taken is not None:
            progress.say(f"{what}: taken from {store.path}, where it was kept")
            return taken[0]
    built = build()

    def keep() -> None:
        if (parts := parts_of(built)) is not None:
            store.write(name, *parts)

    _tried(f"{what} can't be kept in {store.path}", keep)
    return built


def _tried(what: str, step: Callable[[], Any]) -> Any:
    """Return what ``step`` returns; None where it fails, which is no reason not to build."""
    try:
        return step()
    except Exception as error:
        logger.warning("%s: %s", what, error)
        return None


class Store:
    """A folder of entries.

    Args:
        path: The folder; it is made when something is to be written.
        size: How many bytes the entries may take.
    """

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self.size = size

    def read(self, key: str) -> tuple[Any, list[bytes]] | None:
        """Return the facts and parts of an entry; None if there is none, or it is damaged."""
        file = self.path / key
        try:
            with open(file, "rb") as stream:
                facts, parts = _read(stream, key)
            os.utime(file)
            return facts, parts
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("%s is damaged, and is built again: %s", file, error)
            with contextlib.suppress(OSError):
                file.unlink()
            return None

    def write(self, key: str, facts: Any, parts: Parts) -> None:
        """Keep an entry, and let others go where there is no room for all.

        Raises:
            OSError: It can't be written; then nothing of it is there.
        """
        header = {
            "key": key,
            "facts": facts,
            "parts": [[len(p), hashlib.sha256(p).hexdigest()] for p in parts],
        }
        line = json.dumps(header).encode()
        length = len(_MAGIC) + len(line) + sum(map(len, parts))
        if length > self.size:
            return
        self.path.mkdir(parents=True, exist_ok=True, mode=0o700)
        with tempfile.NamedTemporaryFile(
            dir=self.path, prefix=".", delete=False
        ) as file:
            try:
                for part in (_MAGIC, line, b"\n", *parts):
                    file.write(part)
                file.close()
                os.replace(file.name, self.path / key)
            except BaseException:
                os.unlink(file.name)
                raise
        self._make_room()

    def _make_room(self) -> None:
        entries = []
        for file in self.path.iterdir():
            with contextlib.suppress(
                FileNotFoundError
            ):  # another process drops it, too
                found = file.stat()
                entries.append((found.st_mtime_ns, found.st_size, file))
        taken = sum(size for _, size, _ in entries)
        for _, size, file in sorted(entries):
            if taken <= self.size:
                return
            file.unlink(missing_ok=True)
            taken -= size


def _read(stream: Any, key: str) -> tuple[Any, list[bytes]]:
    if stream.read(len(_MAGIC)) != _MAGIC:
        raise ValueError("it is no entry")
    header = json.loads(stream.readline())
    if header["key"] != key:
        raise ValueError("it is another's")
    parts = []
    for length, digest in header["parts"]:
        part = stream.read(length)
        if len(part) != length or hashlib.sha256(part).hexdigest() != digest:
            raise ValueError("its content isn't what was written")
        parts.append(part)
    return header["facts"], parts


def _store() -> Store | None:
    """Return where things are kept; None where they aren't."""
    if is_off():
        return None
    try:
        return Store(folder() / "built", limit())
    except FileNotFoundError:
        return None


def limit() -> int:
    """Return how many bytes the entries may take."""
    text = os.environ.get(SIZE, "")
    match = re.fullmatch(r"(\d+)([KMG]iB)?", text, re.ASCII)
    if match is None:
        if text:
            logger.warning("%s=%r isn't a size such as 4GiB", SIZE, text)
        return DEFAULT_SIZE
    return int(match[1]) * _UNITS[match[2] or ""]
