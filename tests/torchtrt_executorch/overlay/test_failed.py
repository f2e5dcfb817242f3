"""A preparation that fails leaves its patch out, whole; and each patch works with those alone that it requires."""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import State, patch_status

from ...without_torch_tensorrt import reason
from ..test_patch_set import patch_set

IMPORTS = """
import json, os, sys, torch
import torch_tensorrt, torch_tensorrt.executorch, executorch.exir
import torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops
from torchtrt_executorch import overlay
"""


@pytest.mark.parametrize(
    ("patch", "module"),
    [
        pytest.param("host", "torch_tensorrt", marks=pytest.mark.skipif(bool(reason()), reason=reason())),
        ("cuda-without-gpu", "executorch.exir"),
    ],
)  # fmt: skip
def test_a_failed_preparation(run, patch: str, module: str) -> None:
    """Nothing of the patch is in force, neither what it serves nor what it edits."""
    code = (
        "import importlib.util, json, sys, torch\n"
        "from torchtrt_executorch.overlay import engage\n"
        "def broken(function):\n"
        "    raise OSError(function)\n"
        "engage.resolve = broken\n"
        f"importlib.util.find_spec({module!r})\n"
        "from torchtrt_executorch import overlay\n"
        f"print(json.dumps(overlay.statuses()[{patch!r}].state.value))"
    )
    process = run(code)
    assert process.facts == "failed"
    (warning,) = process.warnings
    assert warning.startswith(f"the patch {patch} could not be applied")


@pytest.mark.slow
@pytest.mark.parametrize(
    "patch",
    [patch for patch in PATCHES if patch_status(patch).state is State.IN_FORCE],
    ids=lambda patch: patch.name,
)
def test_alone(run, patch: Any) -> None:
    """A patch brings all that it needs, or requires the patch that does."""
    kept = {"host", patch.name, *(each.name for each in patch_set.standing_on(patch))}
    names = json.dumps([*patch.replaces, *patch.adds])
    process = run(
        IMPORTS + f"import importlib\nfor name in {names}:\n"
        "    importlib.import_module(name)\n"
        "print(json.dumps(overlay.statuses()[" + repr(patch.name) + "].state.value))",
        TORCHTRT_EXECUTORCH_SKIP=",".join(
            p.name for p in PATCHES if p.name not in kept
        ),
    )
    assert process.facts == "in force"
    assert process.warnings == []
