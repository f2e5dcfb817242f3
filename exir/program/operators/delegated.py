"""Exempt operators that partitioners or host kernels support from the Core ATen check, and locate those that fail it.

Only operators outside of delegates need a host kernel. Those that are still there after lowering are checked again.

Upstream: ``executorch.exir.program._program``, ``executorch.exir.verification.verifier``.
"""

from __future__ import annotations

import re
from typing import Any, Callable, Iterable, Mapping

import torch
from executorch.exir.backend.partitioner import Partitioner
from executorch.exir.capture._config import EdgeCompileConfig
from executorch.exir.passes._complex_arithmetic import why_complex
from executorch.exir.passes.constant_prop_pass import get_constant_placeholder_dict
from executorch.exir.program.operators.calls import (
    calls,
    module_of,
    operator_of,
    replace_by_constant,
    replace_reads,
)
from executorch.exir.program.operators.host_kernels import has_kernel
from executorch.exir.program.operators.preserved import AllPartitioners
from executorch.exir.verification.verifier import EXIRATenDialectVerifier
from torch._export.verifier import SpecViolationError
from torch._ops import OpOverload
from torch._subclasses import FakeTensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.node import map_arg

#: A frame of a node's ``stack_trace``: file, line and code. What PyTorch generated is in no file.
_FRAME = re.compile(r'File "([^"<]*)", line (\d+)[^\n]*(?:\n\s*([^\n]+))?')


def delegated_operators(
    program: ExportedProgram, partitioners: Iterable[Partitioner]
) -> list[OpOverload]:
    """Return the operators outside of Core ATen that a partitioner or a host kernel supports at every call in ``program``.

    Args:
        program: As it is going to be partitioned: decomposed, in ATen.
        partitioners: Of the method. Each names what it supports in ``ops_to_not_decompose``.
    """
    nodes = [node for node in calls(program.graph_module) if _needs_exemption(node)]
    nodes_of_delegates = [node for node in nodes if not has_kernel(operator_of(node))]
    unsupported = _unsupported(program, nodes_of_delegates, partitioners)
    violations = {node.target for node in unsupported}
    return [*{operator_of(n): None for n in nodes if n.target not in violations}]


def without_constant_operators(
    program: ExportedProgram,
    partitioners: Iterable[Partitioner],
    config: EdgeCompileConfig | None,
) -> ExportedProgram:
    """Fold constant expressions with operators that neither a partitioner nor a host kernel supports; remove copies of constants.

    A position embedding that is resampled to the size of the input is one: ``_upsample_bicubic2d_aa`` of a
    parameter. The parameter is no longer part of the program then, unless it is used otherwise.

    Args:
        program: As for :func:`delegated_operators`. It is changed.
        partitioners: Of the method.
        config: The caller's own, with the exceptions that are the caller's.
    """
    _read_constants_directly(program)
    graph, violation_of = program.graph, _violations_by_upstream(config)
    nodes = [
        n for n in graph.nodes if _needs_exemption(n) and violation_of(operator_of(n))
    ]
    if not nodes:
        return program
    determined = _determined_by_constants(program)
    nodes = [node for node in nodes if node in determined]
    values = _values(determined, _unsupported(program, nodes, partitioners))
    if values:
        _replace(program, values)
    return program


def with_constant_weights(program: ExportedProgram) -> ExportedProgram:
    """Fold convolution weights that are computed from constants: XNNPACK only supports constant weights.

    Args:
        program: Decomposed, in ATen. It is changed.
    """
    determined = _determined_by_constants(program)
    target = torch.ops.aten.convolution.default
    convolutions = program.graph.find_nodes(op="call_function", target=target)
    weights = dict.fromkeys(node.args[1] for node in convolutions)
    made = [node for node in weights if determined.get(node, node) is None]
    if made:
        _replace(program, _values(determined, made))
    return program


_COPIES = (
    torch.ops.aten.clone.default,
    torch.ops.aten.lift_fresh_copy.default,
    torch.ops.aten.detach.default,
)


def _read_constants_directly(program: ExportedProgram) -> None:
    """Replace a constant's copy of the same layout by the constant: ``torch.tensor(0.0)`` in a model makes one per call.

    Nothing writes to either: the program is functional. What it returns is still copied.
    """
    constants = get_constant_placeholder_dict(program)
    for target in _COPIES:
        for node in program.graph.find_nodes(op="call_function", target=target):
            read = node.args[0]
            if read in constants and _strides(read) == _strides(node):
                replace_reads(node, read)
                if not node.users:
                    program.graph.erase_node(node)
    program.graph_module.recompile()


def _strides(node: Node) -> tuple[Any, ...]:
    return tuple(node.meta["val"].stride())


def locates_violations(
    generate: Callable[..., ExportedProgram],
    method: str,
    partitioners: Iterable[Partitioner],
) -> Callable[..., ExportedProgram]:
    """Wrap ``_generate_edge_program`` so that its errors say where a method calls an operator outside of Core ATen.

    The error is still a ``SpecViolationError`` in upstream's words; they are followed by the node, its
    module, its line, and why partitioners that say so don't support it.
    """

    def located(config: Any, program: ExportedProgram, **options: Any) -> Any:
        try:
            return generate(config, program, **options)
        except SpecViolationError as error:
            nodes = [n for n in calls(program.graph_module) if _is_named(n, error)]
            why: dict[Node, str] = {}
            for partitioner in partitioners if nodes else ():
                if isinstance(partitioner, AllPartitioners):
                    why |= partitioner.unsupported(program)
            complex_values = why_complex(calls(program.graph_module))
            for node in sorted(nodes, key=lambda node: node not in why):
                reason = why_complex([node]) or why.get(node, "")
                raise _violation(error, node, method, reason) from error
            if complex_values:
                raise SpecViolationError(
                    f"{str(error).strip()}\n\n{complex_values}"
                ) from error
            raise

    return located


def check_undelegated_operators(
    method: str, program: ExportedProgram, config: EdgeCompileConfig | None
) -> None:
    """Check that no operator that :func:`delegated_operators` exempted is left outside of delegates.

    Args:
        method: Name of the method.
        program: Its lowered program.
        config: The caller's own, with the exceptions that are the caller's.

    Raises:
        SpecViolationError: There is one.
    """
    violation_of = _violations_by_upstream(config)
    decomposed = torch.export.default_decompositions()
    for node in calls(program.graph_module):
        operator = operator_of(node)
        if operator in decomposed or has_kernel(operator):
            continue  # it was preserved: see check_preserved_operators_lowered
        if error := violation_of(operator):
            raise _violation(error, node, method, "") from error


def _violations_by_upstream(
    config: EdgeCompileConfig | None,
) -> Callable[[Any], SpecViolationError | None]:
    """Return a function that gives the error of upstream's check for an operator; None if it passes, as all outside ATen do."""
    check = EXIRATenDialectVerifier(edge_compile_config=config).check_valid_op

    def violation_of(operator: Any) -> SpecViolationError | None:
        try:
            check(operator)
        except SpecViolationError as error:
            return error
        return None

    return violation_of


def _unsupported(
    program: ExportedProgram, nodes: list[Node], partitioners: Iterable[Partitioner]
) -> list[Node]:
    """Return those of ``nodes`` that no partitioner supports."""
    for partitioner in partitioners:
        if nodes and isinstance(partitioner, AllPartitioners):
            supported = {*partitioner.supported(program, nodes)}
            nodes = [node for node in nodes if node not in supported]
    return nodes


def _determined_by_constants(program: ExportedProgram) -> dict[Node, Any]:
    """Return the nodes of the outermost graph that only depend on constants: placeholders with their tensors, calls with None."""
    determined: dict[Node, Any] = {
        node: tensor
        for node, tensor in get_constant_placeholder_dict(program).items()
        if not isinstance(tensor, FakeTensor)
    }
    for node in program.graph.nodes:
        runs = callable(node.target) and not node.is_impure()
        if runs and all(
            input_node in determined for input_node in node.all_input_nodes
        ):
            determined[node] = None
    return determined


def _values(
    determined: dict[Node, Any], nodes: Iterable[Node]
) -> dict[Node, torch.Tensor]:
    """Compute the tensors of ``nodes`` and their inputs, and add them to ``determined``."""
    results = [*nodes]
    wanted, pending = {*results}, [*results]
    while pending:
        inputs = {*pending.pop().all_input_nodes} - wanted
        wanted |= inputs
        pending += inputs
    with torch.no_grad():
        for node in determined:
            if node in wanted and callable(node.target):
                args, kwargs = map_arg((node.args, node.kwargs), determined.get)
                determined[node] = node.target(*args, **kwargs)
    values = ((node, determined[node]) for node in results)
    return {node: value for node, value in values if isinstance(value, torch.Tensor)}


def _replace(program: ExportedProgram, values: Mapping[Node, torch.Tensor]) -> None:
    """Replace nodes by constants of ``values``, and delete the constants that nothing reads any more."""
    # Imported here because it imports this module's package.
    from executorch.backends.transforms.utils import delete_constant_placeholder

    constants = [*get_constant_placeholder_dict(program)]
    for node, value in values.items():
        replace_by_constant(program, node, value)
    program.graph.eliminate_dead_code()
    for node in constants:
        if not node.users:
            delete_constant_placeholder(program, node)
    program.graph_module.recompile()


def _needs_exemption(node: Node) -> bool:
    """Whether an operator is outside of Core ATen; views become copies, which pass the check."""
    target = node.target
    return (
        isinstance(target, OpOverload)
        and torch.Tag.core not in target.tags
        and not target.is_view
    )


def _is_named(node: Node, error: SpecViolationError) -> bool:
    target = node.target
    return (
        isinstance(target, OpOverload)
        and f"Operator {target.__module__}.{target.__name__} is not" in f"{error}"
    )


def _violation(
    error: SpecViolationError, node: Node, method: str, why: str
) -> SpecViolationError:
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    line = ", {}:{} ({})".format(*frames[-1]) if frames else ""
    return SpecViolationError(
        f"{str(error).strip()}\n\n{operator_of(node)} (node {node}) is called by {module_of(node)} of "
        f"{method}{line}, and no partitioner of {method} supports it{f' ({why})' if why else ''}: give "
        f"{method} one that does, or write the module with other operators"
    )
