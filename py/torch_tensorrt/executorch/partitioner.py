"""``TensorRTPartitioner``: one delegate per TensorRT engine of a program."""

from __future__ import annotations

import json
import logging
import operator
from typing import TYPE_CHECKING, Any, Callable, Iterator, Mapping

import torch
from executorch.exir.backend._compile_specs import check_compile_specs
from executorch.exir.backend._delegate_outputs import RETURNS_ALL_OUTPUTS
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.backend.partitioner import (
    DelegationSpec,
    Partitioner,
    PartitionResult,
)
from executorch.exir.passes.propagate_device_pass import (
    TARGET_DEVICE_COMPILE_SPEC_KEY as _TARGET_DEVICE_COMPILE_SPEC_KEY,
)
from torch.export import ExportedProgram
from torch.fx import Node
from torch_tensorrt.dynamo.fallback.metadata_keys import OWNER, note_of
from torch_tensorrt.executorch.backend import (
    TensorRTBackend,
    _get_engine_info_for_node,
    _get_engine_nodes_in,
    _parse_device_id,
)
from torch_tensorrt.executorch.engines.nodes import (
    PLACEHOLDER,
    is_compiled,
    payload_of,
    schema_name,
)
from torch_tensorrt.executorch.engines.record import Slot, names, text

if TYPE_CHECKING:
    from torch_tensorrt.dynamo._settings import CompilationSettings

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

GPU_COMPILE_SPEC_KEY = "gpu"
"""Names the GPUs that engines are built for, as for ``CudaPartitioner``; no runtime reads it."""

MODULES_COMPILE_SPEC_KEY = "modules"
"""Names the modules that are compiled, as for ``CudaPartitioner``; no runtime reads it."""

MIN_SHAPES_COMPILE_SPEC_KEY = "min_shapes"
"""The smallest shapes of an engine's dynamic inputs, by name, as JSON: for who checks a program."""

OPT_SHAPES_COMPILE_SPEC_KEY = "opt_shapes"
"""The shapes of an engine's dynamic inputs that it is optimized for, in the same form."""

#: Keys of compile specs that somebody reads.
_KNOWN = (
    GPU_COMPILE_SPEC_KEY,
    MODULES_COMPILE_SPEC_KEY,
    MIN_SHAPES_COMPILE_SPEC_KEY,
    OPT_SHAPES_COMPILE_SPEC_KEY,
    WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY,
    _TARGET_DEVICE_COMPILE_SPEC_KEY,
    "needs_shared_stream",
)

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
    At run time the blob's device decides. One with inputs of several shapes also has ``min_shapes``,
    where the engine's profile begins, and ``opt_shapes``, what it is optimized for, which no runtime
    reads.

    With ``compile_settings`` it compiles the programs that ``to_edge_transform_and_lower`` hands it,
    as ``torch_tensorrt.compile`` does; without, it takes compiled programs as they are. Put it first
    in the list: what it doesn't take, those behind it get, as they would get it from a compiled
    program, and from a program that TensorRT can run nothing of as it was. One behind it with
    ``compile_settings`` of its own, for another GPU, say, compiles what the first leaves.

    Args:
        compile_specs: Handed to every delegate, before ``target_device``. From torch-tensorrt 2.14
            on the runtime reads ``weight_streaming_budget``. With ``compile_settings``, engines are
            built for ``target_device``, unless these have a ``device``, and ``modules`` names those of the
            model, by path or pattern, that all is compiled of; the rest is left to others.
        compile_settings: Settings of ``torch_tensorrt.dynamo.compile``, by name, or a
            ``CompilationSettings``; ``target_executorch=True`` is implied.
        fail_on_build_error: Raise what TensorRT raises. By default what it can't convert or build
            goes to the partitioners behind, with a warning that names operators and reasons.

    Raises:
        TypeError: ``compile_settings`` are no settings.
        ValueError: One of them is not known, or they exclude each other; or a compile spec is misspelled
            or given twice.
    """

    def __init__(
        self,
        compile_specs: list[CompileSpec] | None = None,
        *,
        compile_settings: Mapping[str, Any] | CompilationSettings | None = None,
        fail_on_build_error: bool = False,
    ) -> None:
        super().__init__()
        self.compile_specs = list(compile_specs or ())
        check_compile_specs("TensorRTPartitioner", self.compile_specs, _KNOWN)
        self.delegation_spec = DelegationSpec(
            TensorRTBackend.__name__, self.compile_specs
        )
        self._settings: dict[str, Any] | None = None
        self._fail_on_build_error = fail_on_build_error
        if compile_settings is not None:
            from torch_tensorrt.executorch._compiling import settings_of

            self._settings = settings_of(compile_settings, self.compile_specs)

    def transform_for_pre_decomposition(
        self, exported_program: ExportedProgram
    ) -> ExportedProgram:
        """Return the program compiled, if there are ``compile_settings``.

        ``to_edge_transform_and_lower`` calls it, of ExecuTorch 1.5 by itself.

        Raises:
            Exception: TensorRT can't build it, with ``fail_on_build_error``.
        """
        if self._settings is None:
            return exported_program
        from torch_tensorrt.executorch._compiling import compiled

        return compiled(
            exported_program,
            self._settings,
            compile_specs=self.compile_specs,
            fail_on_build_error=self._fail_on_build_error,
            owner=id(self),
        )

    def partition(self, exported_program: ExportedProgram) -> PartitionResult:
        """Tag the partitions of ``exported_program``, an edge program or a plain one.

        Raises:
            RuntimeError: It was to be compiled, and is past that.
        """
        if self._settings is not None and not is_compiled(exported_program):
            raise RuntimeError(
                "TensorRTPartitioner(compile_settings=...) compiles programs before they are "
                "edge programs: pass it to to_edge_transform_and_lower, or compile with "
                "torch_tensorrt.compile and leave compile_settings out"
            )
        partition_tags: dict[str, DelegationSpec] = {}
        for node in _get_engine_nodes_in(exported_program.graph_module.graph.nodes):
            if note_of(node, OWNER) not in (None, id(self)):
                continue
            tag = f"tensorrt_{len(partition_tags)}"
            node.meta[RETURNS_ALL_OUTPUTS] = True  # the runtime fills each of them
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
        ahead = GPU_COMPILE_SPEC_KEY, MODULES_COMPILE_SPEC_KEY
        specs = [spec for spec in self.compile_specs if spec.key not in ahead]
        if all(spec.key != _TARGET_DEVICE_COMPILE_SPEC_KEY for spec in specs):
            device = f"cuda:{_device_index(program, node, tag)}".encode()
            specs.append(CompileSpec(_TARGET_DEVICE_COMPILE_SPEC_KEY, device))
        for key, size_of in _PROFILE:
            if shapes := _profile_shapes(program, node, size_of):
                text = json.dumps(shapes, separators=(",", ":")).encode()
                specs.append(CompileSpec(key, text))
        if specs == self.compile_specs:
            return self.delegation_spec
        return DelegationSpec(TensorRTBackend.__name__, specs)


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
        record = _get_engine_info_for_node(program, node, metadata_only=True)
        return _parse_device_id(text(record, Slot.DEVICE))
    except Exception as error:  # whatever it is, an export must not fail over a label
        logger.warning(
            "%s (%s): labelled cuda:0, since its device can't be read: %s. If it is another, say "
            'so: compile_specs=[CompileSpec("%s", b"cuda:<index>")]',
            tag,
            node.name,
            error,
            _TARGET_DEVICE_COMPILE_SPEC_KEY,
        )
        return 0


def _min_size(size: torch.SymInt) -> int:
    from torch_tensorrt.dynamo.utils import extract_var_range_info

    # A symbol is 2 at least while it is traced, and may be 1 all the same.
    expression, environment = size.node.expr, size.node.shape_env
    assert environment is not None
    ranges = environment.var_to_range
    ones = {
        symbol: 1 for symbol in expression.free_symbols if ranges[symbol].lower <= 2
    }
    at_one = expression.subs(ones)
    smallest = int(extract_var_range_info(size)["min"] or 1)
    return min(smallest, int(at_one)) if at_one.is_number else smallest


def _opt_size(size: torch.SymInt) -> int:
    """Raises ``KeyError`` for a size that depends on data: its engine has upstream's default."""
    from torch_tensorrt.dynamo.utils import extract_var_range_info

    opt = extract_var_range_info(size)["opt"]
    assert opt is not None
    return int(opt)


_PROFILE: tuple[tuple[str, Callable[[torch.SymInt], int]], ...] = (
    (MIN_SHAPES_COMPILE_SPEC_KEY, _min_size),
    (OPT_SHAPES_COMPILE_SPEC_KEY, _opt_size),
)


def _profile_shapes(
    program: ExportedProgram, node: Node, size_of: Callable[[torch.SymInt], int]
) -> dict[str, list[int]]:
    """Shapes of the profile of an engine's dynamic inputs, by name: as it was built by upstream."""
    shapes = [argument.meta["val"].shape for argument in node.args[0]]  # type: ignore[union-attr]
    if not any(isinstance(size, torch.SymInt) for shape in shapes for size in shape):
        return {}
    try:
        record = _get_engine_info_for_node(program, node, metadata_only=True)
        return {
            name: [size_of(s) if isinstance(s, torch.SymInt) else s for s in shape]
            for name, shape in zip(names(record, Slot.INPUT_NAMES), shapes, strict=True)
            if any(isinstance(size, torch.SymInt) for size in shape)
        }
    except Exception as error:  # an export must not fail over it
        logger.debug("%s: its profile can't be told: %s", node.name, error)
        return {}


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
