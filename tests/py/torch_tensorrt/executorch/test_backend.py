"""From a partition to its blob: every form of engine, bindings by node, and no byte too many."""

from __future__ import annotations

import base64
import itertools
import subprocess
import sys
import tracemalloc
from types import ModuleType
from typing import Any, Callable

import pytest
import torch
from torch.export import ExportedProgram
from torch_tensorrt.dynamo import _exporter as exporter
from torch_tensorrt.dynamo.runtime._engine_bytes import engine_bytes
from torch_tensorrt.executorch import TensorRTBackend, TensorRTPartitioner
from torch_tensorrt.executorch.engines.nodes import engine_nodes, engine_record
from torch_tensorrt.executorch.engines.placeholders import with_engine_placeholders
from torch_tensorrt.executorch.engines.record import Slot
from torch_tensorrt.executorch.serialization import (
    Layout,
    TensorRTBlobMetadata,
    TensorRTIOBinding,
    deserialize_engine,
)

from torchtrt_executorch.overlay.upstream import load_upstream

Export = Callable[..., ExportedProgram]


def blob_of(program: ExportedProgram) -> bytes:
    return TensorRTBackend.preprocess(program, []).processed_bytes


def bindings_of(program: ExportedProgram) -> tuple[list[str], list[str]]:
    _, metadata = deserialize_engine(blob_of(program))
    return tuple(  # type: ignore[return-value]
        [each.name for each in metadata.io_bindings if each.is_input is is_input]
        for is_input in (True, False)
    )


@pytest.fixture
def upstream() -> Any:
    module = load_upstream("torch_tensorrt.executorch.backend")
    # ExecuTorch looks backends up by name among the subclasses that are alive, as this one is for long.
    module.TensorRTBackend.__name__ = "UpstreamsTensorRTBackend"
    return module


# The blob


def test_the_blob_says_what_the_record_says(
    placeholder_program: Export, affine_record: list[Any]
) -> None:
    engine, metadata = deserialize_engine(blob_of(placeholder_program()))
    assert engine == affine_record[Slot.ENGINE]
    assert metadata == TensorRTBlobMetadata(
        io_bindings=[
            TensorRTIOBinding("x"),
            TensorRTIOBinding("y"),
            TensorRTIOBinding("z"),
            TensorRTIOBinding("output0", is_input=False),
            TensorRTIOBinding("output1", is_input=False),
        ],
        serialized_metadata=affine_record[Slot.METADATA],
        target_platform=affine_record[Slot.TARGET_PLATFORM],
    )


@pytest.mark.parametrize("device", ["0%9%0%0%GPU", "1%9%0%0%GPU", "7", ""])
def test_the_blob_is_upstreams_byte_for_byte(
    upstream: Any, placeholder_program: Export, device: str
) -> None:
    program = placeholder_program(
        {Slot.DEVICE: device, Slot.HARDWARE_COMPATIBLE: str(len(device) % 2)}
    )
    theirs = upstream.TensorRTBackend.preprocess(program, [])
    assert blob_of(program) == theirs.processed_bytes


def test_the_slots_are_upstreams() -> None:
    from torch_tensorrt.dynamo.runtime import _serialized_engine_layout as layout

    theirs = [int(index) for index in layout.SerializedInfoIndex]
    assert theirs == list(Slot)[: len(theirs)]
    assert (Slot.DEVICE, Slot.ENGINE) == (layout.DEVICE_IDX, layout.ENGINE_IDX)
    assert Slot.INPUT_NAMES == layout.INPUT_BINDING_NAMES_IDX
    assert Slot.OUTPUT_ALLOCATOR == layout.REQUIRES_OUTPUT_ALLOCATOR_IDX


@pytest.mark.skipif(
    Layout.installed() is not Layout.TR02,
    reason="blobs know aliased outputs from 2.14 on",
)
def test_an_aliased_output_is_in_the_blob_as_upstream_writes_it(
    upstream: Any, placeholder_program: Export
) -> None:
    # Beside the model's outputs, the engine returns the caches that it has written.
    changes = {
        Slot.OUTPUT_NAMES: "output0%output1%cache",
        Slot.ALIASED_IO: "cache@y@kv_cache_update",
    }
    program = placeholder_program(changes)
    blob = blob_of(program)
    assert blob == upstream.TensorRTBackend.preprocess(program, []).processed_bytes
    assert blob.startswith(b"TR02")
    _, metadata = deserialize_engine(blob)
    assert metadata.aliased_io == {"cache": ("y", "kv_cache_update")}


# Bindings


@pytest.mark.parametrize("order", [*itertools.permutations(range(3))])
def test_input_names_follow_the_arguments(
    placeholder_program: Export, order: tuple[int, ...]
) -> None:
    inputs, outputs = bindings_of(placeholder_program(order=order))
    # Binding i of the engine is argument order[i], so argument i is binding order.index(i).
    assert inputs == ["xyz"[order.index(i)] for i in range(3)]
    assert outputs == ["output0", "output1"]


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"order": (0, 1, 0)}, "bound to x and to z.*clone"),
        *(
            ({"changes": {Slot.INPUT_NAMES: names}}, "input bindings.*but 3 inputs")
            for names in ("x%y", "x%y%z%w", "")
        ),
        *(
            ({"returned": returned}, "the engine, output0, output1, in order")
            for returned in [(1, 0), (0,), (1,), (0, 0), (0, 1, 1)]
        ),
        ({"returned": (1,)}, "nothing uses: output0$"),
    ],
    ids=str,
)
def test_bindings_have_to_be_those_of_the_engine(
    placeholder_program: Export, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        blob_of(placeholder_program(**options))


def test_an_output_has_to_come_from_the_engine(placeholder_program: Export) -> None:
    program = placeholder_program()
    graph = program.graph_module.graph
    output = graph.output_node()
    first = output.args[0][0]
    with graph.inserting_before(output):
        doubled = graph.call_function(torch.ops.aten.mul.Tensor, (first, 2))
    output.args = ((doubled, output.args[0][1]),)
    says = "returns mul_tensor, getitem_1, of which outputs .1. are"
    with pytest.raises(ValueError, match=says):
        blob_of(program)


def test_a_constant_among_the_inputs_is_refused(placeholder_program: Export) -> None:
    program = placeholder_program()
    (node,) = engine_nodes(program.graph.nodes)
    engine = node.args[1 + Slot.ENGINE]
    node.args = ([engine, *node.args[0][1:]], *node.args[1:])
    with pytest.raises(ValueError, match="b_engine are not among the delegate's"):
        blob_of(program)


# Refusals


def test_an_output_allocator_is_refused(placeholder_program: Export) -> None:
    program = placeholder_program({Slot.OUTPUT_ALLOCATOR: "1"})
    (node,) = engine_nodes(program.graph.nodes)
    with pytest.raises(RuntimeError, match="target_executorch=True") as refusal:
        blob_of(program)
    assert node.name in str(refusal.value)


def test_a_partition_without_an_engine_is_refused() -> None:
    program = torch.export.export(torch.nn.ReLU(), (torch.zeros(1),))
    with pytest.raises(RuntimeError, match="exactly 1 engine node, this one has 0"):
        blob_of(program)


def test_an_engine_that_is_an_input_is_refused(placeholder_program: Export) -> None:
    program = placeholder_program()
    (node,) = engine_nodes(program.graph.nodes)
    arguments = list(node.args)
    arguments[1 + Slot.ENGINE] = arguments[0][0]
    node.args = tuple(arguments)
    with pytest.raises(RuntimeError, match="is not in the program"):
        blob_of(program)


@pytest.mark.parametrize(
    "engine, complaint",
    [
        (None, "engine b_engine is not in the program"),
        (torch.zeros(0, dtype=torch.uint8), "no_op_placeholder.*is empty"),
        (
            torch.zeros(4, dtype=torch.uint8, device="meta"),
            "no_op_placeholder.*fake tensor",
        ),
    ],
)
def test_an_engine_without_bytes_is_refused(
    placeholder_program: Export, engine: torch.Tensor | None, complaint: str
) -> None:
    program = placeholder_program()
    program.state_dict.clear()
    if engine is not None:
        program.state_dict["engine"] = engine
    with pytest.raises(RuntimeError, match=complaint):
        blob_of(program)


# The record, in every form


class CppEngine:
    """What the C++ runtime's engine object, which can't be had here, offers per release."""

    def __init__(self, record: list[Any], release: str) -> None:
        engine = record[Slot.ENGINE]
        text = [*record]
        text[Slot.ENGINE] = base64.b64encode(engine).decode()
        self._state = (text, "tensorrt.Engine")
        if release == "2.14":
            bare = [*record]
            bare[Slot.ENGINE] = ""
            tensor = torch.frombuffer(bytearray(engine), dtype=torch.uint8)
            self.serialize_metadata_only = lambda: bare
            self.serialized_engine_tensor = lambda: tensor

    def __getstate__(self) -> Any:
        return self._state


def lifted(module: torch.fx.GraphModule, inputs: Any) -> ExportedProgram:
    return torch.export.export(module, inputs)


def lifted_by_the_legacy_exporter(
    module: torch.fx.GraphModule, inputs: Any
) -> ExportedProgram:
    return exporter.export(module, arg_inputs=inputs, use_legacy_exporter=True)


def as_attribute(module: torch.fx.GraphModule, inputs: Any) -> ExportedProgram:
    program = lifted(module, inputs)
    program.graph_module.held = torch.nn.Module()
    (program.graph_module.held.engine,) = program.constants.values()
    (node,) = engine_nodes(program.graph.nodes)
    with program.graph.inserting_before(node):
        attribute = program.graph.get_attr("held.engine")
    node.args = (node.args[0], attribute)
    return program


def as_placeholder(module: torch.fx.GraphModule, inputs: Any) -> ExportedProgram:
    return with_engine_placeholders(lifted(module, inputs))


def as_upstreams_placeholder(
    module: torch.fx.GraphModule, inputs: Any
) -> ExportedProgram:
    program = lifted_by_the_legacy_exporter(module, inputs)
    if Layout.installed() is Layout.TR01:
        from torch_tensorrt import _compile

        return _compile._replace_execute_engine_for_executorch(program)
    from torch_tensorrt.executorch import _export_utils

    return _export_utils.replace_execute_engine(program)


OBJECTS = [lifted, lifted_by_the_legacy_exporter, as_attribute]


@pytest.mark.parametrize("form", [*OBJECTS, as_placeholder, as_upstreams_placeholder])
def test_the_record_of_every_form(
    affine: torch.fx.GraphModule,
    affine_inputs: Any,
    affine_record: list[Any],
    form: Callable,
) -> None:
    program = form(affine, affine_inputs)
    (node,) = engine_nodes(program.graph.nodes)
    record = engine_record(program, *engine_nodes(program.graph.nodes))
    assert bytes(engine_bytes(record[Slot.ENGINE])) == affine_record[Slot.ENGINE]
    for found in (record, engine_record(program, node, metadata_only=True)):
        del found[Slot.ENGINE]
        assert found == [v for i, v in enumerate(affine_record) if i != Slot.ENGINE]


@pytest.mark.parametrize("form", OBJECTS)
@pytest.mark.parametrize("release", ["2.13", "2.14"])
def test_the_record_of_an_object_of_the_cpp_runtime(
    affine: torch.fx.GraphModule,
    affine_inputs: Any,
    affine_record: list[Any],
    form: Callable,
    release: str,
) -> None:
    program = form(affine, affine_inputs)
    engine = CppEngine(affine_record, release)
    if form is as_attribute:
        program.graph_module.held.engine = engine
    else:
        program.constants.update(dict.fromkeys(program.constants, engine))
    record = engine_record(program, *engine_nodes(program.graph.nodes))
    assert bytes(engine_bytes(record[Slot.ENGINE])) == affine_record[Slot.ENGINE]
    assert record[Slot.DEVICE] == affine_record[Slot.DEVICE]


def test_metadata_is_read_without_serializing_the_engine(
    affine: torch.fx.GraphModule, affine_inputs: Any, affine_record: list[Any]
) -> None:
    program = lifted(affine, affine_inputs)
    engine = CppEngine(affine_record, "2.14")
    engine.serialized_engine_tensor = lambda: pytest.fail("serialized")
    program.constants.update(dict.fromkeys(program.constants, engine))
    (node,) = engine_nodes(program.graph.nodes)
    record = engine_record(program, node, metadata_only=True)
    assert record[Slot.DEVICE] == affine_record[Slot.DEVICE]


def test_an_engine_object_that_is_missing_is_refused(
    affine: torch.fx.GraphModule, affine_inputs: Any
) -> None:
    program = lifted(affine, affine_inputs)
    program.constants.clear()
    with pytest.raises(RuntimeError, match="is not in the program"):
        engine_record(program, *engine_nodes(program.graph.nodes))


@pytest.mark.parametrize(
    "value, index",
    [
        *(("1%9%0%0%GPU", 1), ("127", 127), ("128", 0), ("", 0), (None, 0)),
        *(("-1%9", 0), ("١%9", 0), ("gpu", 0), (b"2%9", 2)),
    ],
)
def test_the_device_index(value: Any, index: int) -> None:
    metadata = TensorRTBlobMetadata.from_record(["", "", value])
    assert metadata.device_id == index


# Bytes

BYTES = bytes(range(256)) * 4


@pytest.mark.parametrize(
    "payload",
    [
        torch.frombuffer(bytearray(BYTES), dtype=torch.uint8),
        torch.frombuffer(bytearray(BYTES), dtype=torch.int8).reshape(32, 32),
        torch.frombuffer(bytearray(BYTES), dtype=torch.bfloat16),
        torch.frombuffer(bytearray(b"xx" + BYTES + b"xx"), dtype=torch.uint8)[2:-2],
        torch.frombuffer(bytearray(BYTES), dtype=torch.uint8).repeat_interleave(2)[::2],
        torch.nn.Buffer(torch.frombuffer(bytearray(BYTES), dtype=torch.uint8)),
        BYTES,
        bytearray(BYTES),
        memoryview(BYTES),
        base64.b64encode(BYTES).decode(),
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_engine_bytes_of_every_form(payload: Any) -> None:
    assert bytes(engine_bytes(payload)) == BYTES


def test_engine_bytes_of_a_scalar() -> None:
    assert bytes(engine_bytes(torch.tensor(7, dtype=torch.uint8))) == b"\7"


@pytest.mark.parametrize(
    "payload, complaint",
    [
        ("", "is empty"),
        *((text, "not base64") for text in ("a", "QUJ", "QUJ\nD", "QU=J", "QUJé")),
        *((None, "NoneType"), (3, "int")),
    ],
)
def test_what_is_no_engine_is_refused(payload: Any, complaint: str) -> None:
    with pytest.raises(RuntimeError, match=complaint):
        engine_bytes(payload)


def test_a_tensor_is_looked_at_not_copied() -> None:
    tensor = torch.zeros(1 << 20, dtype=torch.uint8)
    view = memoryview(engine_bytes(tensor))
    tensor[5] = 9
    assert view[5] == 9


def test_preprocess_copies_the_engine_once(placeholder_program: Export) -> None:
    program = placeholder_program()
    size = 32 << 20
    program.state_dict["engine"] = torch.zeros(size, dtype=torch.uint8)
    tracemalloc.start()
    try:
        blob = blob_of(program)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(blob) > size
    assert peak < 1.05 * size


PEAK = """
import resource, sys
import numpy, torch
from torch_tensorrt.dynamo.runtime._engine_bytes import engine_bytes
from torch_tensorrt.executorch.serialization import (
    TensorRTBlobMetadata, serialize_engine)
import base64
size, form = int(sys.argv[1]), sys.argv[2]
payload = torch.full((size,), 7, dtype=torch.uint8)
if form == "text":
    payload = base64.b64encode(memoryview(payload.numpy())).decode()
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()
before = resident()
open("/proc/self/clear_refs", "w").write("5")
engine = engine_bytes(payload)
blob = serialize_engine(engine, TensorRTBlobMetadata())
peak = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if "VmHWM" in line)
assert len(blob) >= size
print((peak - before) / size)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("form, bound", [("tensor", 1.1), ("text", 2.2)])
def test_peak_memory_of_a_large_engine(form: str, bound: float) -> None:
    arguments = [sys.executable, "-c", PEAK, str(1 << 30), form]
    peak = float(subprocess.check_output(arguments))
    assert 1 <= peak < bound


def test_upstream_s_names_are_what_is_called(
    placeholder_program: Callable[..., ExportedProgram], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who replaces one, as upstream's own tests do, sees it used."""
    from torch_tensorrt.executorch import backend, partitioner

    called: list[str] = []

    def watched(module: ModuleType, name: str) -> None:
        real = getattr(module, name)

        def watch(*args: Any, **kwargs: Any) -> Any:
            called.append(f"{module.__name__.rpartition('.')[2]}.{name}")
            return real(*args, **kwargs)

        monkeypatch.setattr(module, name, watch)

    program = placeholder_program()
    names = ("_get_engine_nodes_in", "_get_engine_info_for_node", "_parse_device_id")
    for name in names:
        watched(partitioner, name)
    TensorRTPartitioner().partition(program)
    assert {*called} == {f"partitioner.{name}" for name in names}
    called.clear()
    names = (*names, "_get_engine_info_from_edge_program")
    for name in names:
        watched(backend, name)
    TensorRTBackend.preprocess(program, [])
    assert {*called} >= {f"backend.{name}" for name in names}
