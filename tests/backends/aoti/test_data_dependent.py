"""Operators whose output's shape depends on data stay with the host; the rest is delegated."""

from __future__ import annotations

import torch

from ...lowering import Function

X = torch.linspace(-1, 1, 12).reshape(3, 4)


def above(x):
    """x -> (what is above a threshold, something else): claims on both sides of a ``nonzero``."""
    y = torch.relu(x) * 2
    return torch.nonzero(y > 0.5), torch.sin(y) + 1


def test_nonzero_stays_and_the_rest_is_one_partition(lower):
    lowered = lower(Function(above), (X,))
    assert len(lowered.delegates()) == 1
    (delegate,) = lowered.delegates()
    inside = {str(n.target) for n in delegate.original_module.graph.nodes}
    assert any("sin" in name for name in inside)
    assert not any("nonzero" in name for name in inside)
    assert any("nonzero" in str(target) for target in lowered.targets())


def test_what_reads_it_stays_too(lower):
    def gathered(x):
        found, rest = above(x)
        return rest.reshape(-1)[found[:, 0]] * 3, rest

    lowered = lower(Function(gathered), (X,))
    for delegate in lowered.delegates():
        for node in delegate.original_module.graph.nodes:
            sizes = getattr(node.meta.get("val"), "shape", ())
            assert not any(isinstance(size, torch.SymInt) for size in sizes), node


def test_each_partition_can_be_traced_again(lower):
    """As AOTInductor does; ExecuTorch's passes leave symbols behind that would stop it."""
    lowered = lower(Function(above), (X,))
    for delegate in lowered.delegates():
        delegate.original_module.run_decompositions({})


def test_a_program_of_such_operators_alone_has_no_partition(lower):
    assert lower(Function(torch.nonzero), (X,)).delegates() == []


def test_what_the_host_runs_is_decomposed_for_its_kernels(lower):
    def twice(x, linear):
        """A linear that is delegated, and one on as many rows as there are."""
        found = torch.nonzero(x[:, 0] > 0)[:, 0]
        return linear(x), torch.nn.functional.silu(linear(x[found]))

    lowered = lower(Function(twice, torch.nn.Linear(4, 2)), (X,))
    assert len(lowered.delegates()) == 1
    names = {str(target) for target in lowered.targets()}
    assert any("addmm" in name for name in names)
    assert not any("linear" in name or "silu" in name for name in names)
