"""Operators whose output's shape depends on data stay with the host; the rest is delegated."""

from __future__ import annotations

import torch

X = torch.linspace(-1, 1, 12).reshape(3, 4)


class Above(torch.nn.Module):
    """x -> (what is above a threshold, something else): claims on both sides of a ``nonzero``."""

    def forward(self, x):
        y = torch.relu(x) * 2
        found = torch.nonzero(y > 0.5)
        return found, torch.sin(y) + 1


def test_nonzero_stays_and_the_rest_is_one_partition(lower):
    lowered = lower(Above(), (X,))
    assert len(lowered.delegates()) == 1
    (delegate,) = lowered.delegates()
    inside = {str(n.target) for n in delegate.original_module.graph.nodes}
    assert any("sin" in name for name in inside)
    assert not any("nonzero" in name for name in inside)
    assert any("nonzero" in str(target) for target in lowered.targets())


def test_what_reads_it_stays_too(lower):
    class Gathered(Above):
        def forward(self, x):
            found, rest = super().forward(x)
            return rest.reshape(-1)[found[:, 0]] * 3, rest

    lowered = lower(Gathered(), (X,))
    for delegate in lowered.delegates():
        for node in delegate.original_module.graph.nodes:
            sizes = getattr(node.meta.get("val"), "shape", ())
            assert not any(isinstance(size, torch.SymInt) for size in sizes), node


def test_each_partition_can_be_traced_again(lower):
    """As AOTInductor does; ExecuTorch's passes leave symbols behind that would stop it."""
    lowered = lower(Above(), (X,))
    for delegate in lowered.delegates():
        delegate.original_module.run_decompositions({})


def test_a_program_of_such_operators_alone_has_no_partition(lower):
    class Only(torch.nn.Module):
        def forward(self, x):
            return torch.nonzero(x)

    assert lower(Only(), (X,)).delegates() == []


def test_what_the_host_runs_is_decomposed_for_its_kernels(lower):
    class Twice(torch.nn.Module):
        """A linear that is delegated, and one on as many rows as there are."""

        def __init__(self):
            super().__init__()
            self.linear = torch.nn.Linear(4, 2)

        def forward(self, x):
            found = torch.nonzero(x[:, 0] > 0)[:, 0]
            return self.linear(x), torch.nn.functional.silu(self.linear(x[found]))

    lowered = lower(Twice(), (X,))
    assert len(lowered.delegates()) == 1
    names = {str(target) for target in lowered.targets()}
    assert any("addmm" in name for name in names)
    assert not any("linear" in name or "silu" in name for name in names)
