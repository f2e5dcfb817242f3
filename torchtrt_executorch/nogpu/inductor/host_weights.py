"""Fake CUDA tensors for Inductor, whose data stay in host memory.

A compiler asks a weight for its shape, type and device, asks small ones for their values, and in the
end copies the bytes of each into a file. None of this needs the device, so a weight becomes a fake
CUDA tensor that answers the last two from the host's tensor. Nothing is copied before it is written.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakSet

import torch
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import (
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
    unset_fake_temporarily,
)
from torch.export import ExportedProgram
from torch.utils._pytree import tree_map


class _HostBytes:
    """The host tensor of a fake tensor."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self._tensor = tensor  # the program's own, by which its digest is known
        #: Of its storage; two that differ in it have no bytes in common, packed or not.
        self.address = tensor.untyped_storage().data_ptr()

    def packed(self) -> torch.Tensor:
        """Return the tensor, in a storage of its own size and in the order of the fake one's strides."""
        tensor = self._tensor
        like = torch.empty_like(tensor, device="meta")
        if (
            tensor.stride() != like.stride()
            or tensor.untyped_storage().nbytes() != like.untyped_storage().nbytes()
        ):
            self._tensor = torch.empty_like(tensor.detach()).copy_(tensor.detach())
        return self._tensor

    def channels_last(self) -> torch.Tensor:
        """Return a channels-last copy of the 4D tensor."""
        return self._tensor.detach().contiguous(memory_format=torch.channels_last)

    def item(self) -> Any:
        return self._tensor.item()

    def tolist(self) -> Any:
        return self._tensor.tolist()

    def release(self) -> None:
        """Drop the tensor: fake ones stay in cycles until those are collected."""
        del self._tensor

    def __deepcopy__(self, memo: dict[int, Any]) -> _HostBytes:
        return self


_held = threading.local()


@contextlib.contextmanager
def released() -> Iterator[None]:
    """Scope of a compilation in this thread, at whose end the host tensors of fake tensors are released."""
    before = getattr(_held, "made", None)
    _held.made = made = WeakSet[_HostBytes]()
    try:
        yield
    finally:
        _held.made = before
        for host in made:
            host.release()


class _Written:
    """A fake weight as it is written to a file: its storage is the host tensor's."""

    def __init__(self, fake: Any) -> None:
        self._fake = fake

    def __getattr__(self, name: str) -> Any:
        return getattr(self._fake, name)

    @property
    def on_host(self) -> torch.Tensor:
        """The host's tensor, packed."""
        packed: torch.Tensor = self._fake.host_bytes.packed()
        return packed

    def untyped_storage(self) -> torch.UntypedStorage:
        return self.on_host.untyped_storage()


def stand_in(
    tensor: torch.Tensor, device: torch.device, mode: FakeTensorMode
) -> torch.Tensor:
    """Return a fake tensor like ``tensor`` on ``device``, whose bytes are those of ``tensor``."""
    # Not empty_like in that mode, which makes a real tensor of a number's.
    like = torch.empty_like(tensor, device="meta")
    with mode:
        fake: Any = torch.empty_strided(
            like.shape, like.stride(), dtype=tensor.dtype, device=device
        )
    if isinstance(tensor, torch.nn.Parameter):
        # Nothing is differentiated, and PyTorch would look for the device to do so.
        fake = torch.nn.Parameter(fake, requires_grad=False)
    fake.host_bytes = host = _HostBytes(tensor)
    if (made := getattr(_held, "made", None)) is not None:
        made.add(host)
    # Inductor writes the values of small constants into the code.
    fake.item, fake.tolist = host.item, host.tolist
    return fake


def is_stand_in(value: Any) -> bool:
    """Whether :func:`stand_in` made ``value``."""
    return isinstance(getattr(value, "host_bytes", None), _HostBytes)


def move_to_device(program: ExportedProgram, location: Any) -> ExportedProgram:
    """Move ``program`` to a device that isn't there, in place; as ``move_to_device_pass`` does.

    Parameters, buffers and constants become :func:`stand_in`; example inputs are dropped.

    Args:
        program: A program on the host.
        location: The device, or its name.

    Returns:
        ``program``.
    """
    device = torch.device(location)
    device = torch.device(device.type, device.index or 0)
    values = [
        value
        for node in program.graph.nodes
        if isinstance(value := node.meta.get("val"), torch.Tensor)
    ]
    mode = detect_fake_mode(values) or FakeTensorMode()
    for tensors in (program._state_dict, program._constants):
        for name, value in tensors.items():
            if isinstance(value, torch.Tensor):
                tensors[name] = stand_in(value, device, mode)
    program._example_inputs = None
    for module in program.graph_module.modules():
        if isinstance(module, torch.fx.GraphModule):
            for node in module.graph.nodes:
                _move_node(node, device, mode)
    validate: Any = program.validate
    validate()
    return program


def _move_node(node: torch.fx.Node, device: torch.device, mode: FakeTensorMode) -> None:
    def move(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if node.op == "call_function":
            moved = _on(device, value, mode)
            if moved is not None:
                return moved
        # Not value.to(): for a tensor with a gradient autograd asks the device's runtime.
        with mode:
            return torch.empty_strided(
                value.size(), value.stride(), dtype=value.dtype, device=device
            )

    if "device" in node.kwargs:
        node.kwargs = {**node.kwargs, "device": device}
    if node.target is torch.ops.aten.to.device:
        node.args = (node.args[0], device, *node.args[2:])
    node.meta["val"] = tree_map(move, node.meta.get("val"))


def _on(
    device: torch.device, value: torch.Tensor, mode: FakeTensorMode
) -> torch.Tensor | None:
    """Return a fake tensor of ``value``'s sizes and storage on ``device``; None if ``value`` isn't one of ``mode``.

    What is derived from sizes with symbols, as whether they are contiguous, isn't derived again: for 36 layers of Qwen3-4B in
    two methods that takes 5 s. Inputs get storages of their own: they would pass for aliases.
    """
    if type(value) is not FakeTensor or value.fake_mode is not mode:
        return None
    offset = value.storage_offset()
    if value.requires_grad or type(offset) is not int or offset:
        return None
    with in_kernel_invocation_manager(mode):
        alias = torch.ops.aten.alias.default(value)
    return FakeTensor(mode, alias, device)


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the overrides of the functions that move, compare and write weights."""
    from torch._inductor import ir
    from torch._inductor.codecache import AotCodeCompiler
    from torch._inductor.utils import clone_preserve_strides, is_same_tensor
    from torch._inductor.virtualized import V

    compiler: Any = AotCodeCompiler
    write = compiler.compile.__func__

    def clone(tensor: torch.Tensor) -> torch.Tensor:
        # Inductor keeps the first value of what the program writes to. Nothing runs here.
        return tensor if is_stand_in(tensor) else clone_preserve_strides(tensor)

    def is_same(first: Any, second: Any) -> bool:
        # No fake tensor has an address: any two of one size would pass for the same. Each constant is compared with
        # all before it.
        if is_stand_in(first) and is_stand_in(second):
            # A fake tensor takes longer to say its shape.
            if first.host_bytes.address != second.host_bytes.address:
                return False
            if first.shape != second.shape or first.dtype != second.dtype:
                return False
            first, second = first.host_bytes.packed(), second.host_bytes.packed()
        return is_same_tensor(first, second)

    def write_from_host(cls: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        value_of = graph.get_original_value_of_constant

        def written(name: str) -> Any:
            value = value_of(name)
            return _Written(value) if is_stand_in(value) else value

        # On the graph itself: Inductor asks it from threads of its own.
        graph.get_original_value_of_constant = written
        try:
            return write(cls, graph, *args, **kwargs)
        finally:
            del graph.get_original_value_of_constant

    realize = ir.ExternKernel.realize_input.__func__  # type: ignore[attr-defined]

    def realize_on_host(cls: Any, value: Any) -> Any:
        device = value.get_device() if isinstance(value, ir.Constant) else None
        if device is None or device.type != "cuda":
            return realize(cls, value)
        with unset_fake_temporarily():
            number = torch.tensor(value.value, dtype=value.get_dtype())
        constant = stand_in(number, device, V.fake_mode)
        return V.graph.add_tensor_constant(constant)

    backend = "executorch.backends.cuda.cuda_backend"
    collector = sys.modules.get("executorch.backends.cuda.cuda_weight_collector")
    # From executorch 1.5 on each weight is written by itself.
    write_storage: Any = getattr(collector, "_write_tensor_storage", None)
    take_mapped: Any = getattr(collector, "mapped_data", None)

    def write_storage_from_host(tensor: Any, path: str) -> Any:
        return write_storage(getattr(tensor, "on_host", tensor), path)

    def take_mapped_from_host(tensor: Any) -> Any:
        return take_mapped(getattr(tensor, "on_host", tensor))

    return {
        "torch.export.passes:move_to_device_pass": move_to_device,
        "torch._inductor.utils:clone_preserve_strides": clone,
        "torch._inductor.utils:is_same_tensor": is_same,
        "torch._inductor.codecache:AotCodeCompiler.compile": write_from_host,
        "executorch.backends.cuda.cuda_weight_collector:_write_tensor_storage": write_storage_from_host,
        "executorch.backends.cuda.cuda_weight_collector:mapped_data": take_mapped_from_host,
        "executorch.backends.cuda.cuda_weight_collector:trim_host_memory": lambda: None,
        # low_memory_mode spares the device's memory, of which nothing is taken.
        "torch._inductor.ir:ExternKernel.realize_input": realize_on_host,
        f"{backend}:_move_to_device_resize_kv": move_to_device,
        f"{backend}:_compile_time_cpu_clones": lambda device: contextlib.nullcontext(),
    }
