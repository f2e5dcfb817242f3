"""Warnings about an exported program that its caller may not expect.

Of several engines as such there is no warning: models that need a PyTorch operator in their middle
have them.
"""

from __future__ import annotations

import logging

from torch.export import ExportedProgram
from torch_tensorrt.executorch.engines.nodes import engine_nodes

logger = logging.getLogger("torch_tensorrt.executorch._export")


def warn_of(method: str, program: ExportedProgram, budget: int | None) -> None:
    """Warn of budgets that add up.

    Args:
        method: Its name.
        program: With engines.
        budget: Bytes of weights that each engine may keep on its GPU, if it has one.
    """
    engines = len(engine_nodes(program.graph.nodes))
    if budget is not None and engines > 1:
        logger.warning(
            "weight_streaming_budget_per_engine is for each engine: %s has %d, which may keep %d "
            "bytes of weights on the GPU between them",
            method,
            engines,
            engines * budget,
        )


def warn_of_buffers(method: str, program: ExportedProgram) -> None:
    """Warn of buffers that lose their values: those that a lowered program writes outside of delegates.

    Args:
        method: Its name.
        program: In the edge dialect. A delegate that owns a buffer keeps its value.
    """
    if written := sorted({*program.graph_signature.buffers_to_mutate.values()}):
        logger.warning(
            "%s writes to %s, of which ExecuTorch only keeps shape and dtype: what is read before "
            "it is written is whatever the memory holds. For their values give to_executorch an "
            "ExecutorchBackendConfig(passes=[InitializedMutableBufferPass([...])]), of "
            "executorch.exir.passes.init_mutable_pass, with the buffers on the CPU",
            method,
            ", ".join(written),
        )
