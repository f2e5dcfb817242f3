"""The patches as pull requests: as ``git format-patch`` writes them, and tried in a copy of what is installed.

    python tools/patch_set.py write [--to patches] [--tree CHECKOUT ...] [NAME ...]
    python tools/patch_set.py check [NAME ...]

``write`` makes one file per patch and repository, against the installed releases, or against checkouts of
pytorch/TensorRT and pytorch/executorch; below ``core/`` are those of the pull requests that this project implements.
``git am`` takes them in the order in which they are printed; each stands on those before it. The message is the
patch's page in docs/patches.

``check`` applies the whole series to a copy of the installed packages, and runs there ExecuTorch's own tests of what
a patch changes and the patch's tests. They import the copy, and the overlay is off.
Only where there is no GPU do patches of Torch-TensorRT need the patch ``host``, without which it can't be imported,
and those of the CUDA backend ``cuda-without-gpu``, without which it compiles nothing.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import cpp_patch
from patch_tests import TESTS, UPSTREAM_TESTS
from test_upstream import known_differences

from torchtrt_executorch.overlay.edit import edited
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import Patch, State, patch_statuses
from torchtrt_executorch.overlay.placing import edits_of
from torchtrt_executorch.overlay.upstream import installed_release

ROOT = Path(__file__).resolve().parent.parent
PAGES = ROOT / "docs/patches"
AUTHOR = (
    "the torchtrt-executorch authors <torchtrt-executorch@users.noreply.github.com>"
)
#: What a pull request says, by the headings of a patch's page.
SECTIONS = ("What", "Why", "Risk", "Test plan")
#: The pull requests that this project implements, by the patches that are theirs.
CORE = {
    "target-executorch": "TensorRT-4355",
    "tensorrt-partitioner": "TensorRT-4329",
    "propagate-device-pass": "executorch-18078",
    "aoti-partitioner": "executorch-20077",
}


#: What tests of Torch-TensorRT and of the CUDA backend need where there is no GPU: that it is imported, and builds.
FOR_TESTS = ("host", "emulated-engines", "cuda-without-gpu")


@dataclass(frozen=True)
class Package:
    """A Python package of upstream's.

    Attributes:
        repository: Where it is developed.
        name: Its name.
        folder: Its folder in a checkout, which is its folder here.
    """

    repository: str
    name: str
    folder: str

    def installed(self) -> Path | None:
        """Return the folder that it is installed in; None if it isn't."""
        top, _, rest = self.name.partition(".")
        spec = find_spec(top)
        if spec is None:
            return None
        assert spec.submodule_search_locations is not None
        folders = (Path(each, *rest.split(".")) for each in spec.submodule_search_locations)  # fmt: skip
        return next(folder for folder in folders if folder.is_dir())


PACKAGES = (
    Package("pytorch/TensorRT", "torch_tensorrt", "py/torch_tensorrt"),
    Package("pytorch/executorch", "executorch.backends", "backends"),
    Package("pytorch/executorch", "executorch.exir", "exir"),
)


#: Where a checkout has what a distribution is made of.
_DISTRIBUTIONS = {"torch-tensorrt": "py/torch_tensorrt", "executorch": "exir"}


class Upstream:
    """Upstream's files, of the installed releases or of checkouts.

    Args:
        checkouts: Folders of checkouts; what is in none of them is read as it is installed.
    """

    def __init__(self, checkouts: Sequence[Path] = ()) -> None:
        self._folders = {
            package: next(
                (
                    c / package.folder
                    for c in checkouts
                    if (c / package.folder).is_dir()
                ),
                package.installed(),
            )
            for package in PACKAGES
        }

        self._releases = {
            distribution: (checkout / "version.txt").read_text().strip()
            for checkout in checkouts
            for distribution, folder in _DISTRIBUTIONS.items()
            if (checkout / folder).is_dir()
        }

    def release(self, distribution: str) -> str | None:
        """Return the release of a distribution: a checkout's ``version.txt``, or what is installed."""
        return self._releases.get(distribution) or installed_release(distribution)

    def read(self, package: Package, path: str) -> str | None:
        """Return a file by its path in a checkout; None if there is none."""
        folder = self._folders[package]
        assert folder is not None, f"{package.name} is not installed"
        file = folder / Path(path).relative_to(package.folder)
        return file.read_text(encoding="utf-8") if file.is_file() else None


def package_of(module: str) -> Package:
    """Return the package that a module is in."""
    return next(p for p in PACKAGES if f"{module}.".startswith(f"{p.name}."))


def is_upstreams(patch: Patch) -> bool:
    """Whether a patch is of upstream's files alone, and nothing that only this distribution has."""
    code = "".join(edit.code for edit in patch.edits)
    return bool(patch.replaces or patch.adds or patch.edits) and not (
        patch.prepares or "torchtrt_executorch" in code
        or any(e.module.startswith("transformers") for e in patch.edits)
    )  # fmt: skip


def standing_on(patch: Patch) -> list[Patch]:
    """Return the patches that one requires, and those that these require, in the manifest's order."""
    names, found = [*patch.requires], set()
    by_name = {each.name: each for each in PATCHES}
    while names:
        found.add(name := names.pop())
        names += by_name[name].requires
    return [each for each in PATCHES if each.name in found]


def files_of(
    patches: Sequence[Patch], upstream: Upstream
) -> dict[tuple[Package, str], str]:
    """Return the files that ``patches`` change or bring, by package and path in a checkout.

    Raises:
        EditError: An edit has no place in upstream's files.
    """
    found: dict[tuple[Package, str], str] = {}
    for patch in patches:
        for module in (*patch.replaces, *patch.adds):
            package, path = _file_of(module, own=True)
            found[package, path] = (ROOT / path).read_text(encoding="utf-8")
        for name in patch.data:
            package = package_of(name.removesuffix(".json").replace("/", "."))
            path = name.replace(package.name.replace(".", "/"), package.folder, 1)
            found[package, path] = (ROOT / path).read_text(encoding="utf-8")
    for module, edits in edits_of(patches, upstream.release).items():
        place = _file_of(module, own=False, upstream=upstream)
        # A patch may edit what another brings.
        place = _file_of(module, own=True) if upstream.read(*place) is None else place
        source = found.get(place) or upstream.read(*place)
        assert source is not None
        found[place] = edited(source, edits)
    return found


def _file_of(
    module: str, *, own: bool, upstream: Upstream | None = None
) -> tuple[Package, str]:
    """Return the package and the path of a module, ours or upstream's."""
    package = package_of(module)
    path = package.folder + module.removeprefix(package.name).replace(".", "/")
    single = f"{path}.py"
    if own:
        is_single = (ROOT / single).is_file()
    else:
        is_single = upstream is not None and upstream.read(package, single) is not None
    return package, single if is_single else f"{path}/__init__.py"


def in_order(patches: Sequence[Patch]) -> list[Patch]:
    """Return patches as a series: the core's first, and each behind those that it requires."""
    core = [patch for patch in patches if patch.name in CORE]
    found: dict[str, Patch] = {}
    for patch in (*core, *patches):
        for each in (*standing_on(patch), patch):
            found.setdefault(each.name, each)
    return [each for each in found.values() if each in patches]


def diffs_of(
    patch: Patch, below: Sequence[Patch], upstream: Upstream
) -> dict[str, str]:
    """Return what a patch changes on top of others, a diff for each repository."""
    before = files_of(below, upstream)
    found: dict[str, str] = {}
    for (package, path), text in files_of([*below, patch], upstream).items():
        old = before.get((package, path), upstream.read(package, path))
        if old != text:
            found.setdefault(package.repository, "")
            found[package.repository] += _diff(path, old, text)
    return found


def _diff(path: str, old: str | None, new: str) -> str:
    lines = [f"diff --git a/{path} b/{path}\n"]
    if old is None:
        lines.append("new file mode 100644\n")
    lines += difflib.unified_diff(
        (old or "").splitlines(keepends=True),
        new.splitlines(keepends=True),
        "/dev/null" if old is None else f"a/{path}",
        f"b/{path}",
    )
    return "".join(lines)


def message_of(patch: Patch) -> str:
    """Return the message of a pull request: its subject, its sections, and what it is for."""
    page = (PAGES / f"{patch.name.replace('-', '_')}.md").read_text(encoding="utf-8")
    parts = re.split(r"^## (.+)\n", page, flags=re.MULTILINE)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    body = [f"{name}\n\n{sections[name].strip()}" for name in SECTIONS if name in sections]  # fmt: skip
    return "\n\n".join([patch.summary, *body, f"Pull request: {patch.pull_request}"])


def format_patch(patch: Patch, diff: str) -> str:
    """Return a diff as ``git format-patch`` would write it, for ``git am`` and ``git apply``."""
    subject, _, body = message_of(patch).partition("\n\n")
    return (
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: {AUTHOR}\n"
        f"Subject: [PATCH] {subject}\n\n{body}\n---\n\n{diff}-- \n{patch.name}\n"
    )


def write(patches: Sequence[Patch], folder: Path, upstream: Upstream) -> None:
    """Write the files of ``patches`` to ``folder``, and print what they are."""
    series = in_order(patches)
    for number, patch in enumerate(series):
        for repository, diff in diffs_of(patch, series[:number], upstream).items():
            short = repository.partition("/")[2]
            name = f"{number + 1:04}-{patch.name}.{short}.patch"
            if CORE.get(patch.name, "").startswith(short):
                name = f"core/{CORE[patch.name]}.patch"
            file = folder / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(format_patch(patch, diff), encoding="utf-8")
            changed = [line for line in diff.splitlines() if re.match(r"[+-](?!\+\+|--)", line)]  # fmt: skip
            added = sum(line.startswith("+") for line in changed)
            print(
                f"{file}: {diff.count('diff --git')} files, {len(diff.splitlines())} lines, "
                f"+{added} -{len(changed) - added}"
            )


def write_cpp(tree: Path, file: Path) -> None:
    """Write the change of TensorRT's C++ delegate, for a checkout; wheels have none of its sources."""
    patch = cpp_patch.parse(cpp_patch.EDITS.read_text(encoding="utf-8"))
    diff = patch.diff(tree)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(
        f"From {'0' * 40} Mon Sep 17 00:00:00 2001\nFrom: {AUTHOR}\n"
        f"Subject: [PATCH] {patch.message}\n---\n\n{diff}-- \nhost-staging\n",
        encoding="utf-8",
    )
    print(f"{file}: {len(patch.files)} files, {len(diff.splitlines())} lines")


def check(patches: Sequence[Patch]) -> int:
    """Run the tests of patches in a copy of upstream that has the whole series; return how many failed."""
    failed = 0
    series = in_order([*chosen(())])
    with TemporaryDirectory() as folder:
        copy = Path(folder)
        _copy_and_apply(series, copy)
        for patch in patches:
            for what, tests in _tests_of(patch).items():
                done = _run(patch, copy, what, tests)
                failed += done.returncode != 0
                last = (done.stdout.strip().splitlines() or ["nothing ran"])[-1]
                print(f"{patch.name}, {what}: {last}", flush=True)
                if done.returncode != 0:
                    print(done.stdout[-6000:], done.stderr[-2000:])
    return failed


def _tests_of(patch: Patch) -> Mapping[str, Sequence[str]]:
    found = {"its own": TESTS.get(patch.name, ())}
    if upstreams := UPSTREAM_TESTS.get(patch.name):
        found["upstream's"] = upstreams
    return {what: tests for what, tests in found.items() if tests}


def _copy_and_apply(applied: Sequence[Patch], copy: Path) -> None:
    """Make a copy of the installed packages, and apply patches as ``git apply`` does."""
    upstream = Upstream()
    touched = {path for _, path in files_of(applied, upstream)}
    for package in PACKAGES:
        if folder := package.installed():
            _mirror(folder, copy / package.folder, copy, touched)
    for number, each in enumerate(applied):
        for diff in diffs_of(each, applied[:number], upstream).values():
            subprocess.run(["git", "apply", "-"], input=diff, text=True, check=True, cwd=copy)  # fmt: skip
    # As they are installed: executorch is the folder of its checkout.
    (copy / "site/executorch").mkdir(parents=True)
    for entry in find_spec("executorch").submodule_search_locations:  # type: ignore[union-attr]
        for part in Path(entry).iterdir():
            target = copy / "site/executorch" / part.name
            if part.name not in ("backends", "exir", "__pycache__") and not target.exists():  # fmt: skip
                target.symlink_to(part)
    for name in ("backends", "exir"):
        (copy / "site/executorch" / name).symlink_to(copy / name)
    if (copy / "py/torch_tensorrt").is_dir():
        (copy / "site/torch_tensorrt").symlink_to(copy / "py/torch_tensorrt")


def _mirror(source: Path, target: Path, copy: Path, touched: set[str]) -> None:
    """Link what is in ``source``; what is touched, and what Python would write bytecode for, is copied."""
    target.mkdir(parents=True, exist_ok=True)
    for entry in source.iterdir():
        new = target / entry.name
        if entry.name == "__pycache__":
            continue
        if entry.is_dir():
            _mirror(entry, new, copy, touched)
        elif entry.suffix == ".py" or str(new.relative_to(copy)) in touched:
            new.write_bytes(entry.read_bytes())
        else:
            new.symlink_to(entry)


def _run(
    patch: Patch, copy: Path, what: str, tests: Sequence[str]
) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ)
    modules = [m for p in (patch, *standing_on(patch)) for m in p.modules]
    files = [file for test in tests if (file := ROOT / test.partition("::")[0]).is_file()]  # fmt: skip
    read = [*modules, *(test.replace("/", ".") for test in tests), *(f.read_text() for f in files)]  # fmt: skip
    if any("torch_tensorrt" in text or "backends.cuda" in text for text in read):
        skipped = [each.name for each in PATCHES if each.name not in FOR_TESTS]
        environment["TORCHTRT_EXECUTORCH_SKIP"] = ",".join(skipped)
    else:
        environment["TORCHTRT_EXECUTORCH"] = "0"
    environment["PYTHONPATH"] = os.pathsep.join((str(copy / "site"), str(ROOT / "tools")))  # fmt: skip
    environment["MERGED_COPY"] = str(copy)
    edited_modules = (edit.module for edit in patch.edits)
    own = dict.fromkeys((*patch.replaces, *patch.adds, *edited_modules))
    environment["MERGED_MODULES"] = ",".join(own)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "in_copy"]
    if what == "upstream's":
        command += ["-c", os.devnull, "--rootdir", str(copy), "--import-mode=importlib"]
        command += ["-p", "no:cacheprovider"]
        # The whole series is there: one of its patches makes fewer copies than a test of another counts.
        known = known_differences(version("executorch"))
        command += [f"--deselect=site/executorch/{test}" for test in known]
        command += [str(copy / "site/executorch" / test) for test in tests]
    else:
        command += [
            "-m",
            "not slow and not beside_upstream and not beyond_upstream",
            *tests,
        ]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True
    )


def chosen(names: Sequence[str]) -> Iterator[Patch]:
    """Yield the patches of these names, or all, that are in force here and upstream's to take.

    Raises:
        SystemExit: A name is of none.
    """
    statuses = patch_statuses(PATCHES)
    if unknown := {*names} - {*statuses}:
        sys.exit(f"no patch {', '.join(sorted(unknown))}; there are {', '.join(statuses)}")  # fmt: skip
    for patch in PATCHES:
        in_force = statuses[patch.name].state is State.IN_FORCE
        if patch.name in (names or statuses) and in_force and is_upstreams(patch):
            yield patch


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("write", "check"))
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--to", type=Path, default=ROOT / "patches")
    parser.add_argument("--tree", type=Path, action="append", default=[])
    arguments = parser.parse_args()
    patches = [*chosen(arguments.names)]
    if arguments.what == "check":
        return min(check(patches), 1)
    write(patches, arguments.to, Upstream(arguments.tree))
    for tree in arguments.tree:
        if (tree / "cpp").is_dir() and not arguments.names:
            write_cpp(tree, arguments.to / "core/TensorRT-4328.patch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
