"""The overlay: replaced, added and edited upstream modules, active from ``import torch`` on.

:func:`activate` is the entry point in the group ``torch.backends`` that ``import torch`` calls.
Everybody who imports torch pays for this file, so it does one thing: it puts a finder on
``sys.meta_path`` that waits for the first upstream name. Only then is the overlay engaged
(:mod:`torchtrt_executorch.overlay.engage`): manifest, anchors, edits.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import Any

UPSTREAM = ("torch_tensorrt", "tensorrt", "executorch", "transformers.exporters")
SWITCH = "TORCHTRT_EXECUTORCH"


class OverlayFinder:
    """A meta-path finder that serves replaced modules, and engages on the first upstream name."""

    def __init__(self) -> None:
        self._overlay: Any = None
        self._engaging = threading.RLock()

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of our module for ``fullname``, or None to leave it to upstream."""
        if not fullname.startswith(UPSTREAM):
            return None
        if self._overlay is None or self._overlay is _Inert:
            self.engage()
        try:
            return self._overlay.find_spec(fullname, path, target)
        except Exception as error:  # no reason to fail an import of upstream's
            warn(f"the overlay could not serve {fullname}: {error!r}")
            return None

    def engage(self) -> None:
        """Engage the patches in force, once; if that fails, none is applied."""
        # Other threads wait. What engaging imports comes back on its own, and must not wait.
        with self._engaging:
            if self._overlay is None:
                self._overlay = _Inert
                self._overlay = _engaged()


def is_ours(finder: Any) -> bool:
    """Whether an entry of ``sys.meta_path`` is the overlay's, also from before a reload of this."""
    return getattr(type(finder), "__module__", None) == __name__


def is_active() -> bool:
    """Whether the overlay is active in this process."""
    return any(map(is_ours, sys.meta_path))


def statuses() -> dict[str, Any] | None:
    """Return what became of each patch in this process; None where the overlay isn't engaged."""
    for finder in sys.meta_path:
        overlay: Any = getattr(finder, "_overlay", None) if is_ours(finder) else None
        if hasattr(overlay, "statuses"):
            return dict(overlay.statuses)
    return None


class _Inert:
    """Stands in while the overlay is being engaged."""

    @staticmethod
    def find_spec(fullname: str, path: Any, target: Any) -> None:
        return None


class _Nothing(_Inert):
    """Stands in for good where engaging failed."""


def _engaged() -> Any:
    try:
        from torchtrt_executorch.overlay.engage import Overlay

        return Overlay()
    except Exception as error:
        warn(f"the overlay could not be engaged, upstream is left as it is: {error!r}")
        return _Nothing


def warn(message: str) -> None:
    """Warn, so that it is heard; where warnings are errors only print it, and don't fail an import.

    ``import torch_tensorrt`` hands warnings to logging, which drops them unless the application
    has set up a handler. A log of ours has at least the one of last resort, which is stderr.
    """
    import logging
    import warnings

    text = f"torchtrt-executorch: {message}"
    if warnings.showwarning.__module__ == logging.__name__:
        logging.getLogger(__name__).warning("RuntimeWarning: %s", text)
        return
    try:
        warnings.warn(text, RuntimeWarning, stacklevel=3)
    except RuntimeWarning:
        print(f"RuntimeWarning: {text}", file=sys.stderr)


def activate() -> None:
    """Insert the overlay's finder into ``sys.meta_path``; called by ``import torch``, never raises."""
    try:
        if os.environ.get(SWITCH, "1") == "0":
            return
        if is_active():
            return
        finder = OverlayFinder()
        sys.meta_path.insert(0, finder)
        if any(name in sys.modules for name in UPSTREAM):
            finder.engage()  # upstream came first: catch what is in the making
    except Exception as error:
        warn(f"the overlay could not be activated: {error!r}")
