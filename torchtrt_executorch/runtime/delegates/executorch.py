"""Any other backend: ExecuTorch's own runtime, on a program with that one delegate."""

from __future__ import annotations

from typing import Any, Sequence

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
        carved = self._carve(context.args)
        self._native = Native(carved.serialize(), context.name)
        #: For each set of arguments that it is called with; their memory stays where it is, mostly.
        self._segments = {
            _key(context.args): Segment(self._native, carved, frozenset())
        }

    def execute(self, args: Sequence[Value]) -> None:
        """Run on ``args``. Raises ``DeviceError`` for a tensor that isn't in host memory."""
        key = _key(args)
        if key not in self._segments:
            carved = self._carve(args)
            self._segments[key] = Segment(self._native, carved, frozenset())
        self._segments[key].run()

    def _carve(self, args: Sequence[Value]) -> Carved:
        inputs = self._context.num_inputs
        call = Call(
            self._context.name, args, args[:inputs], args[inputs:], self._context
        )
        return carve([call], {}, frozenset(), lambda _: True)


def _key(args: Sequence[Value]) -> tuple[int, ...]:
    return tuple([id(value) for value in args])


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
