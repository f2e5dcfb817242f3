"""What ends up in engines and what in PyTorch, by both routings."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch_tensorrt
from torch_tensorrt.dynamo import CompilationSettings
from torch_tensorrt.dynamo._compiler import compile_module, convert_module
from torch_tensorrt.dynamo.conversion import _conversion
from torch_tensorrt.dynamo.conversion._ConverterRegistry import (
    DYNAMO_CONVERTERS,
    ConverterSupport,
)
from torch_tensorrt.dynamo.utils import prepare_inputs

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.nogpu.builder.installed import TENSORRT_RTX, installed_builder

from ..conftest import placed

NONZERO = "aten.nonzero.default"
INDEX = "aten.index.Tensor"
NEIGHBOURS = [
    "aten.add.Tensor",
    "aten.gt.Scalar",
    "aten.relu.default",
    "aten.sigmoid.default",
]
ROUTINGS = ["target", "node"]

UPSTREAM_FALLBACK = any(
    field.name == "fallback_data_dependent_ops"
    for field in dataclasses.fields(CompilationSettings)
)
needs_upstream_fallback = pytest.mark.skipif(
    not UPSTREAM_FALLBACK, reason="upstream has its own fallback since 2.13"
)


class Nonzero(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.relu(x)
        return torch.nonzero(y > 0.5), torch.sigmoid(y) + 1


class Lookups(torch.nn.Module):
    """``index.Tensor`` with integers and with a mask, between operators for TensorRT."""

    def forward(self, x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = torch.relu(x)
        return torch.sigmoid(y[rows]) + 1, y[y > 0.5]


def x() -> torch.Tensor:
    return torch.linspace(-1, 1, 20).reshape(4, 5)


def rows() -> torch.Tensor:
    return torch.tensor([2, 0])


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("routing", ROUTINGS)
def test_neighbours_stay_in_tensorrt(dry_run: Any, routing: str, fast: bool) -> None:
    compiled = dry_run(
        Nonzero(),
        (x(),),
        target_executorch=True,
        executorch_allocator_routing=routing,
        use_fast_partitioner=fast,
    )
    assert placed(compiled) == (NEIGHBOURS, [NONZERO])


@pytest.mark.parametrize("fast", [True, False])
def test_lookups_by_target(dry_run: Any, fast: bool) -> None:
    compiled = dry_run(
        Lookups(), (x(), rows()), target_executorch=True, use_fast_partitioner=fast
    )
    assert placed(compiled) == (NEIGHBOURS, [INDEX, INDEX])


@pytest.mark.parametrize("fast", [True, False])
def test_lookups_by_node(dry_run: Any, fast: bool) -> None:
    compiled = dry_run(
        Lookups(),
        (x(), rows()),
        target_executorch=True,
        executorch_allocator_routing="node",
        use_fast_partitioner=fast,
    )
    assert placed(compiled) == (sorted([*NEIGHBOURS, INDEX]), [INDEX])


@pytest.mark.parametrize("routing", ROUTINGS)
def test_off_leaves_all_in_tensorrt(dry_run: Any, routing: str) -> None:
    dry_run(Lookups(), (x(), rows()), target_executorch=True)
    compiled = dry_run(
        Lookups(), (x(), rows()), executorch_allocator_routing=routing
    )  # and a compilation before leaves nothing behind
    # TensorRT-RTX takes no masks: its validator refuses them, whatever is routed.
    masks = [] if installed_builder() is TENSORRT_RTX else [INDEX]
    left = [] if masks else [INDEX]
    assert placed(compiled) == (sorted([*NEIGHBOURS, INDEX, *masks]), left)


@needs_upstream_fallback
def test_upstreams_own_fallback_is_as_it_was(dry_run: Any) -> None:
    compiled = dry_run(Lookups(), (x(), rows()), fallback_data_dependent_ops=True)
    assert placed(compiled) == (sorted([*NEIGHBOURS, INDEX]), [INDEX])


@needs_upstream_fallback
@pytest.mark.parametrize("routing", ROUTINGS)
def test_together_with_upstreams_fallback(dry_run: Any, routing: str) -> None:
    ours = {"target_executorch": True, "executorch_allocator_routing": routing}
    alone = dry_run(Lookups(), (x(), rows()), **ours)
    both = dry_run(Lookups(), (x(), rows()), fallback_data_dependent_ops=True, **ours)
    assert placed(both) == placed(alone)


def test_callers_set_is_untouched(dry_run: Any) -> None:
    callers = {torch.ops.aten.relu.default}
    compiled = dry_run(
        Lookups(), (x(), rows()), target_executorch=True, torch_executed_ops=callers
    )
    assert callers == {torch.ops.aten.relu.default}
    assert placed(compiled)[1] == [INDEX, INDEX, "aten.relu.default"]


def test_callers_settings_are_untouched() -> None:
    settings = CompilationSettings(
        target_executorch=True, dryrun=True, min_block_size=1
    )
    program = torch.export.export(Lookups(), (x(), rows())).run_decompositions()
    compiled = compile_module(
        program.module(), prepare_inputs([x(), rows()]), settings=settings
    )
    assert INDEX not in placed(compiled)[0]
    assert settings.torch_executed_ops == set()


def test_logs_the_nodes(dry_run: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="torch_tensorrt.dynamo._compiler"):
        dry_run(
            Nonzero(),
            (x(),),
            target_executorch=True,
            executorch_allocator_routing="node",
        )
    (message,) = (m for m in caplog.messages if m.startswith("target_executorch"))
    assert message.count("torch.ops.aten.nonzero.default") == 1


@pytest.mark.parametrize("routing", ROUTINGS)
def test_engines_agree_with_eager(routing: str) -> None:
    model, inputs = Lookups().eval(), (x(), rows())
    with emulated_engines():
        compiled = torch_tensorrt.compile(
            model,
            ir="dynamo",
            arg_inputs=list(inputs),
            min_block_size=1,
            target_executorch=True,
            executorch_allocator_routing=routing,
        )
    engines = [
        m for m in compiled.children() if hasattr(m, "requires_output_allocator")
    ]
    assert engines
    for engine in engines:
        assert not engine.requires_output_allocator
        assert engine.settings.target_executorch  # what a refit partitions by
    torch.testing.assert_close(compiled(*inputs), model(*inputs))


def with_allocator_where_input_is_computed_elsewhere() -> list[ConverterSupport]:
    """Two converters: which one is selected changes when a node gets into a partition."""

    def computed_here(node: torch.fx.Node, settings: Any) -> bool:
        return node.args[0].op != "placeholder"

    return [
        ConverterSupport(lambda *_: (), capability_validator=computed_here),
        ConverterSupport(lambda *_: (), requires_output_allocator=True),
    ]


def test_selection_that_changes_in_the_partition_is_made_there(
    register: Callable[[Any, Any], None],
) -> None:
    """What would need an allocator in its engine after all runs in PyTorch."""
    register(
        torch.ops.aten.sigmoid.default,
        with_allocator_where_input_is_computed_elsewhere(),
    )
    with emulated_engines():
        compiled = torch_tensorrt.compile(
            Nonzero().eval(),
            ir="dynamo",
            arg_inputs=[x()],
            min_block_size=1,
            torch_executed_ops={"torch.ops.aten.relu.default"},
            target_executorch=True,
            executorch_allocator_routing="node",
        )
        torch.testing.assert_close(compiled(x()), Nonzero()(x()))
    in_pytorch = {
        node.target
        for module in compiled.modules()
        if isinstance(module, torch.fx.GraphModule)
        for node in module.graph.nodes
    }
    assert torch.ops.aten.sigmoid.default in in_pytorch
    engines = [
        m for m in compiled.children() if hasattr(m, "requires_output_allocator")
    ]
    assert engines and not any(e.requires_output_allocator for e in engines)


def partition() -> torch.fx.GraphModule:
    return torch.export.export(Nonzero(), (x(),)).run_decompositions().module()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_unrouted_partition_is_an_error(routing: str) -> None:
    settings = CompilationSettings(
        target_executorch=True, executorch_allocator_routing=routing
    )
    DYNAMO_CONVERTERS.set_compilation_settings(settings)
    with emulated_engines(), pytest.raises(RuntimeError) as raised:
        convert_module(partition(), prepare_inputs([x()]), settings, name="engine_7")
    message = str(raised.value)
    assert "nonzero (torch.ops.aten.nonzero.default)" in message
    assert "sigmoid" not in message


@pytest.mark.parametrize("routing", ROUTINGS)
def test_undeclared_allocator_is_an_error(
    routing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A converter may ask the network for an allocator and not have said so in the registry."""
    build = _conversion.interpret_module_to_result

    def asks_for_one(*args: Any, **kwargs: Any) -> Any:
        return build(*args, **kwargs)._replace(requires_output_allocator=True)

    monkeypatch.setattr(_conversion, "interpret_module_to_result", asks_for_one)
    with (
        emulated_engines(),
        pytest.raises(RuntimeError, match=r"sigmoid \(.*allocator"),
    ):
        torch_tensorrt.compile(
            Nonzero().eval(),
            ir="dynamo",
            arg_inputs=[x()],
            min_block_size=1,
            target_executorch=True,
            executorch_allocator_routing=routing,
        )


def test_off_builds_engines_with_an_allocator() -> None:
    with emulated_engines():
        compiled = torch_tensorrt.compile(
            Nonzero().eval(), ir="dynamo", arg_inputs=[x()], min_block_size=1
        )
    (engine,) = (
        m for m in compiled.children() if hasattr(m, "requires_output_allocator")
    )
    assert engine.requires_output_allocator
