"""Whose bytes a value has, beside what ExecuTorch's emitter elides and where its planner puts things."""

import copy

import pytest
import torch
from executorch.exir.capture._config import ExecutorchBackendConfig
from executorch.exir.emit import _emitter
from executorch.exir.passes._aliases import Aliases, elided_root
from executorch.exir.passes.devices.nodes import D2H, H2D, operator_name, tensor_spec
from executorch.exir.program import _program
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

SHAPES = ((4, 4), (2, 8), (16,), (1, 4, 4))
NAMES = ("view", "view", "squeeze", "unsqueeze", "clone", "relu", "add", "add")


class Line(torch.nn.Module):
    """Steps (name, operand, shape) on an input and a buffer; sums are delegates, if they have a device."""

    def __init__(self, steps, returned, new):
        super().__init__()
        self.steps, self.returned, self.new = steps, returned, new
        self.register_buffer("state", torch.randn(4, 4))

    def forward(self, x):
        values = [x, self.state]
        for name, operand, shape in self.steps:
            value = values[operand % len(values)]
            values.append(
                {
                    "view": lambda v=value, s=shape: v.view(s),
                    "squeeze": lambda v=value: v.squeeze(0),
                    "unsqueeze": lambda v=value: v.unsqueeze(0),
                    "clone": lambda v=value: v.clone(),
                    "relu": lambda v=value: torch.relu(v),
                    "add": lambda v=value: v + v,
                }[name]()
            )
        made = values[2:]
        if self.new is not None:
            self.state.copy_(made[self.new % len(made)].view(4, 4))
        return tuple(made[each % len(made)] for each in self.returned)


lines = st.builds(
    Line,
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 9), st.sampled_from(SHAPES)),
        min_size=2,
        max_size=8,
    ),
    st.lists(st.integers(0, 9), min_size=1, max_size=3),
    st.one_of(st.none(), st.integers(0, 9)),
)


def emitted(kit, monkeypatch, line, device):
    """The graph as the device passes get it, that of the program, and the views that were elided."""
    given_, elided = [], []
    emit_view = _emitter._Emitter._emit_view

    def watched(emitter, args):
        before = len(emitter.chain.instructions)
        result = emit_view(emitter, args)
        if len(emitter.chain.instructions) == before:
            elided.append(emitter.node.name)
        return result

    listed = _program.edge_to_executorch_passes

    def passes(*args, **kwargs):
        found = listed(*args, **kwargs)
        at = next(i for i, each in enumerate(found) if "Propagate" in str(type(each)))

        def keep(module):
            given_.append((module, Aliases(module.graph)))
            given_.append({n.name: n for n in module.graph.nodes})
            return torch.fx.passes.infra.pass_base.PassResult(module, False)

        return [*found[:at], keep, *found[at:]]

    monkeypatch.setattr(_emitter._Emitter, "_emit_view", watched)
    monkeypatch.setattr(_program, "edge_to_executorch_passes", passes)
    with torch.no_grad():
        edge = kit.lower(copy.deepcopy(line), (torch.zeros(4, 4),), [device])
    program = edge.to_executorch(ExecutorchBackendConfig())
    aliases, nodes = given_[0][1], given_[1]
    return program, aliases, nodes, elided


def check(kit, line, device):
    with pytest.MonkeyPatch.context() as monkeypatch:
        program, aliases, nodes, elided = emitted(kit, monkeypatch, line, device)
    graph = program.exported_program().graph_module.graph
    final = {node.name: node for node in graph.nodes}
    for name in elided:
        if name not in nodes:
            continue  # taken again on a device
        on_host = kit.device_of(final[name]) == "cpu"
        assert aliases.is_view(nodes[name], on_host), name
        root = aliases.root(nodes[name], on_host)
        if root.name in final and on_host:
            shown = elided_root(final[name])
            while operator_name(shown) in (D2H, H2D):  # what lives elsewhere
                shown = elided_root(shown.all_input_nodes[0])
            assert shown.name == root.name
    for name, node in nodes.items():
        there = final.get(name)
        if there is None or not aliases.is_view(node, on_host=True):
            continue
        # The planner: its bytes are its root's, and nobody else's that is not a view of it.
        root = final.get(aliases.root(node, on_host=True).name)
        if root is not None and kit.device_of(there) == "cpu" == kit.device_of(root):
            assert place(there) == place(root)


def place(node):
    return tensor_spec(node).mem_id, tensor_spec(node).mem_offset


@given(line=lines, device=st.sampled_from([None, "cuda:0"]))
@settings(max_examples=15, deadline=None, phases=[Phase.generate])
def test_views_are_what_the_emitter_elides_and_the_planner_puts_together(
    kit, line, device
):
    check(kit, line, device)


@pytest.mark.slow
@given(line=lines, device=st.sampled_from([None, "cuda:0"]))
@settings(max_examples=500, deadline=None, phases=[Phase.generate])
def test_many_views(kit, line, device):
    check(kit, line, device)


@given(line=lines)
@settings(max_examples=15, deadline=None, phases=[Phase.generate])
def test_values_that_meet_in_memory_are_views_or_dead(kit, line):
    """On a device: who has the same bytes as another while both are in use is a view of it."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        program, *_ = emitted(kit, monkeypatch, line, "cuda:0")
    graph = program.exported_program().graph_module.graph
    specs = {}
    for node in graph.nodes:
        spec = tensor_spec(elided_root(node))
        if spec is not None and kit.device(spec) != "cpu":
            specs[id(spec)] = spec
    found = list(specs.values())
    for index, one in enumerate(found):
        for other in found[:index]:
            apart = (
                one.lifetime[1] < other.lifetime[0]
                or other.lifetime[1] < one.lifetime[0]
                or one.mem_offset + one.nbytes() <= other.mem_offset
                or other.mem_offset + other.nbytes() <= one.mem_offset
            )
            assert apart or other is one.inplace_base or one is other.inplace_base
