"""A language model in one file: prefill and decode over one KV cache, exported and generating.

    python examples/language_model.py [CONFIG] [--prefill BACKEND] [--decode BACKEND]

``CONFIG`` is a folder as transformers saves one, with ``config.json``, and weights and ``tokenizer.json`` if
it has them; a tiny Qwen3 with random weights without one. Writes ``model.pte`` and the ``.ptd`` with its
weights, which ``torchtrt-executorch generate`` takes, and compares its logits with transformers' own.
Without ``--decode`` it has one method, for prompts of any length, which ExecuTorch's ``TextLLMRunner`` takes as
well. No GPU is needed: where there is none, stand-ins generate. ``docs/language_models.md`` says which form is for
what.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from executorch.backends.cuda.cuda_backend import CudaBackend
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import ExecutorchBackendConfig, to_edge_transform_and_lower
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.passes import MemoryPlanningPass
from torch.export import Dim, ExportedProgram, export
from torch_tensorrt.executorch import TensorRTPartitioner
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    PreTrainedModel,
    Qwen3Config,
)
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

from torchtrt_executorch import runtime
from torchtrt_executorch.generation import (
    Generator,
    SampledInMethod,
    constant_methods,
)
from torchtrt_executorch.runtime.reading.data_files import data_files


def model(folder: Path | None, length: int) -> PreTrainedModel:
    """The model, with a static cache for ``length`` tokens."""
    torch.manual_seed(0)
    if folder is None:
        made = AutoModelForCausalLM.from_config(
            Qwen3Config(
                vocab_size=256,
                hidden_size=64,
                intermediate_size=192,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=2,
                head_dim=16,
                tie_word_embeddings=True,
            )
        )
        with torch.no_grad():  # else every token is followed by itself
            for weight in made.parameters():
                weight.mul_(1 if weight.ndim == 1 else 4)
    elif list(folder.glob("*.safetensors")):
        made = AutoModelForCausalLM.from_pretrained(folder)
    else:
        made = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder))
    return with_cache(made, length)


def with_cache(llm: PreTrainedModel, length: int) -> PreTrainedModel:
    """A model whose exports have a static cache for ``length`` tokens."""
    llm.generation_config.update(
        use_cache=True,
        cache_implementation="static",
        max_length=length,
        cache_config={"batch_size": 1, "max_cache_len": length, "device": "cpu"},
    )
    return llm.eval()


class LastLogits(torch.nn.Module):
    """A model that returns the logits of the last token alone: (1, 1, vocabulary)."""

    def __init__(self, llm: PreTrainedModel) -> None:
        super().__init__()
        self.llm = llm

    def forward(self, **inputs: Any) -> Any:
        return self.llm(**inputs, logits_to_keep=1)


class Positional(torch.nn.Module):
    """transformers' exportable module, as one that takes tokens and positions by their places."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        return self.module(input_ids=tokens, cache_position=positions)


def exported(
    llm: PreTrainedModel, length: int, most: int, sampled: bool = False
) -> ExportedProgram:
    """A method that takes 1 to ``most`` tokens and their positions, with a cache for ``length``.

    It returns logits; or tokens with ``sampled``, of a temperature and a seed.
    """
    module = TorchExportableModuleForDecoderOnlyLM(llm, 1, length).model
    module.model = LastLogits(llm)
    count = min(most, 3)
    tokens, positions = torch.ones(1, count, dtype=torch.int64), torch.arange(count)
    dynamic = Dim("tokens", min=1, max=most) if most > 1 else None
    axes: Any = [{1: dynamic}, {0: dynamic}] if dynamic else [None, None]
    names = ["input_ids", "cache_position"]
    inputs: tuple[Any, ...] = ()
    keywords = dict(zip(names, (tokens, positions), strict=True))
    shapes: Any = dict(zip(names, axes, strict=True))
    if sampled:
        module = SampledInMethod(Positional(module))
        inputs = tokens, positions, torch.tensor([1.0]), torch.tensor([0])
        keywords, shapes = {}, (*axes, None, None)
    with torch.no_grad():
        return export(module, inputs, keywords, dynamic_shapes=shapes, strict=True)


def partitioners(backend: str, method: str, keeps_cache: bool) -> list[Any]:
    """What lowers a method, to a delegate that keeps the cache inside, or is given it."""
    if backend == "portable":
        return []
    if backend == "xnnpack":
        return [XnnpackPartitioner()]
    if backend == "tensorrt":
        settings = {"min_block_size": 1, "executorch_allocator_routing": "node"}
        return [TensorRTPartitioner(compile_settings=settings)]
    keep = CompileSpec("keep_mutable_buffers", b"ON" if keeps_cache else b"OFF")
    name = CudaBackend.generate_method_name_compile_spec(method)
    return [CudaPartitioner([name, keep])]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("config", nargs="?", type=Path)
    backends = ["tensorrt", "cuda", "xnnpack", "portable"]
    parser.add_argument("--prefill", choices=backends, default="tensorrt")
    parser.add_argument("--decode", choices=backends, help="by a method of its own")
    parser.add_argument(
        "--chunk",
        type=int,
        help="tokens that a prompt is cut into; by default the cache's",
    )
    parser.add_argument(
        "--sample", action="store_true", help="have methods return tokens"
    )
    parser.add_argument("--length", type=int, default=128, help="of the cache")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--out", type=Path, default=Path("model.pte"))
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.getLogger("torchtrt_executorch.runtime").setLevel(logging.ERROR)

    llm = model(arguments.config, arguments.length)
    lowered_by = {"prefill": arguments.prefill, "decode": arguments.decode}
    if arguments.decode is None:
        lowered_by = {"forward": arguments.prefill}
    chunk = arguments.chunk or arguments.length
    methods = {
        name: exported(
            llm, arguments.length, 1 if name == "decode" else chunk, arguments.sample
        )
        for name in lowered_by
    }
    # A library can keep the cache if the other method's does, too, and a host has them share it.
    inside = {*lowered_by.values()} == {"cuda"}
    edge = to_edge_transform_and_lower(
        methods,
        partitioner={
            name: partitioners(backend, name, inside)
            for name, backend in lowered_by.items()
        },
        constant_methods=constant_methods(
            methods,
            arguments.length,
            generation_config=llm.generation_config,
            vocab_size=llm.config.get_text_config().vocab_size,
        ),
    )
    planning = MemoryPlanningPass(share_mutable_buffers=len(methods) > 1)
    config = ExecutorchBackendConfig(memory_planning_pass=planning)
    edge.to_executorch(config).save(str(arguments.out))
    for file in (arguments.out, *data_files(arguments.out)):
        print(f"{file}: {file.stat().st_size:,} bytes")
    if len(methods) > 1:
        print(
            "Its methods share a cache in torchtrt_executorch.runtime, and in hosts that give both the same "
            "memory; ExecuTorch's TextLLMRunner doesn't, and refuses it: leave out --decode for that."
        )
    with contextlib.suppress(runtime.ProgramError):  # there are none where all runs
        kept = arguments.out.with_suffix(".stand_ins")
        runtime.save_stand_ins(arguments.out, kept)

    program = runtime.load(arguments.out)
    prompt = [(7 * i + 3) % 90 for i in range(min(chunk, 16) + 5)]
    made, difference = compared(
        llm, program, prompt, arguments.tokens, arguments.sample
    )
    print("tokens:", *made)
    allowed = TOLERANCE.get(llm.dtype, TOLERANCE[torch.float32])
    verdict = "the same" if difference <= allowed else "others"
    print(
        f"transformers' own logits: {verdict}, within {difference:.2g} of the largest; {allowed:.2g} is allowed"
    )
    sys.exit(not difference <= allowed)


#: How far logits may be from transformers', by the model's type, as a part of the largest.
TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.05, torch.float16: 0.02}


def compared(
    llm: PreTrainedModel,
    program: runtime.Program,
    prompt: list[int],
    count: int,
    sampled: bool = False,
) -> tuple[list[int], float]:
    """The likeliest tokens, and how far their logits are from transformers', which is given the same tokens.

    Of methods that return tokens it is how far their logits in transformers are from the largest. Of two tokens that are as likely as each other a model in few bits takes the one here and the other there, so
    that tokens differ, and all that come after them.
    """
    ours: list[torch.Tensor] = []

    def record(tokens: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        ours.append(logits[0])
        return logits

    processor = None if sampled else record
    made = list(Generator(program)(prompt, count, logits_processor=processor))
    with torch.no_grad():
        whole = llm(torch.tensor([prompt + made]), use_cache=False).logits
    theirs = whole[0, len(prompt) - 1 : -1].float()
    apart = theirs.amax(-1) - theirs[range(len(made)), made]
    if not sampled:
        apart = (torch.stack(ours) - theirs).abs()
    return made, float(apart.max() / theirs.abs().max())


if __name__ == "__main__":
    main()
