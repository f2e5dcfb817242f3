"""A language model's decode step on a GPU: how fast it is, where its cache lives, and what that costs.

    PYTHONPATH=. python tests/gpu/time_decode.py [--shape llama-317m] [--tokens 64] [--case CASE ...]
    PYTHONPATH=. python tests/gpu/time_decode.py --shape qwen3-4b --length 4096 --prefill 512 --gpu sm_90:80GiB
    PYTHONPATH=. python tests/gpu/time_decode.py --shape qwen3-4b --quantize int4
    PYTHONPATH=. python tests/gpu/time_decode.py --shape qwen3-4b --length 4352 --depth 4096 --cache int8
    PYTHONPATH=. python tests/gpu/time_decode.py --shape qwen3-4b --case CASE --make FOLDER --gpu linux-x86_64:sm_90:80GiB
    PYTHONPATH=. python tests/gpu/time_decode.py --shape qwen3-4b --case CASE --made FOLDER --host time_decode

CUDA delegates are compiled where this runs, in bfloat16 or with weights that torchao quantized, over transformers' static cache, for the GPU
that is there or the one that ``--gpu`` describes. A row has tokens a second, the share that they take of
what the memory could give, and the bytes that a step copies between host and GPU; its logits behind
eager's tokens have to be eager's. With ``--file`` rows and a profile by kernel are appended to a file, as JSON.
``--host`` times the program in ExecuTorch's C++ runtime as well, by what time_decode.cpp was built into, of the executorch that
lowered. ``--make`` writes the programs into a folder, which needs no GPU, and ``--made`` takes them from there. The weights repeat few
values, the same on every machine, so that such a file compresses to some MB.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import export

sys.path.insert(0, str(Path(__file__).parent))
from cuda_models import quantize  # type: ignore[import-not-found]
from cuda_programs import (  # type: ignore[import-not-found]
    files_in,
    load,
    resident,
    write,
)

DEVICE = "cuda:0" if torch.cuda.is_available() else "cpu"
ROUNDS = 5

Step = Callable[[Tensor, Tensor], Tensor]
#: Tokens, and their logits.
Expected = tuple[list[int], Tensor]
#: Of a program and its weights; the second is empty where it has none.
Files = tuple[Path, Path]


#: Whether the library owns the cache, and whether the cache lives on the host.
CASES = {
    "cache on the host": (False, True),
    "cache on the GPU": (False, False),
    "cache inside the library": (True, False),
}

PARTS = ("torch.compile", "decode", "prefill")

#: How far a logit may be off eager's, of the largest.
TOLERANCE = 0.05
#: Bytes of a weight, with its scales, by how torchao keeps it.
BYTES = {None: 2, "int8": 1, "int4": 0.5 + 2 / 128, "float8": 1}

#: Bytes a second of the GPU's memory.
BANDWIDTH = 4.8e12

#: Values that weights repeat: a prime, so that a vocabulary's rows differ.
VALUES = 2**18 + 3


def _qwen3(hidden: int, inner: int, layers: int, heads: int) -> dict[str, int]:
    return {
        "vocab_size": 151936,
        "hidden_size": hidden,
        "intermediate_size": inner,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": 8,
        "head_dim": 128,
    }


SHAPES = {
    "llama-317m": {
        "vocab_size": 32000,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 16,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
    },
    "qwen3-0.6b": _qwen3(1024, 3072, 28, 16),
    "qwen3-1.7b": _qwen3(2048, 6144, 28, 16),
    "qwen3-4b": _qwen3(2560, 9728, 36, 32),
}


def model(
    shape: str, length: int, device: str, scheme: str | None = None, own: bool = False
) -> torch.nn.Module:
    """A Llama or a Qwen3 with random weights, made on ``DEVICE``, and a static cache.

    Args:
        shape: One of :data:`SHAPES`.
        length: Of the cache.
        device: Where it is to be.
        scheme: What the weights of its linears are quantized to.
        own: Four bits as PyTorch's own kernel has them, which torchao packs on a GPU alone.
    """
    import transformers
    from transformers import GenerationConfig

    kind = "Qwen3" if shape.startswith("qwen3") else "Llama"
    config = getattr(transformers, f"{kind}Config")(
        **SHAPES[shape],
        max_position_embeddings=length,
        attn_implementation="sdpa",
        tie_word_embeddings=False,
    )
    torch.set_default_dtype(torch.bfloat16)
    with torch.device(DEVICE):
        llama = getattr(transformers, f"{kind}ForCausalLM")(config)
    torch.set_default_dtype(torch.float32)
    _repeat_values(llama)
    embedding = llama.model.embed_tokens.weight * 50
    llama.generation_config = GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=length,
        cache_config={"batch_size": 1, "max_cache_len": length, "device": device},
    )
    # Random logits lie so close together that bfloat16's rounding chooses. Here a token's successor
    # leads, by less with each layer, and all else shows in the logits.
    llama.model.embed_tokens.weight = torch.nn.Parameter(embedding)
    llama.lm_head.weight = torch.nn.Parameter(embedding.roll(1, 0) / 32)
    llama = llama.eval().to(torch.bfloat16)
    if scheme is not None:
        quantize(llama, scheme, own)
    return llama.to(device)


def _repeat_values(llama: torch.nn.Module) -> None:
    """Set the weights to a normal distribution's values, with the largest in each row and group, so that scales are equal."""
    values = torch.randn(VALUES, generator=torch.Generator().manual_seed(0)) / 50
    values[::64] = values.abs().max() * values[::64].sign()
    matrices = [each for each in llama.parameters() if each.dim() == 2]
    for index, parameter in enumerate(matrices):
        own = values.roll(-9973 * index).to(DEVICE, torch.bfloat16)
        own = own.repeat(parameter.numel() // VALUES + 1)[: parameter.numel()]
        parameter.data = own.view_as(parameter)


def exportable(llama: torch.nn.Module, cache: str | None = None) -> torch.nn.Module:
    """A token (1, 1) and its position (1,), both int64, to logits; its cache, in int8 if asked for, is its buffers."""
    from transformers.integrations.executorch import (
        TorchExportableModuleWithStaticCache,
    )

    from torchtrt_executorch.transformers.int8_cache import use_int8_cache

    module: torch.nn.Module = TorchExportableModuleWithStaticCache(llama)
    if cache == "int8":
        use_int8_cache(module)
    return module


def lower(program: Any, owned: bool, on_host: bool, gpu: str | None) -> Any:
    """The program of one CUDA delegate, which owns its cache or is given it at each call."""
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.exir.backend.compile_spec_schema import CompileSpec

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
    if gpu is not None:
        specs.append(CompileSpec("gpu", gpu.encode()))
    edge = to_edge_transform_and_lower(program, partitioner=[partitioner(specs)])
    with state_on_the_host() if on_host else contextlib.nullcontext():
        return edge.to_executorch(_logits_on_the_gpu() if owned else None)


def _logits_on_the_gpu() -> Any:
    """The configuration of a program whose logits stay where the next token is found."""
    from executorch.exir.passes.propagate_device_config import PropagateDeviceConfig

    staying = PropagateDeviceConfig(skip_d2h_for_method_outputs=True)
    return replace(resident(), propagate_device_config=staying)


def generate(
    step: Step, tokens: int, given: list[int] | None = None, depth: int = 0
) -> tuple[list[int], Tensor]:
    """The tokens that are likeliest behind token 1, at position ``depth``, and ``given``, or behind one another; and
    all logits.

    What is compared is given the same tokens: where two are nearly as likely, rounding chooses, and whatever
    comes behind another token says nothing.
    """
    made, logits, token = [], [], 1
    for position in range(tokens):
        result = step(torch.tensor([[token]]), torch.tensor([depth + position]))
        made.append(int(result[0, -1].argmax()))
        logits.append(result[0, -1].float().cpu())
        token = given[position] if given else made[-1]
    return made, torch.stack(logits)


def row(
    name: str, step: Step, arguments: argparse.Namespace, expected: Expected | None
) -> Expected:
    """Print a row for ``step`` beside eager's tokens and logits, and return its own."""
    tokens = arguments.tokens
    depth = arguments.depth
    made, logits = generate(step, tokens, expected and expected[0], depth)
    rounds, ends = [], set()
    with alone(arguments.turn):
        for _ in range(ROUNDS):
            token = 1
            torch.cuda.synchronize()
            started = time.perf_counter()
            for position in range(tokens):
                result = step(torch.tensor([[token]]), torch.tensor([depth + position]))
                token = int(result[0, -1].argmax())
            rounds.append((time.perf_counter() - started) / tokens)
            ends.add(token)
        kernels = profiled(lambda: step(torch.tensor([[1]]), torch.tensor([depth])))
    assert len(ends) == 1, f"{name} ended in {ends}"
    took = statistics.median(rounds)
    share = arguments.nbytes / took / BANDWIDTH
    found = {"tokens_per_s": round(1 / took, 1), "us": round(took * 1e6)}
    beside = ""
    if expected is not None:
        each = _off(logits, expected)
        off, mean = each.max().item(), each.mean().item()
        same = sum(own == other for own, other in zip(made, expected[0], strict=True))
        beside = f"  eager's tokens: {same} of {tokens}, logits off by {off:.1e}, {mean:.1e} in the mean"
        found |= {"eager's": same, "off": off, "mean": mean}
    print(
        f"{name:40} {1 / took:7.1f} tokens/s {took * 1e6:7.0f} us {share:5.1%}{beside}",
        flush=True,
    )
    keep(arguments, name, {**found, "share": round(share, 3), "kernels": kernels})
    return made, logits


def rows_in_cpp(
    name: str, files: Files, arguments: argparse.Namespace, expected: Expected
) -> int:
    """Print rows for the program in ExecuTorch's C++ runtime, with CudaBackend's CUDA graphs and without.

    Returns:
        How many of them have other tokens than eager.
    """
    given, failed = [1, *expected[0][:-1]], 0
    with tempfile.NamedTemporaryFile() as tokens:
        tokens.write(torch.tensor(given).numpy().tobytes())
        tokens.flush()
        depth = str(arguments.depth)
        command = [arguments.host, *files, tokens.name, str(ROUNDS), depth]
        for more in ([], ["graph"]):
            with alone(arguments.turn):
                printed = subprocess.run(
                    [*command, *more], check=True, capture_output=True, text=True
                ).stdout
            made, us = printed.splitlines()
            took = float(us) / 1e6
            same = sum(
                int(own) == other
                for own, other in zip(made.split(), expected[0], strict=True)
            )
            failed += same != len(given)
            full = f"{name}, in C++" + ", a CUDA graph" * bool(more)
            share = arguments.nbytes / took / BANDWIDTH
            print(
                f"{full:40} {1 / took:7.1f} tokens/s {took * 1e6:7.0f} us {share:5.1%}"
                f"  eager's tokens: {same} of {len(given)}",
                flush=True,
            )
            found = {"tokens_per_s": round(1 / took, 1), "us": round(took * 1e6)}
            keep(arguments, full, {**found, "eager's": same, "share": round(share, 3)})
    return failed


def _off(logits: Tensor, expected: Expected) -> Tensor:
    return (logits - expected[1]).abs() / expected[1].abs().max()


def row_of_prefill(name: str, call: Step, arguments: argparse.Namespace) -> None:
    """Print a row for a call with as many tokens as ``--prefill`` says."""
    inputs = prompt(arguments)
    for _ in range(3):
        call(*inputs)
    rounds = []
    with alone(arguments.turn):
        for _ in range(4 * ROUNDS):
            torch.cuda.synchronize()
            started = time.perf_counter()
            call(*inputs)
            torch.cuda.synchronize()
            rounds.append(time.perf_counter() - started)
        kernels = profiled(lambda: call(*inputs))
    took = statistics.median(rounds)
    full = f"prefill of {arguments.prefill}, {name}"
    print(f"{full:40} {took * 1e6:7.0f} us", flush=True)
    keep(arguments, full, {"us": round(took * 1e6), "kernels": kernels})


def prompt(arguments: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """Tokens (1, prefill) and their positions, int64."""
    count = arguments.prefill
    return torch.arange(1, count + 1)[None], torch.arange(count)


def profiled(call: Callable[[], object]) -> dict[str, list[float]]:
    """Launches and microseconds of one call by kernel, the longest first."""
    from torch.profiler import ProfilerActivity, profile

    call()
    with profile(activities=[ProfilerActivity.CUDA]) as result:
        call()
        torch.cuda.synchronize()
    events = result.key_averages()
    took = {e.key[:90]: [e.count, round(e.device_time_total, 1)] for e in events}
    return dict(sorted(took.items(), key=lambda item: -item[1][1])[:25])


def keep(arguments: argparse.Namespace, name: str, found: dict[str, Any]) -> None:
    """Append what was found to the file, a line by itself."""
    if arguments.file is not None:
        line = {"shape": arguments.shape, "length": arguments.length, "name": name}
        line |= {"quantize": arguments.quantize, "layers": arguments.layers}
        line |= {"depth": arguments.depth, "cache": arguments.cache}
        with arguments.file.open("ab", buffering=0) as file:
            file.write(json.dumps(line | found).encode() + b"\n")


@contextlib.contextmanager
def alone(turn: str) -> Iterator[None]:
    """Scope in which no other process with this file measures."""
    with open(turn, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def loaded(files: Files, **options: Any) -> tuple[Any, Step]:
    """The program of files, and its step."""
    program = load(*files, **options)
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
    parser.add_argument("--shape", choices=SHAPES, default="llama-317m")
    parser.add_argument("--quantize", choices=[each for each in BYTES if each])
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--depth", type=int, default=0, help="of the first token")
    parser.add_argument("--cache", choices=("int8",), help="of the libraries")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--prefill", type=int, default=0)
    parser.add_argument("--gpu", help="described, as TORCHTRT_GPU does")
    parser.add_argument("--layers", type=int, help="fewer, or more")
    parser.add_argument("--part", choices=PARTS, help="one alone, beside eager")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--turn", default=os.devnull)
    parser.add_argument("--host", type=Path, help="built of time_decode.cpp")
    parser.add_argument("--make", type=Path, help="a folder for the programs")
    parser.add_argument("--made", type=Path, help="a folder with them")
    arguments = parser.parse_args()
    if arguments.layers:
        SHAPES[arguments.shape]["num_hidden_layers"] = arguments.layers
    part = arguments.part
    scheme = arguments.quantize
    names = arguments.case or CASES if part != "torch.compile" else ()
    if arguments.make is not None:
        for name in names:
            print(step_files(name, arguments.make, arguments)[1])
        return
    llama = model(arguments.shape, arguments.length, DEVICE, scheme)
    linears = [m for m in llama.modules() if isinstance(m, torch.nn.Linear)]
    count = sum(m.in_features * m.out_features for m in linears)
    arguments.nbytes = count * BYTES[scheme]
    print(
        f"{arguments.shape}, {scheme or 'bfloat16'}, {count / 1e6:.0f} million parameters of linears, a cache of {arguments.length}"
    )
    eager = exportable(llama)

    def on_gpu(module: Any) -> Step:
        return lambda token, position: module(
            input_ids=token.to(DEVICE), cache_position=position.to(DEVICE)
        )

    expected = row("eager", on_gpu(eager), arguments, None)
    if scheme == "int4":
        own = model(arguments.shape, arguments.length, DEVICE, scheme, own=True)
        eager = exportable(own)
    if part in (None, "torch.compile"):
        compiled = torch.compile(eager, mode="reduce-overhead")
        # PyTorch's own kernel for four bits has values of its own.
        beside = None if scheme == "int4" else expected
        row("torch.compile, reduce-overhead", on_gpu(compiled), arguments, beside)
        del compiled
        torch._dynamo.reset()
        if arguments.prefill:
            row_of_prefill("eager", on_gpu(eager), arguments)
            row_of_prefill("torch.compile", on_gpu(torch.compile(eager)), arguments)
            torch._dynamo.reset()
    del eager, llama
    failed = 0
    for name in names:
        owned, on_host = CASES[name]
        if arguments.prefill and part in (None, "prefill"):
            built = exported(prompt(arguments), owned, on_host, arguments)
            with tempfile.TemporaryDirectory() as place:
                _, call = loaded(write(built, Path(place), "prefill"))
                row_of_prefill(name, call, arguments)
        if part == "prefill":
            continue
        with contextlib.ExitStack() as stack:
            folder = arguments.made
            if folder is None:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            files, how = step_files(name, folder, arguments)
            failed += rows(name, files, arguments, expected)
        print(how, flush=True)
    sys.exit(failed)


def rows(
    name: str, files: Files, arguments: argparse.Namespace, expected: Expected
) -> int:
    """Print the rows of a step's program, and return how many of them are wrong."""
    failed = 0
    for options in ({}, {"cuda_graphs": True}):
        program, step = loaded(files, **options)
        full = name + ", a CUDA graph" * bool(options)
        _, logits = row(full, step, arguments, expected)
        failed += bool(_off(logits, expected).max() > TOLERANCE)
        if not options:
            copied = traffic(program, step, (torch.tensor([[1]]), torch.tensor([0])))
            print(f"{'':40} {copied or 'nothing copied'}")
        del program, step
    if arguments.host:
        failed += rows_in_cpp(name, files, arguments, expected)
    return failed


def step_files(
    name: str, folder: Path, arguments: argparse.Namespace
) -> tuple[Files, str]:
    """The files in ``folder`` of a step's program, lowered into it unless ``--made`` names it, and what that took."""
    scheme = arguments.quantize or "bf16"
    stem = f"{arguments.shape}-{scheme}-{arguments.length}-{name.replace(' ', '-')}"
    if folder == arguments.made:
        return files_in(folder, stem), ""
    started = time.perf_counter()
    inputs = (torch.tensor([[1]]), torch.tensor([0]))
    files = write(exported(inputs, *CASES[name], arguments), folder, stem)
    seconds = time.perf_counter() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20
    return files, f"{'':40} lowered in {seconds:.0f} s, peak so far {peak} GiB"


def exported(
    inputs: tuple[Tensor, Tensor],
    owned: bool,
    on_host: bool,
    arguments: argparse.Namespace,
) -> Any:
    """The program of a call with such tokens and positions."""
    on_cpu = exportable(
        model(arguments.shape, arguments.length, "cpu", arguments.quantize),
        arguments.cache,
    )
    named = {"input_ids": inputs[0], "cache_position": inputs[1]}
    program = export(on_cpu, (), named, strict=True)  # lowering uses it up
    return lower(program, owned, on_host, arguments.gpu)


if __name__ == "__main__":
    main()
