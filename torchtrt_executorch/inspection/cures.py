"""What to change in an export for an operator to leave the host, by the reason that it is there."""

from __future__ import annotations

from collections.abc import Iterator

_BEHIND = "a partitioner behind TensorRT can take it: CudaPartitioner([...]), XnnpackPartitioner()"
#: By what a reason, or one of several, begins with.
_CURES = {
    "output allocator": (
        'executorch_allocator_routing="node" keeps look-ups by integers in TensorRT; else '
        f"{_BEHIND}"
    ),
    "torch_executed_ops": "take it out of torch_executed_ops",
    "too few for an engine": "min_block_size=1 makes an engine of a single operator",
    "no converter": _BEHIND,
    "refused by a converter": _BEHIND,
    "quantized": _BEHIND,
    "data-dependent shape": (
        "keep the shape in the model: torch.where(mask, x, 0) for x[mask], topk for nonzero"
    ),
    "no partitioner took it": "add one that has it to the list, XnnpackPartitioner() as the last",
    "ExecuTorch has no kernel": (
        "to_executorch() fails, or the host, until a partitioner takes it or a kernel is registered"
    ),
}


def cures(reason: str) -> Iterator[tuple[str, str]]:
    """Yield each part of a reason that there is a cure for, with it."""
    for part in reason.split("; "):
        for known, cure in _CURES.items():
            if part.startswith(known):
                yield part, cure
