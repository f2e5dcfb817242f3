"""Compilation takes time that is linear in the layers of a model: pairs of nodes, and of weights, aren't analyzed."""

from __future__ import annotations

import re
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from executorch.backends.cuda import _dependent_launch, _memory_pool, _tma_matmuls
from executorch.backends.cuda.tuning import epilogue_indices, runtime_k
from executorch.backends.cuda.tuning.tile_selection import Stopped, caused_by
from torch import Tensor
from torch._inductor import config, scheduler, utils
from torch._inductor.codecache import AotCodeCompiler
from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu
from torch._inductor.dtype_propagation import DtypePropagationOpsHandler
from torch._inductor.virtualized import V

from torchtrt_executorch.cache import SWITCH
from torchtrt_executorch.nogpu.inductor import (
    channels_last_weights,
    constant_folding,
    host_code,
    host_weights,
    kernel_accesses,
)
from torchtrt_executorch.nogpu.inductor.compile_time import (
    constant_names,
    dtype_rules,
    fusion_candidates,
)

from ....backends.cuda.conftest import needs_compilers
from ....lowering import cuda_partitioner, lower

X = torch.ones(8, 64)


def layers(count: int) -> Any:
    """Of which each is a few kernels, and all read one value."""

    def model(x: Tensor, rotation: Tensor) -> Tensor:
        for _ in range(count):
            x = torch.softmax(x * rotation, -1).cumsum(0) + rotation
        return x

    return model


def compiled(count: int, patch: pytest.MonkeyPatch) -> tuple[str, int]:
    """Return the C++ of so many layers, and how many pairs were analyzed."""
    pairs, sources = 0, []
    can_fuse: Any = scheduler.Scheduler._can_fuse_impl

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal pairs
        pairs += 1
        return can_fuse(*args, **kwargs)

    def stop(cls: Any, graph: Any, source: Any, *args: Any, **kwargs: Any) -> None:
        sources.append(str(getattr(source, "value", source)))
        raise Stopped

    with patch.context() as patched:
        patched.setattr(scheduler.Scheduler, "_can_fuse_impl", counted)
        patched.setattr(AotCodeCompiler, "compile", classmethod(stop))
        try:
            lower(layers(count), (X, X), cuda_partitioner(gpu="sm_90:80GiB"))
        except Exception as error:
            if not caused_by(error, Stopped):
                raise
    return sources[-1], pairs


@needs_compilers
def test_pairs_that_are_analyzed_grow_with_layers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(SWITCH, "0")
    few, more = (compiled(count, monkeypatch) for count in (6, 12))
    assert 0 < few[1] < more[1] < 2.5 * few[1]
    monkeypatch.setattr(fusion_candidates, "overrides", dict)
    source, pairs = compiled(12, monkeypatch)
    assert source == more[0]
    assert pairs > 2 * more[1]


def test_candidates_are_left_alone_where_a_rejected_one_may_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert fusion_candidates.PATCH_POINT in fusion_candidates.overrides()
    with config.patch(expand_dimension_for_pointwise_nodes=True):
        assert not fusion_candidates.overrides()
    monkeypatch.delattr(scheduler, "_LoopMutationTracker")
    assert not fusion_candidates.overrides()


def test_a_name_is_normalized_once(monkeypatch: pytest.MonkeyPatch) -> None:
    normalized = 0
    substitute = re.sub

    def counted(*args: Any) -> str:
        nonlocal normalized
        normalized += 1
        return substitute(*args)

    normalize = constant_names.overrides()[constant_names.PATCH_POINT]
    assert normalize("a.b") == utils.normalize_name("a.b") == "a_b"
    monkeypatch.setattr(re, "sub", counted)
    assert [normalize(name) for name in ("a.b", "c.d") * 3] == ["a_b", "c_d"] * 3
    assert normalized == 1


def test_result_types_are_written_again_where_there_is_another_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handlers: list[Any] = []
    fill: Any = DtypePropagationOpsHandler.__init__

    def counted(self: Any) -> None:
        handlers.append(self)
        fill(self)

    monkeypatch.setattr(DtypePropagationOpsHandler, "__init__", counted)
    fill_once: Any = dtype_rules.overrides()[dtype_rules.PATCH_POINT]
    monkeypatch.setattr(DtypePropagationOpsHandler, "__init__", fill_once)
    rules: Any = utils.op_dtype_propagation_rules
    for _ in range(3):
        handler: Any = DtypePropagationOpsHandler()
    assert handlers == [handler]
    monkeypatch.setitem(rules, "rounded_twice", rules["exp"])
    DtypePropagationOpsHandler()
    assert len(handlers) == 2
    assert handler.rounded_twice(X) == torch.float32
    monkeypatch.setitem(rules, "exp", rules["eq"])
    assert DtypePropagationOpsHandler().exp(X) == torch.bool
    DtypePropagationOpsHandler()
    assert len(handlers) == 3


def test_a_search_begins_where_the_last_one_ended() -> None:
    names = [f"weight_{index}" for index in range(50)]
    compared: list[str] = []

    def find(wanted: str, values: dict[str, Any]) -> bool:
        return any(compared.append(name) or name == wanted for name in values)

    searched = constant_names.FromLastFound(dict.fromkeys(names))
    assert [*searched] == [*searched] == names
    assert all(find(name, searched) for name in names)
    assert len(compared) < 2 * len(names)
    compared.clear()
    assert not find("another", searched)
    assert sorted(compared) == sorted(names)


def test_constants_are_searched_like_that_while_their_library_is_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched = []

    def write(self: Any) -> None:
        searched.append((V.graph.named_parameters, V.graph.named_buffers))

    named = SimpleNamespace(named_parameters={"a.b": 1, "c": 2}, named_buffers={})
    monkeypatch.setattr(CppWrapperCpu, "finalize_prefix", write)
    with V.set_graph_handler(named):  # type: ignore[arg-type]
        constant_names.overrides()[constant_names.PREFIX](None)
    ((parameters, buffers),) = searched
    assert type(parameters) is type(buffers) is constant_names.FromLastFound
    assert [*parameters.items()] == [("a.b", 1), ("c", 2)] and not buffers
    assert type(named.named_parameters) is dict


def test_no_function_is_overridden_twice() -> None:
    """Of two overrides of one function only the last would be in force."""
    tables = [
        module.overrides()
        for module in (
            _dependent_launch,
            _memory_pool,
            _tma_matmuls,
            channels_last_weights,
            constant_folding,
            constant_names,
            dtype_rules,
            epilogue_indices,
            fusion_candidates,
            host_code,
            host_weights,
            kernel_accesses,
            runtime_k,
        )
    ]
    paths = Counter(path for table in tables for path in table)
    assert not [path for path, count in paths.items() if count > 1]
