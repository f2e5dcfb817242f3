"""Models that torchao quantized, as the tests of CUDA delegates lower them; run, what they are compiled from.

    TRITON_INTERPRET=1 python tests/backends/cuda/quantized/programs.py

prints for each scheme how far a program of one token and of three is off the model, once its weights are
kept quantized, and how many of its products read them as they are kept.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

import torch
import torchao.quantization as q
from torch import nn
from torchao.quantization.granularity import PerAxis, PerGroup

PRODUCT = "executorch_cuda_quantized.gemv"
ROW = torch.linspace(-1, 1, 32)[None]
SCALES = torch.linspace(0.5, 2, 24)[:, None]
INT4_ASYMMETRIC = q.IntxWeightOnlyConfig(
    torch.int4, PerGroup(32), mapping_type=q.MappingType.ASYMMETRIC
)
#: By name: the configuration, and the bits that a value takes, without scales.
SCHEMES: dict[str, tuple[Any, int]] = {
    "int8": (q.Int8WeightOnlyConfig(), 8),
    "int8, groups": (q.IntxWeightOnlyConfig(torch.int8, PerGroup(64)), 8),
    "int4, 32": (q.IntxWeightOnlyConfig(torch.int4, PerGroup(32)), 4),
    "int4, 128": (q.IntxWeightOnlyConfig(torch.int4, PerGroup(128)), 4),
    "int4, asymmetric": (INT4_ASYMMETRIC, 4),
    "int4, a row": (q.IntxWeightOnlyConfig(torch.int4, PerAxis(0)), 4),
    "int2": (q.IntxWeightOnlyConfig(torch.int2, PerGroup(32)), 2),
    "float8": (q.Float8WeightOnlyConfig(), 8),
    "int8, activations": (q.Int8DynamicActivationInt8WeightConfig(), 8),
    "odd groups": (q.IntxWeightOnlyConfig(torch.int4, PerGroup(6)), 4),
}
#: Of those whose groups don't divide what the others have between their layers, which is few: a row takes long.
SIZES = {"int8, groups": (256, 64), "int4, 128": (256, 128), "odd groups": (258, 66)}


class Layers(nn.Module):
    """An embedding and two linears, of which one has a bias."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.tokens = nn.Embedding(64, width)
        self.up = nn.Linear(width, inner, bias=False)
        self.down = nn.Linear(inner, 16)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.down(self.up(self.tokens(tokens)).relu())


def quantized(scheme: str) -> nn.Module:
    """The layers in bfloat16, with all weights in ``scheme``."""
    model = Layers(*SIZES.get(scheme, (256, 32))).to(torch.bfloat16).eval()
    kinds = (nn.Linear, nn.Embedding)[: 1 if "activations" in scheme else 2]
    q.quantize_(model, SCHEMES[scheme][0], lambda m, _: isinstance(m, kinds))
    return model


class Product(nn.Module):
    """A row by what ``make`` makes of a weight."""

    def __init__(self, weight: torch.Tensor, make: Callable[..., torch.Tensor]) -> None:
        super().__init__()
        self.register_buffer("weight", weight)
        self.register_buffer("scale", torch.rand(weight.shape[0], 1) + 0.5)
        self.make = make

    def forward(self, row: torch.Tensor) -> torch.Tensor:
        return row @ self.make(self.weight, self.scale)


def _signed(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-128, 128, shape, generator=generator).to(torch.int8)


def _infinite() -> torch.Tensor:
    weight = _signed(32, 32).float()
    weight[3, 5] = torch.inf
    return weight.to(torch.float8_e5m2)


#: Products by what is nearly a weight that is kept in few bits, or of rows that are too large for it.
NEARLY: dict[str, tuple[nn.Module, torch.Tensor]] = {
    "a part": (Product(_signed(64, 32), lambda w, s: w.float().chunk(2)[0].t()), ROW),
    "not turned": (Product(_signed(32, 32), lambda w, s: w.float().permute(0, 1)), ROW),
    "turned": (Product(_signed(32, 32), lambda w, s: w.float().permute(1, 0)), ROW),
    "by another type": (
        Product(_signed(32, 32), lambda w, s: w.to(torch.uint8).float().t()),
        ROW,
    ),
    "rounded": (
        Product(
            (_signed(32, 32) / 9).to(torch.float8_e4m3fn),
            lambda w, s: w.float().to(torch.int32).float().t(),
        ),
        ROW,
    ),
    "no number": (Product(_infinite(), lambda w, s: w.float().t()), ROW),
    "large": (
        Product(_signed(32, 32).to(torch.float8_e5m2), lambda w, s: w.float().t()),
        ROW * 1e22,
    ),
    "doubles": (Product(_signed(32, 32), lambda w, s: w.double().t()), ROW.double()),
    "integers": (
        Product(_signed(32, 32), lambda w, s: w.to(torch.int32).t()),
        (ROW * 1e6).to(torch.int32),
    ),
    "outer": (
        Product(_signed(1, 32), lambda w, s: (w.float() * SCALES).t()),
        ROW,
    ),
}


class Beside(nn.Module):
    """Linears of the rows that ``read`` makes, in turn; the first has a bias."""

    def __init__(
        self, lengths: tuple[int, ...], read: Callable[..., Any], scheme: Any = None
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = (nn.Linear(64, n, bias=i == 0) for i, n in enumerate(lengths))
        self.layers = nn.ModuleList(layers).to(torch.bfloat16).eval()
        self.read = read
        if scheme is not None:
            q.quantize_(self, scheme)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rows = itertools.cycle(self.read(x))
        found = zip(self.layers, rows, strict=False)
        return torch.cat([layer(row).tanh() for layer, row in found], -1)


class Joined(nn.Module):
    """Linears of (K, N) without a bias, as ``join`` has them read a row of 64 and one another."""

    def __init__(
        self,
        sizes: tuple[tuple[int, int], ...],
        join: Callable[..., torch.Tensor],
        scheme: Any = None,
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers = (nn.Linear(*size, bias=False) for size in sizes)
        self.layers = nn.ModuleList(layers).to(torch.bfloat16).eval()
        self.join = join
        if scheme is not None:
            q.quantize_(self, scheme)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.join(x[0, :, :64], *self.layers)


INT8, INT4 = q.Int8WeightOnlyConfig(), SCHEMES["int4, 32"][0]
QKV = (16, 8, 8)
CHAIN = ((64, 32), (32, 16))
LORA = ((64, 16), *CHAIN)
#: A weight in int8, transposed, which the test scales.
HELD = _signed(32, 64)
SCALE = torch.linspace(1, 2, 32, dtype=torch.bfloat16)[None] / 1024
#: By name: linears beside one another, how many launches they take, and whether all their rows are read in words.
BESIDE: dict[str, tuple[nn.Module, int, bool]] = {
    "of several lengths": (Beside(QKV, lambda x: [x[..., :64]]), 1, True),
    "of one length": (Beside((16, 16), lambda x: [x[..., :64]]), 0, True),
    "scaled behind": (Beside(QKV, lambda x: [x[..., :64]], INT8), 1, True),
    "four": (Beside((8, 6, 5, 8), lambda x: [x[..., :64]], INT4), 2, True),
    "begun anywhere": (Beside(QKV, lambda x: [x[..., 3:67]], INT8), 1, False),
    "begun at words": (Beside(QKV, lambda x: [x[..., -72:-8]], INT8), 1, True),
    "a part of a part": (
        Beside(QKV, lambda x: [x[..., :72][..., 8:]], INT8),
        1,
        False,
    ),
    "of another row": (
        Beside((16, 8), lambda x: [x[..., :64], x[..., :64] + 1], INT8),
        2,
        True,
    ),
    "transposed": (
        Beside(QKV, lambda x: [x[..., :64].view(1, 8, 8).mT.reshape(1, 64)], INT8),
        1,
        True,
    ),
    "a chain of int4": (Joined(CHAIN, lambda x, a, b: b(a(x)), INT4), 2, True),
    "a chain of int8": (Joined(CHAIN, lambda x, a, b: b(a(x)), INT8), 2, True),
    "a chain of bfloat16": (
        Joined(
            ((64, 32), (64, 16), (32, 16), (32, 8)),
            lambda x, a, b, c, d: torch.cat([c(y := a(x)), d(y), b(x)], -1),
        ),
        2,
        True,
    ),
    "LoRA": (Joined(LORA, lambda x, w, a, b: w(x) + b(a(x)), INT4), 2, True),
    "behind a result begun anywhere": (
        Joined(
            ((64, 12), *CHAIN),
            lambda x, w, a, b: torch.cat([w(x), b(a(x))], -1),
            INT4,
        ),
        2,
        False,
    ),
    "added to another's result": (
        Joined(
            ((64, 32), (64, 32), (64, 16)),
            lambda x, a, b, c: torch.cat(
                [torch.addmm(a(x), x, b.weight.t()), c(x)], -1
            ),
        ),
        1,
        True,
    ),
    "scaled by another's result": (
        Joined(
            (),
            lambda x: x @ (HELD.to(x).t() * (x @ (HELD.to(x).t() * SCALE))) / 1024,
        ),
        2,
        True,
    ),
}


def main() -> None:
    """Print it, as JSON."""
    from executorch.backends.cuda._edge_calls import is_call
    from executorch.backends.cuda.quantized.pack_weights import pack_quantized_weights
    from executorch.exir import EdgeCompileConfig, to_edge

    found = {}
    for name, (model, row) in NEARLY.items():
        wanted = model(row)
        config = EdgeCompileConfig(_check_ir_validity=False)
        edge = to_edge(torch.export.export(model, (row,)), compile_config=config)
        edge = edge.exported_program()
        pack_quantized_weights(edge)
        (result,) = [edge.module()(row)]
        off = (result.double() - wanted.double()).nan_to_num().abs().max()
        off /= wanted.double().nan_to_num().abs().max()
        found[name] = off.item(), str(edge.graph).count(PRODUCT)
    for name, (model, *_) in BESIDE.items():
        x = torch.linspace(-1, 1, 80, dtype=torch.bfloat16)[None, None]
        with torch.no_grad():
            wanted = model(x).float()
        config = EdgeCompileConfig(_check_ir_validity=False)
        edge = to_edge(torch.export.export(model, (x,)), compile_config=config)
        edge = edge.exported_program()
        pack_quantized_weights(edge)
        products = [n for n in edge.graph.nodes if PRODUCT in str(n.target)]
        (result,) = [edge.module()(x)]
        off = (result.float() - wanted).abs().max().item()
        left = [n for n in edge.graph.nodes if is_call(n, ("aten.mm", "aten.addmm"))]
        in_words = all(n.args[-1] for n in products)
        found[name] = off, len(products), in_words, len(left)
    for scheme in SCHEMES:
        model = quantized(scheme)
        for tokens in (torch.tensor([[5]]), torch.tensor([[5, 63, 0]])):
            with torch.no_grad():
                wanted = model(tokens).float()
            program = torch.export.export(model, (tokens,))
            config = EdgeCompileConfig(_check_ir_validity=False)
            edge = to_edge(program, compile_config=config).exported_program()
            pack_quantized_weights(edge)
            (result,) = [edge.module()(tokens)]
            found[f"{scheme}, {tokens.numel()}"] = (
                ((result.float() - wanted).abs().max() / wanted.abs().max()).item(),
                str(edge.graph).count(PRODUCT),
            )
    print(json.dumps(found))


if __name__ == "__main__":
    main()
