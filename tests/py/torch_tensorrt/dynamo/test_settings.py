"""``CompilationSettings`` with the two fields: defaults, errors, pickles."""

from __future__ import annotations

import dataclasses
import os
import pickle
from typing import Any

import pytest
import torch
from torch_tensorrt.dynamo import CompilationSettings

from .... import fresh

OPERATORS = [f"torch.ops.aten.operator_{index}.default" for index in range(12)]


def run(script: str, **environment: str) -> str:
    """Run ``script`` in a process of its own; return the last line that it printed."""
    result = fresh.run(script, env={**os.environ, **environment})
    assert result.returncode == 0, result.stderr[-4000:]
    return result.stdout.splitlines()[-1]


def same(one: CompilationSettings, other: CompilationSettings) -> bool:
    """Compare the settings up to their devices, which upstream compares by identity."""
    return bool(dataclasses.replace(one, device=other.device) == other)


def test_off_by_default() -> None:
    settings = CompilationSettings()
    assert settings.target_executorch is False
    assert settings.executorch_allocator_routing == "target"


def test_is_upstreams_class_to_everyone() -> None:
    from torch_tensorrt.dynamo import _compiler, _settings, conversion, utils

    for module in (_compiler, _settings, conversion, utils):
        assert module.CompilationSettings is CompilationSettings
    assert CompilationSettings.__module__ == "torch_tensorrt.dynamo._settings"
    assert CompilationSettings.__qualname__ == "CompilationSettings"
    assert "target_executorch (bool)" in (CompilationSettings.__doc__ or "")
    assert "torch_executed_ops" in (CompilationSettings.__doc__ or "")


@pytest.mark.parametrize("value", ["True", 1, None, 0.0, [True]])
def test_wrong_type_is_a_type_error(value: Any) -> None:
    with pytest.raises(TypeError, match="target_executorch=.*takes True or False"):
        CompilationSettings(target_executorch=value)


@pytest.mark.parametrize("value", ["nodes", "", None, 3, ["node"]])
def test_unknown_routing_is_a_value_error(value: Any) -> None:
    message = "executorch_allocator_routing=.*'target' or 'node'"
    with pytest.raises(ValueError, match=message):
        CompilationSettings(executorch_allocator_routing=value)


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"target_executorch": True},
        {"executorch_allocator_routing": "node"},
        {"target_executorch": True, "executorch_allocator_routing": "node"},
    ],
)
def test_survives_replace_and_pickle(fields: dict[str, Any]) -> None:
    settings = CompilationSettings(torch_executed_ops=set(OPERATORS), **fields)
    assert dataclasses.replace(settings) == settings
    again = pickle.loads(pickle.dumps(settings))
    assert same(again, settings)
    if settings.target_executorch:  # upstream pickles a set, in an order of its own
        assert pickle.dumps(again) == pickle.dumps(settings)


def test_pickled_without_the_fields() -> None:
    state = CompilationSettings(min_block_size=7).__getstate__()
    assert not {"target_executorch", "executorch_allocator_routing"} & set(state)
    old = CompilationSettings.__new__(CompilationSettings)
    old.__setstate__(state)
    assert same(old, CompilationSettings(min_block_size=7))


def test_operators_are_pickled_by_name() -> None:
    ops = {torch.ops.aten.nonzero.default, "torch.ops.aten.relu.default"}
    settings = CompilationSettings(torch_executed_ops=ops, target_executorch=True)
    assert pickle.loads(pickle.dumps(settings)).torch_executed_ops == {
        "torch.ops.aten.nonzero.default",
        "torch.ops.aten.relu.default",
    }


UPSTREAM = """
import pickle, torch, torch_tensorrt
from torch_tensorrt.dynamo import CompilationSettings
assert not hasattr(CompilationSettings(), "target_executorch")
settings = pickle.loads(bytes.fromhex({ours!r}))
assert settings.target_executorch is True and settings.min_block_size == 7
print(pickle.dumps(CompilationSettings(min_block_size=7)).hex())
"""


@pytest.mark.beside_upstream
def test_upstream_reads_ours_and_writes_the_same_bytes() -> None:
    ours = CompilationSettings(min_block_size=7, target_executorch=True)
    script = UPSTREAM.format(ours=pickle.dumps(ours).hex())
    theirs = run(script, TORCHTRT_EXECUTORCH_SKIP="target-executorch")
    assert pickle.dumps(CompilationSettings(min_block_size=7)).hex() == theirs


ROUTED = f"""
import pickle, torch, torch_tensorrt
settings = torch_tensorrt.dynamo.CompilationSettings(
    torch_executed_ops=set({OPERATORS!r}), target_executorch=True
)
print(pickle.dumps(settings).hex())
"""


def test_bytes_do_not_depend_on_the_hash_seed() -> None:
    """Which other processes have another of."""
    settings = CompilationSettings(
        torch_executed_ops=set(OPERATORS), target_executorch=True
    )
    assert run(ROUTED) == pickle.dumps(settings).hex()
