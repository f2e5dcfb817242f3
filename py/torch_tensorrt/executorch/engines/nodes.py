"""Engine nodes of an exported program, and their engine records.

An engine reaches ExecuTorch in one of two calls (pytorch/TensorRT#4329):

- ``tensorrt::execute_engine(inputs, engine)``: the engine is an object, behind a ``get_attr`` or
  lifted into the program's constants.
- ``tensorrt::no_op_placeholder_for_execute_engine(inputs, *record)``: the record is spelled out in
  strings. Its engine is a uint8 tensor of shape (bytes,),
  behind a ``get_attr`` or lifted into a buffer.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any, Iterable

from torch._library.fake_class_registry import FakeScriptObject
from torch.export import ExportedProgram
from torch.fx import Node
from torch_tensorrt.dynamo.fallback.metadata_keys import WHY_IN_PYTORCH, note_of
from torch_tensorrt.executorch.engines.objects import record_of
from torch_tensorrt.executorch.engines.record import Slot

EXECUTE = "tensorrt::execute_engine"
PLACEHOLDER = "tensorrt::no_op_placeholder_for_execute_engine"


def schema_name(target: Any) -> str:
    """Return the operator's qualified name, in ATen and in edge dialect; empty if it has none."""
    schema = getattr(target, "_schema", None)
    return "" if schema is None else str(schema.name)


def engine_nodes(nodes: Iterable[Node]) -> list[Node]:
    """Return those of ``nodes`` that run a TensorRT engine, in order."""
    return [
        node
        for node in nodes
        if node.op == "call_function"
        and schema_name(node.target) in (EXECUTE, PLACEHOLDER)
    ]


def is_compiled(program: ExportedProgram) -> bool:
    """Whether TensorRT has had its choice of the operators of ``program``, if it has any.

    It says so itself: by engines, or by what is noted at the operators that are in none.
    """
    calls = [n for n in program.graph.nodes if schema_name(n.target)]
    return (
        not calls
        or bool(engine_nodes(calls))
        or any(note_of(node, WHY_IN_PYTORCH) for node in calls)
    )


def payload_of(node: Node) -> Any:
    """Return the argument of an engine node that stands for the engine."""
    is_placeholder = schema_name(node.target) == PLACEHOLDER
    return node.args[1 + Slot.ENGINE if is_placeholder else 1]


def engine_record(
    program: ExportedProgram, node: Node, *, metadata_only: bool = False
) -> list[Any]:
    """Return the record of an engine node of ``program``.

    Args:
        program: The node's program, which has the engine, or its tensor.
        node: An engine node.
        metadata_only: Don't have the engine serialized. Its slot can hold anything then.

    Raises:
        RuntimeError: The engine is not in the program.
    """
    if schema_name(node.target) == EXECUTE:
        return record_of(_held(program, node), metadata_only=metadata_only)
    record = list(node.args[1:])
    if isinstance(record[Slot.ENGINE], Node) and not metadata_only:
        record[Slot.ENGINE] = _held(program, node)
    return record


def _held(program: ExportedProgram, node: Node) -> Any:
    """Return what the program holds for the engine argument of ``node``."""
    source = payload_of(node)
    if not isinstance(source, Node) or source.op not in ("get_attr", "placeholder"):
        raise RuntimeError(
            f"{node.name}: its engine is {source!r}, neither an attribute nor a constant of the "
            "program"
        )
    try:
        if source.op == "get_attr":
            engine = attrgetter(str(source.target))(program.graph_module)
        else:
            engine = _lifted(program, source)
    except (AttributeError, KeyError):
        raise RuntimeError(
            f"{node.name}: its engine {source.name} is not in the program, which has "
            f"{', '.join(sorted({*program.state_dict, *program.constants})) or 'no constants'}"
        ) from None
    return engine.real_obj if isinstance(engine, FakeScriptObject) else engine


def _lifted(program: ExportedProgram, source: Node) -> Any:
    """Return the constant or buffer behind a placeholder.

    The signature knows under which name it is held; programs of the legacy exporter have it
    under the placeholder's.
    """
    specs = program.graph_signature.input_specs
    names = [spec.target for spec in specs if spec.arg.name == source.name]
    for name in (*names, source.name, source.target):
        for table in (program.state_dict, program.constants):
            if name in table:
                return table[name]
    raise KeyError(source.name)
