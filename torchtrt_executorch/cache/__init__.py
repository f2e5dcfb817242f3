"""Build cache: engines and CUDA libraries, in the user's cache folder.

The key of an entry is the digest of everything that goes into a build (:mod:`.keys`), so a cache hit equals what would
have been built. An entry is a file, written atomically, with the lengths and digests of its contents and of the files
of its large parts: a damaged entry is removed, and built again. Once all entries take more than
``TORCHTRT_EXECUTORCH_CACHE_SIZE`` (4 GiB), the least recently used are removed. ``TORCHTRT_EXECUTORCH_CACHE=0``, or
another word for no, turns the cache off, as well as the other cached folders (:mod:`.folders`); any other value is its
folder. If the cache fails, builds run as without it.
"""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torchtrt_executorch import progress
from torchtrt_executorch.cache import sharing
from torchtrt_executorch.cache.sizes import parse_size
from torchtrt_executorch.cache.store import Blob, Parts, Store, process_folder

__all__ = [
    "Blob",
    "Parts",
    "Store",
    "folder",
    "is_off",
    "get_or_build",
    "limit",
    "process_folder",
]

logger = logging.getLogger(__name__)

SWITCH = "TORCHTRT_EXECUTORCH_CACHE"
SIZE = "TORCHTRT_EXECUTORCH_CACHE_SIZE"
DEFAULT_SIZE = 4 << 30
#: A folder of such a name would fill where somebody wanted nothing kept.
_NO = ("0", "off", "no", "false")


def folder() -> Path:
    """Return the folder for what can be made again: the one that ``$TORCHTRT_EXECUTORCH_CACHE`` names.

    By default it is below ``$XDG_CACHE_HOME`` or ``~/.cache``; where nothing is to be kept, or others may write
    to it who aren't trusted (:mod:`.sharing`), it is this process's own, and ends with it.

    Raises:
        FileNotFoundError: There is no home, as in a container whose user has no entry in passwd.
    """
    if is_off():
        return process_folder()
    path = _chosen()
    if not sharing.is_trusted() and (others := sharing.writers(path)):
        _say_refused(path, others)
        return process_folder()
    return path


@functools.cache
def _say_refused(folder: Path, others: str) -> None:
    logger.warning(
        "nothing is taken from or kept in %s: what it holds is code that is run, and others may write to it (%s); "
        "change that, or set %s=1 if they are all trusted",
        folder,
        others,
        sharing.TRUSTED,
    )


def _chosen() -> Path:
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


def get_or_build(
    what: str,
    key: Callable[[], str | None],
    build: Callable[[], Any],
    parts_of: Callable[[Any], tuple[Any, Parts] | None],
    from_parts: Callable[[Any, list[bytes | Blob]], Any],
    announce: bool = True,
) -> Any:
    """Return what ``build`` builds, or built before.

    Args:
        what: It, in words: ``"the engine"``.
        key: Returns the digest of everything that goes into it; None if that can't be known.
        build: Builds it.
        parts_of: Returns facts about it, in JSON's types, and its bytes, in one part or several; None
            if it isn't to be kept.
        from_parts: Restores the result from the parts.
        announce: Whether to say that it was taken.
    """
    store = _store()
    if store is None:
        return build()
    name = _tried(f"{what} is not kept, since what goes into it can't be told", key)
    if name is None:
        return build()
    if (cached := _taken(store, name, what, from_parts, announce)) is not None:
        return cached[0]
    with sharing.building(store.path.parent / sharing.LOCKS, name):
        # Another process may have built it meanwhile.
        if (cached := _taken(store, name, what, from_parts, announce)) is not None:
            return cached[0]
        built = build()
        _tried(
            f"{what} can't be kept in {store.path}",
            lambda: _keep(store, name, parts_of(built)),
        )
    return built


def _taken(
    store: Store,
    name: str,
    what: str,
    from_parts: Callable[[Any, list[Any]], Any],
    announce: bool,
) -> list[Any] | None:
    """Return the entry of a name, in a list; None if there is none that fits."""
    if (entry := store.read(name)) is None:
        return None
    cached: list[Any] | None = _tried(
        f"{store.path / name} doesn't fit, and {what} is built again",
        lambda: [from_parts(*entry)],
    )
    if cached is not None and announce:
        progress.say(f"{what}: taken from {store.path}, where it was kept")
    return cached


def _keep(store: Store, name: str, parts: tuple[Any, Parts] | None) -> None:
    if parts is not None:
        store.write(name, *parts)


def _tried(what: str, step: Callable[[], Any]) -> Any:
    """Return what ``step`` returns; None where it fails, which is no reason not to build."""
    try:
        return step()
    except Exception as error:
        logger.warning("%s: %s", what, error)
        return None


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
    nbytes = parse_size(text)
    if nbytes is None:
        if text:
            logger.warning("%s=%r isn't a size such as 4GiB", SIZE, text)
        return DEFAULT_SIZE
    return nbytes
