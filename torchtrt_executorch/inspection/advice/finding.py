"""A finding: one piece of advice."""

from __future__ import annotations

from dataclasses import dataclass

from torchtrt_executorch.inspection.formatting import short
from torchtrt_executorch.inspection.model.facts import Delegate, Method


@dataclass(frozen=True)
class Finding:
    """Something that could be better.

    Attributes:
        name: Kind of the finding, for ``--ignore``.
        level: ``"warning"``, which ``--strict`` counts, or ``"note"``.
        text: The finding, and its location.
        advice: The change to make.
        method: The method it is about; empty for the file.
        instructions: The instructions that it is about; in what ``advise`` returns, the first of them.
        nanoseconds: Total time of those in a call, where it was measured.
        staged: Whether it is about what delegates copy for themselves, so that their own time isn't its.
    """

    name: str
    level: str
    text: str
    advice: str
    method: str = ""
    instructions: tuple[int, ...] = ()
    nanoseconds: float | None = None
    staged: bool = False


def name_of(method: Method) -> str:
    """Return what a method is called in a finding."""
    return short(method.name, 40) or "a method"


def calls_of(method: Method, delegate: Delegate) -> tuple[int, ...]:
    """Return the instructions that call a delegate."""
    return tuple(s.index for s in method.instructions if s.delegate == delegate.index)
