"""A stand-in that shares its weights with the model, and what it does once they change."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from torchtrt_executorch.nogpu import stand_ins

PAYLOAD = "0" * 64
X = torch.ones(2, 3)


class Counting(torch.nn.Module):
    """A product, and a state that grows with every call."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls.add_(1)
        return self.linear(x) + self.calls


@pytest.fixture(params=[True, False], ids=["shared", "copied"])
def shared(request: pytest.FixtureRequest) -> Iterator[bool]:
    yield request.param
    stand_ins.forget(PAYLOAD)


@torch.no_grad()
def test_only_what_is_read_is_shared(shared: bool) -> None:
    model = Counting().eval()
    program = torch.export.export(model, (X,)).run_decompositions({})
    stand_ins.keep(PAYLOAD, program, share_weights=shared)
    kept = stand_ins.find(PAYLOAD)
    assert kept is not None
    held = kept.program.state_dict
    weight, calls = program.state_dict["linear.weight"], program.state_dict["calls"]
    assert (held["linear.weight"].data_ptr() == weight.data_ptr()) == shared
    assert held["calls"].data_ptr() != calls.data_ptr()

    expected = model.linear(X)
    for first in (kept.instance(), kept.instance()):  # each has a state of its own
        for call in (1, 2):
            torch.testing.assert_close(first([X])[0], expected + call)
    assert calls == 0

    weight.mul_(2)
    if shared:
        with pytest.raises(
            RuntimeError, match="linear.weight has been written to since"
        ):
            kept.instance()([X])
    else:
        torch.testing.assert_close(kept.instance()([X])[0], expected + 1)
