"""Attention that becomes a Triton kernel: what it reads, and that it is all that counts."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from executorch.backends.cuda.triton import _attention as many_tokens
from executorch.backends.cuda.triton._decode_attention import OPERATOR
from executorch.backends.cuda.triton.replacement_pass import (
    ReplaceEdgeOpWithTritonOpPass,
)
from packaging.version import Version
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch._subclasses.functional_tensor import dispatch_functionalize
from torch.export import Dim
from torch.fx import GraphModule, Interpreter
from torch.nn import functional as F

from ...lowering import BaseModel
from . import attention, decode_attention, interpreted
from .conftest import delegates, needs_compilers, without_gpu

pytestmark = [needs_compilers, without_gpu]
HEADS, SHARED, WIDTH = 8, 2, 32
#: From which on ExecuTorch has attention of one token split a cache.
LENGTH = 256


class Enough(Exception):
    """Nothing is to be compiled."""


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> list[GraphModule]:
    """Graphs in which operators were replaced by Triton kernels, those of support checks too."""
    found: list[GraphModule] = []
    replace = ReplaceEdgeOpWithTritonOpPass.call

    def noted(replacing: Any, graph_module: GraphModule) -> Any:
        result = replace(replacing, graph_module)
        found.append(graph_module)
        return result

    monkeypatch.setattr(ReplaceEdgeOpWithTritonOpPass, "call", noted)
    return found


class Grouped(nn.Module):
    """Two layers of transformers' attention over a cache: four queries have a key, and none those behind it."""

    def __init__(self, shared: int, turned: bool) -> None:
        super().__init__()
        self.shared, self.turned = shared, turned

    def forward(self, query: Tensor, cache: Tensor, places: Tensor) -> Tensor:
        mask = (torch.arange(LENGTH)[None] <= places[:, None])[None, None]
        for _ in range(2):
            key = cache[:, :, None].expand(-1, -1, HEADS // self.shared, -1, -1)
            if self.turned:  # heads of a key no longer beside one another
                key = key.transpose(1, 2)
            key = key.reshape(-1, HEADS, LENGTH, WIDTH)
            query = F.scaled_dot_product_attention(query, key, key, attn_mask=mask)
        return query


class Reference(Interpreter):
    """A graph for a GPU on the host, with ATen's attention for Triton's, of the keys that it is to read."""

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        kwargs = {k: v for k, v in kwargs.items() if k not in ("device", "pin_memory")}
        if "sdpa" not in str(target):
            return super().call_function(target, args, kwargs)
        query, key, value, mask = (each.float() for each in args[:4])
        end = kwargs.get("kv_len", torch.tensor(LENGTH))
        read = slice(None), slice(None), slice(int(end))
        grouped = kwargs.get("enable_gqa", False)
        mask = mask[..., read[2]].bool()
        result = F.scaled_dot_product_attention(
            query, key[read], value[read], mask, enable_gqa=grouped
        )
        return result.to(args[0].dtype)


@pytest.mark.parametrize(
    ("shared", "turned", "tokens", "dtype"),
    [
        *(
            (*heads, tokens, torch.bfloat16)
            for heads in ((SHARED, False), (SHARED, True), (1, False), (HEADS, False))
            for tokens in (1, 3)
        ),
        (SHARED, False, 1, torch.float16),
    ],
)
def test_it_reads_a_cache_as_it_is(
    lower, monkeypatch, shared, turned, tokens, dtype
) -> None:
    """Once, and for one token no further than the mask lets it; nothing that only looks repeated."""
    found: list[GraphModule] = []
    replace = ReplaceEdgeOpWithTritonOpPass.call

    def stop(replacing: Any, graph_module: GraphModule) -> Any:
        result = replace(replacing, graph_module)
        if len(_attention(graph_module)) == 2:  # not one that is tried
            found.append(graph_module)
            raise Enough
        return result

    monkeypatch.setattr(ReplaceEdgeOpWithTritonOpPass, "call", stop)
    torch.manual_seed(0)
    inputs = (
        torch.randn(1, HEADS, tokens, WIDTH, dtype=dtype),
        torch.randn(1, shared, LENGTH, WIDTH, dtype=dtype),
        40 + torch.arange(tokens),
    )
    model = Grouped(shared, turned)
    with pytest.raises(Enough):
        lower(model, inputs, gpu="sm_80:40GiB")
    (graph_module,) = found
    for call in _attention(graph_module):
        assert ("enable_gqa" in call.kwargs) == (not turned)
        ends = tokens == 1
        assert ("kv_len" in call.kwargs) == ends
        assert ("sdpa_decode" in str(call.target)) == ends
    lengths = graph_module.graph.find_nodes(
        op="call_function", target=torch.ops.aten.amax.default
    )
    assert len(lengths) == ends  # layers share it
    by_shape = {
        each.shape: each for each in inputs
    }  # a delegate's are in another order
    given = graph_module.graph.find_nodes(op="placeholder")
    (result,) = Reference(graph_module).run(
        *(by_shape[each.meta["val"].shape] for each in given)
    )
    torch.testing.assert_close(result, model(*inputs), atol=0.02, rtol=0.02)


class Dequantized(nn.Module):
    """Attention over a cache of int8 with a scale for each key and value, as transformers repeats it."""

    def forward(
        self, query: Tensor, cache: Tensor, scales: Tensor, places: Tensor
    ) -> Tensor:
        mask = (torch.arange(LENGTH)[None] <= places[:, None])[None, None]
        key = (cache.to(query.dtype) * scales)[:, :, None]
        key = key.expand(-1, -1, HEADS // SHARED, -1, -1)
        key = key.reshape(-1, HEADS, LENGTH, WIDTH)
        return F.scaled_dot_product_attention(query, key, key, attn_mask=mask)


@pytest.mark.parametrize("tokens", [1, 3])
def test_one_token_s_attention_reads_int8(lower, replaced, tokens) -> None:
    """Nothing makes a dequantized cache of it."""
    inputs = (
        torch.randn(1, HEADS, tokens, WIDTH).bfloat16(),
        torch.ones(1, SHARED, LENGTH, WIDTH, dtype=torch.int8),
        torch.ones(1, SHARED, LENGTH, 1).bfloat16(),
        40 + torch.arange(tokens),
    )
    assert len(delegates(lower(Dequantized(), inputs, gpu="sm_80:40GiB"))) == 1
    (call,) = _attention(replaced[-1])
    read = [call.args[1], call.args[2]]
    stored = torch.int8 if tokens == 1 else torch.bfloat16
    assert [each.meta["val"].dtype for each in read] == [stored] * 2
    scales = [each for each in ("key_scale", "value_scale") if each in call.kwargs]
    assert len(scales) == 2 * (tokens == 1)


class Wider(BaseModel, out=lambda: nn.Linear(2 * WIDTH, 8)):
    """Heads whose values are wider than their keys, as differential attention has them."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return self.out(F.scaled_dot_product_attention(query, key, value))


class Shared(nn.Module):
    """Keys of one row for several, which attention repeats by itself."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        query = torch.cat([query, -query])
        return F.scaled_dot_product_attention(query, key, value)


class Causal(nn.Module):
    """One query, which sees the first key alone."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(query, key, value, is_causal=True)


@pytest.mark.parametrize(
    "model", [Wider(), Causal(), Shared()], ids=["wider", "causal", "shared"]
)
def test_what_kernels_rely_on(lower, replaced, model) -> None:
    """Attention for which it isn't so is AOTInductor's, as one delegate."""
    shapes = (1, WIDTH), (LENGTH, WIDTH), (LENGTH, 2 * WIDTH)
    if not isinstance(model, Wider):
        shapes = (*shapes[:2], shapes[1])
    inputs = tuple(torch.randn(1, HEADS, *each).bfloat16() for each in shapes)
    edge = lower(model.bfloat16(), inputs, gpu="sm_80:40GiB")
    assert len(delegates(edge)) == 1
    assert replaced and not any(map(_attention, replaced))


@pytest.mark.skipif(
    Version(torch.__version__).release < (2, 13),
    reason="before 2.13 PyTorch takes no kernel of Triton's interpreter",
)
@pytest.mark.skipif(
    Version(torch.__version__).release >= (2, 15),
    reason="from 2.15 on Triton's interpreter computes a scalar's masks in int32",
)
def test_attention_takes_any_scores() -> None:
    """Large and small ones, masks with holes and with nothing in them, any length and layout, by Triton's interpreter."""
    one, many = interpreted.run(decode_attention, attention)
    for *case, off in one:
        assert off < 1e-4, case
    for *case, large, _, off in many:
        assert off < 1e-4 * max(1, large), case  # scores of some 10,000 at 30


#: Compute capabilities, and KiB of shared memory that a block can have there.
GPUS = {75: 64, 80: 163, 86: 99, 90: 227, 100: 227, 120: 99}


@pytest.mark.parametrize("capability", GPUS)
def test_tiles_fit_in_shared_memory(capability: int) -> None:
    """As Triton counts it, of the widest and the usual heads, with a mask and without."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    limit, kernel = GPUS[capability] << 10, many_tokens.KERNEL
    dtype = "fp16" if capability < 80 else "bf16"
    for width, mask in ((64, 1), (40, 0), (128, 0), (96, 1), (256, 0)):
        tiles = many_tokens.tiles(width, mask > 0, limit)
        padded = triton.next_power_of_2(width)
        constants = {
            **{"MASK": mask, "CAUSAL": False, "ENDS": mask > 0, "VECTOR": 8},
            **{"WIDTH": width, "PADDED": padded},
            **{"ROWS": tiles.rows, "COLUMNS": tiles.columns, "STAGES": tiles.stages},
        }
        types = dict.fromkeys(("query", "key", "value", "out"), f"*{dtype}")
        types |= {
            **{"mask": "*i1", "ends": "*i32"},
            "scale": "fp32",
            **dict.fromkeys(constants, "constexpr"),
        }
        signature = {name: types.get(name, "i32") for name in kernel.arg_names}
        aligned = [["tt.divisibility", 16]]
        attributes = {
            (index,): aligned
            for index, name in enumerate(kernel.arg_names)
            if name in types or name[1:] in ("_row", "_head", "_batch")
            if name not in constants and name != "scale"
        }
        source = ASTSource(kernel, signature, constants, attributes)
        made = triton.compile(
            source,
            target=GPUTarget("cuda", capability, 32),
            options={"num_warps": tiles.warps},
        )
        assert made.metadata.shared <= limit, (width, tiles)


def test_heads_that_no_tile_fits_are_refused() -> None:
    with pytest.raises(ValueError, match="16384 bytes of shared memory, not for 256"):
        many_tokens.tiles(256, False, 16 << 10)


class Masked(nn.Module):
    """Attention of many tokens, causal or with a mask."""

    def __init__(self, causal: bool, dtype: torch.dtype) -> None:
        super().__init__()
        self.causal, self.dtype = causal, dtype

    def forward(self, query: Tensor, key: Tensor, mask: Tensor) -> Tensor:
        given = None if self.causal else mask.to(self.dtype)
        return F.scaled_dot_product_attention(
            query, key, key, given, is_causal=self.causal
        )


@pytest.mark.parametrize(
    ("dtype", "mask", "width", "taken"),
    [
        (torch.bfloat16, None, 64, True),
        (torch.float16, torch.bool, 64, True),
        (torch.bfloat16, torch.bfloat16, 40, True),
        (torch.float16, torch.float16, 80, True),
        (torch.float32, None, 64, False),
        (torch.bfloat16, None, 8, False),
    ],
    ids=str,
)
def test_attention_of_many_tokens_is_one_kernel(
    lower, replaced, dtype, mask, width, taken
) -> None:
    """In half precision, with any mask and heads that are no power of two; float32 is AOTInductor's to decompose."""
    query = torch.randn(2, 4, 48, width).to(dtype)
    key = torch.randn(2, 4, 48, width).to(dtype)
    inputs = query, key, torch.randn(2, 1, 48, 48)
    model = Masked(mask is None, mask or dtype)
    assert len(delegates(lower(model, inputs, gpu="sm_90:80GiB"))) == 1
    targets = [str(call.target) for each in replaced for call in _attention(each)]
    assert set(targets) == ({"executorch_cuda.sdpa.default"} if taken else set())


class Merged(nn.Module):
    """Attention whose heads are side by side in the result, in bfloat16; with ``both``, as attention has them as well."""

    def __init__(self, both: bool) -> None:
        super().__init__()
        self.both = both

    def forward(self, query: Tensor) -> tuple[Tensor, ...]:
        result = F.scaled_dot_product_attention(query, query, query)
        result = result.view(query.shape)
        merged = result.transpose(1, 2).flatten(2) * 2
        return (merged, result.transpose(-2, -3).sum(1), *[result] * self.both)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("both", [False, True])
def test_heads_are_written_where_they_are_read(lower, replaced, both, dynamic) -> None:
    """Nothing is transposed, where all that read attention's result read it so."""
    query = torch.randn(2, 4, 48, 64).bfloat16()
    shapes = ({2: Dim("tokens", max=512)},) if dynamic else None
    edge = lower(Merged(both), (query,), shapes, gpu="sm_90:80GiB")
    assert len(delegates(edge)) == 1
    (call,) = _attention(replaced[-1])
    names = [str(node.target) for node in replaced[-1].graph.nodes]
    copies = [name for name in names if "transpose" in name or "permute" in name]
    value = call.meta["val"]
    assert value.shape[1 if both else 2] == 4 and value.is_contiguous()
    assert call.kwargs.get("tokens_first", False) is not both
    assert bool(copies) is both


def _fake(*shape: int, steps: Any = None, dtype: Any = torch.bfloat16) -> Tensor:
    return torch.empty_strided(
        shape, steps or torch.empty(shape, device="meta").stride(), dtype=dtype
    )


#: What the kernel would read otherwise than it is, by what is said of it.
REFUSED: dict[str, Callable[[], tuple[Any, ...]]] = {
    "not [(1, 2, 3, 16)": lambda: (_fake(1, 2, 3, 16), *(_fake(1, 2, 8, 16),) * 2),
    "not [(1, 2, 1, 24)": lambda: (_fake(1, 2, 1, 24), *(_fake(1, 2, 8, 24),) * 2),
    "not [(1, 2, 1, 8)": lambda: (_fake(1, 2, 1, 8), *(_fake(1, 2, 8, 8),) * 2),
    "not [(1, 0, 1, 16)": lambda: (_fake(1, 0, 1, 16), *(_fake(1, 1, 8, 16),) * 2),
    "not [(1, 2, 1, 16), (1, 2, 8, 32)": lambda: (
        _fake(1, 2, 1, 16),
        *(_fake(1, 2, 8, 32),) * 2,
    ),
    "not [(1, 2, 1, 16), (1, 0, 8, 16)": lambda: (
        _fake(1, 2, 1, 16),
        *(_fake(1, 0, 8, 16),) * 2,
    ),
    "not 2147483648": lambda: (
        _fake(1, 2, 1, 16),
        *(_fake(1, 2, (1 << 31) + 1, 16, steps=(1, 1, 1, 0)),) * 2,
    ),
    "not (torch.int64, 1)": lambda: (
        _fake(1, 2, 1, 16),
        *(_fake(1, 2, 8, 16),) * 2,
        None,
        0.0,
        False,
        0.0,
        False,
        _fake(dtype=torch.int64),
    ),
    "(torch.bfloat16, (1, 2, 8, 1)), not [(torch.bfloat16, (1, 2, 8, 1)), None]": lambda: (
        _fake(1, 2, 1, 16),
        *(_fake(1, 2, 8, 16, dtype=torch.int8),) * 2,
        None,
        0.0,
        False,
        0.0,
        False,
        None,
        _fake(1, 2, 8, 1),
    ),
    "not of [torch.bfloat16, torch.int8, torch.int8]": lambda: (
        _fake(1, 2, 1, 16),
        *(_fake(1, 2, 8, 16, dtype=torch.int8),) * 2,
    ),
    "not (torch.int32, 2)": lambda: (
        _fake(1, 2, 1, 16),
        *(_fake(1, 2, 8, 16),) * 2,
        None,
        0.0,
        False,
        0.0,
        False,
        _fake(2, dtype=torch.int32),
    ),
}


@pytest.mark.parametrize("said", REFUSED)
def test_the_kernel_refuses_what_it_would_read_otherwise(said: str) -> None:
    with FakeTensorMode(), pytest.raises(ValueError, match=re.escape(said)):
        dispatch_functionalize(OPERATOR)(*REFUSED[said]())


def _attention(graph_module: GraphModule) -> list[Any]:
    return [n for n in graph_module.graph.nodes if ".sdpa" in str(n.target)]
