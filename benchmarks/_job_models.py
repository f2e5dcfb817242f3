"""What people export: small models of each kind, with the inputs, dynamic sizes and quantization of the job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from benchmarks._architectures import ARCHITECTURES, TEXT, VOCABULARY

LENGTH = 64


@dataclass(frozen=True)
class Job:
    """A model and how it is exported.

    Attributes:
        make: Makes the model.
        inputs: Makes its inputs, by name or in order.
        dynamic: The dynamic dimensions of each input.
        dtype: What the model and its floating inputs are in.
        quantized: Makes a program of the model and its inputs.
    """

    make: Callable[[], nn.Module]
    inputs: Callable[[], Any]
    dynamic: Any = None
    dtype: torch.dtype = torch.float32
    quantized: Callable[[nn.Module, Any], ExportedProgram] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def program(self) -> tuple[nn.Module, Any, ExportedProgram]:
        """Return the model, its inputs and its program."""
        torch.manual_seed(0)
        model = self.make().eval().to(self.dtype)
        given = torch.utils._pytree.tree_map_only(
            Tensor,
            lambda t: t.to(self.dtype) if t.is_floating_point() else t,
            self.inputs(),
        )
        if self.quantized is not None:
            return model, given, self.quantized(model, given)
        args, kwargs = ((), given) if isinstance(given, dict) else (given, {})
        program = torch.export.export(
            model, args, kwargs, dynamic_shapes=self.dynamic, strict=False
        )
        return model, given, program


class UNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(
            nn.Conv2d(i, o, 3, padding=1) for i, o in ((3, 16), (16, 32), (32, 64))
        )
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(i, o, 2, stride=2) for i, o in ((64, 32), (32, 16))
        )
        self.merge = nn.ModuleList(
            nn.Conv2d(i, o, 3, padding=1) for i, o in ((64, 32), (32, 16))
        )
        self.norm = nn.GroupNorm(4, 16)
        self.last = nn.Conv2d(16, 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for conv in self.down:
            x = conv(x).relu()
            kept.append(x)
            x = nn.functional.max_pool2d(x, 2) if len(kept) < 3 else x
        for conv, merge, skip in zip(self.up, self.merge, kept[1::-1], strict=True):
            x = merge(torch.cat([conv(x), skip], 1)).relu()
        return self.last(self.norm(x))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.layers = kind(32, 64, 2, batch_first=True)
        self.last = nn.Linear(64, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layers(x)[0][:, -1])


class LoRA(nn.Module):
    """A linear with a low-rank update beside it, twice."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(128, 128) for _ in range(2))
        self.a = nn.ModuleList(nn.Linear(128, 8, bias=False) for _ in range(2))
        self.b = nn.ModuleList(nn.Linear(8, 128, bias=False) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for base, a, b in zip(self.base, self.a, self.b, strict=True):
            x = nn.functional.gelu(base(x) + b(a(x)) * 2)
        return x


class Layers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 512), nn.Linear(512, 128)

    def forward(self, x: Tensor) -> Tensor:
        return self.down(self.up(x.sin()).relu()).softmax(-1)


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.second = nn.Conv2d(32, 32, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(x).relu()
        return (y + self.second(y)).relu().mean((2, 3))


class Detector(nn.Module):
    """Boxes above a score, as many as there are."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Conv2d(3, 16, 3, stride=4, padding=1)
        self.boxes, self.scores = nn.Conv2d(16, 4, 1), nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.features(x).relu()
        boxes = self.boxes(y).flatten(2).transpose(1, 2)[0]
        scores = self.scores(y).sigmoid().flatten()
        (kept,) = torch.where(scores > 0.5)
        return boxes[kept], scores[kept]


class Bert(nn.Module):
    """transformers' encoder with padding; its hidden states, or a normalized embedding of each text."""

    def __init__(self, pooled: bool = False) -> None:
        super().__init__()
        transformers = import_module("transformers")
        self.model = transformers.BertModel(transformers.BertConfig(**TEXT))
        self.pooled = pooled

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        if not self.pooled:
            return hidden
        wide = mask[..., None].to(hidden.dtype)
        return nn.functional.normalize((hidden * wide).sum(1) / wide.sum(1))


def _padded() -> tuple[Tensor, Tensor]:
    lengths = torch.tensor([16, 9, 4])
    mask = (torch.arange(16) < lengths[:, None]).long()
    return torch.randint(0, VOCABULARY, (3, 16)), mask


def _cached(name: str) -> nn.Module:
    transformers = import_module("transformers")
    integration = import_module("transformers.integrations.executorch")
    sizes = TEXT | {"num_key_value_heads": 2, "head_dim": 8}
    config = getattr(transformers, f"{name}Config")(**sizes)
    model = getattr(transformers, f"{name}ForCausalLM")(config).eval()
    model.generation_config = transformers.GenerationConfig(
        use_cache=True,
        cache_implementation="static",
        max_length=LENGTH,
        cache_config={"batch_size": 1, "max_cache_len": LENGTH, "device": "cpu"},
    )
    return integration.TorchExportableModuleWithStaticCache(model)  # type: ignore[no-any-return]


def _tokens(count: int) -> dict[str, Tensor]:
    ids = torch.ones(1, count, dtype=torch.long)
    return {"input_ids": ids, "cache_position": torch.arange(count)}


def _by_pt2e(model: nn.Module, args: Any, *, is_dynamic: bool = False) -> Any:
    from executorch.backends.xnnpack.quantizer import xnnpack_quantizer as xnnpack
    from torchao.quantization.pt2e import quantize_pt2e as pt2e

    config = xnnpack.get_symmetric_quantization_config(
        is_per_channel=True, is_dynamic=is_dynamic
    )
    quantizer = xnnpack.XNNPACKQuantizer().set_global(config)
    module = torch.export.export(model, args).module()
    prepared = pt2e.prepare_pt2e(module, quantizer)
    prepared(*args)
    return torch.export.export(pt2e.convert_pt2e(prepared), args)


def _by_torchao(bits: int, model: nn.Module, args: Any) -> ExportedProgram:
    torchao = import_module("torchao.quantization")
    config = torchao.Int8WeightOnlyConfig()
    if bits == 4:
        config = torchao.IntxWeightOnlyConfig(
            torch.int4, torchao.granularity.PerGroup(32)
        )
    torchao.quantize_(model, config)
    return torch.export.export(model, args)


def _architecture(name: str, dynamic: Any = None, **options: Any) -> Job:
    known = ARCHITECTURES[name]
    return Job(known.make, known.inputs, dynamic, **options)


def _randn(*shape: int) -> Callable[[], tuple[Tensor]]:
    return lambda: (torch.randn(*shape),)


_BATCH, _SEQUENCE = Dim("batch", min=2, max=8), Dim("sequence", min=2, max=32)
_STEPS = Dim("steps", min=1, max=LENGTH - 1)
_PROMPT = {"input_ids": {1: _STEPS}, "cache_position": {0: _STEPS}}
_IMAGE = _randn(1, 3, 64, 64)

_AS_THEY_ARE = """
    ResNet ConvNext MobileNetV2 RegNet ViT DINOv2 Swin SegFormer YOLOS BERT DistilBERT
    GPT-2 Llama Gemma Phi Mistral T5 Whisper Wav2Vec2 Mamba
"""

JOBS: dict[str, Job] = {
    **{name: _architecture(name) for name in _AS_THEY_ARE.split()},
    "ResNet, float16": _architecture("ResNet", dtype=torch.float16),
    "ViT, bfloat16": _architecture("ViT", dtype=torch.bfloat16),
    "BERT, float16": _architecture("BERT", dtype=torch.float16),
    "Llama, bfloat16": _architecture("Llama", dtype=torch.bfloat16),
    "BERT, padding": Job(Bert, _padded),
    "BERT, padding, dynamic batch": Job(Bert, _padded, ({0: _BATCH}, {0: _BATCH})),
    "BERT, padding, dynamic sequence": Job(
        Bert, _padded, ({1: _SEQUENCE}, {1: _SEQUENCE})
    ),
    "BERT, padding, both dynamic": Job(
        Bert, _padded, ({0: _BATCH, 1: _SEQUENCE}, {0: _BATCH, 1: _SEQUENCE})
    ),
    "embedding of a text": Job(
        partial(Bert, pooled=True), _padded, ({0: _BATCH}, {0: _BATCH})
    ),
    "Llama, dynamic sequence": _architecture("Llama", {"first": {1: _SEQUENCE}}),
    "mixture of experts": _architecture("Mixtral"),
    "UNet": Job(UNet, _IMAGE),
    "UNet, dynamic batch": Job(UNet, _randn(2, 3, 64, 64), ({0: _BATCH},)),
    "LSTM": Job(partial(Recurrent, nn.LSTM), _randn(4, 12, 32)),
    "GRU": Job(partial(Recurrent, nn.GRU), _randn(4, 12, 32)),
    "LoRA": Job(LoRA, _randn(4, 128)),
    "detector, boxes by score": Job(Detector, _IMAGE),
    "Llama, static cache": Job(partial(_cached, "Llama"), partial(_tokens, 1)),
    "Llama, static cache, dynamic": Job(
        partial(_cached, "Llama"), partial(_tokens, 4), _PROMPT
    ),
    "Qwen2, static cache": Job(partial(_cached, "Qwen2"), partial(_tokens, 1)),
    "Qwen2, static cache, dynamic": Job(
        partial(_cached, "Qwen2"), partial(_tokens, 4), _PROMPT
    ),
    "PT2E, linear": Job(Layers, _randn(4, 128), quantized=_by_pt2e),
    "PT2E, convolution": Job(Convolutions, _IMAGE, quantized=_by_pt2e),
    "PT2E, dynamic": Job(
        Layers, _randn(4, 128), quantized=partial(_by_pt2e, is_dynamic=True)
    ),
    "int8 weights": Job(Layers, _randn(4, 128), quantized=partial(_by_torchao, 8)),
    "int4 weights": Job(Layers, _randn(4, 128), quantized=partial(_by_torchao, 4)),
}
