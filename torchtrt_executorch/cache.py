"""What can be made again, kept in the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def folder() -> Path:
    """Return the folder for what can be made again, below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        FileNotFoundError: There is neither, as in a container whose user has no entry in passwd.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):
        return Path(base, "torchtrt-executorch")
    try:
        home = Path.home()
    except RuntimeError:
        raise FileNotFoundError("this user has no home folder") from None
    return home / ".cache" / "torchtrt-executorch"
