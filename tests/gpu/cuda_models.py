"""Small models of the kinds that CUDA delegates are made of, with random weights from a seed."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from typing import Any, Callable

import torch
from torch import Tensor, nn
from torch.export import Dim
from torch.nn import functional as F


class Residual(nn.Module):
    """(batch, channels, height, width) to the same."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.norm(self.first(x)))))


class ConvNet(nn.Module):
    """(batch, 3, height, width) to logits (batch, 10)."""

    def __init__(self, channels: int = 32) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 7, stride=2, padding=3)
        self.blocks = nn.Sequential(Residual(channels), Residual(channels))
        self.head = nn.Linear(channels, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(torch.relu(self.stem(x)), 2)
        return self.head(self.blocks(x).mean((2, 3)))


class ResidualStages(nn.Module):
    """Four widths of residual blocks behind convolutions of step 2, (batch, 64, height, width) to (batch, 512)."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 256, 512)
        self.layers = nn.Sequential(Residual(widths[0]))
        for width, wider in zip(widths, widths[1:], strict=False):
            self.layers.append(nn.Conv2d(width, wider, 3, stride=2, padding=1))
            self.layers.append(Residual(wider))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean((2, 3))


class Separable(nn.Module):
    """Depthwise and pointwise convolutions, (batch, 32, height, width) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.pointwise = nn.Conv2d(32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.pointwise(F.silu(self.depthwise(x))))


class EncoderLayer(nn.Module):
    """(batch, sequence, width) to the same; attention over heads of 64."""

    def __init__(self, width: int, fused: bool) -> None:
        super().__init__()
        self.fused = fused
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = self.qkv(self.before(x)).view(batch, length, 3, -1, 64)
        q, k, v = heads.permute(2, 0, 3, 1, 4)
        if self.fused:
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-2, -1) / 8, -1) @ v
        x = x + self.out(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.after(x))))


class Encoder(nn.Module):
    """Tokens (batch, sequence), int64, to (batch, sequence, width)."""

    def __init__(self, width: int = 256, layers: int = 2, fused: bool = False) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.layers = nn.Sequential(
            *(EncoderLayer(width, fused) for _ in range(layers))
        )

    def forward(self, tokens: Tensor) -> Tensor:
        return self.layers(self.embedding(tokens))


class Attention(nn.Module):
    """What the backend has a Triton kernel for; three of (batch, heads, sequence, 64) to one."""

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v)


class Recurrent(nn.Module):
    """Causal attention over the states of an LSTM, (batch, sequence, 32) to its 4 largest of each row.

    Queries, keys and values are the pieces of one product.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(32, 32, batch_first=True)
        self.qkv = nn.Linear(32, 96)

    def forward(self, x: Tensor) -> Tensor:
        pieces = self.qkv(self.lstm(x)[0]).split(32, -1)
        q, k, v = (piece.unflatten(-1, (2, 16)).transpose(1, 2) for piece in pieces)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return y.transpose(1, 2).flatten(2).topk(4).values


class DecoderStep(nn.Module):
    """One token (1, 1) and its position (1,), int64, to logits (1, 1000); keeps its own cache."""

    def __init__(self, width: int = 256, length: int = 128) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.RMSNorm(width)
        self.register_buffer("keys", torch.zeros(1, width // 64, length, 64))
        self.register_buffer("values", torch.zeros(1, width // 64, length, 64))
        self.register_buffer("positions", torch.arange(length))

    def forward(self, token: Tensor, position: Tensor) -> Tensor:
        x = self.embedding(token)
        q, k, v = self.qkv(self.norm(x)).view(1, 1, 3, -1, 64).permute(2, 0, 3, 1, 4)
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        scores = q @ self.keys.transpose(-2, -1) / 8
        scores = scores.masked_fill(self.positions > position, float("-inf"))
        y = torch.softmax(scores, -1) @ self.values
        x = x + self.out(y.transpose(1, 2).reshape(1, 1, -1))
        return x[:, -1] @ self.embedding.weight.t()


class Rows(nn.Module):
    """Reductions over long rows, (batch, width) to the same."""

    def forward(self, x: Tensor) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        return torch.softmax(centred * torch.rsqrt(x.var(-1, keepdim=True) + 1e-5), -1)


class CachedAttention(nn.Module):
    """Query, key and value of one token, (1, heads, 1, 128), and its position (1,), int64, to (1, 16, 1, 128)."""

    def __init__(self, length: int = 2048) -> None:
        super().__init__()
        self.register_buffer("keys", torch.randn(1, 8, length, 128))
        self.register_buffer("values", torch.randn(1, 8, length, 128))
        self.register_buffer("positions", torch.arange(length))

    def forward(self, q: Tensor, k: Tensor, v: Tensor, position: Tensor) -> Tensor:
        self.keys.index_copy_(2, position, k)
        self.values.index_copy_(2, position, v)
        mask = (self.positions <= position)[None, None, None]
        return F.scaled_dot_product_attention(
            q, self.keys, self.values, attn_mask=mask, enable_gqa=True
        )


class GatedMlp(nn.Module):
    """Llama's, with its norm and residual; (tokens, width) to the same."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(width)
        self.gate = nn.Linear(width, hidden, bias=False)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class DecoderLayer(nn.Module):
    """Qwen3's, of one token with a cache: (1, 1, width) and a position (1,), int64, to (1, 1, width)."""

    def __init__(self, width: int, inner: int, heads: int, length: int) -> None:
        super().__init__()
        self.norm, self.mlp = nn.RMSNorm(width), GatedMlp(width, inner)
        self.q_norm, self.k_norm = nn.RMSNorm(128), nn.RMSNorm(128)
        self.q = nn.Linear(width, heads * 128, bias=False)
        self.k = nn.Linear(width, 8 * 128, bias=False)
        self.v = nn.Linear(width, 8 * 128, bias=False)
        self.out = nn.Linear(heads * 128, width, bias=False)
        self.register_buffer("keys", torch.zeros(1, 8, length, 128))
        self.register_buffer("values", torch.zeros(1, 8, length, 128))
        self.register_buffer("positions", torch.arange(length))
        frequencies = 1e6 ** (-torch.arange(0, 128, 2) / 128)
        self.register_buffer("frequencies", frequencies.repeat(2))

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        y = self.norm(x)
        q = self._turned(self.q_norm(self.q(y).view(1, 1, -1, 128)), position)
        k = self._turned(self.k_norm(self.k(y).view(1, 1, -1, 128)), position)
        v = self.v(y).view(1, 1, -1, 128).transpose(1, 2)
        self.keys.index_copy_(2, position, k.transpose(1, 2))
        self.values.index_copy_(2, position, v)
        mask = (self.positions <= position)[None, None, None]
        y = F.scaled_dot_product_attention(
            q.transpose(1, 2), self.keys, self.values, attn_mask=mask, enable_gqa=True
        )
        x = x + self.out(y.transpose(1, 2).reshape(1, 1, -1))
        return self.mlp(x)

    def _turned(self, x: Tensor, position: Tensor) -> Tensor:
        angles = position * self.frequencies.float()
        first, second = x.float().chunk(2, -1)
        turned = torch.cat((-second, first), -1)
        return (x.float() * angles.cos() + turned * angles.sin()).to(x.dtype)


class PromptLayer(DecoderLayer):
    """Qwen3's, of a prompt's tokens without a cache: (1, tokens, width) and positions (tokens,), int64, to (1, tokens, width)."""

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        y, position = self.norm(x), position[:, None, None]
        q, k, v = (
            linear(y).unflatten(-1, (-1, 128)) for linear in (self.q, self.k, self.v)
        )
        q = self._turned(self.q_norm(q), position).transpose(1, 2)
        k = self._turned(self.k_norm(k), position).transpose(1, 2)
        y = F.scaled_dot_product_attention(
            q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True
        )
        return self.mlp(x + self.out(y.transpose(1, 2).flatten(2)))


class DecoderLayers(nn.Module):
    """Layers of Qwen3's: (1, 1, width) and a position (1,), int64, to the same, or to logits (1, 1, vocabulary).

    With :class:`PromptLayer`, of as many tokens and positions as there are.
    """

    def __init__(
        self,
        width: int,
        inner: int,
        heads: int,
        layers: int,
        vocabulary: int | None = None,
        length: int = 1024,
        layer: type[DecoderLayer] = DecoderLayer,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            layer(width, inner, heads, length) for _ in range(layers)
        )
        self.head = nn.Identity()
        if vocabulary is not None:
            head = nn.Linear(width, vocabulary, bias=False)
            self.head = nn.Sequential(nn.RMSNorm(width), head)
        for parameter in self.parameters():
            if parameter.dim() == 2:  # few values, many times: a file that compresses
                few = parameter.detach().flatten()[: 2**14 + 1]
                many = few.repeat(parameter.numel() // len(few) + 1)
                parameter.data = many[: parameter.numel()].view_as(parameter).clone()

    def forward(self, x: Tensor, position: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, position)
        return self.head(x)


class GroupedBlock(nn.Module):
    """ResNeXt's bottleneck of 32 groups, (batch, 256, height, width) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(256, 128, 1)
        self.grouped = nn.Conv2d(128, 128, 3, padding=1, groups=32)
        self.up = nn.Conv2d(128, 256, 1)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.grouped(torch.relu(self.down(x))))
        return torch.relu(x + self.up(y))


class DenseBlock(nn.Module):
    """DenseNet-121's second, (batch, 128, height, width) to 512 channels: a layer for each 32."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self._layer(128 + 32 * i) for i in range(12))

    @staticmethod
    def _layer(channels: int) -> nn.Module:
        return nn.Sequential(
            *(nn.BatchNorm2d(channels), nn.ReLU()),
            nn.Conv2d(channels, 128, 1, bias=False),
            *(nn.BatchNorm2d(128), nn.ReLU()),
            nn.Conv2d(128, 32, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        results = [x]
        for layer in self.layers:
            results.append(layer(torch.cat(results, 1)))
        return torch.cat(results, 1)


class DepthwiseBlock(nn.Module):
    """ConvNeXt's, (batch, 96, height, width) to the same."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(96, 96, 7, padding=3, groups=96)
        self.norm = nn.LayerNorm(96)
        self.up, self.down = nn.Linear(96, 384), nn.Linear(384, 96)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(self.depthwise(x).permute(0, 2, 3, 1))
        return x + self.down(F.gelu(self.up(y))).permute(0, 3, 1, 2)


class Norms(nn.Module):
    """Two residuals, each behind a norm; twice (tokens, width) to the same."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.rms, self.layer = nn.RMSNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.rms(y)
        return x + self.layer(x)


class Vocabulary(nn.Module):
    """Logits (rows, 32768) to probabilities."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.softmax(x / 0.7, -1)


class Embeddings(nn.Module):
    """BERT's; tokens (batch, length), int64, to (batch, length, 768)."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(1000, 768), nn.Embedding(512, 768)
        self.norm = nn.LayerNorm(768)
        self.register_buffer("positions", torch.arange(512))

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.places(self.positions[: tokens.shape[1]])
        return self.norm(self.words(tokens) + places)


class Int8Weight(nn.Module):
    """A product with weights of 8 bits and a scale for each row of them, (tokens, 1536) to (tokens, 3072)."""

    def __init__(self) -> None:
        super().__init__()
        weight = torch.randint(-127, 128, (3072, 1536), dtype=torch.int8)
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.rand(3072) / 127)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight.to(x.dtype)) * self.scale.to(x.dtype)


class UNetBlock(nn.Module):
    """Stable Diffusion's residual block; (batch, 320, 32, 32) and a time (batch, 1280) to (batch, 640, 32, 32)."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.GroupNorm(32, 320), nn.GroupNorm(32, 640)
        self.first = nn.Conv2d(320, 640, 3, padding=1)
        self.second = nn.Conv2d(640, 640, 3, padding=1)
        self.time, self.skip = nn.Linear(1280, 640), nn.Conv2d(320, 640, 1)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        y = self.first(F.silu(self.before(x)))
        y = y + self.time(F.silu(time))[:, :, None, None]
        return self.skip(x) + self.second(F.silu(self.after(y)))


def mlp(width: int, hidden: int) -> nn.Module:
    """(..., width) to the same."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, width))


Inputs = tuple[Tensor, ...]


@dataclass(frozen=True)
class Case:
    """One program.

    Attributes:
        name: What it is called in the table, and its file.
        model: Its module, by method.
        calls: The inputs of the calls to compare, in order, by method; on the CPU, in float32
            where they are floating. The first one's shapes are exported.
        dtype: Of weights and of floating inputs.
        dynamic_shapes: Of ``forward``.
    """

    name: str
    model: Callable[[], dict[str, nn.Module]]
    calls: Callable[[], dict[str, list[Inputs]]]
    dtype: torch.dtype = torch.float32
    dynamic_shapes: Any = None
    specs: dict[str, str] = field(default_factory=dict)

    def build(self) -> tuple[dict[str, nn.Module], dict[str, list[Inputs]]]:
        """Return the modules and the inputs, the same on every machine."""
        torch.manual_seed(0)
        modules = {
            name: module.to(self.dtype).eval() for name, module in self.model().items()
        }
        calls = {
            name: [tuple(self._cast(value) for value in inputs) for inputs in each]
            for name, each in self.calls().items()
        }
        return modules, calls

    def _cast(self, value: Tensor) -> Tensor:
        return value.to(self.dtype) if value.is_floating_point() else value


def _one(model: Callable[[], nn.Module]) -> Callable[[], dict[str, nn.Module]]:
    return lambda: {"forward": model()}


def _normal(*shapes: tuple[int, ...]) -> Callable[[], dict[str, list[Inputs]]]:
    """One call on one tensor for each shape."""
    return lambda: {"forward": [(torch.randn(shape),) for shape in shapes]}


def _tokens(*shape: int) -> Callable[[], dict[str, list[Inputs]]]:
    return lambda: {"forward": [(torch.randint(0, 1000, shape),)]}


def _heads(batch: int, heads: int, length: int) -> dict[str, list[Inputs]]:
    return {"forward": [tuple(torch.randn(batch, heads, length, 64) for _ in range(3))]}


def _steps(count: int) -> dict[str, list[Inputs]]:
    return {
        "forward": [
            (torch.randint(0, 1000, (1, 1)), torch.tensor([position]))
            for position in range(count)
        ]
    }


def _positions(width: int, count: int, first: int = 0) -> dict[str, list[Inputs]]:
    return {
        "forward": [
            (torch.randn(1, 1, width), torch.tensor([first + n])) for n in range(count)
        ]
    }


def _cached(count: int) -> dict[str, list[Inputs]]:
    sizes = (16, 8, 8)
    return {
        "forward": [
            (*(torch.randn(1, n, 1, 128) for n in sizes), torch.tensor([1500 + step]))
            for step in range(count)
        ]
    }


def _all(*shapes: tuple[int, ...]) -> Callable[[], dict[str, list[Inputs]]]:
    """One call on all tensors."""
    return lambda: {"forward": [tuple(torch.randn(shape) for shape in shapes)]}


def _both_methods() -> dict[str, nn.Module]:
    encoder = Encoder(layers=1)
    return {"encode": encoder, "embed": encoder.embedding}


def upsampler(convolution: type[nn.Module], *channels: int) -> nn.Module:
    """Transposed convolutions that double each size, as generators, vocoders and segmentation end in."""
    pairs = zip(channels, channels[1:], strict=False)
    layers = [convolution(a, b, 4, stride=2, padding=1) for a, b in pairs]
    return nn.Sequential(
        *[part for layer in layers for part in (layer, nn.LeakyReLU(0.2))]
    )


BF16, FP16 = torch.bfloat16, torch.float16

CASES = (
    Case("mlp", _one(lambda: mlp(512, 1024)), _normal((8192, 512))),
    Case("mlp-small", _one(lambda: mlp(64, 256)), _normal((8, 64))),
    Case("mlp-bf16", _one(lambda: mlp(512, 2048)), _normal((4096, 512)), BF16),
    Case("mlp-fp16-odd", _one(lambda: mlp(333, 777)), _normal((1001, 333)), FP16),
    Case(
        "mlp-dynamic-batch",
        _one(lambda: mlp(256, 512)),
        _normal((64, 256), (3, 256), (500, 256)),
        dynamic_shapes=({0: Dim("batch", min=2, max=512)},),
    ),
    Case("conv", _one(ConvNet), _normal((16, 3, 112, 112))),
    Case("conv-fp16", _one(ConvNet), _normal((16, 3, 112, 112)), FP16),
    Case("dense-block-fp16", _one(DenseBlock), _normal((8, 128, 28, 28)), FP16),
    Case("separable-fp16", _one(Separable), _normal((16, 32, 56, 56)), FP16),
    Case("encoder", _one(Encoder), _tokens(8, 128)),
    Case("encoder-fp16", _one(lambda: Encoder(width=384)), _tokens(8, 256), FP16),
    Case("encoder-bf16-triton-attention", _one(lambda: Encoder(fused=True)), _tokens(8, 256), BF16),
    Case("triton-attention-bf16", _one(Attention), lambda: _heads(8, 8, 1024), BF16),
    Case("decoder-kv-cache", _one(DecoderStep), lambda: _steps(6)),
    Case("decoder-kv-cache-bf16", _one(DecoderStep), lambda: _steps(6), BF16),
    Case("recurrent", _one(Recurrent), _normal((4, 12, 32))),
    Case("recurrent-fp16", _one(Recurrent), _normal((4, 12, 32)), FP16),
    Case("recurrent-bf16", _one(Recurrent), _normal((4, 12, 32)), BF16),
    Case("rows", _one(Rows), _normal((2048, 8192))),
    Case("upsampler", _one(lambda: upsampler(nn.ConvTranspose2d, 128, 64, 32, 3)), _normal((8, 128, 16, 16))),
    Case(
        "vocoder-fp16",
        _one(
            lambda: nn.Sequential(
                nn.Conv1d(80, 256, 7, padding=3),
                upsampler(nn.ConvTranspose1d, 256, 128, 64),
                nn.Conv1d(64, 64, 3, padding=9, dilation=9),
            )
        ),
        _normal((4, 80, 500)),
        FP16,
    ),
    Case(
        "two-methods-bf16",
        _both_methods,
        lambda: {name: _tokens(4, 128)()["forward"] for name in ("encode", "embed")},
        BF16,
    ),
)  # fmt: skip

#: Chosen before any choice was measured for them, and not to be changed: how fast programs are that
#: nobody had in mind. Beside those of ``CASES``.
HELD_OUT = (
    Case("attention-cache-bf16", _one(CachedAttention), lambda: _cached(3), BF16),
    Case("products-1-bf16", _one(lambda: GatedMlp(2560, 9728)), _normal((1, 2560)), BF16),
    Case("products-8-fp16", _one(lambda: GatedMlp(1536, 8960)), _normal((8, 1536)), FP16),
    Case("decoder-layers-bf16", _one(lambda: DecoderLayers(1024, 3072, 16, 6)), lambda: _positions(1024, 32), BF16),
    Case("one-image", _one(ResidualStages), _normal((1, 64, 56, 56))),
    Case("one-image-fp16", _one(ResidualStages), _normal((1, 64, 56, 56)), FP16),
    Case("grouped", _one(GroupedBlock), _normal((8, 256, 28, 28))),
    Case("depthwise-bf16", _one(DepthwiseBlock), _normal((8, 96, 56, 56)), BF16),
    Case("norms-fp16", _one(lambda: Norms(3072)), _all((4096, 3072), (4096, 3072)), FP16),
    Case("softmax-32k", _one(Vocabulary), _normal((512, 32768))),
    Case(
        "embedding-int8-bf16",
        _one(lambda: nn.Sequential(Embeddings(), nn.Linear(768, 1536), Int8Weight())),
        _tokens(2, 384),
        BF16,
    ),
    Case("unet-block-fp16", _one(UNetBlock), _all((2, 320, 32, 32), (2, 1280)), FP16),
    Case(
        "encoder-dynamic",
        _one(lambda: Encoder(width=320, layers=1)),
        lambda: {
            "forward": [
                (torch.randint(0, 1000, shape),)
                for shape in ((6, 100), (2, 37), (16, 250))
            ]
        },
        dynamic_shapes=(
            {0: Dim("batch", min=2, max=16), 1: Dim("length", min=2, max=256)},
        ),
    ),
)  # fmt: skip


def quantize(model: nn.Module, scheme: str, own: bool = False) -> None:
    """Have torchao keep the weights of linears in ``scheme``, in place; ``own``, in a layout of its kernels."""
    from torchao import quantization as q

    config: Any = q.IntxWeightOnlyConfig(torch.int4, q.granularity.PerGroup(128))
    if scheme != "int4":
        config = {"int8": q.Int8WeightOnlyConfig, "float8": q.Float8WeightOnlyConfig}
        config = config[scheme]()
    elif own:
        config = q.Int4WeightOnlyConfig(128, int4_packing_format="tile_packed_to_4d")
    q.quantize_(model, config)


def _decoder(name: str, *sizes: int, scheme: str | None = None, depth: int = 0) -> Case:
    """Qwen3's layers and head, one token behind ``depth``; with weights that torchao quantized, by ``scheme``."""

    def model() -> nn.Module:
        layers = DecoderLayers(*sizes, 151936, max(1024, depth + 256)).to(BF16)
        if scheme is not None:
            quantize(layers, scheme)
        return layers

    kind = scheme or "bf16"
    calls = functools.partial(_positions, sizes[0], 8, depth)
    return Case(f"qwen3-{name}-{kind}", _one(model), calls, BF16)


def _prompt(name: str, *sizes: int, tokens: tuple[int, ...]) -> Case:
    """Qwen3's layers, all tokens of a prompt at once; of as many as each call has, if there are several, traced with the first's."""

    def model() -> nn.Module:
        return DecoderLayers(*sizes, length=1, layer=PromptLayer).to(BF16)

    def calls() -> dict[str, list[Inputs]]:
        inputs = [(torch.randn(1, count, sizes[0]), torch.arange(count)) for count in tokens]  # fmt: skip
        return {"forward": [*inputs]}

    several = Dim("tokens", min=1, max=max(tokens)) if len(tokens) > 1 else None
    dynamic = ({1: several}, {0: several}) if several is not None else None
    count = f"traced-with-{tokens[0]}" if several is not None else tokens[0]
    name = f"qwen3-{name}-{count}-tokens-bf16"
    return Case(name, _one(model), calls, BF16, dynamic)


_4B = (2560, 9728, 32, 12)
#: Large: those to ask for by name.
DECODERS = (
    _decoder("0.6b", 1024, 3072, 16, 28),
    _decoder("0.6b-depth-4096", 1024, 3072, 16, 28, depth=4096),
    _decoder("1.7b", 2048, 6144, 16, 28),
    _decoder("4b-12-layers", *_4B),
    _decoder("4b-12-layers", *_4B, scheme="int8"),
    _decoder("4b-12-layers", *_4B, scheme="int4"),
    _prompt("4b-4-layers", *_4B[:3], 4, tokens=(512,)),
    _prompt("4b", *_4B[:3], 36, tokens=(512,)),
    *(
        _prompt("4b-2-layers", *_4B[:3], 2, tokens=(first, 1, 64, 128, 512, 1000))
        for first in (3, 511)
    ),
)
