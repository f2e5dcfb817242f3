"""Weight streaming: a budget per engine, passed to the runtime as a compile spec."""

from __future__ import annotations

from typing import Mapping, Sequence

from executorch.exir.backend.compile_spec_schema import CompileSpec
from torch_tensorrt.executorch._release import (
    RELEASE,
    STREAMS_WEIGHTS,
    WEIGHT_STREAMING_SINCE,
)
from torch_tensorrt.executorch.partitioner import (
    WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY,
    normalize_weight_streaming_budget_per_engine,
)


def weight_streaming_specs(
    budget: int | None, compile_specs: Mapping[str, Sequence[CompileSpec]]
) -> list[CompileSpec]:
    """Return the compile specs that say ``budget``, in bytes per engine; none for None.

    Raises:
        TypeError: The budget is not an int.
        ValueError: It is out of range, or spelled in ``compile_specs`` as well, or the installed
            torch-tensorrt has a runtime that doesn't read it.
    """
    for name, specs in compile_specs.items():
        if any(spec.key == WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY for spec in specs):
            raise ValueError(
                f"compile_specs for {name} has {WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY}: pass "
                "weight_streaming_budget_per_engine instead, which is checked"
            )
    value = normalize_weight_streaming_budget_per_engine(budget)
    if value is None:
        return []
    if not STREAMS_WEIGHTS:
        raise ValueError(
            f"weight_streaming_budget_per_engine needs torch-tensorrt {WEIGHT_STREAMING_SINCE}: the runtime of "
            f"{RELEASE} doesn't read it"
        )
    return [CompileSpec(WEIGHT_STREAMING_BUDGET_COMPILE_SPEC_KEY, value)]
