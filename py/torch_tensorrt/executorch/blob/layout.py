"""Engine-blob layout of the installed torch-tensorrt."""

from __future__ import annotations

from enum import Enum
from functools import lru_cache

from packaging.version import Version


class Layout(Enum):
    """A blob layout, with the first torch-tensorrt release that reads it."""

    TR01 = (2, 13)
    TR02 = (2, 14)

    @property
    def release(self) -> str:
        """The first torch-tensorrt release that reads it, ``"2.13"``."""
        return ".".join(map(str, self.value))

    @staticmethod
    def of_release(release: str) -> Layout:
        """Return the layout that torch-tensorrt ``release`` reads.

        Raises:
            ValueError: No known layout is of a release this old.
        """
        readable = [
            layout for layout in Layout if layout.value <= Version(release).release
        ]
        if not readable:
            raise ValueError(
                f"torch-tensorrt {release} reads none of the known engine blobs, "
                f"which begin with {Layout.TR01.release}"
            )
        return readable[-1]

    @staticmethod
    @lru_cache(maxsize=1)
    def installed() -> Layout:
        """Return the layout of the installed torch-tensorrt.

        Raises:
            ValueError: None can be imported, or too old a one; name the layout instead.
        """
        try:  # here, since reading and writing a layout that is named don't need it
            from torch_tensorrt import __version__ as release
        except ImportError as error:
            raise ValueError(
                f"torch_tensorrt can't be asked, name the blob's layout: {error}"
            ) from error
        return Layout.of_release(release)
