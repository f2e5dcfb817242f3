"""Validate the keys and values of compile specs before lowering."""

from __future__ import annotations

import difflib
import warnings
from collections.abc import Collection, Sequence

from executorch.exir.backend.compile_spec_schema import CompileSpec

_SWITCH = ("ON", "OFF")


def check_compile_specs(
    who: str,
    specs: Sequence[CompileSpec],
    known: Collection[str],
    switches: Collection[str] = (),
) -> None:
    """Check the keys of ``specs``, and the values of those that are ON or OFF.

    A key that is nearly a known one is taken for a slip. Any other is warned of: whoever wrote it may read
    it at run time.

    Args:
        who: Whose they are, as ``"CudaPartitioner"``.
        specs: The compile specs.
        known: Keys that somebody reads.
        switches: Keys whose values are ``ON`` or ``OFF``.

    Raises:
        ValueError: A key is misspelled, given twice, or has a value that it can't have.
    """
    seen = set[str]()
    for spec in specs:
        if spec.key in seen:
            raise ValueError(f"{who}: the compile spec {spec.key!r} is given twice")
        seen.add(spec.key)
        if spec.key not in known:
            close = difflib.get_close_matches(spec.key, sorted(known), n=1, cutoff=0.7)
            if close:
                raise ValueError(
                    f"{who} knows no compile spec {spec.key!r}; did you mean {close[0]!r}?"
                )
            warnings.warn(
                f"{who} knows no compile spec {spec.key!r}: it is handed to the delegate, and does "
                f"nothing here; there are {', '.join(sorted(known))}",
                stacklevel=3,
            )
        value = bytes(spec.value).decode("utf-8", "replace")
        if spec.key in switches and value.upper() not in _SWITCH:
            raise ValueError(
                f"{who}: the compile spec {spec.key!r} is ON or OFF, not {value!r}"
            )
