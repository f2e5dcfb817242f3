"""Any other backend: ExecuTorch's own runtime, on a program with that one delegate."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from torchtrt_executorch.runtime.delegates import DelegateContext
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.segments.carving import Call, Carved, carve
from torchtrt_executorch.runtime.segments.native import Native, Segment
from torchtrt_executorch.runtime.values import Value


class ExecuTorchDelegate:
    """A delegate of a backend that the installed ``executorch`` was built with, as XNNPACK.

    Raises ``ProgramError`` if it wasn't, or if the backend refuses the payload. Works on host
    tensors alone.
    """

    def __init__(self, context: DelegateContext) -> None:
        self._context = context
        if context.num_inputs == len(context.args):
            raise ProgramError(f"{context.name} is called without a value to return")
        _check_backend(context)
        self._carved = self._carve(context.args)
        self._native = Native(self._carved.serialize(), context.name)

    def bind(self, args: Sequence[Value]) -> Callable[[], None]:
        """What runs on ``args``. Raises ``DeviceError`` for a tensor that isn't in host memory."""
        own = args is self._context.args
        carved = self._carved if own else self._carve(args)
        return Segment(self._native, carved, frozenset()).run

    def _carve(self, args: Sequence[Value]) -> Carved:
        inputs = self._context.num_inputs
        call = Call(
            self._context.name, args, args[:inputs], args[inputs:], self._context
        )
        return carve([call], {}, frozenset(), lambda _: True)


def _check_backend(context: DelegateContext) -> Any:
    from executorch.runtime import Runtime

    registry = Runtime.get().backend_registry
    if not registry.is_available(context.backend_id):
        known = ", ".join(sorted(registry.registered_backend_names))
        raise ProgramError(
            f"nothing here runs the backend {context.backend_id!r} of {context.name}: the "
            f"installed executorch has {known}. Give one: "
            f"register_backend({context.backend_id!r}, backend)"
        )
