"""Errors and warnings of ``to_executorch`` that name operator, module and method.

ExecuTorch fails late on what it can't emit: an operator without a kernel, a loop, a size without a bound.
"""

from __future__ import annotations

import functools
import logging
from importlib import import_module
from typing import Any, Callable, Iterable

import torch
from executorch.exir.error import InternalError
from executorch.exir.program.operators.calls import calls, module_of, operator_of
from executorch.exir.program.operators.host_kernels import host_kernels, kernel_of
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils import _pytree as pytree

#: Namespace of the operators of ``executorch.extension.llm.cache`` (pytorch/executorch#21383).
_OFF_GRAPH_CACHE = "kvcache::"

#: Keys of ``node.meta["custom"]`` where partitioners record why they left a node.
_WHY = "executorch.why_not_delegated"
_REASONS = (
    "torch_tensorrt.why_in_pytorch",
    _WHY,
    "executorch.why_not_in_xnnpack",
)

logger = logging.getLogger(__name__)


def names_operators(to_executorch: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap ``EdgeProgramManager.to_executorch`` so that its errors name the operator or method they are about."""

    @functools.wraps(to_executorch)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        _register_quantized(self.exported_program(name) for name in self.methods)
        try:
            emitted = to_executorch(self, *args, **kwargs)
            _warn_of_missing_kernels(self, emitted)
            return emitted
        except Exception as error:
            programs = [(name, self.exported_program(name)) for name in self.methods]
            if said := _words(programs, error):
                raise RuntimeError(said) from error
            raise

    return wrapper


def _warn_of_missing_kernels(edge: Any, emitted: Any) -> None:
    """Warn of operators outside of delegates that ExecuTorch's own runtime has no kernel for."""
    known = host_kernels()
    for plan in emitted.executorch_program.execution_plan if known else ():
        names = (f"{op.name}.{op.overload}".rstrip(".") for op in plan.operators)
        missing = {name for name in names if name.startswith("aten::")} - known
        if not missing:
            continue
        for node in calls(edge.exported_program(plan.name).graph_module):
            if (name := kernel_of(operator_of(node))) in missing:
                missing.discard(name)
                custom = node.meta.get("custom") or {}
                reasons = (str(custom[key]) for key in _REASONS if custom.get(key))
                logger.warning(
                    "%s: %s (node %s) of %s is in no delegate%s, and ExecuTorch's runtime has no kernel for it: register one for %s where "
                    "the program runs, or give the method a partitioner that takes it, as CudaPartitioner does most",
                    *(plan.name, operator_of(node), node, module_of(node)),
                    "".join(f" ({part})" for part in ["; ".join(reasons)] if part),
                    name,
                )


def _register_quantized(programs: Iterable[ExportedProgram]) -> None:
    """Register the out variants of ``quantized_decomposed``, where partitioners have left such an operator.

    ExecuTorch has them, in a library of its own that nobody else imports.
    """
    for program in programs:
        for node in calls(program.graph_module):
            if str(operator_of(node)).startswith("quantized_decomposed."):
                import_module("executorch.kernels.quantized")
                return


def _words(programs: list[tuple[str, ExportedProgram]], error: Exception) -> str:
    """Return the error in the place of upstream's; empty if upstream's is to stay."""
    message = str(error)
    if "upper bound" in message:
        return _unbounded_size(programs)
    if not isinstance(error, (RuntimeError, InternalError)):
        return ""
    if message.startswith("Missing out variants"):
        return _missing_kernels(programs, message)
    if "Unsupported control flow operator" in message:
        return _unsupported_loop(programs)
    return ""


def _missing_kernels(
    programs: Iterable[tuple[str, ExportedProgram]], message: str
) -> str:
    """Return the error for operators that ExecuTorch has no kernel for, and no partitioner has taken; or nothing.

    Args:
        programs: Methods in edge dialect, by name.
        message: Upstream's, which names operators: ``aten::bincount``.
    """
    missing: dict[tuple[str, str, str], None] = {}
    for method, program in programs:
        for node in calls(program.graph_module):
            name = str(operator_of(node)).replace(".", "::", 1).rpartition(".")[0]
            if f"'{name}'" in message:
                missing[name, module_of(node), method] = None
    if not missing:
        return ""
    named = "; ".join(
        f"{name} of {where} in {method}" for name, where, method in missing
    )
    advice = "give the method one that does, or write or quantize the module otherwise"
    if any(name.startswith(_OFF_GRAPH_CACHE) for name, _, _ in missing):
        advice = (
            "its KV cache is off the graph, where no delegate finds it; register the cache as a buffer "
            "of the module instead, as transformers' StaticCache does"
        )
    return (
        f"Missing out variants: ExecuTorch has no kernel for {named}, and no partitioner has taken it: "
        f"{advice}"
    )


def _unsupported_loop(programs: Iterable[tuple[str, ExportedProgram]]) -> str:
    """Return the error for a ``while_loop`` that no partitioner has taken; empty if there is none.

    Args:
        programs: Methods in edge dialect, by name.
    """
    for method, program in programs:
        for node in calls(program.graph_module):
            if node.target is torch.ops.higher_order.while_loop:
                why = (node.meta.get("custom") or {}).get(_WHY, "no partitioner has it")
                return (
                    f"{method}: ExecuTorch can't emit while_loop (node {node} of {module_of(node)}), and {why}: "
                    "give the method a partitioner that takes the whole loop, as CudaPartitioner; unroll it with "
                    "executorch.exir.passes.unroll_loops, if its number of turns is fixed; or write it with "
                    "torch.cond, map or scan"
                )
    return ""


def _unbounded_size(programs: Iterable[tuple[str, ExportedProgram]]) -> str:
    """Return the error for an operator whose result has no largest size; empty if there is none.

    Args:
        programs: Methods in edge dialect, by name.
    """
    for method, program in programs:
        if node := _first_unbounded(program):
            return (
                f"{method}: ExecuTorch plans memory for the largest result, and that of {node} "
                f"({node.target}) has no bound: say it in the model, after the operator, with "
                "torch._check(result.shape[0] <= n)"
            )
    return ""


def _first_unbounded(program: ExportedProgram) -> Node | None:
    """Return the first node with a size that depends on data, and that nothing bounds from above."""
    return next((n for n in program.graph.nodes if _is_unbounded(n)), None)


def _is_unbounded(node: Node) -> bool:
    values = pytree.tree_leaves(node.meta.get("val"))
    sizes: list[Any] = [
        size
        for value in values
        if isinstance(value, torch.Tensor)
        for size in value.shape
        if free_unbacked_symbols(size)
    ]
    return not all(
        size.node.shape_env.bound_sympy(size.node.expr).upper.is_Integer
        for size in sizes
    )
