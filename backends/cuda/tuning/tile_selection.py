"""Choose tile configurations of Inductor's matmuls and convolutions without autotuning on a GPU.

A chosen tile may not compile, by itself or with what is fused to it. Then everything is compiled again without
tiles of those block sizes, as long as others are left; the choices include the external kernels that the backend allows, which are
those that ExecuTorch has. After other failures everything is compiled again with every value realized: operators that
compile by themselves also compile next to each other.
"""

from __future__ import annotations

import ast
import functools
import logging
import math
import re
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from executorch.backends.cuda._concatenations import is_read_in_place
from executorch.backends.cuda.tuning import (
    combo_kernels,
    convolution_configs,
    kernels_per_gpu,
    realized_values,
)
from executorch.backends.cuda.tuning.cost_model import Matmul, Tile, cost
from executorch.backends.cuda.tuning.float32_precision import (
    CAPABILITY,
    IEEE,
    arithmetic,
    is_true,
    precision,
)
from executorch.backends.cuda.tuning.gpu_properties import GpuProperties
from executorch.backends.cuda.tuning.kernel_configs import (
    compile_and_save,
    precompile_until_best,
)
from executorch.backends.cuda.tuning.kernels_per_gpu import KernelTargets, alone_for
from torch.utils import _pytree as pytree

logger = logging.getLogger(__name__)

_Error = TypeVar("_Error", bound=BaseException)

_BlockSizes = tuple[int, ...]
#: Input nodes, layout, and whether TF32 is allowed.
_Operator = tuple[list[Any], Any, bool]

#: Registers of a thread.
_REGISTERS = 255
#: The least gain of a GPU's own tile over the shared one, as a logarithm: 5 %.
WORTH_A_KERNEL = 0.05


class _UncompilableError(RuntimeError):
    """A kernel doesn't compile with tiles of these block sizes, M, N and K, for a GPU with so much shared memory."""

    def __init__(
        self, kernel: str, block_sizes: _BlockSizes, gpu: GpuProperties, why: Exception
    ) -> None:
        super().__init__(
            f"kernel {kernel} doesn't compile with tiles of {block_sizes}: {why}"
        )
        self.block_sizes, self.limit = block_sizes, gpu.shared_memory_per_block_optin


class Stopped(Exception):
    """Raised where compilation of kernels would begin, to end a dry run.

    Attributes:
        returned: The types of what the library would return.
    """

    def __init__(self) -> None:
        from torch._inductor.virtualized import V

        super().__init__()
        outputs = getattr(V.graph, "graph_outputs", ())
        self.returned: list[torch.dtype] = [output.get_dtype() for output in outputs]


def overrides(
    gpu: GpuProperties,
    targets: KernelTargets,
    prepare: Callable[[list[Any]], None] = lambda compiled: None,
) -> dict[str, Callable[..., Any]]:
    """Return the overrides that replace Inductor's running and timing of kernels.

    Args:
        gpu: The target GPU.
        targets: Records the kernels that are for only one of several GPUs.
        prepare: See :func:`~executorch.backends.cuda.tuning.kernel_configs.compile_and_save`.
    """
    from torch._inductor import compile_fx, config
    from torch._inductor.choices import InductorChoices
    from torch._inductor.graph import GraphLowering
    from torch._inductor.ir import TensorBox
    from torch._inductor.runtime.triton_heuristics import CachingAutotuner
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    finalize: Any = getattr(InductorChoices, "_finalize_template_configs", None)
    select, compile_graph = AlgorithmSelectorCache.__call__, compile_fx.compile_fx_aot
    run_node = GraphLowering.run_node
    # A model's layers have the same matmuls.
    costs = functools.cache(cost)
    # By block sizes, the most shared memory with which they failed: with less they aren't tried again.
    uncompilable: dict[_BlockSizes | None, int] = {}
    realize_all = False

    def fastest_of(
        tiles: list[Tile | None],
        alone: GpuProperties | None,
        name: str,
        operator: _Operator,
    ) -> tuple[int, float]:
        """Return the fastest choice, and the logarithm of its time: those without tiles come last, as nothing was measured.

        Args:
            alone: The GPU that it is for, if it isn't for all of them.
        """
        device = alone or gpu
        matmuls = {
            one_gpu.capability: matmul_of(
                name, *operator, capability=one_gpu.capability
            )
            for one_gpu in ([alone] if alone else [gpu, *gpu.per_gpu])
        }
        matmul = matmuls[device.capability]
        itemsize = min(node.get_dtype().itemsize for node in operator[0][-2:] if node)
        limit = device.shared_memory_per_block_optin

        def expected(at: int) -> tuple[bool, bool, float]:
            tile = tiles[at]
            if tile is None:
                return block_sizes(tile) in uncompilable, True, math.inf
            fails = uncompilable.get(block_sizes(tile), -1) >= limit or any(
                least_shared_memory(of_gpu, tile, capability, itemsize) > limit
                or (itemsize < 4 and spills(tile, capability))
                for capability, of_gpu in matmuls.items()
            )
            return fails, False, costs(matmul, tile, device)

        choice = min(range(len(tiles)), key=expected)
        return choice, expected(choice)[-1]

    def fastest_for_each(
        tiles: list[Tile | None], name: str, operator: _Operator
    ) -> tuple[int, dict[GpuProperties, int]]:
        """Return the fastest choice, and those that replace it on GPUs where they are worth a kernel."""
        choice, _ = fastest_of(tiles, None, name, operator)
        own = {}
        for one_gpu in gpu.per_gpu if tiles[choice] else ():
            other, expected = fastest_of(tiles, one_gpu, name, operator)
            matmul = matmul_of(name, *operator, capability=one_gpu.capability)
            shared = costs(matmul, tiles[choice], one_gpu)
            if tiles[other] and shared - expected > WORTH_A_KERNEL:
                own[one_gpu] = other
        return choice, own

    def select_by_cost(
        self: Any,
        name: str,
        choices: list[Any],
        nodes: list[Any],
        layout: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        tiles = [tile_of(choice) for choice in choices]
        own: dict[GpuProperties, int] = {}
        every = choices
        if any(tiles) and len(choices) > 1:
            operator = nodes, layout, any(map(takes_tf32, choices))
            choice, own = fastest_for_each(tiles, name, operator)
            choices = [choices[choice]]
        result = select(self, name, choices, nodes, layout, *args, **kwargs)
        if own:
            callers = [(one_gpu, every[at]) for one_gpu, at in own.items()]
            for value in pytree.tree_leaves(result):
                if isinstance(value, TensorBox):
                    buffer: Any = value.data
                    buffer.data.callers_by_gpu = callers
        return result

    def only_the_fastest(
        self: Any,
        template_choices: dict[str, Any],
        inputs: Any,
        templates: list[Any],
        name: str,
        *args: Any,
        **kwargs: Any,
    ) -> list[Any]:
        """Filter configurations, before a kernel is generated for each: only the fastest stay."""
        every = finalize(
            self, template_choices, inputs, templates, name, *args, **kwargs
        )
        values = [configuration.params.to_kwargs() for configuration in every]
        tiles = [_tile_of_configuration(value) for value in values]
        if not any(tiles):
            return every
        tf32 = any(is_true(value.get("ALLOW_TF32")) for value in values)
        operator = inputs.nodes(), inputs.output_layout(), tf32
        choice, own = fastest_for_each(tiles, name, operator)
        return [every[at] for at in dict.fromkeys([choice, *own.values()])]

    def compile_until_it_does(*args: Any, **kwargs: Any) -> Any:
        nonlocal realize_all
        while True:
            targets.clear()
            try:
                return compile_graph(*args, **kwargs)
            except Exception as error:
                cause = caused_by(error, _UncompilableError)
                if caused_by(error, Stopped) or (cause is None and realize_all):
                    raise
                if cause is None:
                    logger.info("%s: nothing is computed where it is read", error)
                    realize_all = True
                elif uncompilable.get(cause.block_sizes, -1) >= cause.limit:
                    raise
                else:
                    logger.info("%s: others are taken", cause)
                    uncompilable[cause.block_sizes] = cause.limit

    def run_node_realized(self: Any, node: Any) -> Any:
        if is_read_in_place(node):
            with config.patch(force_pointwise_cat=True):
                return run_node(self, node)
        result = run_node(self, node)
        realized_values.realize(node, result, every=realize_all)
        return result

    def naming_the_tile(call: Callable[..., Any]) -> Callable[..., Any]:
        def call_or_name_the_tile(kernel: Any, *args: Any, **kwargs: Any) -> Any:
            name = kernel.fn.__name__
            alone = targets.alone(name)
            try:
                with alone_for(alone):
                    return call(kernel, *args, **kwargs)
            except Exception as error:
                block_sizes = block_sizes_in(kernel.fn.src)
                if block_sizes is None:
                    raise
                raise _UncompilableError(
                    name, block_sizes, alone or gpu, error
                ) from error

        return call_or_name_the_tile

    return {
        **kernels_per_gpu.overrides(targets),
        **convolution_configs.overrides(gpu.capability),
        **combo_kernels.overrides(),
        "torch._inductor.choices:InductorChoices._finalize_template_configs": only_the_fastest,
        "torch._inductor.compile_fx:compile_fx_aot": compile_until_it_does,
        "torch._inductor.graph:GraphLowering.run_node": run_node_realized,
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner.precompile": (
            naming_the_tile(
                functools.partial(
                    precompile_until_best, CachingAutotuner.precompile, gpu
                )
            )
        ),
        "torch._inductor.runtime.triton_heuristics:CachingAutotuner.save_gpu_kernel": (
            naming_the_tile(CachingAutotuner.save_gpu_kernel)
        ),
        "torch._inductor.codegen.wrapper:PythonWrapperCodegen.generate_and_run_autotune_block": (
            functools.partial(
                compile_and_save, gpu=gpu, targets=targets, prepare=prepare
            )
        ),
        "torch._inductor.select_algorithm:AlgorithmSelectorCache.__call__": select_by_cost,
    }


def tile_of(choice: Any) -> Tile | None:
    """Return the tile of a choice; None of one that has none, as the library's own operators."""
    info = choice.info_dict()
    try:
        m, k, n = ast.literal_eval(str(info["tile_shape"]))
        return Tile(m, n, k, int(info["num_stages"]), int(info["num_warps"]))
    except (KeyError, ValueError, SyntaxError):
        return None


def takes_tf32(choice: Any) -> bool:
    return is_true(choice.info_dict().get("allow_tf32"))


def _tile_of_configuration(values: dict[str, Any]) -> Tile | None:
    """Return the tile of a choice's configuration, if it is a template with one."""
    names = ("BLOCK_M", "BLOCK_N", "BLOCK_K", "num_stages", "num_warps")
    return (
        Tile(*(values[name] for name in names)) if set(names) <= set(values) else None
    )


def block_sizes(tile: Tile | None) -> _BlockSizes | None:
    return None if tile is None else tile[:3]


def block_sizes_in(source: str) -> _BlockSizes | None:
    """Return the block sizes of the tile that a kernel's source has; None if it has no tiles."""
    blocks = re.findall(r"BLOCK_[MNK] : tl.constexpr = (\d+)", source)
    return tuple(map(int, blocks)) if len(blocks) == 3 else None


def spills(tile: Tile, capability: tuple[int, int]) -> bool:
    """Whether a tile of 16-bit values needs more registers than a thread has.

    Below 8.0 Triton has no tensor cores, and all that a thread multiplies in a step is in registers, as float32. A tile of
    (128, 128) in steps of 32 has 4 KiB a thread in memory, and is slower by two orders of magnitude.
    """
    side = math.sqrt(tile.m * tile.n / (32 * tile.warps))
    return capability < CAPABILITY and 2 * side * tile.k + side**2 > _REGISTERS


def least_shared_memory(
    matmul: Matmul, tile: Tile, capability: tuple[int, int], itemsize: int
) -> int:
    """Return a lower bound of the bytes of shared memory of a tile; 0 where it isn't known.

    From 8.0 on the operands of all steps but one that are loaded ahead are there, where rows are aligned and tensor cores
    multiply them.

    Args:
        matmul: The matmul of the tile.
        tile: Of a template of matmuls or convolutions.
        capability: Compute capability of the GPU.
        itemsize: Bytes of an element of the narrower operand.
    """
    tensor_cores = matmul.kind.endswith("float16") or " tf32" in matmul.kind
    if capability < CAPABILITY or not tensor_cores or not matmul.aligned:
        return 0
    return (tile.stages - 1) * (tile.m + tile.n) * tile.k * itemsize


def caused_by(error: BaseException | None, kind: type[_Error]) -> _Error | None:
    """Return the first error of a kind among what led to ``error``, as Inductor hands them on."""
    while error is not None and not isinstance(error, kind):
        inner = getattr(error, "inner_exception", None)
        error = inner or error.__cause__ or error.__context__
    return error


def matmul_of(
    name: str,
    input_nodes: list[Any],
    layout: Any,
    allows_tf32: bool,
    capability: tuple[int, int],
) -> Matmul:
    """Return the matmul that computes an operator, with the sizes that it was exported with."""
    dtype = input_nodes[0].get_dtype()
    of_float32 = dtype == torch.float32
    dot_precision = (
        precision(input_nodes, allows_tf32, capability) if of_float32 else IEEE
    )
    kind = arithmetic(dtype, capability, dot_precision)
    if name == "convolution":
        image, weight, *_ = input_nodes
        images, channels, *pixels = _sizes(layout.size)
        _, depth, *window = _sizes(weight.get_size())
        groups = _sizes(image.get_size())[1] // depth
        # Contiguous channels of a pixel, as many as one load has.
        channels_last = _sizes(image.get_stride())[1] == 1
        aligned = channels_last and depth * dtype.itemsize % 16 == 0
        sizes = (images * math.prod(pixels), channels // groups, depth, groups)
        return Matmul(f"convolution {kind}", *sizes, math.prod(window), aligned)
    first, second = input_nodes[-2:]
    *batch, m, k = _sizes(first.get_size())
    n = _sizes(second.get_size())[-1]
    aligned = all(
        step == 1 or step * dtype.itemsize % 16 == 0
        for node in (first, second)
        for step in _sizes(node.get_stride())
    )
    sizes = (m, n, k, math.prod(batch))
    return Matmul(f"product {kind}", *sizes, aligned=aligned)


def _sizes(values: Any) -> list[int]:
    from torch._inductor.virtualized import V

    variables = V.graph.sizevars
    hint: Any = getattr(variables, "optimization_hint", None)
    hint = hint or variables.size_hint  # type: ignore[attr-defined]  # before 2.13
    return [hint(value, fallback=8192) for value in values]
