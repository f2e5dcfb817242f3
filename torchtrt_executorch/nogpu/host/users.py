"""Name users that have no entry in passwd, as in containers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from unittest import mock


@contextmanager
def named(module: ModuleType) -> Iterator[None]:
    """Scope in which such a user's name is the number."""
    if sys.platform == "win32":
        yield
        return
    import pwd

    entry_of = pwd.getpwuid

    def entry(user: int) -> pwd.struct_passwd:
        try:
            return entry_of(user)
        except KeyError:
            return pwd.struct_passwd((str(user), "x", user, user, "", "/", ""))

    with mock.patch.object(pwd, "getpwuid", entry):
        yield
