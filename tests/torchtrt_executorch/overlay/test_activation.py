"""The overlay is active from ``import torch`` on, whatever is imported first, and never in its way."""

from __future__ import annotations

import inspect
import os
import pickle
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import executorch.exir
import pytest
import torch_tensorrt

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.upstream import locate

from ... import fresh

SCRIPT = Path(__file__).with_name("in_force.py")
FINDERS = (
    "[f for f in sys.meta_path if f.__class__.__module__.startswith('torchtrt_exec')]"
)
AOTI = "executorch.backends.aoti.aoti_partitioner"
AOTI_FILE = Path(*AOTI.split(".")).with_suffix(".py")

# What is imported first, and what has to hold right after.
FIRST = {
    "a replaced module, and thereby torch": f"""
from {AOTI} import AotiPartitioner
import inspect, sys
assert inspect.getsourcefile(AotiPartitioner) == sys.modules["{AOTI}"].__file__
import torch_tensorrt
""",
    "torch_tensorrt, and thereby torch": "import torch_tensorrt, executorch.exir",
}


def assert_in_force(found: dict[str, dict[str, bool]]) -> None:
    assert [name for name, ours in found["served"].items() if not ours] == []
    assert [name for name, ours in found["amended"].items() if not ours] == []


def test_torch_first() -> None:
    state = runpy.run_path(str(SCRIPT), run_name="in_force")
    assert_in_force({"served": state["served"](), "amended": state["amended"]()})


@pytest.mark.parametrize("first", FIRST.values(), ids=FIRST)
def test_upstream_first(run, first: str) -> None:
    process = run(
        f"import runpy; runpy.run_path({str(SCRIPT)!r}, run_name='__main__')",
        alone=True,
        IMPORTS=first,
    )
    assert_in_force(process.facts)
    assert process.warnings == []


def changed_modules() -> Iterator[Any]:
    """Upstream's modules that patches change; all but the first of XNNPACK's take a sweep."""
    names = dict.fromkeys(
        name
        for patch in PATCHES
        for name in (*patch.modules, *(edit.module for edit in patch.edits))
        if locate(name) is not None
    )
    quick = ("executorch.backends.xnnpack.partition.config.gemm_configs",)
    for name in names:
        yield pytest.param(name, marks=() if name in quick else pytest.mark.slow)


@pytest.mark.parametrize("name", changed_modules())
def test_any_module_may_be_imported_first(name: str) -> None:
    """It imports PyTorch, and thereby has the patches applied, while it executes itself."""
    done = fresh.python(f"import {name}", env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert "torchtrt-executorch" not in done.stderr


def test_it_waits_for_an_upstream_name(run) -> None:
    process = run(
        "import json, sys, torch; "
        f"print(json.dumps([len({FINDERS}), 'wrapt' in sys.modules, "
        "'torchtrt_executorch.overlay.engage' in sys.modules]))",
        alone=True,
    )
    assert process.facts == [1, False, False]


def test_off_switch(run) -> None:
    process = run(
        "import importlib.util, json, sys, torch; "
        f"print(json.dumps([len({FINDERS}), importlib.util.find_spec('{AOTI}').origin]))",
        TORCHTRT_EXECUTORCH="0",
    )
    finders, file = process.facts
    assert finders == 0
    assert Path(file).parts[-4:] == AOTI_FILE.parts
    assert process.warnings == []


BROKEN = {
    "manifest": ("overlay/manifest/__init__.py", "PATCHES: ", "could not be engaged"),
    "engagement": ("overlay/engage.py", "import contextlib", "could not be engaged"),
    "finder": ("overlay/engage.py", "        for patch, prep", "could not serve"),
}


@pytest.mark.parametrize(("file", "line", "told"), BROKEN.values(), ids=BROKEN)
def test_broken_overlay_leaves_upstream_alone(
    run, variant, file: str, line: str, told: str
) -> None:
    """Even where warnings are errors."""
    indent = " " * (len(line) - len(line.lstrip()))
    ahead = variant(
        "torchtrt_executorch",
        file,
        lambda text: text.replace(line, f"{indent}raise OSError('broken')\n{line}", 1),
    )
    process = run(
        "import importlib.util, json, torch; "
        f"print(json.dumps(importlib.util.find_spec('{AOTI}').origin))",
        ahead,
        PYTHONWARNINGS="error::RuntimeWarning",
    )
    assert Path(process.facts).parts[-4:] == AOTI_FILE.parts
    assert process.warnings
    assert all(told in text for text in process.warnings)
    assert "OSError('broken')" in process.stderr


PUBLIC: list[Any] = [
    torch_tensorrt.compile,
    torch_tensorrt.save,
    torch_tensorrt.convert_method_to_trt_engine,
    torch_tensorrt.dynamo.compile,
    executorch.exir.ExecutorchProgramManager.save,
]


@pytest.mark.parametrize("function", PUBLIC, ids=lambda f: f.__qualname__)
def test_public_functions_look_like_upstreams(function: Any) -> None:
    assert pickle.loads(pickle.dumps(function)) is function
    assert function.__module__.startswith(("torch_tensorrt", "executorch"))
    ours = inspect.signature(function).parameters
    upstream = inspect.signature(inspect.unwrap(function)).parameters
    kept = [name for name in ours if name in upstream]
    assert kept == [name for name in upstream if name in ours]
    assert "self" in ours or len(ours) > 2  # not (*args, **kwargs)
    assert function.__doc__
