"""``TensorRTPartitioner``: each TensorRT engine of a program becomes a delegate of its own."""

from __future__ import annotations

import logging
import operator
from typing import Callable, Iterator

import torch
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.passes.propagate_device_pass import TARGET_DEVICE_COMPILE_SPEC_KEY
from torch.export import ExportedProgram
from torch.fx import Node
from torch_tensorrt.executorch._engine_nodes import (
    PLACEHOLDER,
    engine_nodes,
    engine_record,
    payload_of,
    schema_name,
)
from torch_tensorrt.executorch._engine_record import (
    device_index,
)
from torch_tensorrt.executorch.backend import TensorRTBackend

__all__ = [
    "WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY",
    "WEIGHT_STREAMING_BUDGET_MAX_BYTES",
    "TensorRTPartitioner",
    "normalize_weight_streaming_budget_per_engine",
]

WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY = "weight_streaming_budget"
"""Read by the runtime from torch-tensorrt 2.14 on, as decimal digits."""

WEIGHT_STREAMING_BUDGET_MAX_BYTES = 2**63
"""The runtime's is an ``int64_t``: a budget is below this."""

logger = logging.getLogger(__name__)


class TensorRTPartitioner(Partitioner):
    """Partitions a program by its TensorRT engines, in program order (pytorch/TensorRT#4329).

    A partition is an engine node, its ``getitem``s and the engine itself. Everything else that an
    engine reads stays outside, the caller's: buffers that the program mutates, such as KV caches,
    and constants, which a delegate whose blob holds nothing but the engine could not carry.

    Each delegate has a ``target_device`` compile spec: the caller's, verbatim, if there is one among
    ``compile_specs``, else ``cuda:N`` from the engine's own record, read by the code that writes the
    runtime's blob. If that can't be read it is ``cuda:0``, as in the blob, and a warning names the
    partition. The spec is for ahead of time only: it labels the tensors at the delegate's boundary.
    At run time the blob's device decides.

    Args:
        compile_specs: Handed to every delegate, before ``target_device``. From torch-tensorrt 2.14
            on the runtime reads ``weight_streaming_budget``.
    """

    def __init__(self, compile_specs: list[CompileSpec] | None = None) -> None:
        super().__init__()
        self.compile_specs = list(compile_specs or ())
        self.delegation_spec = DelegationSpec(
            TensorRTBackend.__name__, self.compile_specs
        )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the partitions of ``exported_program``, an edge program or a plain one."""
        partition_tags: dict[str, DelegationSpec] = {}
        for node in engine_nodes(exported_program.graph_module.graph.nodes):
            tag = f"tensorrt_{len(partition_tags)}"
            for member in _members(node):
                member.meta["delegation_tag"] = tag
            partition_tags[tag] = self._delegation_spec(exported_program, node, tag)
        return PartitionResult(exported_program, partition_tags)

    def ops_to_not_decompose(
        self, ep: ExportedProgram
    ) -> tuple[list[torch._ops.OpOverload], Callable[[Node], bool] | None]:
        """Return nothing to keep whole: engine nodes have no decompositions."""
        return [], None

    def _delegation_spec(
        self, program: ExportedProgram, node: Node, tag: str
    ) -> DelegationSpec:
        if any(
            spec.key == TARGET_DEVICE_COMPILE_SPEC_KEY for spec in self.compile_specs
        ):
            return self.delegation_spec
        index = _device_index(program, node, tag)
        device = CompileSpec(TARGET_DEVICE_COMPILE_SPEC_KEY, f"cuda:{index}".encode())
        return DelegationSpec(TensorRTBackend.__name__, [*self.compile_specs, device])


def _members(node: Node) -> Iterator[Node]:
    yield node
    yield from (user for user in node.users if user.target is operator.getitem)
    payload = payload_of(node)
    # ExecuTorch moves tensors into delegates, not objects; and of an engine that several
    # partitions share it makes copies, if one of them claims it.
    if (
        isinstance(payload, Node)
        and "delegation_tag" not in payload.meta
        and (payload.op == "get_attr" or schema_name(node.target) == PLACEHOLDER)
    ):
        yield payload


def _device_index(program: ExportedProgram, node: Node, tag: str) -> int:
    try:
        return device_index(engine_record(program, node, metadata_only=True))
    except Exception as error:  # whatever it is, an export must not fail over a label
        logger.warning(
            "%s (%s): labelled cuda:0, since its device can't be read: %s. If it is another, say "
            'so: compile_specs=[CompileSpec("%s", b"cuda:<index>")]',
            tag,
            node.name,
            error,
            TARGET_DEVICE_COMPILE_SPEC_KEY,
        )
        return 0


def normalize_weight_streaming_budget_per_engine(
    weight_streaming_budget_per_engine: int | None,
) -> bytes | None:
    """Return a weight streaming budget as the value of a compile spec.

    Args:
        weight_streaming_budget_per_engine: Bytes of weights that each engine may keep on the
            GPU; None leaves it to the runtime.

    Returns:
        Decimal digits, or None.

    Raises:
        TypeError: The budget is not an int.
        ValueError: It is negative or 2**63 and more.
    """
    budget = weight_streaming_budget_per_engine
    if budget is None:
        return None
    if isinstance(budget, bool) or not isinstance(budget, int):
        raise TypeError(
            "weight_streaming_budget_per_engine must be an int, a number of bytes, or None, not "
            f"{type(budget).__name__}"
        )
    if not 0 <= budget < WEIGHT_STREAMING_BUDGET_MAX_BYTES:
        raise ValueError(
            f"weight_streaming_budget_per_engine must be in [0, 2**63), not {budget}"
        )
    return str(budget).encode()
