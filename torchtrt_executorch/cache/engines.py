"""Cached engines, keyed by partition, weights, inputs and settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from torch.fx import GraphModule

from torchtrt_executorch.cache import Blob, get_or_build
from torchtrt_executorch.cache.keys import key
from torchtrt_executorch.cache.store import in_memory

#: Fields of upstream's result that are found anew in the partition.
_FOUND = ("serialized_engine", "symbolic_shape_expressions")


def kept_engine(
    conversion: ModuleType,
    partition: GraphModule,
    inputs: Sequence[Any],
    settings: Any,
    build: Callable[[], Any],
) -> Any:
    """Return what ``build`` returns, or returned before for the same partition.

    Args:
        conversion: ``torch_tensorrt.dynamo.conversion._conversion``.
        partition: The engine's computation.
        inputs: Its inputs, as ``torch_tensorrt.Input``.
        settings: ``CompilationSettings``.
        build: Returns upstream's ``SerializedInterpreterResult``.
    """
    result = conversion.SerializedInterpreterResult

    def key_of_engine() -> str | None:
        # Upstream's own cache is the user's choice; it keeps engines without their weights.
        if settings.cache_built_engines or settings.reuse_cached_engines:
            return None
        if not _converted_by_upstream(partition):
            return None
        return key("engine", partition, list(inputs), settings)

    def parts_of(built: Any) -> tuple[Any, list[bytes]] | None:
        facts = {n: v for n, v in built._asdict().items() if n not in _FOUND}
        plain = all(_is_plain(value) for value in facts.values())
        return (facts, [built.serialized_engine]) if plain else None

    def from_parts(facts: Any, parts: list[bytes | Blob]) -> Any:
        shapes = conversion.extract_symbolic_shape_expressions(partition)
        tensors = {
            "serialized_engine": in_memory(parts[0]),
            "symbolic_shape_expressions": shapes,
        }
        return result(**facts, **tensors)

    return get_or_build("the engine", key_of_engine, build, parts_of, from_parts)


def _converted_by_upstream(partition: GraphModule) -> bool:
    """Whether nobody but upstream has a converter for what is in the partition."""
    from torch_tensorrt.dynamo.conversion._ConverterRegistry import DYNAMO_CONVERTERS

    for node in partition.graph.nodes:
        if node.op == "call_function":
            if node not in DYNAMO_CONVERTERS:
                return False  # it will be refused
            module = str(getattr(DYNAMO_CONVERTERS[node][0], "__module__", ""))
            if not module.startswith("torch_tensorrt."):
                return False
    return True


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(item, str) for item in value)
    return value is None or value == {} or isinstance(value, (bool, str))
