"""What ends up in engines and what in PyTorch, by both routings."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
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

from .....lowering import compile_emulated
from .....lowering import engines as engines_of
from ..conftest import placed

NONZERO = "aten.nonzero.default"
INDEX = "aten.index.Tensor"
NEIGHBOURS = ["aten.add.Tensor", "aten.gt.Scalar"]
NEIGHBOURS += ["aten.relu.default", "aten.sigmoid.default"]
ROUTINGS = ["target", "node"]


def routed(routing: str) -> dict[str, Any]:
    return {"target_executorch": True, "executorch_allocator_routing": routing}


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
    options = {**routed(routing), "use_fast_partitioner": fast}
    compiled = dry_run(Nonzero(), (x(),), **options)
    assert placed(compiled) == (NEIGHBOURS, [NONZERO])
    compiled = dry_run(Lookups(), (x(), rows()), **options)
    by_node = [INDEX] * (routing == "node")
    assert placed(compiled) == (
        sorted([*NEIGHBOURS, *by_node]),
        [INDEX] * (2 - len(by_node)),
    )


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
    alone = dry_run(Lookups(), (x(), rows()), **routed(routing))
    both = dry_run(
        Lookups(), (x(), rows()), fallback_data_dependent_ops=True, **routed(routing)
    )
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
        dry_run(Nonzero(), (x(),), **routed("node"))
    (message,) = (m for m in caplog.messages if m.startswith("target_executorch"))
    assert message.count("torch.ops.aten.nonzero.default") == 1


@pytest.mark.parametrize("routing", ROUTINGS)
def test_engines_agree_with_eager(routing: str) -> None:
    model, inputs = Lookups().eval(), (x(), rows())
    compiled = compile_emulated(model, inputs, **routed(routing))
    engines = [compiled.get_submodule(name) for name in engines_of(compiled)]
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
    selected = with_allocator_where_input_is_computed_elsewhere()
    register(torch.ops.aten.sigmoid.default, selected)
    outside = {"torch.ops.aten.relu.default"}
    compiled = compile_emulated(
        Nonzero(), [x()], torch_executed_ops=outside, **routed("node")
    )
    torch.testing.assert_close(compiled(x()), Nonzero()(x()))
    modules = [m for m in compiled.modules() if isinstance(m, torch.fx.GraphModule)]
    targets = [node.target for module in modules for node in module.graph.nodes]
    assert torch.ops.aten.sigmoid.default in targets
    engines = [compiled.get_submodule(name) for name in engines_of(compiled)]
    assert engines and not any(e.requires_output_allocator for e in engines)


def partition() -> torch.fx.GraphModule:
    return torch.export.export(Nonzero(), (x(),)).run_decompositions().module()


@pytest.mark.parametrize("routing", ROUTINGS)
def test_unrouted_partition_is_an_error(routing: str) -> None:
    settings = CompilationSettings(**routed(routing))
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
    with pytest.raises(RuntimeError, match=r"sigmoid \(.*allocator"):
        compile_emulated(Nonzero(), [x()], **routed(routing))


def test_off_builds_engines_with_an_allocator() -> None:
    compiled = compile_emulated(Nonzero(), [x()], target_executorch=False)
    (name,) = engines_of(compiled)
    assert compiled.get_submodule(name).requires_output_allocator
