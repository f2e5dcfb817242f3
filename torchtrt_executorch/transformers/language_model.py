"""Export a language model of transformers': its methods, what lowers them, and its logits beside eager's.

A method takes tokens (1, n) and their positions (n,), int64, and has transformers' static cache for buffers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from executorch.exir import (
    EdgeProgramManager,
    ExecutorchBackendConfig,
    ExecutorchProgramManager,
    to_edge_transform_and_lower,
)
from executorch.exir.backend.compile_spec_schema import CompileSpec
from executorch.exir.passes import MemoryPlanningPass
from torch.export import Dim, ExportedProgram, export
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel, Qwen3Config
from transformers.integrations.executorch import TorchExportableModuleForDecoderOnlyLM

from torchtrt_executorch.generation import (
    Generator,
    SampledInMethod,
    constant_methods,
)
from torchtrt_executorch.progress import step
from torchtrt_executorch.runtime.program import Program

#: How far logits may be from transformers', by the model's type, as a part of the largest.
TOLERANCE = {torch.float32: 0.01, torch.bfloat16: 0.05, torch.float16: 0.02}

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
_GROUPS = (128, 64, 32)


@dataclass(frozen=True)
class Form:
    """Which methods a program has, and what lowers them.

    Attributes:
        prefill: What lowers the method for prompts, or the only one: ``tensorrt``, ``cuda``, ``xnnpack``,
            or ``portable`` for ExecuTorch's CPU kernels.
        decode: That of a method for one token, if there is one.
        length: How many tokens the cache has room for.
        chunk: Tokens that a prompt is cut into; as many as the cache has room for without.
        sampled: Whether methods return tokens, of a temperature and a seed.
        target: The machine that it is for, as ``linux-x86_64:sm_90:80GiB``.
    """

    prefill: str = "tensorrt"
    decode: str | None = None
    length: int = 128
    chunk: int | None = None
    sampled: bool = False
    target: str | None = None

    @property
    def backends(self) -> Mapping[str, str]:
        """What lowers each method."""
        if self.decode is None:
            return {"forward": self.prefill}
        return {"prefill": self.prefill, "decode": self.decode}

    @property
    def longest(self) -> int:
        """The longest chunk of a prompt."""
        return min(self.chunk or self.length, self.length)


def load_model(folder: Path | None, length: int) -> PreTrainedModel:
    """Return a model as it was saved, with a static cache for ``length`` tokens.

    Args:
        folder: As transformers saves one: weights are random without ``*.safetensors``. None for a tiny Qwen3.

    Raises:
        ValueError: It is none.
    """
    torch.manual_seed(0)
    auto: Any = AutoModelForCausalLM
    if folder is None:
        made = auto.from_config(Qwen3Config(**TINY))
        with torch.no_grad():  # else every token is followed by itself
            for weight in made.parameters():
                weight.mul_(1 if weight.ndim == 1 else 4)
        return with_cache(made, length)
    try:
        if list(folder.glob("*.safetensors")):
            made = auto.from_pretrained(folder, local_files_only=True)
        else:
            config = AutoConfig.from_pretrained(folder, local_files_only=True)
            made = auto.from_config(config)
    except Exception as error:  # of a dozen classes
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"{folder} is no folder of a language model's, as transformers saves one: {reason}"
        ) from None
    return with_cache(made, length)


def with_cache(llm: PreTrainedModel, length: int) -> PreTrainedModel:
    """Have exports of a model have a static cache for ``length`` tokens, and return it."""
    settings: Any = llm.generation_config
    settings.update(
        use_cache=True,
        cache_implementation="static",
        max_length=length,
        cache_config={"batch_size": 1, "max_cache_len": length, "device": "cpu"},
    )
    llm.train(False)
    return llm


def quantize(llm: PreTrainedModel, scheme: str, form: Form) -> None:
    """Quantize the weights of a model's linears by torchao, in place.

    Args:
        scheme: ``int8``, ``int4`` or ``float8``.
        form: For XNNPACK activations are quantized as well, when the method runs.

    Raises:
        ValueError: What lowers a method has no kernels for it, or a size is no multiple of any group.
    """
    from torchao import quantization as q

    by_xnnpack = {*form.backends.values()} == {"xnnpack"}
    if not by_xnnpack and not {*form.backends.values()} <= {"cuda", "tensorrt"}:
        raise ValueError(
            f"no backend beside XNNPACK, CUDA and TensorRT has kernels for weights in {scheme}, and XNNPACK "
            "wants quantized activations: lower all methods by xnnpack, or by cuda and tensorrt"
        )
    if by_xnnpack and scheme == "float8":
        raise ValueError("XNNPACK has no kernels for weights in float8: int8 or int4")
    by_row = {"float8": q.Float8WeightOnlyConfig, "int8": q.Int8WeightOnlyConfig}
    if not by_xnnpack and scheme in by_row:
        config: Any = by_row[scheme]()
    else:
        linears = [m for m in llm.modules() if isinstance(m, torch.nn.Linear)]
        sizes = {linear.in_features for linear in linears}
        fits = [g for g in _GROUPS if all(size % g == 0 for size in sizes)]
        if not fits:
            raise ValueError(
                f"weights of {scheme} are scaled in groups of 32 or more, and a linear of this model takes "
                f"{min(size for size in sizes if size % _GROUPS[-1])} features"
            )
        dtype, group = getattr(torch, scheme), q.granularity.PerGroup(fits[0])
        if by_xnnpack:
            config = q.Int8DynamicActivationIntxWeightConfig(dtype, group)
        else:
            config = q.IntxWeightOnlyConfig(dtype, group)
    q.quantize_(llm, config)


class _LastLogits(torch.nn.Module):
    """A model that returns the logits of the last token alone: (1, 1, vocabulary)."""

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


def exported(
    llm: PreTrainedModel, length: int, most: int, sampled: bool = False
) -> ExportedProgram:
    """Return a method that takes 1 to ``most`` tokens and their positions, with a cache for ``length``.

    It returns logits (1, 1, vocabulary); or tokens with ``sampled``, of a temperature and a seed.
    """
    module: Any = TorchExportableModuleForDecoderOnlyLM(llm, 1, length).model
    module.model = _LastLogits(llm)
    count = min(most, 3)
    tokens, positions = torch.ones(1, count, dtype=torch.int64), torch.arange(count)
    dynamic = Dim("tokens", min=1, max=most) if most > 1 else None
    axes: Any = [{1: dynamic}, {0: dynamic}] if dynamic else [None, None]
    names = ["input_ids", "cache_position"]
    inputs: tuple[Any, ...] = ()
    keywords = dict(zip(names, (tokens, positions), strict=True))
    shapes: Any = dict(zip(names, axes, strict=True))
    if sampled:
        module = SampledInMethod(_Positional(module))
        inputs = tokens, positions, torch.tensor([1.0]), torch.tensor([0])
        keywords, shapes = {}, (*axes, None, None)
    with torch.no_grad():
        return export(module, inputs, keywords, dynamic_shapes=shapes, strict=True)


def partitioners(
    backend: str, method: str, keeps_cache: bool, target: str | None = None
) -> list[Any]:
    """Return what lowers a method, to a delegate that keeps the cache inside, or is given it.

    Raises:
        ValueError: It isn't installed.
    """
    if backend == "portable":
        return []
    if backend == "xnnpack":
        from executorch.backends.xnnpack.partition.xnnpack_partitioner import (
            XnnpackPartitioner,
        )

        return [XnnpackPartitioner()]
    specs = [] if target is None else [CompileSpec("gpu", target.encode())]
    if backend == "tensorrt":
        if find_spec("torch_tensorrt") is None:
            raise ValueError(
                f"nothing here lowers {method} by TensorRT: pip install torch-tensorrt-rtx, or have "
                "it lowered by cuda, xnnpack or portable"
            )
        from torch_tensorrt.executorch import TensorRTPartitioner

        settings = {"min_block_size": 1, "executorch_allocator_routing": "node"}
        return [TensorRTPartitioner(specs, compile_settings=settings)]
    from executorch.backends.cuda.cuda_backend import CudaBackend
    from executorch.backends.cuda.cuda_partitioner import CudaPartitioner

    keep = CompileSpec("keep_mutable_buffers", b"ON" if keeps_cache else b"OFF")
    name = CudaBackend.generate_method_name_compile_spec(method)
    return [CudaPartitioner([name, keep, *specs])]


def lowered(llm: PreTrainedModel, form: Form) -> EdgeProgramManager:
    """Return a model's methods, lowered, with what hosts are to know of them."""
    methods = {}
    for name in form.backends:
        with step(f"trace {name}"):
            most = 1 if name == "decode" else form.longest
            methods[name] = exported(llm, form.length, most, form.sampled)
    # A library can keep the cache if the other method's does, too, and a host has them share it.
    inside = {*form.backends.values()} == {"cuda"}
    with step("lower"):
        return to_edge_transform_and_lower(
            methods,
            partitioner={
                name: partitioners(backend, name, inside, form.target)
                for name, backend in form.backends.items()
            },
            constant_methods=constant_methods(
                methods,
                form.length,
                generation_config=llm.generation_config,
                vocab_size=llm.config.get_text_config().vocab_size,
            ),
        )


def emitted(edge: EdgeProgramManager, form: Form) -> ExecutorchProgramManager:
    """Return the program of lowered methods, which have one cache."""
    planning = MemoryPlanningPass(share_mutable_buffers=len(form.backends) > 1)
    with step("plan and emit"):
        config = ExecutorchBackendConfig(memory_planning_pass=planning)
        return edge.to_executorch(config)


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
    apart = theirs.amax(-1) - theirs[range(len(made)), made]
    if not sampled:
        apart = (torch.stack(ours) - theirs).abs()
    return made, float(apart.max() / theirs.abs().max())
