"""What a graph's outputs alias is found by the outputs alone where that is known, to the same graph and signature."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
import torch._functorch.aot_autograd as aot_autograd
from torch import Tensor, nn
from torch.export import Dim
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts

from torchtrt_executorch.nogpu.inductor.compile_time import output_aliases

X = torch.ones(4, 8)


class Of(nn.Module):
    """A function as a module, with a weight and a buffer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(8))
        self.register_buffer("state", torch.zeros(4, 8))

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        results = self.function(self, x)
        return results if isinstance(results, tuple) else (results,)


def sines(self: Any, x: Tensor) -> Tensor:
    for _ in range(10):
        x = torch.sin(x * self.weight)
    return x


def counts(self: Any, x: Tensor) -> Tensor:
    self.state.add_(torch.cos(sines(self, x)))
    return sines(self, self.state)


def twice(self: Any, x: Tensor) -> Any:
    x = sines(self, x)
    return x, x, self.weight * 2


def split(self: Any, x: Tensor) -> Any:
    return *torch.topk(sines(self, x), 2), torch.nn.functional.linear(x, x)


def dropped(self: Any, x: Tensor) -> Tensor:
    return torch.nn.functional.dropout(sines(self, x), training=False)


def choice(self: Any, x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (x,))


#: Functions whose outputs have memory of their own, and mutations at the end.
OWN = (sines, counts, twice, split)
#: Others: views of inputs and of each other, and what isn't known beforehand.
OTHERS = (
    dropped,
    choice,
    lambda self, x: x,
    lambda self, x: x.view(8, 4),
    lambda self, x: (self.weight, x + 1, x[1:]),
    lambda self, x: torch.sin(x).chunk(2, 1),
    lambda self, x: torch.nonzero(x),
    lambda self, x: torch.meshgrid(x[0], x[1], indexing="ij"),
    lambda self, x: (self.state[1:].copy_(x[1:] * 2), x + 1)[1:],
    lambda self, x: x.add_(1),
    lambda self, x: self.state.copy_(x),
)
#: They mutate inputs at the end, once they are decomposed.
MUTATING = (counts, *OTHERS[-2:])
#: They need four rows.
STATIC = (*MUTATING, OTHERS[3], OTHERS[-3])


def graph_of(function: Callable[..., Any], dynamic: bool = False) -> Any:
    shapes = ({0: Dim("rows", min=4, max=64)},) if dynamic else None
    program = torch.export.export(Of(function), (X,), dynamic_shapes=shapes)
    if function in MUTATING:  # composite operators stay elsewhere
        program = program.run_decompositions({})
    values = [node.meta["val"] for node in program.graph.find_nodes(op="placeholder")]
    return program.module(check_guards=False), values[-1]


def traced(module: Any, x: Any, patch: pytest.MonkeyPatch) -> tuple[Any, int]:
    """Return what AOTAutograd finds and the graph that it makes; and how many nodes it executed."""
    executed, found = 0, []
    run_node: Any = PropagateUnbackedSymInts.run_node
    name = output_aliases.PATCH_POINT.partition(":")[2]
    collect = getattr(aot_autograd, name)

    def counted(self: Any, node: Any) -> Any:
        nonlocal executed
        executed += node.op == "call_function"
        return run_node(self, node)

    def noted(*args: Any, **kwargs: Any) -> Any:
        collected = collect(*args, **kwargs)

        def execute(*inputs: Any) -> Any:
            metadata = collected(*inputs)
            found.extend((i.mutates_data, i.mutation_type) for i in metadata.input_info)
            found.extend((o.output_type, o.base_idx) for o in metadata.output_info)
            return metadata

        return execute

    with patch.context() as patched:
        patched.setattr(PropagateUnbackedSymInts, "run_node", counted)
        patched.setattr(aot_autograd, name, noted)
        graph, signature = aot_autograd.aot_export_module(
            module, (x,), trace_joint=False, decompositions={}
        )
    assert found
    return (found, graph.code, str(signature)), executed


@pytest.mark.parametrize(
    ("function", "dynamic"),
    [
        (function, dynamic)
        for function in (*OWN, *OTHERS)
        for dynamic in (False, True)
        if not (dynamic and function in STATIC)
    ],
)
def test_the_same_is_found(
    function: Any, dynamic: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, x = graph_of(function, dynamic)
    before = module.graph
    expected, executed = traced(module, x, monkeypatch)
    for path, override in output_aliases.overrides().items():
        monkeypatch.setattr(aot_autograd, path.partition(":")[2], override)
    found, fewer = traced(module, x, monkeypatch)
    assert found == expected
    assert module.graph is before
    if function in OWN and not dynamic:
        assert fewer < 0.7 * executed
    else:
        assert fewer == executed


def test_no_mutation_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    module, x = graph_of(counts)
    alone = output_aliases.outputs_alone(module.graph)
    assert alone is not None
    targets = [node.target for node in alone.nodes if node.op == "call_function"]
    assert targets.count(torch.ops.aten.copy_.default) == 1
    assert targets.count(torch.ops.aten.empty_strided.default) == len(targets) - 1
