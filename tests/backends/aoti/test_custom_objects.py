"""Operators on custom objects stay outside: no delegate can be handed such an object."""

from __future__ import annotations

import pytest
import torch
from executorch.exir.backend.backend_api import to_backend
from torch import _opaque_base as bases
from torch._library import opaque_object as opaque
from torch.export import export
from torch.export.graph_signature import InputKind

from ...lowering import BaseModel


class Scale(bases.OpaqueBase):
    def __init__(self, factor):
        self.factor = factor


NAME = "test_aoti_custom_objects::scale"


@pytest.fixture(scope="module", autouse=True)
def scale():
    opaque.register_opaque_type(Scale, typ="reference")
    object_type = opaque.get_opaque_type_name(Scale)
    torch.library.define(NAME, f"({object_type} by, Tensor x) -> Tensor")
    torch.library.impl(NAME, "CompositeExplicitAutograd", lambda by, x: x * by.factor)
    torch.library.register_fake(NAME, lambda by, x: torch.empty_like(x))


class Model(BaseModel, by=lambda: Scale(3.0)):
    def forward(self, x):
        y = torch.ops.test_aoti_custom_objects.scale(self.by, torch.relu(x))
        return torch.neg(y)


def test_operators_on_custom_objects_are_left_to_the_host(second):
    x = torch.linspace(-1, 1, 4)
    program = export(Model(), (x,))
    kinds = {spec.kind for spec in program.graph_signature.input_specs}
    assert InputKind.CUSTOM_OBJ in kinds
    kept, _ = second.ops_to_not_decompose(program)
    assert kept == [torch.ops.aten.relu.default, torch.ops.aten.neg.default]
    result = second.partition(program)
    tags = {
        str(node.target): node.meta.get("delegation_tag")
        for node in program.graph.nodes
        if node.op == "call_function"
    }
    assert tags == {
        "aten.relu.default": "aoti_0",
        "test_aoti_custom_objects.scale.default": None,
        "aten.neg.default": "aoti_1",
    }
    assert len(result.partition_tags) == 2

    lowered = to_backend(program, second)
    torch.testing.assert_close(lowered.module()(x), Model()(x))
