"""The wheel, the sdist and the ways to install them, each into an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = (
    *("torchtrt_executorch", "py", "backends", "exir", "tests"),
    *("setup.py", "pyproject.toml", "LICENSE", "README.md"),
)
SERVED = {
    "torch_tensorrt": "py/torch_tensorrt",
    "executorch/backends": "backends",
    "executorch/exir": "exir",
}

# What is in force, without importing upstream: that is tested elsewhere.
PROBE = """
import importlib.util, json, sys, torch
try:
    import torchtrt_executorch.overlay.served as served
    from torchtrt_executorch.overlay.manifest import PATCHES
except ModuleNotFoundError:
    found = {}
else:
    names = [name for patch in PATCHES for name in (*patch.replaces, *patch.adds)]
    found = {name: served.our_spec(name).origin for name in names}
    for patch in PATCHES:
        for preparation in patch.prepares:
            module = preparation.by.split(":")[0]
            found[module] = importlib.util.find_spec(module).origin
finders = [f for f in sys.meta_path if type(f).__name__ == "OverlayFinder"]
aoti = importlib.util.find_spec("executorch.backends.aoti.aoti_partitioner").origin
print(json.dumps([len(finders), aoti, found]))
"""


def call(*command: Any, cwd: Path, **environment: str) -> str:
    inherited = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    settings = {
        "OMP_NUM_THREADS": "1",
        "PIP_NO_INDEX": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        env={**inherited, **settings, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the packages are made of, without what earlier builds left."""
    folder = tmp_path_factory.mktemp("tree")
    leave = shutil.ignore_patterns("__pycache__", "*.egg-info", "build", "dist")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=leave)
        else:
            shutil.copy(ROOT / name, folder / name)
    return folder


@pytest.fixture(scope="module")
def built(tree: Path) -> Path:
    """The sdist, and the wheel that is built from it."""
    call(sys.executable, "-m", "build", "--no-isolation", tree, cwd=tree)
    return tree / "dist"


class Environment:
    """An environment with the packages of the one that runs the tests, but for this project."""

    def __init__(self, folder: Path) -> None:
        import torch

        present = Path(torch.__file__).parents[1]
        call(sys.executable, "-m", "venv", "--without-pip", folder, cwd=folder.parent)
        self.bin = folder / "bin"
        (site,) = folder.glob("lib/python*/site-packages")
        others = folder / "others"
        others.mkdir()
        for entry in present.iterdir():
            if "torchtrt_executorch" not in entry.name:
                (others / entry.name).symlink_to(entry)
        (site / "others.pth").write_text(f"{others}\n")
        self.folder = folder

    def pip(self, *arguments: Any) -> None:
        pip = (sys.executable, "-m", "pip", "--python", self.bin / "python")
        call(*pip, *arguments, cwd=self.folder)

    def install(self, *what: Any) -> None:
        self.pip("install", "--no-build-isolation", "--no-deps", *what)

    def probe(self, cwd: Path | None = None) -> list[Any]:
        printed = call(self.bin / "python", "-c", PROBE, cwd=cwd or self.folder)
        return json.loads(printed.splitlines()[-1])


def patch_files(tree: Path) -> set[str]:
    """Our files for upstream modules, by the path that they have below ``patches``."""
    return {
        f"{package}/{path.relative_to(tree / folder).as_posix()}"
        for package, folder in SERVED.items()
        for path in (tree / folder).rglob("*.py")
    }


def test_contents_of_the_wheel(built: Path, tree: Path) -> None:
    (wheel,) = built.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    own = {name for name in names if ".dist-info/" not in name}
    assert wheel.name.endswith("-py3-none-any.whl")
    assert {name.split("/")[0] for name in own} == {"torchtrt_executorch"}
    below = "torchtrt_executorch/patches/"
    found = {name.removeprefix(below) for name in own if name.startswith(below)}
    assert patch_files(tree) <= found
    sources = {
        path.relative_to(tree).as_posix()
        for path in (tree / "torchtrt_executorch").rglob("*.*")
        if path.suffix in (".py", ".c", ".h")
        or path.name == "py.typed"
        or path.parent.name == "templates"
    }
    assert sources <= own
    assert not [name for name in own if "test" in Path(name).name]
    assert [name for name in names if name.endswith("licenses/LICENSE")]
    archive = zipfile.ZipFile(wheel)
    (metadata,) = (n for n in names if n.endswith(".dist-info/METADATA"))
    assert "License-Expression: BSD-3-Clause" in archive.read(metadata).decode()
    (points,) = (n for n in names if n.endswith(".dist-info/entry_points.txt"))
    assert "[torch.backends]" in archive.read(points).decode()


def test_contents_of_the_sdist(built: Path) -> None:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "pyproject.toml", "setup.py"} <= names
    assert "py/torch_tensorrt/executorch/partitioner.py" in names
    assert "backends/aoti/aoti_partitioner.py" in names


@pytest.mark.parametrize("way", ["wheel", "folder", "editable"])
def test_installed(way: str, built: Path, tree: Path, tmp_path: Path) -> None:
    environment = Environment(tmp_path / "environment")
    what: dict[str, list[Any]] = {
        "wheel": list(built.glob("*.whl")),
        "folder": [tree],
        "editable": ["-e", tree],
    }
    environment.install(*what[way])
    finders, aoti, found = environment.probe()
    assert finders == 1
    home = tree if way == "editable" else environment.folder
    assert all(Path(file).is_relative_to(home) for file in found.values())
    assert aoti == found["executorch.backends.aoti.aoti_partitioner"]
    # Where the shell is in the clone its package is imported, and all that belongs to it.
    finders, aoti, found = environment.probe(tree)
    assert finders == 1
    assert all(Path(file).is_relative_to(tree) for file in found.values())
    assert aoti == found["executorch.backends.aoti.aoti_partitioner"]
    if way == "wheel":
        script = environment.bin / "torchtrt-executorch"
        rows = json.loads(call(script, "status", "--json", cwd=tmp_path))["patches"]
        states = {row["name"]: row["state"] for row in rows}
        assert states["aoti-partitioner"] == "in force"
        environment.pip("uninstall", "--yes", "torchtrt-executorch")
        finders, aoti, found = environment.probe()
        assert (finders, found) == (0, {})
        assert Path(aoti).is_relative_to(environment.folder / "others")
        assert not script.exists()
