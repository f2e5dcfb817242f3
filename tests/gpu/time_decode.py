"""A Llama's decode step on a GPU: where its cache lives, and what that costs.

    PYTHONPATH=. python tests/gpu/time_decode.py [--layers 16] [--tokens 64] [--case CASE ...]

CUDA delegates are compiled where this runs, in bfloat16, over transformers' static cache. A row has
tokens a second and the bytes that a step copies between host and GPU; its tokens have to be eager's.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.export import export

DEVICE = "cuda:0"
ROUNDS = 5

Step = Callable[[Tensor, Tensor], Tensor]

#: Whether the library owns the cache, and whether the cache lives on the host.
CASES = {
    "cache on the host": (False, True),
    "cache on the GPU": (False, False),
    "cache inside the library": (True, False),
}


def model(layers: int, length: int, device: str) -> torch.nn.Module:
    """A Llama with random weights and a static cache: 317 million with 16 layers."""
    from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    llama = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32000,
            hidden_size=1024,
            intermediate_size=4096,
            num_hidden_layers=layers,
            num_attention_heads=16,
            num_key_value_heads=8,
            max_position_embeddings=length,
            attn_implementation="sdpa",
        )
    )
    llama.generation_config = GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=length,
        cache_config={"batch_size": 1, "max_cache_len": length, "device": device},
    )
    # Random logits lie so close together that bfloat16's rounding chooses. Here a token's successor
    # leads by far, and all else shows in the logits.
    embedding = torch.randn_like(llama.model.embed_tokens.weight)
    llama.model.embed_tokens.weight = torch.nn.Parameter(embedding)
    successors = torch.randperm(len(embedding))
    llama.lm_head.weight = torch.nn.Parameter(embedding[successors] / 32)
    return llama.eval().to(device, torch.bfloat16)


def exportable(llama: torch.nn.Module) -> torch.nn.Module:
    """A token (1, 1) and its position (1,), both int64, to logits; its cache is its buffers."""
    from transformers.integrations.executorch import (
        TorchExportableModuleWithStaticCache,
    )

    return TorchExportableModuleWithStaticCache(llama)


def lower(program: Any, owned: bool, on_host: bool) -> Any:
    """The program of one CUDA delegate, which owns its cache or is given it at each call."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import to_edge_transform_and_lower

    from benchmarks.state import state_on_the_host

    class GivenItsCache(CudaPartitioner):  # type: ignore[misc]
        def partition(self, exported_program: Any) -> Any:
            result = super().partition(exported_program)
            buffers = exported_program.graph_signature.inputs_to_buffers
            written = set(exported_program.graph_signature.buffers_to_mutate.values())
            for node in exported_program.graph.nodes:
                if buffers.get(node.name) in written:
                    node.meta.pop("delegation_tag", None)
            return result

    partitioner = CudaPartitioner if owned else GivenItsCache
    specs = [CudaBackend.generate_method_name_compile_spec("forward")]
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner(specs)])
    with state_on_the_host() if on_host else contextlib.nullcontext():
        return edge.to_executorch()


def generate(step: Step, tokens: int) -> tuple[list[int], Tensor]:
    """The tokens of greedy decoding after token 1, and all of their logits."""
    made, logits, token = [], [], 1
    for position in range(tokens):
        result = step(torch.tensor([[token]]), torch.tensor([position]))
        token = int(result[0, -1].argmax())
        made.append(token)
        logits.append(result[0, -1].float().cpu())
    return made, torch.stack(logits)


def row(
    name: str, step: Step, tokens: int, eager: tuple[list[int], Tensor] | None
) -> tuple[list[int], Tensor]:
    """Print a row for ``step`` beside eager's tokens and logits, and return its own."""
    made, logits = generate(step, tokens)
    rounds = []
    for _ in range(ROUNDS):
        token = 1
        torch.cuda.synchronize()
        started = time.perf_counter()
        for position in range(tokens):
            result = step(torch.tensor([[token]]), torch.tensor([position]))
            token = int(result[0, -1].argmax())
        rounds.append((time.perf_counter() - started) / tokens)
        assert token == made[-1], f"{name} ended in {token}, before in {made[-1]}"
    took = statistics.median(rounds)
    beside = ""
    if eager is not None:
        off = ((logits - eager[1]).abs().max() / eager[1].abs().max()).item()
        beside = f"  eager's tokens: {made == eager[0]}, logits off by {off:.1e}"
    print(
        f"{name:40} {1 / took:7.1f} tokens/s {took * 1e6:7.0f} us{beside}", flush=True
    )
    return made, logits


def of_program(built: Any, **options: Any) -> tuple[Any, Step]:
    """The loaded program, and its step."""
    from torchtrt_executorch import runtime

    weights = [bytes(each) for each in built._tensor_data.values()]
    program = runtime.load(bytes(built.buffer), weights, **options)
    method = program.method("forward")

    def step(token: Tensor, position: Tensor) -> Tensor:
        (logits,) = method(token, position)
        return logits

    return program, step


def traffic(program: Any, step: Step, inputs: tuple[Tensor, Tensor]) -> str:
    """What one call copies and stages."""

    def moved() -> dict[str, tuple[int, int]]:
        stats = program.stats()
        totals = {k: (t.copies, t.nbytes) for k, t in stats.copies.items()}
        for staging in stats.staged.values():
            for way, t in (
                ("staged in", staging.inputs),
                ("staged out", staging.outputs),
            ):
                had = totals.get(way, (0, 0))
                totals[way] = (had[0] + t.copies, had[1] + t.nbytes)
        return totals

    step(*inputs)
    before = moved()
    step(*inputs)
    after = moved()
    changes = {
        k: (n - before.get(k, (0, 0))[0], b - before.get(k, (0, 0))[1])
        for k, (n, b) in after.items()
    }
    return ", ".join(f"{k} {n} ({b:,} bytes)" for k, (n, b) in changes.items() if n)


@torch.no_grad()
def main() -> None:
    """Run the command line."""
    warnings.simplefilter("ignore")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--case", action="append", choices=CASES)
    arguments = parser.parse_args()
    llama = model(arguments.layers, arguments.length, DEVICE)
    count = sum(each.numel() for each in llama.parameters())
    print(f"{count / 1e6:.0f} million parameters, a cache of {arguments.length}")
    inputs = (torch.tensor([[1]]), torch.tensor([0]))
    named = {"input_ids": inputs[0], "cache_position": inputs[1]}
    eager = exportable(llama)

    def on_gpu(module: Any) -> Step:
        return lambda token, position: module(
            input_ids=token.to(DEVICE), cache_position=position.to(DEVICE)
        )

    expected = row("eager", on_gpu(eager), arguments.tokens, None)
    compiled = torch.compile(eager, mode="reduce-overhead")
    row("torch.compile, reduce-overhead", on_gpu(compiled), arguments.tokens, expected)
    del compiled, eager, llama
    torch._dynamo.reset()
    failed = 0
    for name in arguments.case or CASES:
        owned, on_host = CASES[name]
        started = time.perf_counter()
        on_cpu = exportable(model(arguments.layers, arguments.length, "cpu"))
        program = export(on_cpu, (), named, strict=True)  # lowering uses it up
        built = lower(program, owned, on_host)
        seconds = time.perf_counter() - started
        for options in ({}, {"cuda_graphs": True}):
            loaded, step = of_program(built, **options)
            full = name + ", a CUDA graph" * bool(options)
            made, _ = row(full, step, arguments.tokens, expected)
            failed += made != expected[0]
            if not options:
                print(f"{'':40} {traffic(loaded, step, inputs) or 'nothing copied'}")
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20
        print(f"{'':40} lowered in {seconds:.0f} s, peak so far {peak} GiB", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
