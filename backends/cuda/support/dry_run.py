"""Operator support check: dry-run ``CudaBackend.preprocess`` up to code generation.

What AOTInductor compiles into what ExecuTorch's CUDA runtime can run depends on operator, types,
arguments, and the releases of both. So operators are handed to ``CudaBackend.preprocess``, which runs its
passes, has Inductor lower them and write its code, and knows which kernels its runtime has; it is stopped
before any kernel or library is compiled, or timed. One trial takes a tenth of a second and each operator
more some hundredths; operators that differ in nothing are tried once, and those that sizes are no matter to once for sizes that are alike.
"""

from __future__ import annotations

import contextlib
import copy
import logging
import math
import operator
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy
import torch
from executorch.backends.aoti._counted_loops import COUNTED, why_not_counted
from executorch.backends.cuda._edge_calls import operator as operator_of
from executorch.backends.cuda._mul_sum_decompositions import limited_unrolling
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.quantized.packed_weights import EXACT
from executorch.backends.cuda.tuning.tile_selection import Stopped, caused_by
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
from torch.fx.experimental.symbolic_shapes import ShapeEnv
from torch.types import py_sym_types
from torch.utils import _pytree as pytree

#: Control flow that is compiled with its branches.
_WHOLE = (
    torch.ops.higher_order.cond,
    torch.ops.higher_order.while_loop,
    *COUNTED,
)

#: Bytes from which on a weight that is made up isn't filled.
_LARGE = 1 << 20

#: A size that depends on data.
_UNKNOWN = 8

#: Operators that Inductor compiles at one size as it does at another, beside those that are pointwise.
_ANY_SIZE = {
    *("_native_batch_norm_legit_no_training", "cat"),
    *("conv1d", "conv2d", "conv3d", "convolution"),
    *("addmm", "bmm", "linear", "mm"),
}
#: Sizes from which on they do; below, a tile or an unrolled sum may be as long.
_LONG = 32
#: Values that 32 bits can't count.
_VAST = 1 << 31

_Trial = Callable[[], str | None]


class Trials:
    """What the backend can't compile, found once for operators that differ in nothing.

    Attributes:
        compile_specs: Those that the operators would be lowered with.
        kept: Calls its third argument, or returns what that returned before in whatever process: given the compile specs and what
            decides the result. None isn't to be kept. By default it calls.
    """

    kept: Callable[[Sequence[CompileSpec], Sequence[str], _Trial], str | None] = (
        staticmethod(lambda specs, decides, trial: trial())
    )

    def __init__(self, compile_specs: Sequence[CompileSpec]) -> None:
        self.compile_specs = list(compile_specs)
        self._found: dict[str, str] = {}

    def refused(
        self,
        nodes: Sequence[Node],
        numbers: Mapping[Node, Any],
        constants: Collection[Node] = (),
    ) -> dict[Node, str]:
        """Return those of ``nodes`` that can't be compiled, each with the reason.

        Args:
            nodes: Calls of operators with fake values as their ``val``, on whatever device. Those that
                have none, in a graph that nothing traced, aren't tried.
            numbers: The values of constants that have no dimension, by their placeholders. Inductor
                compiles an operator by what they are.
            constants: Placeholders of tensors that are never written to. What is made of a quantized
                weight is compiled together with what reads it, so that is tried as well.
        """
        keys = {node: _key(node, numbers) for node in nodes if _is_traced(node)}
        new = {key: node for node, key in keys.items() if key not in self._found}
        whole = {key: node for key, node in new.items() if _branches(node)}
        self._try([each for each in new.items() if each[0] not in whole], numbers)
        found = {
            node: self._found[key] for node, key in keys.items() if key not in whole
        }
        for key, node in whole.items():
            reason = _why_not_whole(node, found)
            if reason:
                self._found[key] = reason
            else:
                self._try([(key, node)], numbers)
        found = {node: self._found[key] for node, key in keys.items()}
        supported = [node for node in keys if not found[node]]
        found.update(self._with_weights(supported, numbers, constants))
        return {node: reason for node, reason in found.items() if reason}

    def _with_weights(
        self,
        nodes: Sequence[Node],
        numbers: Mapping[Node, Any],
        constants: Collection[Node],
    ) -> dict[Node, str]:
        """Return those of ``nodes`` that can't be compiled with the quantized weight that they read.

        Args:
            nodes: Those that can be compiled by themselves.
        """
        made, quantized = _made_of(nodes, constants)
        readers = [n for n in nodes if not quantized.isdisjoint(n.all_input_nodes)]
        keys = {node: _key(node, numbers, made) for node in readers}
        new = {key: node for node, key in keys.items() if key not in self._found}
        self._try([*new.items()], numbers, made)
        refused = {n: self._found[key] for n, key in keys.items() if self._found[key]}
        # What reads the result of one that is left to others is given it as it was tried at first.
        return {
            node: reason
            for node, reason in refused.items()
            if refused.keys().isdisjoint(_behind(node, made) - {node})
        }

    def _try(
        self,
        nodes: list[tuple[str, Node]],
        numbers: Mapping[Node, Any],
        made: Collection[Node] = (),
    ) -> None:
        """Try all of ``nodes`` as one program, and halves of them to find what failed."""
        if not nodes:
            return
        specs, operators = self.compile_specs, [node for _, node in nodes]
        reason = self.kept(
            specs,
            [key for key, _ in nodes],
            lambda: why_not(operators, specs, numbers, made),
        )
        reason = reason or ""
        if not reason or len(nodes) == 1:
            self._found.update(dict.fromkeys((key for key, _ in nodes), reason))
            return
        middle = len(nodes) // 2
        self._try(nodes[:middle], numbers, made)
        self._try(nodes[middle:], numbers, made)


_LOCK = threading.Lock()


def why_not(
    nodes: Sequence[Node],
    specs: list[CompileSpec],
    numbers: Mapping[Node, Any],
    made: Collection[Node] = (),
) -> str | None:
    """Return why the backend can't compile ``nodes``; empty if it can, None if it can't compile at all."""
    thread = threading.get_ident()
    backend: Any = CudaBackend
    program = program_of(nodes, numbers, made)
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
        modules = program.graph_module.modules()
        graphs = [each.graph for each in modules if isinstance(each, GraphModule)]
        called = {operator_of(n.target) for graph in graphs for n in graph.nodes}
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

    def of_others(record: logging.LogRecord) -> bool:
        """Drop what this thread is warned of, which a trial is there to find."""
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


#: Those that Inductor's templates of matmuls and convolutions have: where nothing else is read, it is no matter of types.
_TYPES = (torch.float32, torch.float16, torch.bfloat16)


def _in_words(error: BaseException, node: Node) -> str:
    said = [line.strip() for line in str(error).splitlines() if line.strip()]
    line = said[0] if said else type(error).__name__
    if "NoValidChoicesError" in line:
        values = pytree.tree_leaves([each.meta["val"] for each in node.all_input_nodes])
        types = dict.fromkeys(
            str(each.dtype)
            for each in values
            if isinstance(each, torch.Tensor) and each.dtype not in _TYPES
        )
        what = f"in {', '.join(types)}" if types else "with these arguments"
        return f"AOTInductor has no kernel for it {what}"
    if "Found no NVIDIA driver" in line:
        return "PyTorch has no meta kernel for it, without which it can't be traced where there is no GPU"
    if line.endswith("BF16 is not supported"):
        return "torch.bfloat16 takes a GPU of compute capability 8.0 or later"
    return f"AOTInductor can't compile it: {line}"


def program_of(
    nodes: Sequence[Node], numbers: Mapping[Node, Any], made: Collection[Node] = ()
) -> ExportedProgram:
    """Return a program that runs ``nodes`` beside one another, each on inputs of its own.

    Args:
        made: What is computed there as well where one of them reads it, with the constants of ones that
            it is made of.
    """
    graph, root = Graph(), torch.nn.Module()
    mode = FakeTensorMode(allow_non_fake_inputs=True, shape_env=ShapeEnv())
    behind = {each for node in nodes for each in _behind(node, made)}
    steps = [each for each in made if each in behind and each.op == "call_function"]
    taken: list[Node] = []
    returned: list[Node] = []
    constants: dict[Node, Node] = {}
    held: dict[str, Any] = {}
    for producer in dict.fromkeys(
        each for node in (*steps, *nodes) for each in node.all_input_nodes
    ):
        if producer in numbers or (producer.op, producer in made) == ("placeholder", 1):
            # As ``torch.export`` does: where there is a GPU, they are real tensors beside fake inputs.
            found = constants[producer] = graph.placeholder(f"constant_{len(held)}")
            found.meta["val"] = value = _like(producer.meta["val"], mode)
            held[found.name] = _filled(value, numbers.get(producer, 1))

    def take(node: Node) -> Any:
        if node in constants:
            return constants[node]
        if node in made:
            return node  # until it is there
        if (branch := branch_of(node)) is not None:
            name = f"branch_{len(root._modules)}"
            root.add_module(name, _copied(branch, mode))
            return graph.create_node("get_attr", name)
        value = node.meta["val"]
        if not isinstance(value, torch.Tensor):
            return pytree.tree_map(_number, value)
        taken.append(graph.placeholder(f"input_{len(taken)}"))
        taken[-1].meta["val"] = _like(value, mode)
        return taken[-1]

    copies: dict[Node, Node] = {}
    arguments = [map_arg((n.args, n.kwargs), take) for n in (*steps, *nodes)]
    for index, node in enumerate((*steps, *nodes)):
        args, kwargs = map_arg(arguments[index], lambda each: copies.get(each, each))
        called = graph.call_function(_in_edge_dialect(node.target), args, kwargs)
        called.meta["val"] = values = _alike(node.meta["val"], mode)
        if index < len(steps):
            copies[node] = called
            continue
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
        root=GraphModule(root, graph),
        graph=graph,
        graph_signature=signature,
        state_dict={},
        range_constraints={},
        module_call_graph=[ModuleCallEntry("", call)],
        constants=held,
        verifiers=[
            EXIREdgeDialectVerifier(
                EdgeCompileConfig(_check_ir_validity=False), class_only=True
            )
        ],
    )


def _filled(value: torch.Tensor, number: Any) -> torch.Tensor:
    """Return a tensor on the host like ``value``: a large one of zeros, which take no memory until they are written."""
    count = value.numel() and 1 + sum(
        (size - 1) * stride
        for size, stride in zip(value.shape, value.stride(), strict=True)
    )
    if count * value.itemsize < _LARGE:
        made = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype)
        return made.fill_(number)
    zeros = torch.from_numpy(numpy.zeros(count * value.itemsize, numpy.uint8))
    return zeros.view(value.dtype).as_strided(value.shape, value.stride())


def _forget(error: BaseException | None) -> None:
    """Drop what the frames that an error came through hold: weights, which would stay until cycles are collected."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _why_not_whole(node: Node, found: Mapping[Node, str]) -> str:
    """Return why control flow isn't even tried, given what is known of operators; empty if it is."""
    if node.target not in _WHOLE:
        return "CudaBackend compiles torch.cond, while_loop, map and scan alone"
    if node.target in COUNTED and (reason := why_not_counted(node)):
        return reason
    for graph in _graphs_of(node):
        for each in graph.nodes:
            if found.get(each):
                return f"{operator_of(each.target)} in a branch: {found[each]}"
    return ""


def _is_traced(node: Node) -> bool:
    """Whether ``node`` and what it takes have values, branches aside."""
    taken = (each for each in node.all_input_nodes if branch_of(each) is None)
    return all("val" in each.meta for each in (node, *taken))


def branch_of(node: Node) -> GraphModule | None:
    """Return the branch of control flow that ``node`` refers to, if it does."""
    if node.op != "get_attr":
        return None
    value = operator.attrgetter(str(node.target))(node.graph.owning_module)
    return value if isinstance(value, GraphModule) else None


def _branches(node: Node) -> list[GraphModule]:
    found = map(branch_of, node.all_input_nodes)
    return [branch for branch in found if branch is not None]


def _graphs_of(node: Node) -> list[Graph]:
    """Return the graphs of all branches of ``node``, and of theirs."""
    return [
        module.graph
        for branch in _branches(node)
        for module in branch.modules()
        if isinstance(module, GraphModule)
    ]


def _copied(branch: GraphModule, mode: FakeTensorMode) -> GraphModule:
    """Return ``branch`` in edge dialect, its values on the host and of the sizes it was exported with."""
    result = copy.deepcopy(branch)
    for module in result.modules():
        for node in module.graph.nodes if isinstance(module, GraphModule) else ():
            node.target = _in_edge_dialect(node.target)
            node.meta["val"] = _alike(node.meta.get("val"), mode)
    return result


def _alike(value: Any, mode: FakeTensorMode) -> Any:
    return pytree.tree_map(
        lambda each: (
            _like(each, mode) if isinstance(each, torch.Tensor) else _number(each)
        ),
        value,
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


def _made_of(
    nodes: Sequence[Node], constants: Collection[Node]
) -> tuple[dict[Node, None], set[Node]]:
    """Return what is made of constants alone, they included, in order, and what is of a quantized weight."""
    made = dict.fromkeys(constants)
    types = {n: getattr(n.meta.get("val"), "dtype", None) for n in constants}
    quantized = {n for n, dtype in types.items() if dtype in EXACT}
    for node in nodes:
        inputs = node.all_input_nodes
        if inputs and made.keys() >= {*inputs}:
            made[node] = None
            if not quantized.isdisjoint(inputs):
                quantized.add(node)
    return made, quantized


def _behind(node: Node, made: Collection[Node]) -> set[Node]:
    """Return all that what a node takes is made of, as far as it is among ``made``."""
    found: set[Node] = set()
    left = [node]
    while left:
        new = {n for n in left.pop().all_input_nodes if n in made} - found
        found |= new
        left += new
    return found


def _key(node: Node, numbers: Mapping[Node, Any], made: Collection[Node] = ()) -> str:
    """What decides whether a node can be compiled, with what is ``made`` of constants beside it."""

    def describe(producer: Node) -> Any:
        if (branch := branch_of(producer)) is not None:
            return _describe_branch(branch)
        exact = not alike or producer in numbers
        of_tensor = _describe if exact else _describe_alike
        value = pytree.tree_map(of_tensor, producer.meta["val"])
        if producer in numbers:
            return value, numbers[producer]
        if producer in made:
            return value, "constant" if producer.op == "placeholder" else call(producer)
        return value

    def call(node: Node) -> Any:
        name = str(operator_of(node.target))
        args, kwargs = map_arg((node.args, node.kwargs), describe)
        if alike and args and isinstance(args[0], (list, tuple)):
            # Which tensors are concatenated matters, and hardly how often each is.
            args = ((len(args[0]).bit_length(), *dict.fromkeys(args[0])), *args[1:])
        return name, args, kwargs

    alike = not made and _takes_any_size(node)
    return repr((*call(node), sorted(_read(node))))


def _takes_any_size(node: Node) -> bool:
    called = operator_of(node.target)
    if not isinstance(called, torch._ops.OpOverload) or called.namespace != "aten":
        return False
    return torch.Tag.pointwise in called.tags or called._opname in _ANY_SIZE


def _describe_alike(value: Any) -> Any:
    """Like :func:`_describe`, but one for tensors whose sizes differ by less than a factor of two and whose strides are ordered alike."""
    if not isinstance(value, torch.Tensor):
        return _number(value)
    dtype, sizes, strides = _describe(value)
    order = sorted(range(len(sizes)), key=lambda dim: (-strides[dim], -sizes[dim], dim))
    dense = _dense_strides(sizes, order) == strides
    return (
        dtype,
        tuple(map(_size_class, sizes)),
        ("dense", *order) if dense else strides,
        math.prod(sizes) >= _VAST,
    )


def _size_class(size: int) -> Any:
    return size if size < _LONG else (size.bit_length(), size % _LONG == 0)


def _dense_strides(sizes: Sequence[int], order: Sequence[int]) -> tuple[int, ...]:
    strides, step = [0] * len(sizes), 1
    for dim in reversed(order):
        strides[dim], step = step, step * max(sizes[dim], 1)
    return tuple(strides)


def _describe_branch(branch: GraphModule) -> Any:
    """What is computed in a branch, whatever its nodes are called."""
    places = {node: place for place, node in enumerate(branch.graph.nodes)}

    def describe(node: Node) -> Any:
        called = node.op, str(operator_of(node.target)), _values(node)
        return called, map_arg((node.args, node.kwargs), places.__getitem__)

    def _values(node: Node) -> Any:
        if (inner := branch_of(node)) is not None:
            return _describe_branch(inner)
        value = pytree.tree_map(_describe, node.meta.get("val"))
        if node.op == "get_attr":
            constant = getattr(branch, str(node.target))
            if isinstance(constant, torch.Tensor) and constant.ndim == 0:
                return value, constant.item()
        return value

    return [describe(node) for node in branch.graph.nodes]


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
