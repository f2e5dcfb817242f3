"""Report where each operator went when a program was lowered, before there is a file."""

from __future__ import annotations

import functools
import json
import operator
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from mmap import ACCESS_READ, mmap
from typing import Any

import torch
from executorch.exir import EdgeProgramManager
from executorch.exir._serialize._named_data_store import NamedDataStoreOutput
from executorch.exir.delegate import executorch_call_delegate
from executorch.exir.lowered_backend_module import LoweredBackendModule
from executorch.exir.operator.convert import to_out_variant
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch.export import ExportedProgram
from torch.fx import GraphModule, Node

from torchtrt_executorch.inspection.formatting import payload as payload_in_words
from torchtrt_executorch.inspection.formatting import short
from torchtrt_executorch.inspection.model.facts import HOST, Delegate
from torchtrt_executorch.inspection.model.known_defects import known_defects
from torchtrt_executorch.inspection.model.payloads import delegate_facts
from torchtrt_executorch.inspection.suggestions import suggestions
from torchtrt_executorch.payloads.engine_blob import deserialize_engine
from torchtrt_executorch.payloads.provenance import operators_of
from torchtrt_executorch.runtime.operators.kernels import has_executorch_kernel
from torchtrt_executorch.runtime.plans.plan import Payload
from torchtrt_executorch.runtime.reading.files import NamedData

#: The modules that know why partitioners left an operator, where they were asked, and the name of the key.
_NOTES = {
    "torch_tensorrt.dynamo.fallback.metadata_keys": "WHY_IN_PYTORCH",
    "executorch.backends.cuda.support.unsupported": "WHY_NOT_DELEGATED",
    "executorch.backends.xnnpack.partition._support": "WHY_NOT_IN_XNNPACK",
}


@dataclass(frozen=True)
class Operators:
    """Calls of one operator in one place.

    Attributes:
        name: ``aten.relu.default``. ATen's in TensorRT's engines, which are built before the
            program is lowered, edge operators elsewhere.
        backend: The backend that runs them, ``"host"`` for ExecuTorch's kernels.
        device: Where.
        count: How many.
        reason: Why partitioners haven't it, where that was noted; on the host why nobody has it. An operator of the
            model that these are parts of is named: it was refused whole ("of"), or they were ("in").
        suggestion: On the host, what to change in the export, where that is known.
    """

    name: str
    backend: str
    device: str
    count: int
    reason: str = ""
    suggestion: str = ""


@dataclass(frozen=True)
class MethodReport:
    """One method.

    Attributes:
        delegates: As :class:`~torchtrt_executorch.inspection.model.facts.Delegate` has them, in order.
        operators: Each operator in each place, the host last.
        unknown: Engines whose operators nobody noted: built by another process.
        warnings: Engines of a release that is known to compute wrong values for them, a sentence each.
    """

    name: str
    delegates: Sequence[Delegate]
    operators: Sequence[Operators]
    unknown: int = 0
    warnings: Sequence[str] = ()

    def on_host(self) -> list[Operators]:
        """Return what stayed on the host, with the reasons."""
        return [entry for entry in self.operators if entry.backend == HOST]


@dataclass(frozen=True)
class Report:
    """Where each operator of a lowered program runs; printed, it is tables."""

    methods: Mapping[str, MethodReport]

    def as_data(self) -> dict[str, Any]:
        """Return it as dictionaries, lists, strings and numbers."""
        return {"methods": [asdict(method) for method in self.methods.values()]}

    def as_json(self) -> str:
        return json.dumps(self.as_data())

    def __rich__(self) -> Table:
        table = Table.grid()
        for method in self.methods.values():
            table.add_row(_table(method))
            names_of: dict[str, dict[str, None]] = {}
            for entry in method.on_host():
                if entry.suggestion:
                    names_of.setdefault(entry.suggestion, {})[entry.name] = None
            for suggestion, names in names_of.items():
                table.add_row(Text(f"- {', '.join(names)}: {suggestion}"))
            for warning in method.warnings:
                table.add_row(Text(f"- {warning}", "red"))
        return table

    def __str__(self) -> str:
        # Names stay whole: whoever looks for one finds it.
        rows = [
            (len(_where(entry)), len(entry.name))
            for method in self.methods.values()
            for entry in method.operators
        ]
        columns = [max(lengths) for lengths in zip(*rows, strict=True)]
        width = max(80, sum(columns) + _REST)
        console = Console(width=width, no_color=True, force_terminal=False)
        with console.capture() as captured:
            console.print(self)
        return captured.get()


def report(edge: EdgeProgramManager) -> Report:
    """Return what went where in a program that was lowered.

    Args:
        edge: The result of ``torch_tensorrt.executorch.export`` or ``to_edge_transform_and_lower``;
            it is left as it is. ``to_executorch()`` rewrites it: what it inserts, copies between devices and of
            state, is no operator of the model's and isn't counted, and views that it elides are gone.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(edge, EdgeProgramManager):
        raise TypeError(
            f"report() takes an EdgeProgramManager, as torch_tensorrt.executorch.export and "
            f"to_edge_transform_and_lower return it, not {type(edge).__name__}; of a .pte, "
            "torchtrt-executorch inspect tells"
        )
    programs = {name: edge.exported_program(name) for name in edge.methods}
    return Report({name: _method(name, program) for name, program in programs.items()})


def _method(name: str, program: ExportedProgram) -> MethodReport:
    counts: Counter[tuple[str, str, str, str]] = Counter()
    unable: dict[tuple[str, str], set[str]] = {}
    delegates: list[Delegate] = []
    unknown = 0
    warnings: list[str] = []
    for node, module in _nodes(program.graph_module):
        if node.target is not executorch_call_delegate:
            name_and_reason = _name(node), _reason(node)
            counts[name_and_reason[0], HOST, HOST, name_and_reason[1]] += 1
            unable.setdefault(name_and_reason, _unable(node))
            continue
        delegate_node = node.args[0]
        assert isinstance(delegate_node, Node)
        lowered = getattr(module, str(delegate_node.target))
        known = delegate_facts(_payload(lowered), len(delegates))
        delegates.append(known)
        inside = _inside(lowered, known)
        if inside is None:
            unknown += 1
        elif known.owner == "tensorrt":
            built_by = known.payload
            warnings += known_defects(built_by, {name for name, _ in inside})
        for (operator_name, why), count in (inside or {}).items():
            counts[operator_name, known.backend, known.device, why] += count
    there = {delegate.backend for delegate in delegates} | _asked(
        reason for *_, reason in counts
    )
    operators = [
        Operators(
            *(name, backend, device, count, reason),
            _cure(reason, there | unable[name, reason]) if backend == HOST else "",
        )
        for (name, backend, device, reason), count in counts.items()
    ]
    operators.sort(
        key=lambda entry: (
            entry.backend == HOST,
            entry.backend,
            -entry.count,
        )
    )
    return MethodReport(name, delegates, operators, unknown, warnings)


def _asked(reasons: Iterable[str]) -> set[str]:
    """Return the backends of which a partitioner was asked, and said why it left an operator."""
    parts = [part for reason in reasons for part in reason.split("; ")]
    return {part.partition(": ")[0] for part in parts if "Backend: " in part}


def _cure(reason: str, without: set[str]) -> str:
    return "; ".join(dict.fromkeys(text for _, text in suggestions(reason, without)))


def _unable(node: Node) -> set[str]:
    """Return the backends that don't support an operator: XNNPACK without a configuration, CUDA for data-dependent sizes."""
    namespace, _, name = _name(node).partition(".")
    known = namespace not in ("aten", "dim_order_ops") or name in _xnnpack_operators()
    backends = set() if known else {"XnnpackBackend"}
    return backends | {"CudaBackend"} if _depends_on_data(node) else backends


@functools.cache
def _xnnpack_operators() -> frozenset[str]:
    from executorch.backends.xnnpack.partition.config import ALL_PARTITIONER_CONFIGS

    return frozenset(config.target_name for config in ALL_PARTITIONER_CONFIGS)


def _nodes(module: GraphModule) -> Iterator[tuple[Node, GraphModule]]:
    """Yield the calls of operators and delegates, those in branches with the rest."""
    for part in module.modules():
        if isinstance(part, GraphModule) and not isinstance(part, LoweredBackendModule):
            for node in part.graph.nodes:
                if node.op == "call_function" and _is_operator(node):
                    yield node, part


def _is_operator(node: Node) -> bool:
    """Whether a node computes tensors: it isn't a ``getitem``, or a size."""
    if node.target is operator.getitem:
        return False
    if node.target is executorch_call_delegate:
        return True
    values = node.meta.get("val")
    return (
        isinstance(values, (torch.Tensor, tuple, list))
        and hasattr(node.target, "_schema")
        and not _is_inserted(node)
    )


def _is_inserted(node: Node) -> bool:
    """Whether ``to_executorch()`` has inserted a node: a copy between devices, or of a buffer's new value."""
    schema = node.target._schema  # type: ignore[union-attr]
    written = node.args[0] if node.args else None
    return bool(schema.name.startswith("et_copy::")) or (
        schema.name == "aten::copy_"
        and isinstance(written, Node)
        and written.op == "placeholder"
    )


def _inside(
    lowered: LoweredBackendModule, known: Delegate
) -> Mapping[tuple[str, str], int] | None:
    if known.owner == "tensorrt":
        if known.damaged:
            return None
        plan, _ = deserialize_engine(memoryview(lowered.processed_bytes))
        counts = operators_of(plan)
        return None if counts is None else {(name, ""): n for name, n in counts.items()}
    original, own = lowered.original_module.graph_module, lowered.backend_id
    return Counter((_name(node), _noted(node, own)) for node, _ in _nodes(original))


def _payload(lowered: LoweredBackendModule) -> Payload:
    return Payload(
        backend_id=lowered.backend_id,
        name=lowered.backend_id,
        file_bytes=memoryview(lowered.processed_bytes),
        compile_specs={
            compile_spec.key: compile_spec.value
            for compile_spec in lowered.compile_specs
        },
        named_data=_named_data(lowered.named_data_store_output),
    )


def _named_data(store: NamedDataStoreOutput | None) -> dict[str, NamedData]:
    """Return what a delegate has stored: weights that wait in files are mapped, and never copied."""
    files = [store.pte_data, *store.external_data.values()] if store else []
    return {
        key: NamedData(_view(store.buffers[entry.buffer_index]), key=key)  # type: ignore[union-attr]
        for named in files
        for key, entry in named.items()
    }


def _view(buffer: Any) -> memoryview:
    """Return a buffer's bytes as they are: in memory, a storage's, or those of a file, mapped."""
    if not hasattr(buffer, "to_bytes"):
        return memoryview(buffer)
    if hasattr(buffer, "view"):
        return memoryview(buffer.view())
    with open(buffer._path, "rb") as file:
        empty = not len(buffer)
        return memoryview(b"" if empty else mmap(file.fileno(), 0, access=ACCESS_READ))


def _operator(node: Node) -> Any:
    """An edge operator is one of PyTorch's with a name of its own; ``to_executorch`` leaves their out variants."""
    wrapped = getattr(node.target, "_op", None)
    overload = wrapped if isinstance(wrapped, torch._ops.OpOverload) else node.target
    return (
        _functional(overload)
        if isinstance(overload, torch._ops.OpOverload)
        else overload
    )


@functools.cache
def _functional(operator: torch._ops.OpOverload) -> torch._ops.OpOverload:
    """Return the operator that ``operator`` is the out variant of; itself if it is none."""
    if any(argument.is_out for argument in operator._schema.arguments):
        packet = operator.overloadpacket
        # Not by __getattr__, which makes each anew: compilers' tables only have the first.
        for overload in (getattr(packet, name) for name in packet.overloads()):
            if overload is not operator and _out_variant(overload) is operator:
                return overload
    return operator


def _out_variant(operator: torch._ops.OpOverload) -> torch._ops.OpOverload | None:
    """Return what ``to_executorch()`` makes of an operator; None if it fails at it."""
    try:
        out_variant: torch._ops.OpOverload = to_out_variant(operator)[0]
    except (AssertionError, AttributeError, RuntimeError):
        return None
    return out_variant


def _name(node: Node) -> str:
    return str(_operator(node))


def _reason(node: Node) -> str:
    """Return why a node is on the host, and whether ExecuTorch lacks a kernel for it there."""
    lacks = "" if _has_kernel(node) else "; ExecuTorch has no kernel for it"
    return f"{_why(node)}{lacks}"


def _has_kernel(node: Node) -> bool:
    out = _out_variant(_operator(node))
    if out is None:  # to_executorch() says so
        return True
    name, overload = out._schema.name, out._schema.overload_name
    return has_executorch_kernel(f"{name}.{overload}" if overload else name)


def _why(node: Node) -> str:
    """Return the reason recorded by partitioners, or one derived from the node's shape."""
    if noted := _noted(node):
        return noted
    if _depends_on_data(node):
        return "data-dependent shape"
    return "no partitioner took it"


def _noted(node: Node, backend: str = HOST) -> str:
    """Return why other backends' partitioners left a node; empty if none recorded a reason in this process."""
    custom = node.meta.get("custom") or {}
    keys = [
        getattr(sys.modules[module], name)
        for module, name in _NOTES.items()
        if module in sys.modules
    ]
    reasons = []
    for key in keys:
        if (why := str(custom.get(key) or "")) and not why.startswith(f"{backend}: "):
            reasons.append(f"{why}{_of(node, custom.get(f'{key}_of', ''))}")
    return "; ".join(reasons)


#: Its name; what quantization has inserted was made from a module.
_OPERATOR = re.compile(r"\w+\.\w+\.\w+")


def _of(node: Node, whole: str) -> str:
    """Return which operator of the model was rejected, where ``node`` is part of its decomposition."""
    own, called = _name(node), _origin(node)
    if whole and not _alike(whole, own):
        return f" (of {whole})"
    known = _OPERATOR.fullmatch(called) and not _alike(called, own)
    return f" (in {called})" if known else ""


def _origin(node: Node) -> str:
    """Return the operator of the exported program that a node was made from."""
    sources, name = node.meta.get("from_node"), _name(node)
    while sources:
        sources, name = sources[0].from_node, str(sources[0].target)
    return name


def _alike(one: str, other: str) -> bool:
    """Whether two names are one operator's: ``aten.view.default`` is ``aten.view_copy.default`` of the edge dialect."""
    return _base(one) == _base(other)


def _base(name: str) -> str:
    base = name.split(".")[1] if "." in name else name
    return base.strip("_").removesuffix("_copy").removesuffix("_dim_order")


def _depends_on_data(node: Node) -> bool:
    from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols

    values = (node, *node.all_input_nodes)
    return any(
        free_unbacked_symbols(value.meta["val"])
        for value in values
        if isinstance(value.meta.get("val"), torch.Tensor)
    )


#: Characters of a line beside where an operator is and its name.
_REST = 62


def _where(entry: Operators) -> str:
    return entry.backend if entry.device == HOST else f"{entry.backend} {entry.device}"


def _table(method: MethodReport) -> Table:
    table = Table(title=Text(short(method.name)), title_justify="left")
    for heading in ("where", "operator"):
        table.add_column(heading, no_wrap=True)
    table.add_column("why", overflow="fold")
    table.add_column("calls", justify="right", no_wrap=True)
    for entry in method.operators:
        cells = _where(entry), entry.name, entry.reason
        table.add_row(*map(Text, cells), str(entry.count))
    for delegate in method.delegates:
        cells = (
            delegate.backend,
            f"delegate {delegate.index}",
            payload_in_words(delegate),
        )
        table.add_row(*map(Text, cells), "")
    if method.unknown:
        table.add_row(
            "TensorRTBackend",
            "",
            f"{method.unknown} engines that another process built",
            "",
        )
    return table
