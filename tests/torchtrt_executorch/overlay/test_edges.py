"""Where imports don't go straight: zips, editable checkouts, reloads, imports that fail."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from torchtrt_executorch.overlay.upstream import installed_release

ROOT = Path(__file__).parents[3]
FACTS = """
import json
from torchtrt_executorch import overlay
states = {name: status.state.value for name, status in overlay.statuses().items()}
"""


@pytest.fixture(scope="module")
def zipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This distribution as a zip, as it would be installed."""
    folders = {
        "torchtrt_executorch": ROOT / "torchtrt_executorch",
        "torchtrt_executorch/patches/torch_tensorrt": ROOT / "py/torch_tensorrt",
        "torchtrt_executorch/patches/executorch/backends": ROOT / "backends",
        "torchtrt_executorch/patches/executorch/exir": ROOT / "exir",
    }
    path = tmp_path_factory.mktemp("zip") / "torchtrt_executorch.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for prefix, folder in folders.items():
            for file in folder.rglob("*.py"):
                archive.write(file, f"{prefix}/{file.relative_to(folder)}")
    return path


def test_from_a_zip(run, zipped: Path) -> None:
    """Served, edited, and with their sources at hand."""
    process = run(
        "import inspect, torch\n"
        "import executorch.exir, torch_tensorrt\n"
        "from executorch.backends.aoti.aoti_partitioner import AotiPartitioner\n"
        "from torch_tensorrt.executorch import TensorRTPartitioner, export\n"
        "import torchtrt_executorch\n"
        + FACTS
        + "files = [torchtrt_executorch.__file__, export.__code__.co_filename]\n"
        "files += [inspect.getfile(each) for each in (AotiPartitioner, TensorRTPartitioner)]\n"
        "named = 'class TensorRTPartitioner' in inspect.getsource(TensorRTPartitioner)\n"
        "print(json.dumps([files, named, states]))",
        zipped,
    )
    files, named, states = process.facts
    assert all(file.startswith(str(zipped)) for file in files)
    assert named
    assert "failed" not in states.values()
    assert process.warnings == []


FINDER = """
from importlib.machinery import PathFinder
class EditableFinder:  # as setuptools makes one for a checkout that isn't a folder on the path
    FOLDERS = {folders!r}
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname in cls.FOLDERS:
            return PathFinder.find_spec(fullname, [cls.FOLDERS[fullname]])
sys.meta_path.append(EditableFinder)
class Hidden(PathFinder):  # and the path has neither
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        return None if fullname in EditableFinder.FOLDERS else PathFinder.find_spec(fullname, path, target)
sys.meta_path[sys.meta_path.index(PathFinder)] = Hidden
"""


def test_an_editable_checkout_with_a_finder_of_its_own(run, tmp_path: Path) -> None:
    """No patch is lost: upstream's files are found where whoever imports them finds them."""
    import torch_tensorrt

    site = str(Path(torch_tensorrt.__file__).parents[1])
    (tmp_path / "sitecustomize.py").write_text(
        FINDER.format(folders={"torch_tensorrt": site, "executorch": site})
    )
    code = "import torch, executorch.exir\n" + FACTS + "print(json.dumps(states))"
    process, usual = run(code, tmp_path), run(code)
    assert process.warnings == []
    assert process.facts == usual.facts


def test_reload(run) -> None:
    """A module that is loaded again is edited again; one of ours stays ours."""
    process = run(
        "import importlib, inspect, torch_tensorrt\n"
        "import torch_tensorrt.executorch.partitioner as partitioner\n"
        "from torch_tensorrt.dynamo import _compiler, _settings\n"
        "for module in (partitioner, _settings, _compiler, torch_tensorrt):\n"
        "    importlib.reload(module)\n" + FACTS + "print(json.dumps([\n"
        "    partitioner.__file__,\n"
        "    'target_executorch' in inspect.signature(_compiler.compile).parameters,\n"
        "    hasattr(_settings.CompilationSettings(), 'target_executorch'),\n"
        "    states]))"
    )
    file, *edited, states = process.facts
    assert Path(file).is_relative_to(ROOT)
    assert edited == [True, True]
    assert "failed" not in states.values()


def test_the_overlay_itself_again(run) -> None:
    """Its module loaded again, by its old name or a new one, and activated again: there is one."""
    process = run(
        "import importlib, sys, torch\n"
        "from torchtrt_executorch import overlay\n"
        "for again in (importlib.reload, lambda _: overlay):\n"
        "    again(overlay).activate()\n"
        "del sys.modules['torchtrt_executorch.overlay']\n"
        "importlib.import_module('torchtrt_executorch.overlay').activate()\n"
        "import torch_tensorrt.executorch.partitioner as partitioner\n"
        + FACTS
        + "count = len([f for f in sys.meta_path if overlay.is_ours(f)])\n"
        "print(json.dumps([count, partitioner.__file__, states]))"
    )
    count, file, states = process.facts
    assert count == 1
    assert Path(file).is_relative_to(ROOT)
    assert "failed" not in states.values() and states["host"] == "in force"
    assert process.warnings == []


HIDDEN = """
import importlib.metadata, sys
NAMES = {names!r}
class Hidden:  # from imports, and from metadata
    @classmethod
    def find_spec(cls, fullname, path=None, target=None):
        if fullname.split(".")[0].replace("_", "-") in NAMES:
            raise ModuleNotFoundError(fullname, name=fullname)
sys.meta_path.insert(0, Hidden)
version = importlib.metadata.version
def visible(name):
    if name in NAMES:
        raise importlib.metadata.PackageNotFoundError(name)
    return version(name)
importlib.metadata.version = visible
"""


def test_without_executorch(run, tmp_path: Path) -> None:
    """Who asks for an export hears what is missing, and not that there is no such attribute."""
    (tmp_path / "sitecustomize.py").write_text(HIDDEN.format(names=["executorch"]))
    process = run(
        "import json, torch, torch_tensorrt\n"
        "try:\n"
        "    torch_tensorrt.executorch.export\n"
        "except ImportError as error:\n"
        "    print(json.dumps(str(error)))",
        tmp_path,
    )
    release = installed_release("torch-tensorrt")
    assert release is not None
    if Version(release) < Version("2.13.dev0"):  # whose package imports it right away
        assert process.facts == "executorch"  # as HIDDEN says it
    else:
        assert "ExecuTorch" in process.facts and "pip install" in process.facts


def test_without_torch_tensorrt(run, tmp_path: Path) -> None:
    """``status`` gives the advice that the quick start gives."""
    names = ["torch-tensorrt", "torch-tensorrt-rtx"]
    (tmp_path / "sitecustomize.py").write_text(HIDDEN.format(names=names))
    process = run(
        "import json\n"
        "from torchtrt_executorch.cli.status import report\n"
        "print(json.dumps(report()))",
        tmp_path,
    )
    (said,) = process.facts["import_errors"]
    for command in ("pip install torch-tensorrt-rtx", "pip install --no-deps"):
        assert command in said
    guide = (ROOT / "docs" / "quick_start.md").read_text().replace("\\\n", " ")
    advised = [line for line in guide.splitlines() if line.startswith("pip install ")]
    bindings = next(line.split() for line in advised if "constraints/" in line)
    asked = {word for word in bindings if not word.startswith("constraints/")} - {"-c"}
    assert asked <= set(said.replace(",", "").split())


FIRST_IMPORT = r"(?m)^(?=import |from (?!__future__))"
FAILS_ONCE = """import builtins
if not hasattr(builtins, 'failed_once'):
    builtins.failed_once = True
    raise ImportError('the first time')
"""
#: Whether a package is edited, once all of it is imported.
EDITED = {
    "torch_tensorrt": (
        "import torch_tensorrt",
        "'target_executorch' in inspect.signature(torch_tensorrt.dynamo.compile).parameters",
    ),
    "executorch": ("import executorch.exir", "'edited' in executorch.exir.to_edge.__code__.co_filename.split('/')"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("package", "file"),
    [
        ("torch_tensorrt", "_Device.py"),
        ("torch_tensorrt", "_compile.py"),
        ("torch_tensorrt", "dynamo/_compiler.py"),
        ("torch_tensorrt", "_features.py"),
        ("executorch", "exir/__init__.py"),
        ("executorch", "exir/pass_base.py"),
    ],
)
def test_after_an_import_that_failed(run, variant, package: str, file: str) -> None:
    """Wherever it has failed, the next import of it is as good as the first would have been."""
    statement, is_edited = EDITED[package]
    ahead = variant(
        package,
        file,
        lambda text: re.sub(FIRST_IMPORT, FAILS_ONCE, text, count=1),
    )
    process = run(
        "import inspect, torch\n"
        "try:\n"
        f"    {statement}\n"
        "except ImportError as error:\n"
        "    assert 'the first time' in str(error), error\n"
        "else:\n"
        "    raise AssertionError('it has not failed')\n"
        f"{statement}\n{FACTS}print(json.dumps([states, {is_edited}]))",
        ahead,
    )
    states, edited = process.facts
    assert "failed" not in states.values()
    assert edited
