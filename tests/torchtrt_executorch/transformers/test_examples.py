"""A method for prompts is traced with many tokens, for which kernels are chosen, and one that takes single ones with few."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("transformers")

from torchtrt_executorch.transformers.exportable import Form
from torchtrt_executorch.transformers.language_model import LanguageModel, tiny


@pytest.mark.parametrize(
    "form, method, tokens",
    [
        (Form("cuda", "cuda", length=64), "prefill", 63),
        (Form("cuda", "cuda", length=2048), "prefill", 511),
        (Form("cuda", "cuda", length=2048, chunk=100), "prefill", 99),
        (Form("cuda", "cuda", length=64, chunk=2), "prefill", 2),
        (Form("cuda", length=64), "forward", 3),
    ],
)
def test_kernels_are_chosen_for_what_a_method_is_given(
    form: Form, method: str, tokens: int
) -> None:
    program = LanguageModel(tiny(), form).programs()[method]
    inputs = [node for node in program.graph.nodes if node.op == "placeholder"]
    sizes: list[Any] = [
        node.meta["val"].shape[-1]
        for node in inputs
        if node.name in program.graph_signature.user_inputs
    ]
    assert [size.node.hint for size in sizes] == [tokens, tokens]
    for bounds in program.range_constraints.values():
        assert (bounds.lower, bounds.upper) == (1, form.longest)


def test_a_prompt_s_method_is_traced_again_where_it_is_to_take_single_tokens() -> None:
    model = LanguageModel(tiny(), Form("xnnpack", "xnnpack", length=16))
    prefill = model.programs()["prefill"]
    model.form = Form("cuda", length=16)
    forward = model.programs()["forward"]
    assert forward is not prefill
    model.form = Form("cuda", "cuda", length=16)
    assert model.programs()["prefill"] is prefill
