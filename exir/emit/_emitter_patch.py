"""Amends ``executorch.exir.emit._emitter``: emits what keeps mutable buffers on a device, and constants from one."""

from __future__ import annotations

from types import ModuleType
from typing import Any, Callable

from torchtrt_executorch.overlay.wrapping import wrapped


def apply(module: ModuleType) -> None:
    """Wrap the emission of an operator, of a method's inputs and of a tensor."""
    emitter, top_level = module._Emitter, module._TopLevelEmitter
    emitter._emit_operator = wrapped(emitter._emit_operator, _operator)
    emitter._tensor_spec_to_evalue = wrapped(emitter._tensor_spec_to_evalue, _tensor)
    top_level.placeholder = wrapped(top_level.placeholder, _placeholder)
    top_level.output = wrapped(top_level.output, _output)


# Imports are in functions, since at the top they would import this module's own upstream half-way.


def _operator(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.emit._device_state import emit_exchange
    from executorch.exir.passes._aliases import is_device_write_back
    from executorch.exir.passes._shared_buffers import GROUP_META

    emitter, _, operands, *_ = args
    if is_device_write_back(emitter.node):
        if GROUP_META not in emitter.node.all_input_nodes[0].meta:
            emit_exchange(emitter, emitter.node)
        return operands[0]
    return function(*args, **kwargs)


def _tensor(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    spec = args[1] if len(args) > 1 else kwargs["spec"]
    # Upstream reads a constant's bytes by address, as if each were the host's (pytorch/executorch#21545).
    if spec.storage is not None and spec.storage.device.type not in ("cpu", "meta"):
        spec.storage = spec.storage.cpu()
    return function(*args, **kwargs)


def _placeholder(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.emit._device_state import emit_first_value
    from executorch.exir.emit._shared_buffers import emit_shared_buffer
    from executorch.exir.passes._aliases import is_device_write_back
    from executorch.exir.passes._shared_buffers import GROUP_META

    value = function(*args, **kwargs)
    node = args[0].node
    if GROUP_META in node.meta:
        emit_shared_buffer(args[0], node, value)
    elif any(map(is_device_write_back, node.users)):
        emit_first_value(args[0], node, value)
    return value


def _output(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    from executorch.exir.emit._shared_buffers import emit_exchanges

    emit_exchanges(args[0], args[0].node.graph)
    return function(*args, **kwargs)
