"""Suggest how to move an operator off the host, from the reason that it is there."""

from __future__ import annotations

from collections.abc import Collection, Iterator

#: Partitioners that can follow TensorRT's, by backend.
_BEHIND = {
    "CudaBackend": "CudaPartitioner([...])",
    "XnnpackBackend": "XnnpackPartitioner()",
}
#: By the beginning of a reason. Fields in braces depend on the partitioners in use.
_SUGGESTIONS = {
    "output allocator": (
        'executorch_allocator_routing="node" keeps look-ups by integers in TensorRT{else_behind}'
    ),
    "torch_executed_ops": "take it out of torch_executed_ops",
    "too few for an engine": "min_block_size=1 makes an engine of a single operator",
    "data-dependent shape": (
        "keep the shape in the model: torch.where(mask, x, 0) for x[mask], topk for nonzero"
    ),
    "no partitioner took it": "add one that has it to the list{as_the_last}",
    "ExecuTorch has no kernel": (
        "to_executorch() fails, or the host, until a partitioner takes it or a kernel is registered"
    ),
} | dict.fromkeys(
    (
        *("no converter", "refused by a converter", "quantized"),
        # Rejections while engines are built.
        *("its converter: ", "TensorRT's builder: ", "Torch-TensorRT: "),
        *("TensorRT: ", "ExecuTorch: ", "target_executorch=True: "),
    ),
    "{behind}",
)


def suggestions(
    reason: str, backends: Collection[str] = ()
) -> Iterator[tuple[str, str]]:
    """Yield each part of a reason that something can be suggested for, with the suggestion.

    Args:
        backends: Backends that aren't suggested: already in use, or without the operator.
    """
    names = [name for backend, name in _BEHIND.items() if backend not in backends]
    last = _BEHIND["XnnpackBackend"]
    for part in reason.split("; "):
        able = [name for name in names if name != last or "torch.float64" not in part]
        behind = f"a partitioner behind TensorRT can take it: {', '.join(able)}"
        names_by_key = {
            "behind": behind if able else "",
            "else_behind": f"; else {behind}" if able else "",
            "as_the_last": f", {last} as the last" if last in able else "",
        }
        for known, suggestion in _SUGGESTIONS.items():
            if part.startswith(known) and (said := suggestion.format_map(names_by_key)):
                yield part, said
