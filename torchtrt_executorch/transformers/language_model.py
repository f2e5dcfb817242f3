"""Export a language model of transformers': its methods, their backends, and a comparison of its logits with eager mode.

A method takes tokens (1, n) and their positions (n,), int64, and has transformers' static cache for buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.export import Dim, ExportedProgram
from transformers import AutoModelForCausalLM, PreTrainedModel, Qwen3Config
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

from torchtrt_executorch.generation import (
    Generator,
    SampledInMethod,
    constant_methods,
)
from torchtrt_executorch.progress import step
from torchtrt_executorch.runtime.program import Program
from torchtrt_executorch.transformers.exportable import Exportable, Form, traced
from torchtrt_executorch.transformers.int8_cache import use_int8_cache

TINY: dict[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "tie_word_embeddings": True,
}
"""Sizes of a Qwen3 that is made in a second."""

#: The tokens that a method is traced with which takes single ones and prompts, and at most of one for prompts alone.
FEW_TOKENS, _PROMPT = 3, 511


def tiny() -> PreTrainedModel:
    """Return a Qwen3 with random weights."""
    auto: Any = AutoModelForCausalLM
    made: PreTrainedModel = auto.from_config(Qwen3Config(**TINY))
    with torch.no_grad():  # else every token is followed by itself
        for weight in made.parameters():
            weight.mul_(1 if weight.ndim == 1 else 4)
    return made


def with_cache(llm: PreTrainedModel, length: int) -> PreTrainedModel:
    """Configure a model for export with a static cache of ``length`` tokens, and return it."""
    settings: Any = llm.generation_config
    settings.update(
        use_cache=True,
        cache_implementation="static",
        max_length=length,
        cache_config={"batch_size": 1, "max_cache_len": length, "device": "cpu"},
    )
    llm.train(False)
    return llm


class _LastLogits(torch.nn.Module):
    """A model that only returns the logits of the last token: (1, 1, vocabulary)."""

    def __init__(self, llm: PreTrainedModel) -> None:
        super().__init__()
        self.llm = llm

    def forward(self, **inputs: Any) -> Any:
        return self.llm(**inputs, logits_to_keep=1)


class _Positional(torch.nn.Module):
    """transformers' exportable module, as one that takes tokens and positions by their places."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        return self.module(input_ids=tokens, cache_position=positions)


def cached(llm: PreTrainedModel, form: Form) -> Any:
    """Return transformers' module of a model with a static cache, which returns the last token's logits."""
    module: Any = TorchExportableModuleForDecoderOnlyLM(llm, 1, form.length).model
    module.model = _LastLogits(llm)
    if form.int8_cache:
        use_int8_cache(module)
    return module


def example_tokens(form: Form, most: int) -> int:
    """Return how many tokens a method of 1 to ``most`` is traced with, which kernels and engines are the fastest for.

    A prompt's are many, where another method takes single ones. By kernels for 3 tokens two layers of Qwen3 4B take an H200 1901 us for
    512 tokens, and 474 by those for 511, which take 371 for a single one where those take 256.
    """
    if form.decode is None or most <= FEW_TOKENS:
        return min(most, FEW_TOKENS)
    return min(most - 1, _PROMPT)  # else it might be the size of something else


def exported(llm: PreTrainedModel, form: Form, most: int) -> ExportedProgram:
    """Return a method that takes 1 to ``most`` tokens and their positions.

    It returns logits (1, 1, vocabulary); or tokens if ``form`` is sampled, of a temperature and a seed.
    """
    module = cached(llm, form)
    count = example_tokens(form, most)
    tokens, positions = torch.ones(1, count, dtype=torch.int64), torch.arange(count)
    dynamic = Dim("tokens", min=1, max=most) if most > 1 else None
    axes: Any = [{1: dynamic}, {0: dynamic}] if dynamic else [None, None]
    names = ["input_ids", "cache_position"]
    inputs: tuple[Any, ...] = ()
    keywords = dict(zip(names, (tokens, positions), strict=True))
    shapes: Any = dict(zip(names, axes, strict=True))
    if form.sampled:
        module = SampledInMethod(_Positional(module))
        inputs = tokens, positions, torch.tensor([1.0]), torch.tensor([0])
        keywords, shapes = {}, (*axes, None, None)
    return traced(module, inputs, keywords, dynamic_shapes=shapes)


def compared(
    llm: PreTrainedModel,
    program: Program,
    prompt: list[int],
    count: int,
    sampled: bool = False,
) -> tuple[list[int], float]:
    """Return the likeliest tokens, and how far their logits are from transformers', given the same tokens.

    Of methods that return tokens it is how far their logits in transformers are from the largest. Of two
    tokens that are as likely as each other a model in few bits takes the one here and the other there, so that
    tokens differ, and all that come after them.
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
    difference = theirs.amax(-1) - theirs[range(len(made)), made]
    if not sampled:
        difference = (torch.stack(ours) - theirs).abs()
    return made, float(difference.max() / theirs.abs().max())


class LanguageModel(Exportable):
    """``forward``, or ``prefill`` and ``decode``: tokens (1, n) and positions (n,) to logits, or to tokens."""

    @property
    def backends(self) -> Mapping[str, str]:
        """The backend of each method."""
        return self.form.backends

    def programs(self) -> dict[str, ExportedProgram]:
        """Return its methods, traced."""
        form, methods = self.form, {}
        llm = with_cache(self.module, form.length)
        for name in self.backends:
            most = 1 if name == "decode" else form.longest
            key = most, example_tokens(form, most)
            if key not in self._traced:
                with step(f"trace {name}"):
                    self._traced[key] = exported(llm, form, most)
            methods[name] = self._traced[key]
        return methods

    def constants(self, programs: Mapping[str, ExportedProgram]) -> dict[str, Any]:
        """Return what ``TextLLMRunner`` reads."""
        return constant_methods(
            programs,
            self.form.length,
            generation_config=self.module.generation_config,
            vocab_size=self._vocabulary,
        )

    def compared(self, program: Program, count: int) -> tuple[list[int], float]:
        """Return the likeliest tokens, and the difference of their logits."""
        length = self.form.length
        vocabulary = min(90, self._vocabulary)
        size = min(self.form.longest + 5, 21, length // 2)
        prompt = [(7 * i + 3) % vocabulary for i in range(size)]
        count = min(count, length - len(prompt))
        return compared(self.module, program, prompt, count, self.form.sampled)

    @property
    def _vocabulary(self) -> int:
        return int(self.module.config.get_text_config().vocab_size)
