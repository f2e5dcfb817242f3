"""List, bound and clean everything in the cache folder.

zig caches each target's C and C++ libraries, and Inductor and Triton their kernels for a GPU description. Only they
know which files belong together, so each of their folders is removed as a whole, the least recently used first, and
none that is in use.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import getpass
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from torchtrt_executorch import cache
from torchtrt_executorch.cache import sharing

_LOCK = ".in-use"

#: Not even what is empty is to be left.
NOTHING = -1


@dataclasses.dataclass(frozen=True)
class Kept:
    """A file or folder that goes whole.

    Attributes:
        kind: Kind of the entry.
        path: Path of the entry.
        size: In bytes.
        used: When it was last used, in nanoseconds.
    """

    kind: str
    path: Path
    size: int
    used: int


def inductor() -> Path:
    """Return the folder that Inductor keeps things in, as it finds it."""
    if chosen := os.environ.get("TORCHINDUCTOR_CACHE_DIR"):
        return Path(chosen)
    try:
        user = re.sub(r'[\\/:*?"<>|]', "_", getpass.getuser())
    except (KeyError, OSError):  # it has no name
        user = str(os.getuid())
    return Path(tempfile.gettempdir(), f"torchinductor_{user}")


def kept() -> list[Kept]:
    """Return all that is kept, the least recently used first."""
    places = [("compiled for a GPU without it", inductor(), "described-*")]
    with contextlib.suppress(FileNotFoundError):
        root = cache.folder()
        places += [
            ("engines and CUDA libraries", root / "built", "[!.]*"),
            ("locks of what is being built", root / sharing.LOCKS, "[!.]*"),
            ("zig's libraries of another machine", root / "cross", "[!.]*"),
            ("link stubs", root, "*-link-stubs-*"),
            ("upstream's modules with edits", root / "edited", "[!.]*"),
        ]
    entries = [
        _measured(kind, path)
        for kind, folder, pattern in places
        for path in folder.glob(pattern)
    ]
    return sorted(entries, key=lambda entry: entry.used)


def _measured(kind: str, path: Path) -> Kept:
    # A file that another process removes meanwhile takes nothing, and a folder has no files then.
    inside = (
        Path(folder, name) for folder, _, names in os.walk(path) for name in names
    )
    size = used = 0
    for file in (path, *inside):
        with contextlib.suppress(OSError):
            status = file.lstat()
            size += 0 if stat.S_ISDIR(status.st_mode) else status.st_size
            if file in (path, path / _LOCK):
                used = max(used, status.st_mtime_ns)
    return Kept(kind, path, size, used)


def keep_bound() -> None:
    """Remove what was least recently used, until all of it takes no more than it may."""
    remove_down_to(cache.limit())


def remove_down_to(size: int) -> list[Kept]:
    """Remove what was least recently used and isn't in use, until the rest takes ``size`` bytes at most.

    Returns:
        What was removed.
    """
    all_kept = kept()
    nbytes, removed = sum(entry.size for entry in all_kept), []
    for entry in all_kept:
        if nbytes <= size:
            break
        if _removed(entry.path):
            removed.append(entry)
            nbytes -= entry.size
    return removed


@contextlib.contextmanager
def in_use(path: Path) -> Iterator[None]:
    """Scope in which no process removes the folder ``path``, which is made if need be."""
    while True:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        try:
            lock = os.open(path / _LOCK, os.O_CREAT | os.O_RDWR, 0o600)
        except FileNotFoundError:  # it has just been removed
            continue
        fcntl.flock(lock, fcntl.LOCK_SH)
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), os.stat(path / _LOCK)):
                break
        os.close(lock)
    try:
        os.utime(path / _LOCK)
        yield
    finally:
        os.close(lock)


def _removed(path: Path) -> bool:
    """Remove a file or folder, unless it is in use; whether it is gone."""
    try:
        if not path.is_dir():
            # One that a process holds while it builds would be another one's then.
            if path.parent.name == sharing.LOCKS and sharing.is_held(path):
                return False
            path.unlink(missing_ok=True)
            return True
        with contextlib.ExitStack() as stack:
            if (path / _LOCK).exists():
                lock = stack.enter_context(open(path / _LOCK, "a"))
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            folder = tempfile.mkdtemp(dir=path.parent, prefix=".removed-")
            path.rename(Path(folder, path.name))
            shutil.rmtree(folder, ignore_errors=True)
    except OSError:  # in use, or somebody else's
        return False
    return True
