"""What a graph mutates and its outputs alias is found by its outputs alone where that is known, to the same graph and signature."""

from __future__ import annotations

from typing import Any, Callable

import pytest
import torch
import torch._functorch.aot_autograd as aot_autograd
from executorch.exir import _output_aliases, to_edge, to_edge_transform_and_lower
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram, export
from torch.fx.experimental.symbolic_shapes import PropagateUnbackedSymInts

X = torch.ones(4, 8)
_COLLECT = "run_functionalized_fw_and_collect_metadata"


class Of(nn.Module):
    """A function as a module, with a weight, buffers, and what has running statistics."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.ones(8))
        self.register_buffer("state", torch.zeros(4, 8))
        self.register_buffer("other", torch.zeros(8))
        self.norm = nn.BatchNorm1d(8)

    def forward(self, x: Tensor) -> tuple[Any, ...]:
        results = self.function(self, x)
        return results if isinstance(results, tuple) else (results,)


def sines(self: Any, x: Tensor) -> Tensor:
    for _ in range(10):
        x = torch.sin(x * self.weight)
    return x


def counts(self: Any, x: Tensor) -> Tensor:
    self.state.add_(torch.cos(sines(self, self.state)))
    return sines(self, x)


def twice(self: Any, x: Tensor) -> Any:
    x = sines(self, x)
    return x, x, self.weight * 2


def split(self: Any, x: Tensor) -> Any:
    return *torch.topk(sines(self, x), 2), nn.functional.linear(x, x[:, :8])


def dropped(self: Any, x: Tensor) -> Tensor:
    return nn.functional.dropout(sines(self, x), training=False)


def views(self: Any, x: Tensor) -> Any:
    found = sines(self, x)
    return found.T, found[:, :2], found.reshape(-1)


def views_of_inputs(self: Any, x: Tensor) -> Any:
    return self.weight, sines(self, x), x[1:], self.state.view(32)


def writes_a_row(self: Any, x: Tensor) -> Any:
    self.state[1:].copy_(sines(self, self.state)[1:])
    return sines(self, x)


def writes_and_returns(self: Any, x: Tensor) -> Any:
    self.other.add_(sines(self, x).sum(0))
    return self.other.view(2, 4), sines(self, x)


def writes_its_input(self: Any, x: Tensor) -> Any:
    return x.add_(sines(self, x))


def copies(self: Any, x: Tensor) -> Any:
    return self.state.copy_(sines(self, self.state)), x


def writes_by_index(self: Any, x: Tensor) -> Any:
    self.state.index_copy_(0, torch.tensor([2]), sines(self, x)[:1])
    return sines(self, self.state)


def writes_an_intermediate(self: Any, x: Tensor) -> Any:
    found = sines(self, x)
    found.add_(1)
    found[0].mul_(2)
    return found, x.sum()


def sizes(self: Any, x: Tensor) -> Any:
    return sines(self, x).view(x.shape[0] * 2, 4), x.shape[0] * 2


def chunks(self: Any, x: Tensor) -> Any:
    return sines(self, x).chunk(2, 1)


def meshes(self: Any, x: Tensor) -> Any:
    return torch.meshgrid(sines(self, x)[0], x[1], indexing="ij")


def statistics(self: Any, x: Tensor) -> Any:
    return sines(self, self.norm(x))


def choice(self: Any, x: Tensor) -> Any:
    return torch.cond(x.sum() > 0, torch.sin, torch.cos, (sines(self, x),))


def reshaped_in_place(self: Any, x: Tensor) -> Any:
    return sines(self, x).unsqueeze_(0)


def resized(self: Any, x: Tensor) -> Any:
    found = sines(self, x).transpose_(0, 1)
    self.other.add_(1)
    return found[1:].squeeze_(), self.other.view(2, 4)


def indices(self: Any, x: Tensor) -> Any:
    return torch.nonzero(sines(self, x))


#: Functions of which outputs and mutations alone are executed.
KNOWN = (
    sines,
    counts,
    twice,
    split,
    dropped,
    views,
    views_of_inputs,
    writes_a_row,
    writes_and_returns,
    writes_its_input,
    copies,
    writes_by_index,
    writes_an_intermediate,
    sizes,
    chunks,
    meshes,
    statistics,
    reshaped_in_place,
    resized,
)
#: Others: branches, and sizes that depend on data.
UNKNOWN = (choice, indices)


def exported(function: Any, dynamic: bool) -> ExportedProgram:
    rows = ({0: Dim("rows", min=4, max=64)},) if dynamic else None
    module = Of(function).train(function is statistics)
    return export(module, (X,), dynamic_shapes=rows)


def decomposed(
    program: ExportedProgram, patch: pytest.MonkeyPatch
) -> tuple[Any, ExportedProgram, int]:
    """Return what AOTAutograd finds, the program that it makes, and how many operators it executed to find it."""
    found: list[Any] = []
    executed, looking = 0, False
    run_node: Any = PropagateUnbackedSymInts.run_node
    collect: Any = getattr(aot_autograd, _COLLECT)

    def counted(self: Any, node: Any) -> Any:
        nonlocal executed
        executed += looking and node.op == "call_function"
        return run_node(self, node)

    def noted(*args: Any, **kwargs: Any) -> Any:
        collected = collect(*args, **kwargs)

        def execute(*inputs: Any) -> Any:
            nonlocal looking
            looking = True
            metadata = collected(*inputs)
            looking = False
            found.extend(map(str, metadata.input_info))
            for each in metadata.output_info:
                kind = each.output_type, each.base_idx, each.raw_type
                found.append((*kind, each.dynamic_dims, each.requires_grad))
            found.append((metadata.num_intermediate_bases, len(metadata.tokens)))
            return metadata

        return execute

    with patch.context() as patched:
        patched.setattr(PropagateUnbackedSymInts, "run_node", counted)
        patched.setattr(aot_autograd, _COLLECT, noted)
        program = program.run_decompositions({})
    assert found
    return found, program, executed


@pytest.mark.parametrize("function", [*KNOWN, *UNKNOWN])
def test_the_same_is_found_with_dynamic_sizes(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = exported(function, dynamic=True)
    _check(program, monkeypatch, known=function in KNOWN)


@pytest.mark.parametrize("function", [counts, views_of_inputs, writes_and_returns])
def test_the_same_is_found_of_a_functional_program(
    function: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _check(exported(function, dynamic=False), monkeypatch)
    _check(program, monkeypatch)


def _check(
    program: ExportedProgram, patch: pytest.MonkeyPatch, known: bool = True
) -> ExportedProgram:
    expected, whole, executed = decomposed(program, patch)
    collect = getattr(aot_autograd, _COLLECT)
    with patch.context() as patched:
        patched.setattr(aot_autograd, _COLLECT, _output_aliases.of_outputs(collect))
        found, same, fewer = decomposed(program, patch)
    assert found == expected
    assert same.graph_module.code == whole.graph_module.code
    assert str(same.graph_signature) == str(whole.graph_signature)
    assert str(same.range_constraints) == str(whole.range_constraints)
    assert same.call_spec == whole.call_spec
    if known:
        assert fewer < 0.7 * executed
    else:
        assert fewer == executed
    return whole


class Nested(nn.Module):
    """Takes, and returns, tensors in lists and dictionaries."""

    def forward(self, pair: list[Tensor], *, named: dict[str, Tensor]) -> Any:
        x = pair[0] * pair[1]
        for _ in range(10):
            x = torch.sin(x * named["scale"])
        return [{"sum": x + 1, "view": x.T}, (pair[0],)]


class Listed(nn.Module):
    def forward(self, x: Tensor) -> list[Tensor]:
        for _ in range(10):
            x = torch.sin(x)
        return [x, x + 1]


@pytest.mark.parametrize(
    ("module", "inputs", "named"),
    [
        (Nested(), ([X, X + 1],), {"named": {"scale": X}}),
        (Listed(), (X,), {}),
    ],
)
def test_inputs_and_outputs_are_nested_as_they_were(
    module: Any, inputs: Any, named: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = _check(export(module, inputs, named), monkeypatch)
    expected = module(*inputs, **named)
    torch.testing.assert_close(whole.module()(*inputs, **named), expected)


def test_what_an_operator_does_beside_its_results_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Printing(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            torch.ops.aten._print("here")
            return torch.sin(torch.cos(x))

    program = export(Printing(), (X,))
    collect = getattr(aot_autograd, _COLLECT)
    expected, _, executed = decomposed(program, monkeypatch)
    monkeypatch.setattr(aot_autograd, _COLLECT, _output_aliases.of_outputs(collect))
    assert decomposed(program, monkeypatch)[::2] == (expected, executed)


@pytest.mark.parametrize("lower", [to_edge, to_edge_transform_and_lower])
def test_it_is_so_while_a_program_is_lowered_alone(
    lower: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts_of: list[int] = []
    outputs_alone = _output_aliases.outputs_alone

    def noted(*args: Any) -> Any:
        alone = outputs_alone(*args)
        counts_of.append(len(alone.nodes) if alone else -1)
        return alone

    before = getattr(aot_autograd, _COLLECT)
    monkeypatch.setattr(_output_aliases, "outputs_alone", noted)
    lower(exported(sines, True))
    assert counts_of and 0 < max(counts_of) < 20
    assert getattr(aot_autograd, _COLLECT) is before
