"""``TensorRTBackend``: serialize a partition with one TensorRT engine into an engine blob.

The runtime binds by position: argument ``i`` of the delegate goes to the ``i``-th name in the
blob, inputs first. So the names are brought into the order of the delegate's arguments, node by
node, and the outputs have to be in binding order (pytorch/TensorRT#4329).
"""

from __future__ import annotations

import operator
from typing import Any, Sequence, final

from executorch.exir.backend.backend_details import (
    BackendDetails,
    CompileSpec,
    PreprocessResult,
)
from torch.export import ExportedProgram
from torch.fx import Node
from torch_tensorrt.dynamo.runtime._engine_bytes import engine_bytes
from torch_tensorrt.executorch.engines.nodes import engine_nodes, engine_record
from torch_tensorrt.executorch.engines.record import (
    DELIMITER,
    Slot,
    names,
    parse_device_id,
    text,
)
from torch_tensorrt.executorch.serialization import (
    TensorRTBlobMetadata,
    serialize_engine,
)

__all__ = ["TensorRTBackend"]

# By the names that upstream has for them, and that its tests replace.
_get_engine_nodes_in = engine_nodes
_parse_device_id = parse_device_id


@final
class TensorRTBackend(BackendDetails):
    """Serializes a partition's engine for ExecuTorch's TensorRT runtime."""

    @staticmethod
    def preprocess(
        edge_program: ExportedProgram, compile_specs: list[CompileSpec]
    ) -> PreprocessResult:
        """Return the engine blob of a partition, in the layout of the installed torch-tensorrt.

        The engine's bytes are copied once, into the blob; base64 text is decoded before.

        Args:
            edge_program: One engine node and its ``getitem``s, the engine in its constants.
            compile_specs: Handed to the runtime beside the blob; not looked at.

        Raises:
            RuntimeError: There isn't exactly one engine, its bytes aren't to be had, or it
                needs an output allocator.
            ValueError: Its bindings don't fit the partition's inputs and outputs, or its
                record can't be written.
        """
        record = _get_engine_info_from_edge_program(edge_program)
        node = _get_single_engine_node(edge_program)
        _validate_engine_info(record, node.name)
        record[Slot.INPUT_NAMES] = DELIMITER.join(
            _names_in_argument_order(
                edge_program, node, names(record, Slot.INPUT_NAMES)
            )
        )
        _check_outputs(edge_program, node, names(record, Slot.OUTPUT_NAMES))
        metadata = TensorRTBlobMetadata.from_record(record, _parse_device_id)
        try:
            record[Slot.ENGINE] = engine = engine_bytes(record[Slot.ENGINE])
        except RuntimeError as error:
            raise RuntimeError(f"{node.name}: {error}") from error
        return PreprocessResult(processed_bytes=serialize_engine(engine, metadata))


def _names_in_argument_order(
    program: ExportedProgram, node: Node, input_names: Sequence[str]
) -> list[str]:
    """Return the input names in the order of the delegate's arguments.

    The engine node lists its inputs in binding order; lowering may have put the placeholders
    that they are into another.
    """
    inputs = list(node.args[0])  # type: ignore[arg-type]
    if len(inputs) != len(input_names):
        raise ValueError(
            f"{node.name}: the engine has {len(input_names)} input bindings "
            f"({', '.join(input_names)}), but {len(inputs)} inputs"
        )
    name_of: dict[str, str] = {}
    for value, name in zip(inputs, input_names, strict=True):
        if value.name in name_of:
            raise ValueError(
                f"{node.name}: {value.name} is bound to {name_of[value.name]} and to {name}, but "
                "the delegate is handed it once; clone it for one of them"
            )
        name_of[value.name] = name
    arguments = [
        name for name in program.graph_signature.user_inputs if name in name_of
    ]
    if len(arguments) != len(inputs):
        unknown = ", ".join(name for name in name_of if name not in arguments)
        raise ValueError(
            f"{node.name}: its inputs {unknown} are not among the delegate's arguments; constants and "
            "buffers that an engine reads have to stay outside of its partition"
        )
    return [name_of[argument] for argument in arguments]


def _check_outputs(
    program: ExportedProgram, node: Node, output_names: Sequence[str]
) -> None:
    """Raise ValueError unless the partition returns each output binding once, in order."""
    returned = list(program.graph_module.graph.output_node().args[0])  # type: ignore[arg-type]
    if returned == [node] and len(output_names) == 1:
        return
    indices = [
        value.args[1]
        for value in returned
        if isinstance(value, Node)
        and value.target is operator.getitem
        and value.args[0] is node
    ]
    if len(indices) == len(returned) and indices == [*range(len(output_names))]:
        return
    unused = [name for i, name in enumerate(output_names) if i not in indices]
    raise ValueError(
        f"{node.name}: the runtime fills every output of the engine, {', '.join(output_names)}, in "
        f"order. The partition returns {', '.join(map(str, returned))}, of which outputs {indices} "
        "are the engine's. Compile the model without outputs that nothing uses"
        + (f": {', '.join(unused)}" if unused else "")
    )


def _get_single_engine_node(edge_program: ExportedProgram) -> Node:
    engines = _get_engine_nodes_in(edge_program.graph_module.graph.nodes)
    if len(engines) != 1:
        raise RuntimeError(
            f"a TensorRT partition has exactly 1 engine node, this one has {len(engines)}: "
            f"{', '.join(node.name for node in engines)}"
        )
    return engines[0]


def _validate_engine_info(engine_info: Sequence[Any], node_name: str = "") -> None:
    where = f"{node_name or 'engine'} ({text(engine_info, Slot.NAME) or 'unnamed'})"
    if len(engine_info) <= Slot.OUTPUT_NAMES:
        raise RuntimeError(
            f"{where}: its record ends after {len(engine_info)} slots, before the output names"
        )
    if text(engine_info, Slot.OUTPUT_ALLOCATOR) == "1":
        raise RuntimeError(
            f"{where}: the engine needs an output allocator, which ExecuTorch does not have. "
            "Compile with target_executorch=True, which leaves the operators whose output "
            "shapes depend on data to other backends."
        )


def _get_engine_info_from_edge_program(edge_program: ExportedProgram) -> list[Any]:
    """Return the record of a partition's only engine."""
    return _get_engine_info_for_node(
        edge_program, _get_single_engine_node(edge_program)
    )


def _get_engine_info_for_node(
    edge_program: ExportedProgram, node: Node, *, metadata_only: bool = False
) -> list[Any]:
    """Return an engine node's record; ``torch_tensorrt.dynamo._exporter`` asks for it, from 2.14 on."""
    return engine_record(edge_program, node, metadata_only=metadata_only)
