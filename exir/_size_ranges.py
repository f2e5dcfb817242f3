"""Keep the ranges of sizes that a program was exported with, while its graph is executed again with fake tensors."""

from __future__ import annotations

import functools
from typing import Any, Callable

from torch.fx.experimental.symbolic_shapes import ShapeEnv

#: Guards are suppressed for a thread, whichever environment is asked to.
_ENVIRONMENT = ShapeEnv()


def keeps_size_ranges(execute: Callable[..., Any]) -> Callable[..., Any]:
    """Have a pass's execution of an operator ask nothing of the sizes of its arguments.

    A fake convolution chooses a kernel by its batch (16 and more, of depthwise ones) and narrows the range of that; the
    operator that is written doesn't depend on it.
    """

    @functools.wraps(execute)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        with _ENVIRONMENT.suppress_guards():
            return execute(*args, **kwargs)

    return wrapper
