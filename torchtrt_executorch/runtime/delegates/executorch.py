"""Delegate of any other backend: run it in ExecuTorch's own runtime.

Each tensor is an input of that program without planned memory, which ExecuTorch points to the tensor's memory:
nothing is copied on the way in. Tensors that the delegate writes are the exception. Backends check shapes, but
write elements of their payload's dtype: where a damaged program declares a narrower dtype, that has to stay in a
buffer of its own, from which the result is copied.
"""

from __future__ import annotations

import math
from typing import Any, Callable, Sequence

import torch
from executorch.exir import schema
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import PTEFile, serialize_pte_binary
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.tensor import make_allocation_info, scalar_type_enum
from torch._prims_common import make_contiguous_strides_for

from torchtrt_executorch.runtime.delegates import Delegate, DelegateContext
from torchtrt_executorch.runtime.errors import DeviceError, ProgramError, misplaced
from torchtrt_executorch.runtime.tensors.layout import ALIGNMENT
from torchtrt_executorch.runtime.tensors.values import Run, Value

#: Bytes of an element of the widest dtype.
_WIDEST = 16


class ExecuTorchDelegate(Delegate):
    """A delegate of a backend that the installed ``executorch`` was built with, as XNNPACK.

    Raises ``ProgramError`` if it wasn't, or if the backend refuses the payload. Works on host
    tensors alone.
    """

    def __init__(self, context: DelegateContext) -> None:
        if context.num_inputs == len(context.args):
            raise ProgramError(f"{context.name} is called without a value to return")
        _check_backend(context)
        self._inputs, self._backend_id = context.num_inputs, context.backend_id
        self._native = _Native(_Program(context).serialized(), context.name)

    def bind(self, args: Sequence[Value]) -> Run:
        """Return a function that runs on ``args``. Raises ``DeviceError`` for a tensor that isn't in host memory."""
        # XNNPACK infers shapes from shapes; what others do isn't known.
        settled = self._backend_id == "XnnpackBackend"
        return _Bound(self._native, args, self._inputs, settled).run


class _Program:
    """A program of one method, which calls the delegate once, on arguments of the same kinds."""

    def __init__(self, context: DelegateContext) -> None:
        self._context = context
        self._payload = bytes(context.payload)
        self._values: list[schema.EValue] = []
        self._instructions: list[schema.Instruction] = []
        self._operators: dict[str, int] = {}

    def serialized(self) -> bytes:
        """Return its ``.pte``: its results are the sizes of the tensors that can have several."""
        context = self._context
        args = [self._given(place) for place in range(len(context.args))]
        tensors = [at for at, v in zip(args, context.args, strict=True) if v.layout]
        arena, sizes = self._call(args), self._sizes(args)
        delegate = schema.BackendDelegate(
            context.backend_id,
            schema.BackendDelegateDataReference(schema.DataLocation.INLINE, 0),
            [CompileSpec(key, value) for key, value in context.compile_specs.items()],
        )
        plan = schema.ExecutionPlan(
            name="forward",
            container_meta_type=schema.ContainerMetadata("", ""),
            values=self._values,
            inputs=tensors,
            outputs=sizes,
            chains=[schema.Chain([], [], self._instructions, None)],
            operators=[
                schema.Operator(*name.partition(".")[::2]) for name in self._operators
            ],
            delegates=[delegate],
            non_const_buffer_sizes=[0, arena],
        )
        program = schema.Program(
            version=0,
            execution_plan=[plan],
            constant_buffer=[schema.Buffer(b"")],
            backend_delegate_data=[schema.BackendDelegateInlineData(self._payload)],
            segments=[],
            constant_segment=schema.SubsegmentOffsets(0, []),
        )
        file = PTEFile(program=program, named_data=self._named_data())
        return bytes(serialize_pte_binary(file, extract_delegate_segments=True))

    def _call(self, args: Sequence[int]) -> int:
        """Call the delegate, and copy its results to ``args``. Return the bytes that they take."""
        context, own, copies, used = self._context, list(args), [], 0
        for place in range(context.num_inputs, len(args)):
            value = context.args[place]
            if value.layout is None:
                raise ProgramError(
                    f"{context.name}: its output {place - context.num_inputs} is a "
                    f"{type(value.get()).__name__}, not a tensor"
                )
            tensor = _tensor_like(value)
            tensor.allocation_info = make_allocation_info(1, used)
            used += math.prod(value.layout.sizes) * _WIDEST + ALIGNMENT
            own[place] = self._add(tensor)
            copies.append((own[place], args[place]))
        self._instructions.append(schema.Instruction(schema.DelegateCall(0, own)))
        for source, target in copies:
            at_once, order = self._add(schema.Bool(False)), self._add(schema.Null())
            copy = [source, at_once, order, target, target]
            self._kernel("dim_order_ops::_clone_dim_order.out", copy)
        return used

    def _sizes(self, args: Sequence[int]) -> list[int]:
        """Query the sizes of the results that can have several."""
        sizes = []
        results = [*zip(args, self._context.args, strict=True)]
        for at, value in results[self._context.num_inputs :]:
            if value.layout is None or value.layout.static:
                continue
            for dim in range(len(value.layout.sizes)):
                sizes.append(self._add(schema.Int(0)))
                which = self._add(schema.Int(dim))
                self._kernel("aten::sym_size.int", [at, which, sizes[-1]])
        return sizes

    def _given(self, place: int) -> int:
        """Return an argument as ExecuTorch's schema has it."""
        value = self._context.args[place]
        data = value.data
        if value.layout is not None:
            return self._add(_tensor_like(value))
        for kind, wrap in _WRAPPED:
            if isinstance(data, kind):
                return self._add(wrap(data))
        raise ProgramError(
            f"{self._context.name}: its input {place} is a {type(value.get()).__name__}, which can't be "
            "handed to ExecuTorch's runtime"
        )

    def _add(self, val: Any) -> int:
        self._values.append(schema.EValue(val))
        return len(self._values) - 1

    def _kernel(self, name: str, args: list[int]) -> None:
        index = self._operators.setdefault(name, len(self._operators))
        self._instructions.append(schema.Instruction(schema.KernelCall(index, args)))

    def _named_data(self) -> Any:
        """Return the blobs that the payload names; all of them if it names none.

        A payload says which it wants by their keys. To leave out the others' keeps the memory of a
        program with many delegates linear.
        """
        store, every = NamedDataStore(), self._context.named_data
        blob = self._payload
        named = {key: entry for key, entry in every.items() if key.encode() in blob}
        for key, entry in (named or every).items():
            store.add_named_data(key, bytes(entry.data), alignment=ALIGNMENT)
        return store.get_named_data_store_output()


#: The schema's class for what is no tensor. A bool is an int as well.
_WRAPPED: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (bool, schema.Bool),
    (int, schema.Int),
    (float, schema.Double),
    (str, schema.String),
    (type(None), lambda _: schema.Null()),
)


def _tensor_like(value: Value) -> schema.Tensor:
    """Return a tensor of the same layout, without memory."""
    layout = value.layout
    assert layout is not None
    return schema.Tensor(
        scalar_type=scalar_type_enum(layout.dtype),
        storage_offset=0,
        sizes=list(layout.sizes),
        dim_order=list(layout.dim_order),
        requires_grad=False,
        layout=0,
        data_buffer_idx=0,
        allocation_info=None,
        shape_dynamism=schema.TensorShapeDynamism(int(layout.dynamism)),
    )


class _Native:
    """A program that ExecuTorch's runtime has loaded. ``ProgramError`` if it refuses it.

    Attributes:
        call, execute, get_outputs: The method's own. ``call`` sets its inputs first.
        user: Whose tensors are set.
    """

    def __init__(self, data: bytes, name: str) -> None:
        from executorch.runtime import Runtime

        try:
            program = Runtime.get().load_program(data)
            method: Any = program.load_method("forward")
        except RuntimeError as error:
            raise ProgramError(
                f"{name}: ExecuTorch's runtime refuses it: {error}"
            ) from error
        self.execute = method._method.execute
        self.call = method._method.call
        self.get_outputs = method._method.get_outputs
        self.user: _Bound | None = None
        # A method reads its program's bytes until it is gone, and keeps neither alive: attributes
        # are released in this order.
        self._method = method
        self._program = program
        self._data = data


class _Bound:
    """A program, run on one call's arguments. ExecuTorch is told where they are when that changes."""

    def __init__(
        self, native: _Native, args: Sequence[Value], inputs: int, settled: bool
    ) -> None:
        self._native = native
        self._values = [value for value in args if value.layout is not None]
        #: Whether each is passed at its current shape; others are passed at the largest.
        self._shaped = [not _static(v) and v in args[:inputs] for v in self._values]
        self._resized = [value for value in args[inputs:] if not _static(value)]
        self._asks = bool(self._resized) and not settled
        #: Tensors without planned memory have another one for each call.
        self._anew = not all(value.planned or value.constant for value in self._values)
        self._seen: list[tuple[Any, torch.Size]] = []

    def run(self) -> None:
        """Run it. ``ProgramError`` or ``RuntimeError`` if the delegate fails."""
        native = self._native
        sizes: Sequence[int] = ()
        # A call that fails leaves nobody's tensors set.
        set_before, native.user = native.user is self, None
        if self._anew or not set_before or self._moved():
            sizes = native.call(self._look(), False)
        else:
            native.execute()
            if self._asks:
                sizes = native.get_outputs(False)
        native.user = self
        if self._anew:
            self._seen = []  # nothing is kept that is another one in the next call
        place = 0
        for value in self._resized if sizes else ():
            end = place + value.tensor.dim()
            shape = tuple(sizes[place:end])
            if value.tensor.shape != shape:
                value.resize(shape)
            place = end

    def _moved(self) -> bool:
        """Whether a tensor has another place or shape than the last time."""
        now = zip(self._values, self._shaped, self._seen, strict=True)
        for value, shaped, (seen, shape) in now:
            if value.data is not seen or (shaped and value.data.shape != shape):
                return True
        return False

    def _look(self) -> list[torch.Tensor]:
        """Return the tensors of the values, in the order of the program's inputs."""
        for value in self._values:
            if value.device.type != "cpu":
                takes = "ExecuTorch's runtime works on host tensors"
                text = misplaced(value.name, value.device, takes, False)
                raise DeviceError(text)
        own_tensors = [
            _as_read(value) if shaped else _whole(value)
            for value, shaped in zip(self._values, self._shaped, strict=True)
        ]
        self._seen = [(value.data, value.tensor.shape) for value in self._values]
        return own_tensors


def _static(value: Value) -> bool:
    return value.layout is None or value.layout.static


def _whole(value: Value) -> torch.Tensor:
    """Return the tensor's memory at its largest shape, in the order that ExecuTorch's Python API takes."""
    layout, tensor = value.layout, value.tensor
    assert layout is not None
    if layout.unbounded and not (value.planned or value.constant):
        tensor.resize_(layout.sizes)  # for want of a bound it has no memory yet
    return _dense(tensor, layout.sizes)


def _as_read(value: Value) -> torch.Tensor:
    tensor = value.tensor
    # Never the caller's own object, which may be a subclass's.
    return tensor.detach() if tensor.is_contiguous() else _dense(tensor, tensor.shape)


def _dense(tensor: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    # The program knows the memory order; what is told here is where, and how many of each.
    strides = make_contiguous_strides_for(tuple(sizes))
    return tensor.detach().as_strided(sizes, strides)


def _check_backend(context: DelegateContext) -> None:
    from executorch.runtime import Runtime

    registry = Runtime.get().backend_registry
    if not registry.is_available(context.backend_id):
        known = ", ".join(sorted(registry.registered_backend_names))
        raise ProgramError(
            f"nothing here runs the backend {context.backend_id!r} of {context.name}: the "
            f"installed executorch has {known}. Give one: "
            f"register_backend({context.backend_id!r}, backend)"
        )
