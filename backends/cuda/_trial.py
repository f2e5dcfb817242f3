"""Operators tried on the backend itself, up to where its compilers would begin.

What AOTInductor compiles into what ExecuTorch's CUDA runtime can run depends on operator, types,
arguments, and the releases of both. So operators are handed to ``CudaBackend.preprocess``, which runs its
passes, has Inductor lower them and write its code, and knows which kernels its runtime has; it is stopped
before any kernel or library is compiled, or timed. One trial takes a tenth of a second and each operator
more some hundredths; operators that differ in nothing are tried once.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from executorch.backends.cuda._edge_calls import operator as operator_of
from executorch.backends.cuda._sums import few_terms
from executorch.backends.cuda._unmeasured_kernels import Stopped, caused_by
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.capture._config import EdgeCompileConfig
from executorch.exir.dialects._ops import ops
from executorch.exir.verification.verifier import EXIREdgeDialectVerifier
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)
from torch.fx import Graph, GraphModule, Node, map_arg
from torch.types import py_sym_types
from torch.utils import _pytree as pytree

#: A size that depends on data.
_UNKNOWN = 8


class Trials:
    """What the backend can't compile, found once for operators that differ in nothing.

    Args:
        compile_specs: Those that the operators would be lowered with.
    """

    def __init__(self, compile_specs: Sequence[CompileSpec]) -> None:
        self._specs = list(compile_specs)
        self._found: dict[str, str] = {}

    def refused(
        self, nodes: Sequence[Node], numbers: Mapping[Node, Any]
    ) -> dict[Node, str]:
        """Return those of ``nodes`` that can't be compiled, each with the reason.

        Args:
            nodes: Calls of operators with fake values as their ``val``, on whatever device. Those that
                have none, in a graph that nothing traced, aren't tried.
            numbers: The values of constants that have no dimension, by their placeholders. Inductor
                compiles an operator by what they are.
        """
        keys = {
            node: _key(node, numbers)
            for node in nodes
            if all("val" in each.meta for each in (node, *node.all_input_nodes))
        }
        new = {key: node for node, key in keys.items() if key not in self._found}
        self._try(list(new.items()), numbers)
        return {
            node: self._found[key] for node, key in keys.items() if self._found[key]
        }

    def _try(self, nodes: list[tuple[str, Node]], numbers: Mapping[Node, Any]) -> None:
        """Try all of ``nodes`` as one program, and halves of them to find what failed."""
        if not nodes:
            return
        reason = why_not([node for _, node in nodes], self._specs, numbers)
        if not reason or len(nodes) == 1:
            self._found.update(dict.fromkeys((key for key, _ in nodes), reason))
            return
        middle = len(nodes) // 2
        self._try(nodes[:middle], numbers)
        self._try(nodes[middle:], numbers)


_LOCK = threading.Lock()


def why_not(
    nodes: Sequence[Node], specs: list[CompileSpec], numbers: Mapping[Node, Any]
) -> str:
    """Return why the backend can't compile ``nodes``; empty if it can, or can't compile at all."""
    thread = threading.get_ident()
    backend: Any = CudaBackend
    program = program_of(nodes, numbers)
    collect, options, decompositions = (
        backend.collect_unsupported_fallback_kernels,
        backend.get_aoti_compile_options,
        backend.get_decomposition_table,
    )
    begun = False
    found: set[str] = set()

    def read_and_note(cls: Any, specs: list[CompileSpec]) -> Any:
        nonlocal begun
        found = options(specs)
        backend.get_custom_passes(specs)  # which has options of its own
        begun = begun or threading.get_ident() == thread
        return found

    @contextlib.contextmanager
    def collect_and_stop(cls: Any, missing: set[str]) -> Iterator[None]:
        nonlocal found
        with collect(missing), contextlib.ExitStack() as stack:
            if threading.get_ident() == thread:
                found = missing
                stack.enter_context(no_compilers())
            yield

    def decompose_what_is_there(cls: Any) -> dict[Any, Any]:
        # Before 1.5 a program is traced once more for a table of which nothing is in it.
        table = decompositions()
        if threading.get_ident() != thread:
            return table
        called = {operator_of(node.target) for node in program.graph.nodes}
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
            return ""  # nothing of the operators: whoever compiles them is to be told
        stopped = caused_by(error, Stopped)
        if stopped is None:
            return _in_words(error, nodes[0])
        for wanted, dtype in zip(_results(program), stopped.returned, strict=True):
            if dtype != wanted:
                return f"AOTInductor returns {dtype} for it, not {wanted}"
    if found:
        kernels = ", ".join(sorted(found))
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

    with (
        mock.patch.object(AotCodeCompiler, "compile", stop(compile_library)),
        mock.patch.object(
            CppWrapperGpu, "generate_and_run_autotune_block", stop(compile_kernels)
        ),
        mock.patch.object(AlgorithmSelectorCache, "__call__", select_first),
        few_terms(),
        # It warns of what a trial is there to find.
        mock.patch.object(logging.getLogger("torch._inductor.ir"), "disabled", True),
    ):
        yield


def _in_words(error: BaseException, node: Node) -> str:
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = said[0] if said else type(error).__name__
    if "NoValidChoicesError" in line:
        values = pytree.tree_leaves([each.meta["val"] for each in node.all_input_nodes])
        types = dict.fromkeys(
            str(each.dtype) for each in values if hasattr(each, "dtype")
        )
        return f"AOTInductor has no kernel for it in {', '.join(types)}"
    return f"AOTInductor can't compile it: {line}"


def program_of(nodes: Sequence[Node], numbers: Mapping[Node, Any]) -> ExportedProgram:
    """Return a program that runs ``nodes`` beside one another, each on inputs of its own."""
    # As ``torch.export`` does: where there is a GPU, the numbers beside fake inputs are real tensors.
    graph, mode = Graph(), FakeTensorMode(allow_non_fake_inputs=True)
    taken: list[Node] = []
    returned: list[Node] = []
    constants: dict[Node, Node] = {}
    for producer in dict.fromkeys(
        each for node in nodes for each in node.all_input_nodes
    ):
        if producer in numbers:
            constants[producer] = graph.placeholder(f"number_{len(constants)}")
            constants[producer].meta["val"] = _like(producer.meta["val"], mode)

    def take(node: Node) -> Any:
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return pytree.tree_map(_number, value)
        if node in constants:
            return constants[node]
        taken.append(graph.placeholder(f"input_{len(taken)}"))
        taken[-1].meta["val"] = _like(value, mode)
        return taken[-1]

    arguments = [map_arg((node.args, node.kwargs), take) for node in nodes]
    for node, (args, kwargs) in zip(nodes, arguments, strict=True):
        called = graph.call_function(_in_edge_dialect(node.target), args, kwargs)
        called.meta["val"] = values = pytree.tree_map_only(
            torch.Tensor, lambda value: _like(value, mode), node.meta["val"]
        )
        if isinstance(values, torch.Tensor):
            returned.append(called)
            continue
        read = _read(node)
        for index, value in enumerate(values):
            if isinstance(value, torch.Tensor) and index in read:
                returned.append(graph.call_function(operator.getitem, (called, index)))
                returned[-1].meta["val"] = value
    graph.output(tuple(returned))
    signature = ExportGraphSignature(
        [
            *(
                InputSpec(InputKind.CONSTANT_TENSOR, TensorArgument(n.name), n.name)
                for n in constants.values()
            ),
            *(
                InputSpec(InputKind.USER_INPUT, TensorArgument(n.name), None)
                for n in taken
            ),
        ],
        [
            OutputSpec(OutputKind.USER_OUTPUT, TensorArgument(n.name), None)
            for n in returned
        ],
    )
    call = ModuleCallSignature(
        inputs=[],
        outputs=[],
        in_spec=pytree.tree_flatten((tuple(taken), {}))[1],
        out_spec=pytree.tree_flatten(tuple(returned))[1],
    )
    return ExportedProgram(
        root=GraphModule(torch.nn.Module(), graph),
        graph=graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", call)],
        constants={
            constant.name: torch.tensor(
                numbers[producer], dtype=constant.meta["val"].dtype
            )
            for producer, constant in constants.items()
        },
        verifiers=[
            EXIREdgeDialectVerifier(
                EdgeCompileConfig(_check_ir_validity=False), class_only=True
            )
        ],
    )


def _results(program: ExportedProgram) -> list[torch.dtype]:
    returned: Any = program.graph.output_node().args[0]
    return [each.meta["val"].dtype for each in returned]


def _in_edge_dialect(target: Any) -> Any:
    """Return the operator that passes of the backend look for."""
    if not isinstance(target, torch._ops.OpOverload):
        return target
    packet = getattr(getattr(ops.edge, target.namespace), target._opname)
    return getattr(packet, target._overloadname)


def _like(value: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """Return a fake tensor of the host's, with the sizes that ``value`` was exported with."""
    sizes, steps = map(_number, value.shape), map(_number, value.stride())
    with mode:
        return torch.empty_strided([*sizes], [*steps], dtype=value.dtype)


def _number(value: Any) -> Any:
    if not isinstance(value, py_sym_types):
        return value
    return value.node.hint if value.node.has_hint() else _UNKNOWN


def _key(node: Node, numbers: Mapping[Node, Any]) -> str:
    """What decides whether a node can be compiled."""

    def describe(producer: Node) -> Any:
        value = pytree.tree_map(_describe, producer.meta["val"])
        return (value, numbers[producer]) if producer in numbers else value

    name = str(operator_of(node.target))
    return repr(
        (name, map_arg((node.args, node.kwargs), describe), sorted(_read(node)))
    )


def _read(node: Node) -> set[int]:
    """Which of an operator's results anybody reads; the first one at least."""
    readers = (each for each in node.users if each.target is operator.getitem)
    return {0, *(int(str(each.args[1])) for each in readers)}


def _describe(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return _number(value)
    return (
        value.dtype,
        tuple(map(_number, value.shape)),
        tuple(map(_number, value.stride())),
    )
