"""A patch that fails half-way is taken back whole, and everybody hears of it.

What is left then is what there is where the patch is skipped: in every module of upstream's, in
every class, and in all that had imported from the amended modules in between.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import State, verdict_on, verdicts_on

# Runs amendments, notes them, and lets the one that FAIL names fail when it has done its work.
IMPORTS = """
import json, os, sys, torch
from torchtrt_executorch.overlay import amending
resolve, ran = amending.resolve, []
def noting(function):
    def run(module):
        done = resolve(function)(module)
        ran.append(f"{module if isinstance(module, str) else module.__name__} {function}")
        if ran[-1] == os.environ.get("FAIL"):
            raise OSError("broken")
        return done
    return run
amending.resolve = noting
import torch_tensorrt, torch_tensorrt.executorch, executorch.exir
import torch_tensorrt.dynamo.runtime.meta_ops.register_meta_ops
from torchtrt_executorch import overlay
"""
ORIGINS = """
def origin(value):
    code = getattr(getattr(value, "__func__", value), "__code__", None)
    names = getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    return [*map(str, names), getattr(code, "co_filename", None)]
found = {}
for name, module in list(sys.modules.items()):
    if not name.startswith(("torch_tensorrt", "executorch.exir")) or name in ADDED:
        continue
    for attribute, value in list(vars(module).items()):
        if attribute.startswith("__") or type(value).__name__ == "module":
            continue
        found[f"{name}.{attribute}"] = [type(value).__name__, origin(value)]
        if isinstance(value, type) and value.__module__ == name:
            for member, held in vars(value).items():
                found[f"{name}.{attribute}.{member}"] = [type(held).__name__, origin(held)]
verdicts = {name: [v.state.value, v.reason] for name, v in overlay.verdicts().items()}
print(json.dumps([found, verdicts]))
"""
MANY = [
    patch
    for patch in PATCHES
    if len({amendment.module for amendment in patch.amends}) > 1
    and verdict_on(patch).state is State.IN_FORCE
    and patch.name != "host"  # without it torch_tensorrt can't be imported everywhere
]


@pytest.fixture(scope="module")
def order(run) -> list[str]:
    """All amendments in the order in which they are run."""
    return run(IMPORTS + "print(json.dumps(ran))").facts


def requiring(name: str) -> list[str]:
    """The patches for what is installed that require one, in turn, in the manifest's order."""
    verdicts = verdicts_on(PATCHES)
    here = [p for p in PATCHES if verdicts[p.name].state is State.IN_FORCE]
    found = {name}
    for patch in here * len(here):
        if found & {*patch.requires}:
            found.add(patch.name)
    return [patch.name for patch in here if patch.name in found - {name}]


def compared(facts: dict[str, Any]) -> dict[str, Any]:
    """What can be compared between processes; addresses can't."""
    return {name: fact for name, fact in facts.items() if " at 0x" not in str(fact)}


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(patch, id=patch.name, marks=[] if short else pytest.mark.slow)
        for patch in MANY
        for short in [patch.name == "emulated-engines"]
    ],
)
def test_as_if_skipped(run, patch: Any, order: list[str]) -> None:
    own = {f"{amendment.module} {amendment.by}" for amendment in patch.amends}
    last = [each for each in order if each in own][-1]
    added = json.dumps([*patch.replaces, *patch.adds])
    code = f"{IMPORTS}\nADDED = {added}\n{ORIGINS}"
    failed = run(code, FAIL=last)
    skipped = run(code, TORCHTRT_EXECUTORCH_SKIP=patch.name)
    left, verdicts = failed.facts
    expected, others = skipped.facts
    assert "failed" not in [state for state, _ in others.values()]
    assert compared(left) == compared(expected)
    state, reason = verdicts[patch.name]
    assert state == "failed" and "OSError('broken')" in reason
    told = [text.split()[2] for text in failed.warnings]
    assert told == [patch.name, *requiring(patch.name)]
    assert "OSError('broken')" in failed.warnings[0]


def test_a_failed_preparation(run) -> None:
    """Nothing of the patch is applied, neither before nor after."""
    code = (
        "import importlib.util, json, sys, torch\n"
        "from torchtrt_executorch.overlay import amending, engage\n"
        "def broken(function):\n"
        "    raise OSError(function)\n"
        "engage.resolve = broken\n"
        "importlib.util.find_spec('torch_tensorrt')\n"
        "from torchtrt_executorch import overlay\n"
        "print(json.dumps(overlay.verdicts()['host'].state.value))"
    )
    process = run(code)
    assert process.facts == "failed"
    (warning,) = process.warnings
    assert warning.startswith("the patch host could not be applied")


@pytest.mark.slow
@pytest.mark.parametrize(
    "patch",
    [patch for patch in PATCHES if verdict_on(patch).state is State.IN_FORCE],
    ids=lambda patch: patch.name,
)
def test_alone(run, patch: Any) -> None:
    """A patch brings all that it needs, or requires the patch that does."""
    kept, required = {"host", patch.name}, [*patch.requires]
    while required:
        (other,) = (each for each in PATCHES if each.name == required[0])
        kept.add(required.pop(0))
        required += other.requires
    names = json.dumps([*patch.replaces, *patch.adds])
    process = run(
        IMPORTS + f"import importlib\nfor name in {names}:\n"
        "    importlib.import_module(name)\n"
        "print(json.dumps(overlay.verdicts()[" + repr(patch.name) + "].state.value))",
        TORCHTRT_EXECUTORCH_SKIP=",".join(
            p.name for p in PATCHES if p.name not in kept
        ),
    )
    assert process.facts == "in force"
    assert process.warnings == []
