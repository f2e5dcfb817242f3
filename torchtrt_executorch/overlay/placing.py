"""Locate the edits of patches in the installed sources: all edits of a patch, or none.

They are looked for before any module of upstream's executes, so that nothing has ever to be taken back.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import decode_source

from torchtrt_executorch.overlay.edit import AppliedError, Edit, EditError, edited
from torchtrt_executorch.overlay.edited import edited_file, source_of
from torchtrt_executorch.overlay.patch import (
    Patch,
    PatchStatus,
    State,
    leave_out_dependents,
    matches,
)
from torchtrt_executorch.overlay.served import our_spec
from torchtrt_executorch.overlay.upstream import installed_release, upstream_spec

_FAILURES = (EditError, ImportError, OSError, SyntaxError, ValueError)


def edits_of(
    patches: Iterable[Patch],
    release: Callable[[str], str | None] = installed_release,
) -> dict[str, list[Edit]]:
    """Return the edits of ``patches`` for some releases, by the module that they change.

    Args:
        patches: In the manifest's order.
        release: Returns the release of a distribution; the installed one's, unless given.
    """
    edits: dict[str, list[Edit]] = {}
    release = functools.cache(release)
    for patch in patches:
        for edit in patch.edits:
            if all(matches(s, release(d)) for d, s in edit.releases.items()):
                edits.setdefault(edit.module, []).append(edit)
    return edits


def place(patches: Sequence[Patch], statuses: dict[str, PatchStatus]) -> None:
    """Write the edited files of the patches in force, and leave out those whose edits have no place.

    Args:
        patches: Rows of the manifest, in its order.
        statuses: Status of each; changed for excluded ones.
    """
    while True:
        in_force = [p for p in patches if statuses[p.name].state is State.IN_FORCE]
        failed = _write(edits_of(in_force))
        if not failed:
            return
        for number, patch in enumerate(in_force):
            # Beside those before it: two may change one place.
            if status := unplaced(patch, in_force[:number]):
                statuses[patch.name] = status
                break
        else:
            for patch in in_force:
                if reasons := [failed[n] for n in edits_of([patch]) if n in failed]:
                    statuses[patch.name] = _left_out(reasons)
        leave_out_dependents(patches, statuses)


def unplaced(patch: Patch, beside: Sequence[Patch] = ()) -> PatchStatus | None:
    """Return the status of a patch whose edits have no place; None if all of them have one.

    Args:
        patch: In force but for its edits.
        beside: Patches that are in force as well, before it.
    """
    others, reasons, applied = edits_of(beside), [], []
    for name, edits in edits_of([patch]).items():
        try:
            source = edited(
                decode_source(source_of(_spec(name))),
                [*others.get(name, ()), *edits],
            )
            compile(source, name, "exec", dont_inherit=True)
        except AppliedError as error:
            applied.append(str(error))
        except _FAILURES as error:
            reasons.append(str(error))
    if applied and not reasons and len(applied) == len(edits_of([patch])):
        return PatchStatus(State.STEPPED_ASIDE, "upstream's source has it")
    return _left_out(reasons + applied) if reasons or applied else None


def _left_out(reasons: Sequence[str]) -> PatchStatus:
    reason = f"missing place: {'; '.join(reasons)}"
    return PatchStatus(State.NOT_APPLICABLE, reason, surprising=True)


def _write(edits_by_module: Mapping[str, Sequence[Edit]]) -> dict[str, str]:
    """Write the edited files that aren't there yet; return what failed, by module."""
    failed = {}
    for name, edits in edits_by_module.items():
        try:
            edited_file(_spec(name), edits)
        except _FAILURES as error:
            failed[name] = str(error)
    return failed


def _spec(name: str) -> ModuleSpec:
    # Of a module that a patch adds, those which require it change ours.
    return upstream_spec(name) or our_spec(name)
