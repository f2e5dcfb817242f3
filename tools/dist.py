"""Builds the wheel and the sdist into ``dist/``, checks them, and says what a release takes.

    python tools/dist.py --repository https://github.com/OWNER/torchtrt-executorch

Each is installed into environments of its own: beside each of the upstream packages of the environment
that this runs in, by itself and all together, and alone on every Python from 3.10 to 3.13 that there is.
Nothing is uploaded.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from email.parser import BytesParser
from pathlib import Path
from typing import Any

from guides import ONE_AFTER_ANOTHER, script
from pythons import PYTHONS, find

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
#: What installs each of them, by the beginnings of the names that it has in ``site-packages``.
UPSTREAM = {
    "torch": ("torch", "functorch"),
    "torch-tensorrt": ("torch_tensorrt", "tensorrt"),
    "executorch": ("executorch",),
}
BESIDE = [
    (),
    ("torch",),
    ("executorch",),
    ("torch", "executorch"),
    ("torch", "torch-tensorrt"),
    ("torch", "torch-tensorrt", "executorch"),
]
#: In git, and of no use to who has the sources without it.
LEFT_OUT = (".gitignore", ".github/", ".pre-commit-config.yaml")

PROBE = """
import importlib.util, json, sys
from torchtrt_executorch.cli.status import report
torch = importlib.util.find_spec("torch")
if torch:
    import torch
from torchtrt_executorch import overlay
if importlib.util.find_spec("torch_tensorrt") and torch:
    import torch_tensorrt
found = report()
# Not those for whatever runs, nor those of transformers, which may be here.
upstream = {"torch-tensorrt", "executorch"}
states = {row["name"]: row["state"] for row in found["patches"] if upstream & {*row["releases"]}}
print(json.dumps([overlay.is_active(), found["import_errors"], states]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repository", default="")
    repository = parser.parse_args().repository
    sdist, wheel = build(repository)
    check_contents(sdist, wheel)
    links = check_metadata(wheel, repository)
    for file, beside in itertools.product((wheel, sdist), BESIDE):
        check_beside(file, beside)
    tried = [
        version
        for version in PYTHONS
        if all(check_alone(file, version) for file in (wheel, sdist))
    ]
    print(f"\n{wheel.name} and {sdist.name} are in {DIST}. A release takes:")
    if links:
        print(
            f"- REPOSITORY=, the project's address: README has {links} links to files"
        )
    if missing := [version for version in PYTHONS if version not in tried]:
        print(f"- a try on Python {', '.join(missing)}, which isn't here")
    print("- a date for the version in CHANGELOG.md, and a tag of that name")
    print("- twine upload dist/*")


def build(repository: str) -> tuple[Path, Path]:
    """Return the sdist, and the wheel that is built from it."""
    shutil.rmtree(DIST, ignore_errors=True)
    for left in (ROOT / "build", *ROOT.glob("*.egg-info")):
        shutil.rmtree(left, ignore_errors=True)
    run(sys.executable, "-m", "build", "--no-isolation", ROOT, REPOSITORY=repository)
    run(sys.executable, "-m", "twine", "check", "--strict", *DIST.iterdir())
    (sdist,), (wheel,) = DIST.glob("*.tar.gz"), DIST.glob("*.whl")
    return sdist, wheel


def check_contents(sdist: Path, wheel: Path) -> None:
    """Compare both with what git has: nothing is missing, and nothing else is there."""
    listed = run("git", "ls-files", cwd=ROOT).split()
    wanted = {name for name in listed if not name.startswith(LEFT_OUT)}
    with tarfile.open(sdist) as archive:
        members = (m.name.partition("/")[2] for m in archive.getmembers() if m.isfile())
        found = {name for name in members if ".egg-info/" not in name}
    expect(wanted, found - {"PKG-INFO", "setup.cfg"}, sdist.name)
    moved = {
        "py/torch_tensorrt/": "torchtrt_executorch/patches/torch_tensorrt/",
        "backends/": "torchtrt_executorch/patches/executorch/backends/",
        "exir/": "torchtrt_executorch/patches/executorch/exir/",
        "torchtrt_executorch/": "torchtrt_executorch/",
    }
    installed = {
        to + name.removeprefix(at)
        for name in listed
        for at, to in moved.items()
        if name.startswith(at)
    }
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    expect(installed, names, wheel.name)
    print(f"{sdist.name}: {len(wanted)} files; {wheel.name}: {len(installed)} files")


def expect(wanted: set[str], found: set[str], where: str) -> None:
    """Exit if two sets of files differ."""
    if wanted != found:
        missing, more = sorted(wanted - found)[:9], sorted(found - wanted)[:9]
        sys.exit(f"{where}: missing {missing}, and nobody's {more}")


def check_metadata(wheel: Path, repository: str) -> int:
    """Check that the version is the package's, and return how many links lead nowhere on PyPI."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (n for n in archive.namelist() if n.endswith(".dist-info/METADATA"))
        metadata: Any = BytesParser().parsebytes(archive.read(name))
    line = re.search(
        r'^__version__ = "(.+)"$', source("torchtrt_executorch/__init__.py"), re.M
    )
    if line is None or metadata["Version"] != line[1]:
        sys.exit(f"the wheel is of version {metadata['Version']}, the package isn't")
    if f"## {metadata['Version']}" not in source("CHANGELOG.md"):
        sys.exit(f"CHANGELOG.md says nothing about {metadata['Version']}")
    links = re.findall(r"\]\((?!\w+:|#)", metadata.get_payload())
    if repository and (links or not metadata.get_all("Project-URL")):
        sys.exit("links of README aren't absolute, or the metadata has no address")
    return len(links)


def source(file: str) -> str:
    """Return the text of a file of ours."""
    return (ROOT / file).read_text(encoding="utf-8")


def check_beside(file: Path, beside: tuple[str, ...]) -> None:
    """Install ``file`` where of upstream's packages there are just ``beside``, and ask what is in force."""
    with tempfile.TemporaryDirectory() as folder:
        python = environment(Path(folder), beside)
        flags = ("--no-deps", "--quiet")
        run(python, "-m", "pip", "install", *flags, file)
        answer = run(python, "-c", PROBE, cwd=Path(folder)).splitlines()[-1]
        if {*beside} == {*UPSTREAM} and file.suffix == ".whl":
            check_types(python, Path(folder))
        active, import_errors, states = json.loads(answer)
        count = sum(state == "in force" for state in states.values())
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "torchtrt-executorch")
        if "torch" in beside:
            run(python, "-c", "import torch", cwd=Path(folder))
    whole = set(beside) == set(UPSTREAM)
    if active != ("torch" in beside) or (
        bool(import_errors) == ("torch-tensorrt" in beside)
    ):
        sys.exit(f"{file.name} beside {beside}: {active=}, {import_errors=}")
    if bool(count) != bool({*beside} - {"torch"}) or (
        whole and "failed" in states.values()
    ):
        sys.exit(f"{file.name} beside {beside}: {states}")
    kind = "wheel" if file.suffix == ".whl" else "sdist"
    print(
        f"{kind} beside {' and '.join(beside) or 'nothing'}: {count} patches in force"
    )


def check_types(python: Path, folder: Path) -> None:
    """Check a user's script strictly: all that the guides say. Upstream has no types, or untyped functions."""
    untyped = ("import-untyped", "no-untyped-call", "no-any-return")
    flags = ["--strict", "--no-incremental"]
    flags += [word for code in untyped for word in ("--disable-error-code", code)]
    for name, pages in (("guides", ONE_AFTER_ANOTHER), ("readme", ["README.md"])):
        (folder / f"{name}.py").write_text(script("python", pages), encoding="utf-8")
        run(python, "-m", "mypy", *flags, f"{name}.py", cwd=folder)
    print("what README and the guides have to type passes mypy --strict")


def environment(folder: Path, beside: tuple[str, ...]) -> Path:
    """Return the Python of a new environment, with links to what is installed in this one."""
    venv.create(folder / "venv", with_pip=True)
    python = folder / "venv" / "bin" / "python"
    path = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    own = Path(path.strip())
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        owner = owner_of(entry.name)
        ours = "torchtrt_executorch" in entry.name
        if (
            not ours
            and (owner is None or owner in beside)
            and not (own / entry.name).exists()
        ):
            (own / entry.name).symlink_to(entry)
    return python


def owner_of(name: str) -> str | None:
    """Return whose a name in ``site-packages`` is; None of what isn't upstream's."""
    if name.startswith("torchao"):
        return None
    owners = [o for o, names in UPSTREAM.items() if name.startswith(names)]
    return owners[-1] if owners else None


def check_alone(file: Path, version: str) -> bool:
    """Install ``file`` with what it requires on another Python; whether there is one."""
    if (found := find(version)) is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        run(found, "-m", "venv", folder)
        python = Path(folder) / "bin" / "python"
        run(python, "-m", "pip", "install", "--quiet", file)
        answer = run(python, "-m", "torchtrt_executorch.cli", "status", "--json")
        patches = json.loads(answer)["patches"]
        # Not those for whatever runs.
        states = {row["state"] for row in patches if row["releases"]}
    if states != {"not applicable"}:
        sys.exit(f"Python {version}, beside nothing: {states}")
    print(f"Python {version}: {file.name} installs from the index, and status runs")
    return True


def run(*command: Any, cwd: Path | None = None, **variables: str) -> str:
    """Return what a command prints; exit with what it says if it fails."""
    inherited = {
        n: v for n, v in os.environ.items() if not n.startswith(("PYTHON", "TORCHTRT"))
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**inherited, **variables},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(map(str, command))}\n{done.stdout[-3000:]}{done.stderr[-3000:]}"
        )
    return done.stdout


if __name__ == "__main__":
    main()
