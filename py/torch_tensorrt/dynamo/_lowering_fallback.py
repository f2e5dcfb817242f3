"""Lowering without the passes that trip over the program, where failures are to cost no export.

The passes make a graph easier to convert; one left out costs engines at most.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import signature
from typing import Any

from torch.export import ExportedProgram
from torch_tensorrt.dynamo._graph_copies import copied_module, with_graph_of_its_own

logger = logging.getLogger("torch_tensorrt.dynamo._compiler")

_left_out: ContextVar[list[Callable[..., Any]] | None] = ContextVar(
    "_left_out", default=None
)


class _PassFailed(Exception):
    def __init__(self, failed: Callable[..., Any]) -> None:
        super().__init__(failed)
        self.failed = failed


def lower_what_lowers(
    lower: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Lower, and lower again without a pass that raised, until none does.

    Each attempt has a copy of the graph, since a pass may have changed it before it raised. For
    :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around ``pre_export_lowering`` and
    ``post_lowering``.
    """
    given, *rest = signature(lower).bind(*args, **kwargs).arguments.values()
    if not rest or not rest[0].executorch_build_fallback:
        return lower(*args, **kwargs)
    with _leaving_out([]) as left_out:
        while True:
            is_program = isinstance(given, ExportedProgram)
            copy = with_graph_of_its_own(given) if is_program else copied_module(given)
            try:
                return lower(copy, *rest)
            except _PassFailed as error:
                left_out.append(error.failed)
                name = getattr(error.failed, "__name__", repr(error.failed))
                logger.warning(
                    "executorch_build_fallback: lowered without %s, which failed: %r",
                    name,
                    error.__cause__,
                )


def run_passes(
    run: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a pass manager without what was left out, and say which pass raises.

    For :func:`~torchtrt_executorch.overlay.wrapping.wrapped`, around its ``__call__``.
    """
    left_out = _left_out.get()
    if left_out is None:
        return run(*args, **kwargs)
    manager, *rest = args
    passes = [_telling(each) for each in manager.passes if each not in left_out]
    return run(type(manager).build_from_passlist(passes), *rest, **kwargs)


def _telling(lowering_pass: Callable[..., Any]) -> Callable[..., Any]:
    def told(*args: Any) -> Any:
        try:
            return lowering_pass(*args)
        except Exception as error:
            raise _PassFailed(lowering_pass) from error

    return told


@contextmanager
def _leaving_out(
    passes: list[Callable[..., Any]],
) -> Iterator[list[Callable[..., Any]]]:
    token = _left_out.set(passes)
    try:
        yield passes
    finally:
        _left_out.reset(token)
