"""The data model of a patch, and its status with the installed releases."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass, field
from enum import Enum
from typing import Callable, Container, Iterable, Mapping

from packaging.specifiers import SpecifierSet

from torchtrt_executorch.overlay.anchors import Anchor
from torchtrt_executorch.overlay.edit import Edit
from torchtrt_executorch.overlay.served import our_source
from torchtrt_executorch.overlay.upstream import VARIANTS, installed_release, source

SKIP = "TORCHTRT_EXECUTORCH_SKIP"

#: Per distribution, the releases that this project is tested with. One beyond them is worth a warning,
#: unless the distribution is one that most who have it have for something else.
TORCH_TENSORRT = {"torch-tensorrt": ">=2.13,<2.15"}
EXECUTORCH = {"executorch": ">=1.4,<1.6"}
TESTED: Mapping[str, str] = TORCH_TENSORRT | EXECUTORCH

#: Packages that upstream doesn't have: a patch adds those that its modules are in.
PACKAGES = frozenset(
    (
        "executorch.backends.cuda.quantized",
        "executorch.backends.cuda.support",
        "executorch.backends.cuda.tuning",
        "executorch.backends.xnnpack.rewriting",
        "executorch.exir.decompositions",
        "executorch.exir.passes.control_flow",
        "executorch.exir.passes.devices",
        "executorch.exir.passes.streams",
        "executorch.exir.program.operators",
        "torch_tensorrt.dynamo.executorch",
        "torch_tensorrt.dynamo.fallback",
        "torch_tensorrt.dynamo.graphs",
        "torch_tensorrt.dynamo.state",
        "torch_tensorrt.executorch.blob",
        "torch_tensorrt.executorch.engines",
    )
)


@dataclass(frozen=True)
class Preparation:
    """One function of ours, ``by``, run before the upstream module ``module`` is looked for.

    Attributes:
        module: Upstream module.
        by: ``"package.module:function"``, taking the module's name.
    """

    module: str
    by: str


@dataclass(frozen=True)
class Patch:
    """One row of the manifest.

    Attributes:
        name: Name in warnings, ``status`` and ``TORCHTRT_EXECUTORCH_SKIP``.
        summary: Its effect, in one line.
        pull_request: Upstream pull request or issue, as ``owner/repository#number``.
        releases: Per distribution, the releases that it applies to.
        upstream: Upstream's own behavior, and from which release on.
        kept_because: Why the patch is needed nevertheless.
        extra: The extra of this distribution that installs what the patch works with, beside upstream.
        goes_when: The upstream change that makes it superfluous, with its pull request or issue.
        replaces: Upstream modules that ours is served for.
        adds: Modules that upstream doesn't have, served beside its own, with their packages. Several patches
            may add one module.
        data: Files that these read, as ``executorch/backends/cuda/tuning/measured/sm_90_ieee.json``.
        requires: Patches that this one needs in force, on releases that they are for.
        edits: Edits of the source of upstream's modules.
        prepares: Functions run before upstream's module starts to execute.
        anchors: Symbols of upstream that it requires.
        superseded: Per distribution, the releases for which it steps aside.
    """

    name: str
    summary: str
    pull_request: str
    releases: Mapping[str, str]
    upstream: str
    kept_because: str
    goes_when: str
    extra: str = ""
    replaces: tuple[str, ...] = ()
    adds: tuple[str, ...] = ()
    data: tuple[str, ...] = ()
    requires: tuple[str, ...] = ()
    edits: tuple[Edit, ...] = ()
    prepares: tuple[Preparation, ...] = ()
    anchors: tuple[Anchor, ...] = ()
    superseded: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        packages = PACKAGES.intersection(name.rpartition(".")[0] for name in self.adds)
        object.__setattr__(self, "adds", (*sorted(packages), *self.adds))

    @property
    def modules(self) -> tuple[str, ...]:
        """Every upstream module that the patch touches, in the order of the manifest."""
        prepared = (preparation.module for preparation in self.prepares)
        edited = (edit.module for edit in self.edits)
        return tuple(dict.fromkeys((*self.replaces, *edited, *prepared)))


class State(Enum):
    """Status of a patch with the installed releases."""

    IN_FORCE = "in force"
    STEPPED_ASIDE = "stepped aside"
    NOT_APPLICABLE = "not applicable"
    FAILED = "failed"


@dataclass(frozen=True)
class PatchStatus:
    """A patch's state and the reason for it.

    Attributes:
        state: In force or not.
        reason: Why it isn't in force; empty if it is.
        surprising: Whether the user should be warned: the patch was meant for this
            installation, and something about it is unknown.
    """

    state: State
    reason: str = ""
    surprising: bool = False


def patch_statuses(
    patches: Iterable[Patch],
    complete: Container[str] = (),
    begun: Container[str] = (),
) -> dict[str, PatchStatus]:
    """Return the status of each of ``patches``, by name; one comes after those that it requires.

    Args:
        patches: Rows of the manifest, in its order.
        complete: Modules that were imported before the overlay was there. Others have imported from
            them, have made classes from theirs and have entered them in tables, so that a patch of
            one would be in force for some: it is left out whole.
        begun: Modules whose import has begun. Such a one can have most edits, and not all.
    """
    from torchtrt_executorch.overlay.live import can_edit
    from torchtrt_executorch.overlay.placing import place

    patches = tuple(patches)
    statuses: dict[str, PatchStatus] = {}
    release = functools.cache(installed_release)
    for patch in patches:
        status = _status_but_for_edits(patch, release)
        late = [
            name
            for name in patch.modules
            if name in complete
            or (
                name in begun
                and not can_edit(e for e in patch.edits if e.module == name)
            )
        ]
        if status.state is State.IN_FORCE and late:
            status = PatchStatus(
                State.NOT_APPLICABLE,
                f"imported before the overlay: {', '.join(late)}; import torch first, with no "
                "other plug-in of it that imports them",
                surprising=True,
            )
        statuses[patch.name] = status
    leave_out_dependents(patches, statuses)
    place(patches, statuses)
    return statuses


def leave_out_dependents(
    patches: Iterable[Patch], statuses: dict[str, PatchStatus]
) -> None:
    """Change the statuses of patches that need one which isn't in force."""
    for patch in patches:
        for required in patch.requires:
            states = statuses[patch.name].state, statuses[required].state
            if states[0] is State.IN_FORCE is not states[1]:
                statuses[patch.name] = PatchStatus(
                    State.NOT_APPLICABLE, f"it needs {required}, which is not in force"
                )


def patch_status(patch: Patch) -> PatchStatus:
    """Check ``patch`` by itself, its releases, its anchors and its edits, importing nothing of upstream."""
    from torchtrt_executorch.overlay.placing import unplaced

    status = _status_but_for_edits(patch, installed_release)
    return (unplaced(patch) or status) if status.state is State.IN_FORCE else status


def _status_but_for_edits(
    patch: Patch, release_of: Callable[[str], str | None]
) -> PatchStatus:
    if patch.name in os.environ.get(SKIP, "").replace(",", " ").split():
        return PatchStatus(State.NOT_APPLICABLE, f"turned off by {SKIP}")
    installed = {name: release_of(name) for name in patch.releases}
    for name, release in installed.items():
        if release is None:
            names = " or ".join((name, *VARIANTS.get(name, ())))
            cure = f": pip install 'torchtrt-executorch[{patch.extra}]'"
            lacks = f"{names} is not installed{cure if name == patch.extra else ''}"
            return PatchStatus(State.NOT_APPLICABLE, lacks)
    for name, release in installed.items():
        if name in patch.superseded and matches(patch.superseded[name], release):
            return PatchStatus(
                State.STEPPED_ASIDE, f"{name} {release} has it: {patch.upstream}"
            )
    for name, release in installed.items():
        if not matches(patch.releases[name], release):
            wanted = patch.releases[name]
            # A supported release that has no need of the patch is no news; one beyond those is.
            if name in TESTED and matches(TESTED[name], release):
                reason = f"it is for {name} {wanted}, and this is {release}"
                return PatchStatus(State.NOT_APPLICABLE, reason)
            return PatchStatus(
                State.NOT_APPLICABLE,
                f"{name} {release} is not a release it knows ({wanted})",
                surprising=name in TESTED,
            )
    missing = [lack for anchor in patch.anchors if (lack := anchor.missing())]
    missing += [
        f"{name} is upstream's own by now" for name in patch.adds if _taken(name)
    ]
    if missing:
        return PatchStatus(
            State.NOT_APPLICABLE,
            f"missing anchor: {'; '.join(missing)}",
            surprising=True,
        )
    return PatchStatus(State.IN_FORCE)


def _taken(name: str) -> bool:
    """Whether upstream has another module of the name; ours, once merged there, is none."""
    theirs = source(name)
    return theirs is not None and theirs != our_source(name)


def matches(specifier: str, release: str | None) -> bool:
    return release is not None and SpecifierSet(specifier).contains(
        release, prereleases=True
    )
