"""Name the files of one export: one for each list of backends and each target."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchtrt_executorch.transformers.exportable import Form

#: Backends whose delegates are compiled for a target.
_COMPILED = ("tensorrt", "cuda")


@dataclass(frozen=True)
class Variant:
    """A program of a model.

    Attributes:
        prefill: Backend of the method for prompts, of encoders, or of the only method.
        decode: Backend of the method for one token, if there is one.
        target: The machine that it is for; None for the one that ``TORCHTRT_GPU`` says, and for CPUs.
        out: Its file.
    """

    prefill: str
    decode: str | None
    target: str | None
    out: Path

    def of(self, form: Form) -> Form:
        """Return ``form`` with this one's backends."""
        return replace(form, prefill=self.prefill, decode=self.decode)


def variants(
    forms: Sequence[tuple[str, str | None]], targets: Sequence[str], out: Path
) -> list[Variant]:
    """Return each form for each target, those for CPUs once.

    A single one is written to ``out``, several to a folder each beside it, named by form and target:
    ``cuda+cuda/linux-aarch64_sm_87_16GiB/model.pte``.
    """
    rows = [
        (form, target)
        for form in dict.fromkeys(forms)
        for target in (dict.fromkeys(targets) if _is_compiled(form) else ()) or (None,)
    ]
    if len(rows) == 1:
        ((form, target),) = rows
        return [Variant(*form, target, out)]
    all_variants = []
    for form, target in rows:
        folder = out.parent / "+".join(filter(None, form))
        if target is not None:
            folder /= re.sub(r"[^\w.-]+", "_", target)
        all_variants.append(Variant(*form, target, folder / out.name))
    return all_variants


def parse_form(text: str, backends: Sequence[str]) -> tuple[str, str | None]:
    """Return what lowers each method: ``cuda`` lowers one, ``tensorrt+cuda`` prefill and decode.

    Raises:
        ValueError: It is nothing of the kind.
    """
    names = text.split("+")
    if len(names) > 2 or not {*names} <= {*backends}:
        raise ValueError(
            f"--form {text!r} is no backend such as cuda, nor two such as tensorrt+cuda; there are {', '.join(backends)}"
        )
    return names[0], names[1] if len(names) == 2 else None


def _is_compiled(form: tuple[str, str | None]) -> bool:
    return any(backend in _COMPILED for backend in form)
