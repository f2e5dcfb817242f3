"""Turn in-place writes of a program into inputs and outputs for compilation, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
from torch.fx import Graph, GraphModule
from torch.utils import _pytree as pytree
from torch_tensorrt.dynamo.graphs.copies import copied_graph
from torch_tensorrt.dynamo.state.mutations import (
    declared_writes,
    made_functional,
    write_back,
)


def state_as_inputs(
    program: ExportedProgram, kwarg_inputs: Mapping[str, Any] | None
) -> tuple[ExportedProgram, Mapping[str, Any] | None, StateAsInputs | None]:
    """Return a program that writes in place as a function of its state, with what to give it.

    Args:
        program: Returned itself if it writes nothing.
        kwarg_inputs: Its keyword inputs.

    Returns:
        The program, its keyword inputs, and what makes a module of it that keeps the state, None without.
    """
    program = made_functional(program)
    if not declared_writes(program):
        return program, kwarg_inputs, None
    state = StateAsInputs(program)
    return state.program, {**(kwarg_inputs or {}), **state.buffers}, state


def with_state(compiled: GraphModule, state: StateAsInputs | None) -> GraphModule:
    """Return what :func:`state_as_inputs` was compiled to, with the state."""
    return compiled if state is None else state.owner_of_state(compiled)


def refuse_writes(program: ExportedProgram) -> None:
    """Reject a program that writes to its buffers or inputs: a single engine doesn't store them.

    Raises:
        ValueError: It writes to a buffer or an input.
    """
    if written := declared_writes(made_functional(program)):
        names = ", ".join(str(spec.target) for spec in written)
        raise ValueError(
            f"the program writes to {names}, and a single TensorRT engine keeps no state: pass it "
            "in as an input and return it as an output, or use torch_tensorrt.dynamo.compile"
        )


class StateAsInputs:
    """A program as a function of its state: buffers as keyword inputs, new values as outputs.

    Attributes:
        program: The function. Inputs that it writes to are inputs already; all new values
            come last.
        buffers: The buffers that it writes to, by the name of their input.
    """

    def __init__(self, program: ExportedProgram) -> None:
        signature = program.graph_signature
        self._codegen = program.module(check_guards=False).graph._codegen
        self._written = declared_writes(program)
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
        input_specs = [
            InputSpec(InputKind.USER_INPUT, spec.arg, None) for spec in inputs.values()
        ]
        values = [
            OutputSpec(OutputKind.USER_OUTPUT, spec.arg, None) for spec in self._written
        ]
        self.program = ExportedProgram(
            root=program.graph_module,
            graph=self._graph(program),
            graph_signature=ExportGraphSignature(
                [*rest, *input_specs], [*returned, *values]
            ),
            state_dict={k: v for k, v in program.state_dict.items() if k not in inputs},
            range_constraints=program.range_constraints,
            module_call_graph=[self._call_entry(program)],
            constants={k: v for k, v in program.constants.items() if k not in inputs},
            verifiers=program.verifiers,
        )

    def _graph(self, program: ExportedProgram) -> Graph:
        graph, _ = copied_graph(program.graph)
        placeholders = graph.find_nodes(op="placeholder")
        for node in placeholders:
            if node.name in self.buffers:
                graph.find_nodes(op="placeholder")[-1].append(node)
        output = graph.output_node()
        specs = program.graph_signature.output_specs
        values = pytree.tree_leaves(output.args[0])
        pairs = list(zip(specs, values, strict=True))
        pairs.sort(key=lambda pair: pair[0] in self._written)
        output.args = (tuple(value for _, value in pairs),)
        return graph

    def _call_entry(self, program: ExportedProgram) -> ModuleCallEntry:
        call = program.module_call_graph[0].signature
        assert call is not None  # the entry of the whole program has one
        leaf = torch.empty(0)
        args, kwargs = _tree(call.in_spec)
        returned = (_tree(call.out_spec), *(leaf for _ in self._written))
        names = call.forward_arg_names and [*call.forward_arg_names, *self.buffers]
        in_tree = (args, {**kwargs, **dict.fromkeys(self.buffers, leaf)})
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
            input_node = state[name]
            device = input_node.meta["val"].device
            path, value = self._paths[name], tensor.detach().to(device, copy=True)
            _assign_attr(value, compiled, path, _AttrKind.BUFFER)
            with graph.inserting_after(placeholders[-1]):
                state[name] = graph.get_attr(path)
            state[name].meta = dict(input_node.meta)
            input_node.replace_all_uses_with(state[name])
        for name in self.buffers:
            graph.erase_node(placeholders[names.index(name)])
        write_back(graph, [state[name] for name in self._names])
        graph.set_codegen(self._codegen)
        graph.lint()
        compiled.recompile()
        return compiled


def _tree(spec: pytree.TreeSpec) -> Any:
    # Of tensors, since there are nodes, such as transformers' caches, that take nothing else for
    # a leaf when they are flattened again.
    leaf = torch.empty(0)
    return pytree.tree_unflatten([leaf] * spec.num_leaves, spec)
