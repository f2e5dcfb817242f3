"""Shared libraries with the names and symbols of missing ones, and no implementation.

They are compiled on first use and kept in the user's cache directory, by name, machine type and
content.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchtrt_executorch import cache


class LinkStubError(ImportError):
    """The link stubs can't be built or loaded, so what needs them can't be imported or linked."""


@dataclass(frozen=True)
class StubLibrary:
    """One library.

    Attributes:
        soname: Its name for the dynamic loader.
        symbols: Functions. All of them return a pointer, an ``int`` or a ``bool``, so that one
            C type serves them all.
    """

    soname: str
    symbols: tuple[str, ...]

    @property
    def source(self) -> str:
        """In C."""
        return "".join(f"long {name}(void) {{ return 0; }}\n" for name in self.symbols)


@dataclass(frozen=True)
class StubLibraries:
    """A set of libraries in one directory.

    Attributes:
        name: First part of the directory's name.
        missing: The missing library, as the beginning of errors.
        remedy: How to do without stubs, as the end of errors.
        libraries: By file name.
    """

    name: str
    missing: str
    remedy: str
    libraries: Mapping[str, StubLibrary]

    @property
    def directory(self) -> Path:
        """Their folder, below :func:`~torchtrt_executorch.cache.folder`.

        The name changes with anything that changes the stubs, so that what is found there never
        needs to be checked.

        Raises:
            LinkStubError: There is no home folder, and nothing else is named.
        """
        try:
            root = cache.folder()
        except FileNotFoundError as error:
            raise self._unkept(str(error)) from error
        content = "".join(library.source for library in self.libraries.values())
        digest = hashlib.sha256(content.encode()).hexdigest()[:8]
        name = f"{self.name}-link-stubs-{platform.machine()}-{digest}"
        return root / name

    def build(self) -> Path:
        """Return :attr:`directory`, with the stubs compiled if need be.

        Safe with concurrent processes: the directory is made under a temporary name and appears
        under its own, complete, by one rename; whoever comes second uses the first one's.

        Raises:
            LinkStubError: No C compiler, it failed, or the cache directory can't be written.
        """
        directory = self.directory
        if directory.is_dir():
            return directory
        compiler = self._compiler()
        try:
            directory.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(
                dir=directory.parent, prefix=".building-", ignore_cleanup_errors=True
            ) as building:
                staged = Path(building) / "stubs"
                staged.mkdir()
                for file_name, library in self.libraries.items():
                    self._compile(compiler, library, staged / file_name)
                try:
                    staged.rename(directory)
                except OSError:
                    # ENOTEMPTY, for which Python has no class, if another process was first.
                    if not directory.is_dir():
                        raise
        except OSError as error:
            raise self._unkept(f"{directory.parent}: {error}") from error
        return directory

    def _unkept(self, why: str) -> LinkStubError:
        return LinkStubError(
            f"{self.missing}, and the link stubs that stand in for them can't be kept: {why}. Set "
            f"{cache.SWITCH} to a directory that can be written, or {self.remedy}."
        )

    def _compiler(self) -> list[str]:
        """Command line of the C compiler, from ``$CC`` or ``cc``."""
        command = shlex.split(os.environ.get("CC", "")) or ["cc"]
        if shutil.which(command[0]) is None:
            raise LinkStubError(
                f"{self.missing}, and to build the link stubs that stand in for them a C "
                f"compiler is needed: {command[0]!r} was not found. Install one (Debian and "
                f"Ubuntu: apt-get install gcc), or set CC to one, or {self.remedy}."
            )
        return command

    def _compile(self, compiler: list[str], library: StubLibrary, output: Path) -> None:
        # Without the standard library: the stubs call nothing, and a compiler without the C
        # library's headers and start files is enough then.
        flags = ["-shared", "-fPIC", "-nostdlib", f"-Wl,-soname,{library.soname}"]
        command = [*compiler, *flags, "-x", "c", "-", "-o", str(output)]
        result = subprocess.run(
            command, input=library.source, text=True, capture_output=True, check=False
        )
        if result.returncode != 0:
            raise LinkStubError(
                f"{self.missing}, and building the link stub {output.name} that stands in for "
                f"one failed.\n$ {shlex.join(command)}\n{result.stderr.strip()}\n"
                f"Set CC to a working C compiler, or {self.remedy}."
            )
