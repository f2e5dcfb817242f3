"""What methods have in common: found, said when it is exported, and in the file."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import pytest
import torch
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.backend.backend_details import BackendDetails, PreprocessResult
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.passes import MemoryPlanningPass
from executorch.exir.program import _common_state as common_state
from executorch.exir.program._common_state import KEY, CommonState, Planned, read_table
from torch import nn
from torch.export import export

from torchtrt_executorch import runtime
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise

X = torch.ones(2)


class Counter(nn.Module):
    def __init__(self, name: str = "count", size: int = 2) -> None:
        super().__init__()
        self.name = name
        self.register_buffer(name, torch.zeros(size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        count = getattr(self, self.name)
        count.add_(1)
        return count + x


class Wide(Counter):
    """Has more to compute with beside it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + (x.repeat(50) * 0).sum()


class Reader(Counter):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.count * x


class Keeping(BackendDetails):  # type: ignore[misc]
    """Is given all of a method, its buffers included."""

    @staticmethod
    def preprocess(edge_program: Any, compile_specs: Any) -> PreprocessResult:
        return PreprocessResult(processed_bytes=b"")


class Everything(Partitioner):  # type: ignore[misc]
    def __init__(self, inside: bool) -> None:
        super().__init__()
        self.inside = inside

    def partition(self, exported_program: Any) -> PartitionResult:
        spec = DelegationSpec(Keeping.__name__, [])
        for node in exported_program.graph.nodes:
            buffer = exported_program.graph_signature.inputs_to_buffers.get(node.name)
            if node.op == "call_function" or (buffer and self.inside):
                node.meta["delegation_tag"] = "all"
        return PartitionResult(exported_program, {"all": spec})


def saved(
    methods: dict[str, nn.Module],
    inside: dict[str, bool] | None = None,
    share: bool = False,
) -> tuple[bytes, list[str]]:
    """A program, and what is warned of."""
    lowered = to_edge_transform_and_lower(
        {name: export(model, (X,)) for name, model in methods.items()},
        partitioner={n: [Everything(each)] for n, each in (inside or {}).items()},
    )
    planning = MemoryPlanningPass(share_mutable_buffers=share)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = ExecutorchBackendConfig(memory_planning_pass=planning)
        program = lowered.to_executorch(config)
    said = [
        str(w.message) for w in caught if "which one of them writes" in str(w.message)
    ]
    return bytes(program.buffer), said


def found(program: bytes) -> list[tuple[str, str]]:
    kinds = ("separate-state", "state-in-libraries", "shared-arenas")
    return [(f.name, f.advice) for f in advise(read(program)) if f.name in kinds]


@pytest.mark.parametrize("other", [Counter, Reader])
def test_methods_with_a_buffer_each(other: type[nn.Module]) -> None:
    """Said at export and found in the file, which names no buffer otherwise."""
    program, said = saved({"prefill": Counter(), "decode": other()})
    (text,) = said
    assert "prefill and decode have the buffers count" in text
    ((name, advice),) = found(program)
    assert name == "separate-state"
    assert "share_mutable_buffers=True" in advice and advice in text


@pytest.mark.parametrize(
    "methods",
    [
        {"one": Counter()},
        {"one": Counter("a"), "other": Counter("b")},
        {"one": Reader(), "other": Reader()},
        {"one": Counter(), "other": Counter(size=1)},
    ],
)
def test_nothing_in_common(methods: dict[str, nn.Module]) -> None:
    program, said = saved(methods)
    assert not said and not found(program)
    assert KEY.encode() not in program


def test_shared_on_the_host() -> None:
    program, said = saved({"prefill": Counter(), "decode": Counter()}, share=True)
    assert not said
    ((name, advice),) = found(program)
    assert name == "shared-arenas" and "shared_memory.h" in advice
    common = read(program).common
    assert common.arenas == {2}
    (locations,) = common.buffers.values()
    assert locations == dict.fromkeys(("prefill", "decode"), Planned(2, 0))


def test_a_program_of_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its table has the name of this distribution."""
    monkeypatch.setattr(common_state, "KEY", "torchtrt_executorch.common_state")
    program, _ = saved({"prefill": Counter(), "decode": Counter()}, share=True)
    assert b"torchtrt_executorch.common" in program
    assert read(program).common.arenas == {2}


class Whole(Counter):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(2, dtype=torch.int32))


@pytest.mark.parametrize("other", [partial(Counter, size=1), Whole])
def test_of_another_shape_or_type_it_cannot_be_shared(other: Any) -> None:
    with pytest.raises(ValueError, match="share the buffer count, which is .* rename"):
        saved({"prefill": Counter(), "decode": other()}, share=True)


@pytest.mark.parametrize(
    "said, problem",
    [(b'"arenas": [1]', "plan it differently"), (b'"arenas": [ ]', None)],
)
def test_arenas_are_those_that_the_program_says(
    said: bytes, problem: str | None
) -> None:
    """One that methods plan differently is refused; where it says none, each has its own."""
    methods = {"prefill": Counter(), "decode": Wide()}
    program, _ = saved(methods, share=True)
    assert program.count(b'"arenas": [2]') == 1
    changed = program.replace(b'"arenas": [2]', said)
    if problem is not None:
        with pytest.raises(runtime.ProgramError, match=problem):
            runtime.load(changed)
        return
    for content, counted in ((program, 2), (changed, 1)):
        loaded = runtime.load(content)
        loaded.method("prefill")(X)
        (found,) = loaded.method("decode")(X)
        torch.testing.assert_close(found.max(), torch.tensor(counted + 1.0))


def test_inside_of_delegates() -> None:
    """The file is right on a host that is told to share; ours needn't be."""
    methods = {"prefill": Counter(), "decode": Counter()}
    program, said = saved(methods, {"prefill": True, "decode": True})
    ((name, advice),) = found(program)
    assert name == "state-in-libraries" and "weight_sharing_across_methods" in advice
    assert advice.partition(" torchtrt_executorch.runtime")[0] in said[0]


@pytest.mark.parametrize("share", [False, True])
def test_inside_of_one_and_planned_by_the_other(share: bool) -> None:
    methods = {"prefill": Counter(), "decode": Counter()}
    program, said = saved(methods, {"prefill": True, "decode": False}, share)
    ((name, advice),) = found(program)
    assert name == "separate-state" and "keep_mutable_buffers" in advice
    assert advice in said[0]


@pytest.mark.parametrize(
    "table",
    [
        b"",
        b"[]",
        b"{}",
        b'{"arenas": 1, "buffers": {}}',
        b'{"arenas": [], "buffers": []}',
        b'{"arenas": [-1], "buffers": {}}',
        b'{"arenas": [], "buffers": {"a": {}}}',
        b'{"arenas": [], "buffers": {"a": {"m": [1]}}}',
        b'{"arenas": [], "buffers": {"a": {"m": 1}}}',
        b'{"arenas": [], "buffers": {"a": {"m": [true, 0]}}}',
        b'{"arenas": [], "buffers": ' + b"[" * 100_000,
    ],
)
def test_damaged(table: bytes) -> None:
    with pytest.raises(ValueError):
        read_table(table)


def test_nothing_is_no_table() -> None:
    assert not CommonState().needs()
