"""What a method writes to its cache is found, as tracing by Dynamo finds it, and the cache is the module's own afterwards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim, ExportedProgram, export
from torch.testing import assert_close

pytest.importorskip("transformers")

from torchtrt_executorch.transformers.exportable import (
    Form,
    traced,
)
from torchtrt_executorch.transformers.language_model import (
    cached,
    tiny,
    with_cache,
)

TOKENS = {
    "input_ids": torch.tensor([[5, 3, 8]]),
    "cache_position": torch.arange(3),
}
AXIS = Dim("tokens", min=1, max=8)
SHAPES = {"input_ids": {1: AXIS}, "cache_position": {0: AXIS}}


def module(int8_cache: bool = False) -> Any:
    torch.manual_seed(0)
    form = Form(length=16, int8_cache=int8_cache)
    return cached(with_cache(tiny(), form.length), form)


def written(program: ExportedProgram) -> set[str]:
    """The buffers that it writes."""
    signature = program.run_decompositions().graph_signature
    return {*signature.buffers_to_mutate.values()}


@pytest.mark.parametrize("int8_cache", [False, True])
def test_writes_are_those_that_dynamo_finds(int8_cache: bool) -> None:
    with torch.no_grad():
        theirs = export(
            module(int8_cache), (), TOKENS, dynamic_shapes=SHAPES, strict=True
        )
    ours = traced(module(int8_cache), (), TOKENS, dynamic_shapes=SHAPES)
    found = written(ours)
    assert found == written(theirs)
    assert "key_cache_1" in found
    states: list[dict[str, Tensor]] = []
    for program in (ours, theirs):
        called = program.module()
        logits = called(**TOKENS)
        logits = called(input_ids=torch.tensor([[2]]), cache_position=torch.tensor([3]))
        buffers = dict(called.named_buffers())
        states.append({"logits": logits, **{name: buffers[name] for name in found}})
    assert_close(*states)


def test_a_tensor_of_a_cache_that_is_no_buffer_becomes_one() -> None:
    model = module()
    keys = model.key_cache_0
    del model.key_cache_0
    program = traced(model, (), TOKENS, dynamic_shapes=SHAPES)
    assert model.static_cache_keys_0 is keys
    assert "static_cache_keys_0" in written(program)


@pytest.mark.parametrize("registered", [False, True])
def test_the_cache_is_the_module_s_own_after_a_trace_that_failed_too(
    registered: bool,
) -> None:
    model = module()
    if registered:  # torch.export replaces the cache by a copy of it
        name = "transformers.exporters.exporter_dynamo"
        exporter: Any = pytest.importorskip(name)
        exporter.register_cache_pytrees_for_model(model.model.llm)
    before = model.static_cache
    program = traced(model, (), TOKENS, dynamic_shapes=SHAPES)
    assert "key_cache_1" in written(program)
    with pytest.raises(Exception, match="input_ids"):
        traced(model, (), {"input_idss": TOKENS["input_ids"]})
    for cache in (before, model.static_cache):
        for index, layer in enumerate(cache.layers):
            assert layer.keys is getattr(model, f"key_cache_{index}")
            assert layer.values is getattr(model, f"value_cache_{index}")
            assert type(layer.cumulative_length) is Tensor
    model(**TOKENS)
    assert model.key_cache_0[:, :, :3].abs().amin(-1).gt(0).any()
