"""Types what README and the guides say, as a user of the wheel would: in empty environments, far from the clone.

    python3 tools/clean_install.py                         # all pages; a table of commands and seconds
    python3 tools/clean_install.py docs/targets.md         # of those pages alone

The wheel is built from the clone and installed, not editable, with what the quick start installs beside it, once
for each set of extras. Every command is a process of its own, in a folder that has nothing but what earlier ones
have written, with empty caches. The exit status is 1 if one fails.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from guides import ONE_AFTER_ANOTHER, blocks, script

ROOT = Path(__file__).resolve().parent.parent
QUICK_START = "docs/quick_start.md"


@dataclass(frozen=True)
class Chapter:
    """Pages whose snippets go on where the one before ends, as one script; then their commands.

    Attributes:
        pages: In their order.
        extras: Of this distribution.
        clone: What the pages have their reader take from a clone.
        after: The chapter, by its first page, whose files this one's commands read.
    """

    pages: tuple[str, ...]
    extras: str = ""
    clone: tuple[str, ...] = ()
    after: str = ""


CHAPTERS = (
    Chapter(("README.md",)),
    Chapter(ONE_AFTER_ANOTHER, extras="cuda"),
    Chapter(("docs/inspect.md", "docs/runtime.md"), after=QUICK_START),
    Chapter(
        ("docs/deploying_in_cpp.md",), extras="transformers", clone=("examples/cpp",)
    ),
    Chapter(("docs/quantization.md",), extras="cuda"),
    Chapter(("docs/targets.md",), extras="cuda,cross"),
    Chapter(("docs/several_gpus.md",), extras="cuda"),
    *(
        Chapter((f"docs/targets/{name}.md",), extras="cuda,cross")
        for name in (
            *("jetson_orin", "jetson_thor", "dgx_spark"),
            *("rtx_linux", "rtx_windows", "x86_64_data_center"),
        )
    ),
    Chapter(("docs/language_models.md",), extras="cuda,transformers"),
)


class CleanInstall:
    """Environments and folders below one that is removed in the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.results: list[tuple[str, str, float, int]] = []
        self._environments: dict[str, Path] = {}

    def run(self, chapter: Chapter) -> None:
        """Type what the pages of ``chapter`` say."""
        environment = self._environment(chapter.extras)
        work = self.folder / Path(chapter.after or chapter.pages[0]).stem
        work.mkdir(exist_ok=True)
        for path in chapter.clone:
            shutil.copytree(ROOT / path, work / path, dirs_exist_ok=True)
        if python := script("python", chapter.pages):
            page = " ".join(chapter.pages)
            self._type(page, "python", ["python", "-c", python], environment, work)
        for page in chapter.pages:
            for command in commands(page):
                self._type(page, command, ["bash", "-ec", command], environment, work)

    def _environment(self, extras: str) -> Path:
        """Return an environment that has the wheel with ``extras``, made as the quick start says."""
        if "" not in self._environments:
            self._environments[""] = base = self.folder / "environments" / "none"
            subprocess.run([sys.executable, "-m", "venv", str(base)], check=True)
            for command in installation():
                self._type(QUICK_START, command, ["bash", "-ec", command], base, ROOT)
            self._install(base, "")
        if extras not in self._environments:
            new = self.folder / "environments" / extras.replace(",", "-")
            _copy_environment(self._environments[""], new)
            self._install(new, extras)
            self._environments[extras] = new
        return self._environments[extras]

    def _install(self, environment: Path, extras: str) -> None:
        wheels = self.folder / "wheel"
        if not wheels.exists():
            source = self.folder / "source"
            _export(source)
            build = ["pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels)]
            self._type(QUICK_START, "(wheel)", [*build, str(source)], environment, ROOT)
        (wheel,) = wheels.glob("*.whl")
        wanted = f"[{extras}]" if extras else ""
        shown = f"pip install '.{wanted}'"
        install = ["pip", "install", "--quiet", f"{wheel}{wanted}"]
        self._type(QUICK_START, shown, install, environment, self.folder)

    def _type(
        self, page: str, shown: str, command: list[str], environment: Path, work: Path
    ) -> None:
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "TORCH", "TRITON", "VIRTUAL_ENV"))
        }
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        scratch = self.folder / "tmp"  # Inductor keeps its cache there
        scratch.mkdir(exist_ok=True)
        kept |= {
            "PATH": f"{environment / 'bin'}{os.pathsep}{kept['PATH']}",
            "VIRTUAL_ENV": str(environment),
            "HOME": str(home),
            "TMPDIR": str(scratch),
        }
        if work == ROOT:  # pip's own settings are where they were
            kept["HOME"] = os.environ.get("HOME", str(home))
        started = time.monotonic()
        done = subprocess.run(
            command, cwd=work, env=kept, capture_output=True, text=True
        )
        seconds = time.monotonic() - started
        self.results.append((page, shown, seconds, done.returncode))
        mark = "ok    " if done.returncode == 0 else "FAILED"
        print(f"{mark} {seconds:6.1f} s  {page}: {shown.splitlines()[0]}", flush=True)
        if done.returncode:
            print((done.stdout + done.stderr)[-3000:], flush=True)

    @property
    def failed(self) -> bool:
        return any(status for *_, status in self.results)


def installation() -> Iterator[str]:
    """Yield the commands of the quick start that install upstream's packages."""
    first = blocks(QUICK_START, ("sh",))[0]
    for command in _joined(first):
        if command.startswith("pip install") and not command.startswith(
            "pip install ."
        ):
            yield command.replace("pip install", "pip install --quiet", 1)


def commands(page: str) -> Iterator[str]:
    """Yield the commands of a page, but for those that install."""
    for block in blocks(page, ("sh", "bash")):
        for command in _joined(block):
            if not command.startswith(("pip install", "python3 -m venv", "make ")):
                yield command


def _joined(block: str) -> Iterator[str]:
    """Yield the commands of a block of shell, without comments."""
    for line in block.replace("\\\n", " ").splitlines():
        if command := re.sub(r"\s+#.*$", "", line).strip():
            yield command


def _copy_environment(old: Path, new: Path) -> None:
    """Copy an environment, its files by hard links: what is installed over them is written anew."""
    shutil.copytree(old, new, copy_function=os.link, symlinks=True)
    for file in [new / "pyvenv.cfg", *(new / "bin").iterdir()]:
        if file.is_symlink() or not file.is_file():
            continue
        data = file.read_bytes()
        if str(old).encode() in data:
            mode = file.stat().st_mode
            file.unlink()
            file.write_bytes(data.replace(str(old).encode(), str(new).encode()))
            file.chmod(mode)


def _export(folder: Path) -> None:
    """Write what git tracks, as it is in the working tree, into ``folder``."""
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name)


def chosen(pages: Sequence[str]) -> list[Chapter]:
    """Return the chapters that have one of ``pages``, with those that they come after; all without any."""
    wanted = [c for c in CHAPTERS if not pages or {*pages} & {*c.pages}]
    after = {chapter.after for chapter in wanted}
    return [c for c in CHAPTERS if c in wanted or c.pages[0] in after]


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="clean-install-") as folder:
        install = CleanInstall(Path(folder))
        started = time.monotonic()
        for chapter in chosen(sys.argv[1:]):
            install.run(chapter)
        failed = sum(bool(status) for *_, status in install.results)
        print(
            f"{len(install.results) - failed} passed, {failed} failed, "
            f"{(time.monotonic() - started) / 60:.1f} minutes"
        )
        return int(install.failed)


if __name__ == "__main__":
    sys.exit(main())
