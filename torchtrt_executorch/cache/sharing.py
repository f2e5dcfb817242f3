"""Shared cache folders: other users' write access, and concurrent builds of the same entry."""

from __future__ import annotations

import contextlib
import fcntl
import grp
import os
import pwd
import stat
from collections.abc import Iterator
from pathlib import Path

#: Set to 1 by a user who trusts all who may write to the cache folder: what it holds is code that is run.
TRUSTED = "TORCHTRT_EXECUTORCH_CACHE_TRUSTED"
#: The folder of locks, below the cache's.
LOCKS = "locks"


def is_trusted() -> bool:
    """Whether the user trusts whoever may write to the cache folder."""
    return os.environ.get(TRUSTED, "") == "1"


def make_folder(folder: Path) -> None:
    """Make a folder of the cache, and those that it is in, for this user or for all who are trusted."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o777 if is_trusted() else 0o700)


def writers(folder: Path) -> str:
    """Return who else may write to a folder, or put another in its place, in words; empty if nobody may.

    Args:
        folder: It needn't exist: whoever may write to the one that it would be in could make it.
    """
    for path in (folder, *folder.absolute().parents):
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            continue
        if path == folder and status.st_uid not in (0, os.getuid()):
            return f"its owner, user {status.st_uid}"
        if path != folder and status.st_mode & stat.S_ISVTX:
            continue  # as /tmp: what is in it is its owner's
        if status.st_mode & stat.S_IWOTH:
            return f"anybody, by the permissions of {path}"
        if status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid):
            return f"group {status.st_gid}, by the permissions of {path}"
    return ""


def _is_own_group(group: int) -> bool:
    """Whether this user is a group's only member, as many systems create one for each."""
    try:
        user, named = pwd.getpwuid(os.getuid()), grp.getgrgid(group)
    except KeyError:
        return False
    only_member = user.pw_gid == group and {*named.gr_mem} <= {user.pw_name}
    return group == 0 or (only_member and named.gr_name == user.pw_name)


@contextlib.contextmanager
def building(folder: Path, key: str) -> Iterator[None]:
    """Scope in which no other process that shares ``folder`` is in one for the same key.

    On a network file system it is as good as that one's locks; without any, both build.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):
            make_folder(folder)
            while True:
                file = stack.enter_context(open(folder / key, "a"))
                fcntl.flock(file, fcntl.LOCK_EX)
                with contextlib.suppress(FileNotFoundError):
                    if os.path.samestat(os.fstat(file.fileno()), os.stat(file.name)):
                        break  # else it was removed before it was held, and others have another one
        yield


def is_held(lock: Path) -> bool:
    """Whether a process is in a scope of :func:`building` for a lock."""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return False
