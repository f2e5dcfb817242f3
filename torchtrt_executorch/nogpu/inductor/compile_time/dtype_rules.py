"""Write the table of the operators' result types once, and not for each operator of each kernel.

Inductor's ``DtypePropagationOpsHandler`` is one object, which fills its table of some 200 rules and compares it with the
list of all operators each time that it is asked for: of lowering a ConvNeXt in float16 that is an eighth.

Upstream: ``torch._inductor.dtype_propagation.DtypePropagationOpsHandler``, which ``CSEProxy._default`` makes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torchtrt_executorch.nogpu.thread_scope import lookup

PATCH_POINT = "torch._inductor.dtype_propagation:DtypePropagationOpsHandler.__init__"


def overrides() -> dict[str, Callable[..., Any]]:
    """Return the override that fills the table where the rules aren't those that it was filled with."""
    fill = lookup(PATCH_POINT)
    if fill is None:
        return {}
    from torch._inductor import utils
    from torch._inductor.codegen import common

    filled: dict[int, tuple[Any, ...]] = {}

    def fill_once(self: Any) -> None:
        rules = utils.op_dtype_propagation_rules, common.pointwise_overrides_data
        if filled.get(id(self)) != rules:
            fill(self)
            filled[id(self)] = tuple(dict(each) for each in rules)

    return {PATCH_POINT: fill_once}
