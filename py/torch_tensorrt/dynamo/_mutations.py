"""What a model writes in place, its buffers and inputs, kept across compilation.

Up to 2.13 upstream freezes every buffer into a constant and drops what is written to it, or to
an input: the second call of a compiled KV cache, or counter, is wrong, without a word. Here the
program is compiled as a function that takes such state as further inputs and returns it as
further outputs; the compiled module owns the buffers and copies the values back.

Upstream: ``torch_tensorrt.dynamo._compiler``; 2.14 copies buffers back by itself.
"""

from __future__ import annotations

import copy
import inspect
from types import ModuleType
from typing import Any, Callable, cast

import torch
from torch.export import ExportedProgram
from torch.export.exported_program import ModuleCallEntry, ModuleCallSignature
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
)
from torch.export.unflatten import _assign_attr, _AttrKind
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from torchtrt_executorch.overlay.wrapping import undecorated, wrapped

_MUTATIONS = (OutputKind.BUFFER_MUTATION, OutputKind.USER_INPUT_MUTATION)
_COPY = torch.ops.aten.copy_.default


def apply(module: ModuleType) -> None:
    """Wrap what compiles a program to a module, and what compiles it to a single engine."""
    cross = module.cross_compile_for_windows
    single = module.convert_exported_program_to_serialized_trt_engine
    vars(module).update(
        compile=wrapped(module.compile, _stateful),
        cross_compile_for_windows=wrapped(cross, _stateful, like=_behind(cross)),
        convert_exported_program_to_serialized_trt_engine=wrapped(single, _stateless),
    )


def _behind(function: Callable[..., Any]) -> Callable[..., Any]:
    return function if hasattr(function, "__wrapped__") else undecorated(function)


def _stateful(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = inspect.signature(function).bind(*args, **kwargs)
    program = _functional(call.arguments["exported_program"])
    if not _writes(program):
        return function(*args, **kwargs)
    lifted = _Lifted(program)
    call.arguments["exported_program"] = lifted.program
    given = call.arguments.get("kwarg_inputs") or {}
    call.arguments["kwarg_inputs"] = {**given, **lifted.buffers}
    return lifted.owner_of_state(function(*call.args, **call.kwargs))


def _stateless(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    call = inspect.signature(function).bind(*args, **kwargs)
    if written := _writes(_functional(call.arguments["exported_program"])):
        names = ", ".join(str(spec.target) for spec in written)
        raise ValueError(
            f"the program writes to {names}, and a single TensorRT engine keeps no state: pass it "
            "in as an input and return it as an output, or use torch_tensorrt.dynamo.compile"
        )
    return function(*args, **kwargs)


def _functional(program: ExportedProgram) -> ExportedProgram:
    """Return ``program`` with what it writes in place declared in its signature."""
    in_place = any(
        isinstance(node.target, torch._ops.OpOverload)
        and node.target._schema.is_mutable
        for node in program.graph.nodes
    )
    return program.run_decompositions({}) if in_place else program


def _writes(program: ExportedProgram) -> list[OutputSpec]:
    specs = program.graph_signature.output_specs
    return [spec for spec in specs if spec.kind in _MUTATIONS]


class _Lifted:
    """A program as a function of its state: buffers as keyword inputs, new values as outputs.

    Attributes:
        program: That function. Inputs that it writes to are inputs already; all new values
            come last.
        buffers: The buffers that it writes to, by the name of their input.
    """

    def __init__(self, program: ExportedProgram) -> None:
        signature = program.graph_signature
        self._codegen = program.module(check_guards=False).graph._codegen
        self._written = _writes(program)
        inputs = {
            spec.target: spec
            for spec in signature.input_specs
            if spec.target in signature.buffers_to_mutate.values()
        }
        tensors = {**program.constants, **program.state_dict}
        self.buffers = {spec.arg.name: tensors[name] for name, spec in inputs.items()}
        self._paths = {spec.arg.name: name for name, spec in inputs.items()}
        self._names = [
            inputs[spec.target].arg.name if spec.target in inputs else str(spec.target)
            for spec in self._written
        ]
        rest = [s for s in signature.input_specs if s.target not in inputs]
        returned = [s for s in signature.output_specs if s not in self._written]
        given = [
            InputSpec(InputKind.USER_INPUT, spec.arg, None) for spec in inputs.values()
        ]
        values = [
            OutputSpec(OutputKind.USER_OUTPUT, spec.arg, None) for spec in self._written
        ]
        self.program = ExportedProgram(
            root=program.graph_module,
            graph=self._graph(program),
            graph_signature=ExportGraphSignature([*rest, *given], [*returned, *values]),
            state_dict={k: v for k, v in program.state_dict.items() if k not in inputs},
            range_constraints=program.range_constraints,
            module_call_graph=[self._call_entry(program)],
            constants={k: v for k, v in program.constants.items() if k not in inputs},
            verifiers=program.verifiers,
        )

    def _graph(self, program: ExportedProgram) -> Graph:
        graph = copy.deepcopy(program.graph)
        placeholders = graph.find_nodes(op="placeholder")
        for node in placeholders:
            if node.name in self.buffers:
                graph.find_nodes(op="placeholder")[-1].append(node)
        output = graph.output_node()
        specs = program.graph_signature.output_specs
        pairs = list(zip(specs, output.args[0], strict=True))
        pairs.sort(key=lambda pair: pair[0] in self._written)
        output.args = (tuple(value for _, value in pairs),)
        return graph

    def _call_entry(self, program: ExportedProgram) -> ModuleCallEntry:
        call = program.module_call_graph[0].signature
        assert call is not None  # the entry of the whole program has one
        args, kwargs = _tree(call.in_spec)
        returned = (_tree(call.out_spec), *(0 for _ in self._written))
        names = call.forward_arg_names and [*call.forward_arg_names, *self.buffers]
        in_tree = (args, {**kwargs, **dict.fromkeys(self.buffers, 0)})
        signature = ModuleCallSignature(
            inputs=[],
            outputs=[],
            in_spec=pytree.tree_structure(in_tree),
            out_spec=pytree.tree_structure(returned),
            forward_arg_names=names or None,
        )
        return ModuleCallEntry("", signature)

    def owner_of_state(self, compiled: GraphModule) -> GraphModule:
        """Make ``compiled``, the function compiled, a module that keeps the state."""
        graph = compiled.graph
        placeholders = graph.find_nodes(op="placeholder")
        names = self.program.graph_signature.user_inputs
        state = dict(zip(names, placeholders, strict=True))
        for name, tensor in self.buffers.items():
            given = state[name]
            device = given.meta["val"].device
            path, held = self._paths[name], tensor.detach().to(device, copy=True)
            _assign_attr(held, compiled, path, _AttrKind.BUFFER)
            with graph.inserting_after(placeholders[-1]):
                state[name] = graph.get_attr(path)
            state[name].meta = dict(given.meta)
            given.replace_all_uses_with(state[name])
        for name in self.buffers:
            graph.erase_node(placeholders[names.index(name)])
        self._write_back(graph, {name: state[name] for name in self._names})
        graph.set_codegen(self._codegen)
        graph.lint()
        compiled.recompile()
        return compiled

    def _write_back(self, graph: Graph, state: dict[str, Node]) -> None:
        """Copy the last outputs into ``state``, after everything else has read it."""
        output = graph.output_node()
        held = set(state.values())
        with graph.inserting_before(output):
            outputs = cast("tuple[Node, ...]", output.args[0])
            values = [_copied(graph, v) if v in held else v for v in outputs]
            returned = values[: len(values) - len(state)]
            for node, value in zip(
                state.values(), values[len(returned) :], strict=True
            ):
                written = graph.call_function(_COPY, (node, value))
                written.meta["val"] = node.meta["val"]
        output.args = (tuple(returned),)


def _copied(graph: Graph, node: Node) -> Node:
    copied = graph.call_function(torch.ops.aten.clone.default, (node,))
    copied.meta["val"] = node.meta["val"]
    return copied


def _tree(spec: pytree.TreeSpec) -> Any:
    return pytree.tree_unflatten([0] * spec.num_leaves, spec)
