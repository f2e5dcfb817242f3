"""transformers' static cache: decoding steps copy the token in and the logits out, and nothing else."""

from __future__ import annotations

import copy

import pytest
import torch

from ....loading import load_file

transformers = pytest.importorskip("transformers")
integration = pytest.importorskip("transformers.integrations.executorch")
LENGTH, STEPS = 80, 64


@pytest.fixture(scope="module")
def llama():
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=97,
            hidden_size=32,
            intermediate_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            attn_implementation="sdpa",
        )
    ).eval()
    model.generation_config = transformers.GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=LENGTH,
        cache_config={"batch_size": 1, "max_cache_len": LENGTH, "device": "cpu"},
    )
    return integration.TorchExportableModuleWithStaticCache(model)


def exported(llama, dynamic):
    tokens = 4 if dynamic else 1
    inputs = {
        "input_ids": torch.ones(1, tokens, dtype=torch.long),
        "cache_position": torch.arange(tokens),
    }
    shapes = None
    if dynamic:
        count = torch.export.Dim("tokens", min=1, max=LENGTH - 1)
        shapes = {"input_ids": {1: count}, "cache_position": {0: count}}
    return torch.export.export(
        copy.deepcopy(llama), (), inputs, strict=False, dynamic_shapes=shapes
    )


def decoded(step, prompt, at_once):
    """Greedy tokens, the prompt ``at_once`` or token by token."""
    tokens, position = list(prompt), 0
    while len(tokens) < STEPS:
        count = len(prompt) if at_once and not position else 1
        given = torch.tensor([tokens[position : position + count]])
        logits = step(given, torch.arange(position, position + count))
        position += count
        if position == len(tokens):
            tokens.append(int(logits[0, -1].argmax()))
    return tokens


@pytest.mark.parametrize("dynamic", [False, True], ids=["step", "prefill-and-steps"])
def test_eagers_tokens_with_the_cache_on_the_device(llama, dynamic):
    from executorch.exir import EdgeCompileConfig, to_edge_transform_and_lower
    from executorch.exir.capture._config import ExecutorchBackendConfig
    from torch_tensorrt.executorch import TensorRTPartitioner

    from torchtrt_executorch import emulated_engines
    from torchtrt_executorch.runtime import load

    with torch.no_grad(), emulated_engines():
        edge = to_edge_transform_and_lower(
            exported(llama, dynamic),
            partitioner=[TensorRTPartitioner(compile_settings={"min_block_size": 1})],
            compile_config=EdgeCompileConfig(_check_ir_validity=False),
        )
    emitted = edge.to_executorch(ExecutorchBackendConfig())
    program = load(emitted.buffer, simulate_devices=True, emulated_engines=True)

    def step(ids, position):
        return program.run(ids, position)[0]

    def eager(ids, position):
        with torch.no_grad():
            return reference(input_ids=ids, cache_position=position)

    reference, prompt = copy.deepcopy(llama), [3, 14, 15, 92, 65]
    assert decoded(step, prompt, dynamic) == decoded(eager, prompt, dynamic)

    before = copy.deepcopy(program.stats().copies)
    step(torch.tensor([[5]]), torch.tensor([STEPS]))
    after = program.stats().copies
    moved = {
        kind: (
            after[kind].copies - before[kind].copies,
            after[kind].nbytes - before[kind].nbytes,
        )
        for kind in after
    }
    # The token and its position in, the logits out, and a byte that an engine on a stream of its own waits for.
    own = int(load_file("tests/cpp/releases.py").own_streams())
    assert moved == {
        "host_to_device": (2, 16),
        "device_to_host": (1 + own, 97 * 4 + own),
    }
