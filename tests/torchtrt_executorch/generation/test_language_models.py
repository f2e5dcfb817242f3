"""Models of transformers' as one method of any length: 64 tokens are those of eager."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from executorch.exir import to_edge_transform_and_lower

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.generation import Generator

from ...backends.cuda.conftest import needs_compilers
from ...lowering import load

transformers: Any = pytest.importorskip("transformers")
pytestmark = pytest.mark.slow
LENGTH, TOKENS = 96, 64
PROMPT = [3, 14, 15, 9, 26, 5, 35]
SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "tie_word_embeddings": False,
    "pad_token_id": 0,
}
#: Windows are shorter than what is generated.
SLIDING = {"head_dim": 16, "sliding_window": 16}
GEMMA = {**SLIDING, "query_pre_attn_scalar": 16}
CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaConfig": {},
    "Qwen2Config": {},
    "Qwen3Config": {"head_dim": 16},
    "GemmaConfig": {"head_dim": 16},
    "Gemma2Config": {**GEMMA, "attn_implementation": "eager"},
    "Gemma3TextConfig": {**GEMMA, "sliding_window_pattern": 2},
    "MistralConfig": SLIDING,
    "PhiConfig": {},
    "Phi3Config": {},
}


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "backend", ["tensorrt", pytest.param("cuda", marks=needs_compilers)]
)
@pytest.mark.parametrize("name", CONFIGS)
def test_tokens_are_eager_s(name: str, backend: str) -> None:
    from torchtrt_executorch.transformers import language_model as lm
    from torchtrt_executorch.transformers.exportable import Form
    from torchtrt_executorch.transformers.lowering import partitioners

    torch.manual_seed(0)
    config = getattr(transformers, name)(**{**SIZES, **CONFIGS[name]})
    llm = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # else every token is followed by itself
        for weight in llm.parameters():
            weight.mul_(1 if weight.ndim == 1 else 5)
    llm = lm.with_cache(llm, LENGTH)
    greedy = transformers.GenerationConfig(
        do_sample=False, max_new_tokens=TOKENS, pad_token_id=0
    )
    wanted = llm.generate(torch.tensor([PROMPT]), generation_config=greedy)
    with emulated_engines():
        edge = to_edge_transform_and_lower(
            lm.exported(llm, Form(length=LENGTH), LENGTH),
            partitioner=partitioners(backend, "forward", keeps_cache=True),
        )
        loaded = load(edge.to_executorch(), simulate_devices=True)
    made = [*Generator(loaded)(PROMPT, TOKENS)]
    assert made == wanted[0, len(PROMPT) :].tolist()
    copies = {way: each.nbytes for way, each in loaded.stats().copies.items()}
    assert copies["device_to_host"] <= (len(PROMPT) + TOKENS) * (4 * 64 + 2)
