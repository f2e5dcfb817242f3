"""Modules under upstream's names: all of them in the manifest, each under one name alone."""

from __future__ import annotations

from importlib.metadata import distribution
from pathlib import Path

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import PACKAGES
from torchtrt_executorch.overlay.served import our_spec

from ...without_torch_tensorrt import reason

ROOT = Path(__file__).parents[3]
ROOTS = {
    "py/torch_tensorrt": "torch_tensorrt",
    "backends": "executorch.backends",
    "exir": "executorch.exir",
}

# Everything that brings our modules in, in one process; then which of its modules are ours.
EVERYTHING = """
import importlib, json, pkgutil, sys
{first}
import torchtrt_executorch
for module in pkgutil.walk_packages(torchtrt_executorch.__path__, "torchtrt_executorch."):
    if not module.name.startswith("torchtrt_executorch.patches"):
        importlib.import_module(module.name)
import torch_tensorrt.executorch, executorch.exir
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import State, patch_status
for patch in PATCHES:
    if patch_status(patch).state is State.IN_FORCE:
        for name in (*patch.replaces, *patch.adds):
            importlib.import_module(name)
names = {{}}
for name, module in list(sys.modules.items()):
    file = getattr(module, "__file__", None)
    if file is not None:
        names.setdefault(file, []).append(name)
print(json.dumps(names))
"""


def tree() -> set[str]:
    """Upstream names of our files, but for the packages that they stand in."""
    found = set()
    for folder, package in ROOTS.items():
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "__init__.py":
                parts = path.relative_to(ROOT / folder).with_suffix("").parts
                found.add(".".join((package, *parts)))
    return found


def test_the_manifest_has_every_file() -> None:
    listed = {name for patch in PATCHES for name in (*patch.replaces, *patch.adds)}
    assert listed - PACKAGES == tree()
    packages = {name.rpartition(".")[0] for name in tree()}
    installed = Path(str(distribution("torch").locate_file("")))
    absent = "torch_tensorrt" if reason() else "none"
    packages = {each for each in packages if each.partition(".")[0] != absent}
    folders = {each: installed / each.replace(".", "/") for each in packages}
    new = {each for each in packages if not folders[each].is_dir()}
    assert new == {each for each in PACKAGES if each.partition(".")[0] != absent}
    assert listed >= PACKAGES


def test_no_file_is_loaded_under_two_names(run) -> None:
    """Whatever is imported first: our runtime, which needs no torch_tensorrt, or upstream."""
    for first in (
        "import torchtrt_executorch.runtime",
        "import torch_tensorrt",
        "import executorch.exir",
    ):
        names = run(EVERYTHING.format(first=first), alone=True).facts
        ours = {our_spec(name).origin: [name] for name in tree()}
        loaded = {file: names[file] for file in ours.keys() & names.keys()}
        wrong = {file: names for file, names in loaded.items() if names != ours[file]}
        assert wrong == {}


def test_the_runtime_reads_blobs_without_torch_tensorrt(run) -> None:
    """And what it has loaded for that is what torch_tensorrt gets, bound to its package."""
    process = run(
        "import json, sys\n"
        "from torchtrt_executorch.payloads.engine_blob import deserialize_engine\n"
        "alone = 'torch_tensorrt' not in sys.modules\n"
        "import torch_tensorrt.executorch.serialization as serialization\n"
        "import torch_tensorrt\n"
        "bound = torch_tensorrt.executorch.blob.engine_blob\n"
        "print(json.dumps([alone, serialization.deserialize_engine is deserialize_engine,\n"
        "    bound is sys.modules['torch_tensorrt.executorch.blob.engine_blob']]))"
    )
    assert process.facts == [True, True, True]
