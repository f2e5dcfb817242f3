"""Operator support check: dry-run ``CudaBackend.preprocess`` up to code generation.

What AOTInductor compiles into what ExecuTorch's CUDA runtime can run depends on operator, types,
arguments, and the releases of both. So operators are handed to ``CudaBackend.preprocess``, which runs its
passes, has Inductor lower them and write its code, and knows which kernels its runtime has; it is stopped
before any kernel or library is compiled, or timed. One dry run takes a tenth of a second and each operator
more some hundredths. Operators that are alike in all that decides are tried once; which of them are decided
by sizes, too, ``key_of`` says.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from executorch.backends.aoti._counted_loops import COUNTED, why_not_counted
from executorch.backends.cuda._mul_sum_decompositions import limited_unrolling
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.support.check_keys import key_of
from executorch.backends.cuda.support.check_program import program_of, result_types
from executorch.backends.cuda.support.operands import (
    branches_of,
    graphs_of,
    is_traced,
    made_of,
    sources_of,
)
from executorch.backends.cuda.tuning.tile_selection import Stopped, caused_by
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.program.operators.calls import operator_of
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

#: Control flow that is compiled with its branches.
_WHOLE = (
    torch.ops.higher_order.cond,
    torch.ops.higher_order.while_loop,
    *COUNTED,
)

_Check = Callable[[], str | None]


class SupportCheck:
    """Operator support check of the backend, run once for operators of equal keys.

    Attributes:
        compile_specs: Compile specs that the operators would be lowered with.
        get_or_check: Return the result of its third argument, from a cache if there is one: its key are the first
            two, the compile specs and what else decides the result. A result of None must not be cached.
            By default nothing is cached.
    """

    get_or_check: Callable[
        [Sequence[CompileSpec], Sequence[str], _Check], str | None
    ] = staticmethod(lambda specs, decides, check: check())

    def __init__(self, compile_specs: Sequence[CompileSpec]) -> None:
        self.compile_specs = list(compile_specs)
        self._found: dict[str, str] = {}

    def unsupported(
        self,
        nodes: Sequence[Node],
        scalar_constants: Mapping[Node, Any],
        constants: Collection[Node] = (),
    ) -> dict[Node, str]:
        """Return those of ``nodes`` that can't be compiled, each with the reason.

        Args:
            nodes: Calls of operators with fake values as their ``val``, on whatever device. Those that
                have none, in a graph that nothing traced, aren't tried.
            scalar_constants: The values of constants that have no dimension, by their placeholders. Inductor
                compiles an operator by what they are.
            constants: Placeholders of tensors that are never written to. What is made of a quantized
                weight is compiled together with what reads it, so that is tried as well.
        """
        keys = {
            node: key_of(node, scalar_constants) for node in nodes if is_traced(node)
        }
        new = {key: node for node, key in keys.items() if key not in self._found}
        whole = {key: node for key, node in new.items() if branches_of(node)}
        self._try(
            [entry for entry in new.items() if entry[0] not in whole], scalar_constants
        )
        reasons = {
            node: self._found[key] for node, key in keys.items() if key not in whole
        }
        for key, node in whole.items():
            reason = _why_not_whole(node, reasons)
            if reason:
                self._found[key] = reason
            else:
                self._try([(key, node)], scalar_constants)
        reasons = {node: self._found[key] for node, key in keys.items()}
        supported = [node for node in keys if not reasons[node]]
        reasons.update(self._with_weights(supported, scalar_constants, constants))
        return {node: reason for node, reason in reasons.items() if reason}

    def _with_weights(
        self,
        nodes: Sequence[Node],
        scalar_constants: Mapping[Node, Any],
        constants: Collection[Node],
    ) -> dict[Node, str]:
        """Return those of ``nodes`` that can't be compiled with the quantized weight that they read.

        Args:
            nodes: Operators that can be compiled by themselves.
        """
        made, quantized = made_of(nodes, constants)
        readers = [n for n in nodes if not quantized.isdisjoint(n.all_input_nodes)]
        keys = {node: key_of(node, scalar_constants, made) for node in readers}
        new = {key: node for node, key in keys.items() if key not in self._found}
        self._try([*new.items()], scalar_constants, made)
        unsupported = {
            n: self._found[key] for n, key in keys.items() if self._found[key]
        }
        # What reads the result of one that is left to others is given it as it was tried at first.
        return {
            node: reason
            for node, reason in unsupported.items()
            if unsupported.keys().isdisjoint(sources_of(node, made) - {node})
        }

    def _try(
        self,
        nodes: list[tuple[str, Node]],
        scalar_constants: Mapping[Node, Any],
        made: Collection[Node] = (),
    ) -> None:
        """Try all of ``nodes`` as one program, and halves of them to find what failed."""
        if not nodes:
            return
        specs, operators = self.compile_specs, [node for _, node in nodes]
        reason = self.get_or_check(
            specs,
            [key for key, _ in nodes],
            lambda: why_not(operators, specs, scalar_constants, made),
        )
        reason = reason or ""
        if not reason or len(nodes) == 1:
            self._found.update(dict.fromkeys((key for key, _ in nodes), reason))
            return
        middle = len(nodes) // 2
        self._try(nodes[:middle], scalar_constants, made)
        self._try(nodes[middle:], scalar_constants, made)


_LOCK = threading.Lock()


def why_not(
    nodes: Sequence[Node],
    specs: list[CompileSpec],
    scalar_constants: Mapping[Node, Any],
    made: Collection[Node] = (),
) -> str | None:
    """Return why the backend can't compile ``nodes``; empty if it can, None if it can't compile at all."""
    thread = threading.get_ident()
    backend: Any = CudaBackend
    program = program_of(nodes, scalar_constants, made)
    collect, options, decompositions = (
        backend.collect_unsupported_fallback_kernels,
        backend.get_aoti_compile_options,
        backend.get_decomposition_table,
    )
    begun = False
    missing_kernels: set[str] = set()

    def read_and_note(cls: Any, specs: list[CompileSpec]) -> Any:
        nonlocal begun
        compile_options = options(specs)
        backend.get_custom_passes(specs)  # which has options of its own
        begun = begun or threading.get_ident() == thread
        return compile_options

    @contextlib.contextmanager
    def collect_and_stop(cls: Any, missing: set[str]) -> Iterator[None]:
        nonlocal missing_kernels
        with collect(missing), contextlib.ExitStack() as stack:
            if threading.get_ident() == thread:
                missing_kernels = missing
                stack.enter_context(no_compilers())
            yield

    def decompose_what_is_there(cls: Any) -> dict[Any, Any]:
        # Before 1.5 a program is traced once more for a table of which nothing is in it.
        table = decompositions()
        if threading.get_ident() != thread:
            return table
        modules = program.graph_module.modules()
        graphs = [module.graph for module in modules if isinstance(module, GraphModule)]
        called = {operator_of(n) for graph in graphs for n in graph.nodes}
        return {key: value for key, value in table.items() if key in called}

    try:
        with (
            _LOCK,
            mock.patch.multiple(
                backend,
                collect_unsupported_fallback_kernels=classmethod(collect_and_stop),
                get_decomposition_table=classmethod(decompose_what_is_there),
                get_aoti_compile_options=classmethod(read_and_note),
            ),
        ):
            backend.preprocess(program, specs)
    except Exception as error:
        if not begun:
            return None  # nothing of the operators: whoever compiles them is to be told
        stopped = caused_by(error, Stopped)
        _forget(error)
        if stopped is None:
            return _reason_of(error, nodes[0])
        for wanted, dtype in zip(result_types(program), stopped.returned, strict=True):
            if dtype != wanted:
                return f"AOTInductor returns {dtype} for it, not {wanted}"
    if missing_kernels:
        kernels = ", ".join(sorted(missing_kernels))
        return f"ExecuTorch's CUDA runtime has no kernel for it ({kernels})"
    return ""


@contextlib.contextmanager
def no_compilers() -> Iterator[None]:
    """Scope in which this thread's wrappers are written, soon, and no more is done about them."""
    from torch._inductor.codecache import AotCodeCompiler
    from torch._inductor.codegen.cpp_wrapper_gpu import CppWrapperGpu
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    thread = threading.get_ident()
    compile_library, compile_kernels, select = (
        AotCodeCompiler.compile,
        CppWrapperGpu.generate_and_run_autotune_block,
        AlgorithmSelectorCache.__call__,
    )

    def stop(function: Any) -> Any:
        def stopped(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:
                raise Stopped
            return function(*args, **kwargs)

        return stopped

    def select_first(
        self: Any, name: str, choices: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if threading.get_ident() == thread:
            choices = choices[:1]  # of which nothing is timed
        return select(self, name, choices, *args, **kwargs)

    def of_others(record: logging.LogRecord) -> bool:
        """Drop what this thread is warned of, which a dry run is there to find."""
        return record.thread != thread

    with (
        mock.patch.object(AotCodeCompiler, "compile", stop(compile_library)),
        mock.patch.object(
            CppWrapperGpu, "generate_and_run_autotune_block", stop(compile_kernels)
        ),
        mock.patch.object(AlgorithmSelectorCache, "__call__", select_first),
        limited_unrolling(),
    ):
        logger = logging.getLogger("torch._inductor.ir")
        logger.addFilter(of_others)
        try:
            yield
        finally:
            logger.removeFilter(of_others)


#: Dtypes of Inductor's matmul and convolution templates: if all inputs have these, a failure isn't about dtypes.
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


#: Errors of PyTorch with and without CUDA for a tensor on a missing device.
_NO_DEVICE = "Found no NVIDIA driver", "with arguments from the 'CUDA' backend"


def _reason_of(error: BaseException, node: Node) -> str:
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = said[0] if said else type(error).__name__
    if "NoValidChoicesError" in line:
        values = pytree.tree_leaves(
            [input_node.meta["val"] for input_node in node.all_input_nodes]
        )
        types = dict.fromkeys(
            str(value.dtype)
            for value in values
            if isinstance(value, torch.Tensor) and value.dtype not in _TYPES
        )
        what = f"in {', '.join(types)}" if types else "with these arguments"
        return f"AOTInductor has no kernel for it {what}"
    if any(message in line for message in _NO_DEVICE):
        return "PyTorch has no meta kernel for it, without which it can't be traced where there is no GPU"
    if line.endswith("BF16 is not supported"):
        return "torch.bfloat16 takes a GPU of compute capability 8.0 or later"
    return f"AOTInductor can't compile it: {line}"


def _forget(error: BaseException | None) -> None:
    """Drop what the frames that an error came through hold: weights, which would stay until cycles are collected."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _why_not_whole(node: Node, reasons: Mapping[Node, str]) -> str:
    """Return why control flow is unsupported without a dry run, from the reasons of its operators; empty if it has to be run."""
    if node.target not in _WHOLE:
        return "CudaBackend only compiles torch.cond, while_loop, map and scan"
    if node.target in COUNTED and (reason := why_not_counted(node)):
        return reason
    for graph in graphs_of(node):
        for inner in graph.nodes:
            if reasons.get(inner):
                return f"{operator_of(inner)} in a branch: {reasons[inner]}"
    return ""
