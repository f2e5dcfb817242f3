"""``torchtrt-executorch doctor``: what this machine can build, run and check, and what to install for the rest."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchtrt_executorch import overlay
from torchtrt_executorch.nogpu.builder.installed import (
    BUILDERS,
    TENSORRT,
    TENSORRT_RTX,
    Builder,
)
from torchtrt_executorch.nogpu.cross.requirements import what_is_missing
from torchtrt_executorch.nogpu.host import present
from torchtrt_executorch.nogpu.host.importable import import_errors
from torchtrt_executorch.nogpu.target import engine_targets
from torchtrt_executorch.nogpu.target.gpu_description import PLATFORMS, own_platform
from torchtrt_executorch.overlay.manifest import PATCHES
from torchtrt_executorch.overlay.patch import State, patch_statuses
from torchtrt_executorch.overlay.upstream import distribution_release

#: By release of PyTorch, the releases of torch-tensorrt-rtx and of TensorRT-RTX that go with it.
TENSORRT_RTX_RELEASES = {
    "2.13": ("2.13.0", "1.5.0.114"),
    "2.14": ("2.14.0", "1.6.1.120"),
}
#: The GPUs that CUDA libraries are compiled for.
_CUDA_GPUS = "sm_75 to sm_121"
_THERE = "torchtrt-executorch build FILE"
#: Platforms for which Torch-TensorRT has wheels with TensorRT-RTX.
_RTX_PLATFORMS = ("linux-x86_64", "windows-x86_64")
_STAND_INS = "stand-ins in PyTorch compute for them"


@dataclass(frozen=True)
class Ability:
    """Something that this machine can do, or what it lacks for it.

    Attributes:
        kind: ``build``, ``run`` or ``check``.
        what: The task: build, run or check something.
        can: Whether it can.
        about: For which targets; or why not, and what happens instead.
        command: Command that installs what is missing, or does the task elsewhere; empty if none is needed, or possible.
    """

    kind: str
    what: str
    can: bool
    about: str = ""
    command: str = ""


def abilities() -> list[Ability]:
    """Return what this machine can do. It looks for packages and programs, and compiles and builds nothing."""
    return [*_build(), *_run(), *_check()]


def _build() -> Iterator[Ability]:
    can = importlib.util.find_spec("torch") is not None
    torch = "" if can else "PyTorch is missing"
    yield Ability("build", "a program for ExecuTorch", *_package("executorch", torch))
    unimportable = torch or _in_the_way()
    yield from _build_engines(unimportable)
    yield Ability(
        "build",
        "emulated engines, to be built there",
        not unimportable,
        unimportable or "for any GPU: export in emulated_engines()",
        "" if not unimportable else _install_builder(),
    )
    elsewhere = ", ".join(
        platform for platform in PLATFORMS if platform != own_platform()
    )
    for machines, cross in ((own_platform(), False), (elsewhere, True)):
        missing = what_is_missing(cross)
        text, _, command = missing.partition(": ")
        yield Ability(
            "build",
            f"CUDA libraries, {machines}",
            not missing and not torch,
            torch or (f"missing: {text}" if missing else f"for {_CUDA_GPUS}"),
            command or (_PIP["torch"] if torch else ""),
        )


def _build_engines(lacks: str) -> Iterator[Ability]:
    """One Torch-TensorRT is installed at a time: nobody is advised to remove one that builds here.

    Args:
        lacks: Why Torch-TensorRT can't be imported; empty if it can.
    """
    gpu = _gpu()
    rtx = distribution_release(TENSORRT_RTX.distribution) is not None
    standard = distribution_release(TENSORRT.distribution) is not None
    targets = engine_targets.engines_for() if rtx and not lacks else ""
    about = f"for {targets}" if targets else lacks or "not installed"
    if not _rtx_has_wheel():
        about = f"built on {' and '.join(_RTX_PLATFORMS)}"
    elif standard:
        about = f"{TENSORRT.distribution} is installed in their place"
    # With a GPU, what is installed builds on it.
    installs = not targets and _rtx_has_wheel() and not (standard and gpu)
    yield Ability(
        "build",
        "TensorRT-RTX engines",
        bool(targets),
        about,
        _install_rtx() if installs else "",
    )
    here = bool(standard and not lacks and gpu and present.can_build_engines())
    about = f"built on the GPU that runs them, by {_THERE}"
    if here:
        about = f"for the GPU that is here, {gpu}"
    elif gpu and rtx:
        about = f"{TENSORRT_RTX.distribution} is installed in their place"
    elif gpu:
        about = lacks or "TensorRT's libraries are missing"
    yield Ability(
        "build",
        "TensorRT engines",
        here,
        about,
        _install_tensorrt() if gpu and not here and not rtx else "",
    )


def _run() -> Iterator[Ability]:
    yield Ability("run", "a .pte in Python", *_package("torch"))
    yield Ability("run", "XNNPACK's delegates", *_package("executorch"))
    gpu = _gpu()
    no_gpu = f"there is no GPU: {_STAND_INS}"
    for builder in BUILDERS:
        what = f"{builder.name}'s engines"
        if gpu and not present.libraries_of(builder):
            about = f"{builder.name} isn't installed: {_STAND_INS}"
            yield Ability("run", what, False, about, _install_libraries(builder))
        else:
            yield Ability("run", what, bool(gpu), f"on {gpu}" if gpu else no_gpu)
    yield Ability("run", "CUDA libraries", bool(gpu), f"on {gpu}" if gpu else no_gpu)
    lacks = [
        program for program in ("cmake", _compiler()) if shutil.which(program) is None
    ]
    executorch = importlib.util.find_spec("executorch") is not None
    installs = _PIP["executorch"]
    about = f"missing: {' and '.join(lacks)}" if lacks else ""
    if lacks:
        installs = "apt-get install cmake g++"
    elif not (executorch and _has_cpp()):
        about = "missing: executorch 1.5 or later, which has the C++ libraries"
        if executorch:  # it exports beside this PyTorch, and stays
            installs = _PIP["executorch"].replace("install", f"install {_BESIDE}", 1)
    can = not about
    yield Ability("run", "a C++ host", can, about, "" if can else installs)


def _check() -> Iterator[Ability]:
    yield Ability("check", "run --compare", *_package("torch"))
    yield Ability("check", "inspect --target", *_package("torch"))
    yield Ability("check", "inspect --html", *_package("jinja2"))
    yield Ability("check", "export and generate", *_package("transformers"))
    yield Ability("check", "quantized models", *_package("torchao"))


#: Where `docs/deploying_in_cpp.md` has a release that is only for its C++ libraries.
_BESIDE = "--no-deps --target build/cpp"
_PIP = {
    "torch": "pip install torch==2.14.1",
    "executorch": "pip install executorch==1.5.1",
    "jinja2": "pip install jinja2",
    "transformers": 'pip install "torchtrt-executorch[transformers]"',
    "torchao": "pip install torchao==0.18.0",
}


def _package(name: str, first: str = "") -> tuple[bool, str, str]:
    """Return whether a package is there, its release or what is missing, and what installs it."""
    if first:
        return False, first, _PIP["torch"]
    if importlib.util.find_spec(name) is None:
        return False, f"{name} is missing", _PIP[name]
    return True, f"{name} {distribution_release(name) or ''}".strip(), ""


def _in_the_way() -> str:
    """Return why ``import torch_tensorrt`` would fail, in a sentence; empty if it wouldn't."""
    off = os.environ.get(overlay.SWITCH, "1") == "0"
    in_force = patch_statuses(PATCHES)["host"].state is State.IN_FORCE
    import_error = next(iter(import_errors(patched=in_force and not off)), "")
    return import_error.partition(": pip install")[0].partition(". TensorRT-RTX")[0]


def _install_builder() -> str:
    """Return the command that installs a Torch-TensorRT in which engines can be emulated."""
    return _install_rtx() if _rtx_has_wheel() else _install_tensorrt()


def _rtx_has_wheel() -> bool:
    return own_platform() in _RTX_PLATFORMS


def _releases() -> tuple[str, str] | None:
    """Return the releases of Torch-TensorRT and of TensorRT-RTX that go with PyTorch; None for another PyTorch."""
    release = ".".join((distribution_release("torch") or "2.14").split(".")[:2])
    return TENSORRT_RTX_RELEASES.get(release)


def _install_rtx() -> str:
    """Return the command that installs Torch-TensorRT with TensorRT-RTX, in the releases that go with PyTorch."""
    if (releases := _releases()) is None:
        return _PIP["torch"]
    other = distribution_release(TENSORRT.distribution) is not None
    first = f"pip uninstall -y {TENSORRT.distribution} && " if other else ""
    return (
        f"{first}pip install --no-deps {TENSORRT_RTX.distribution}=={releases[0]} {_rtx_libraries(releases[1])} "
        "dllist psutil filelock numpy"
    )


def _install_tensorrt() -> str:
    """Return the command that installs Torch-TensorRT with TensorRT, which NVIDIA's index has."""
    if (releases := _releases()) is None:
        return _PIP["torch"]
    return f"pip install {TENSORRT.distribution}=={releases[0]} --extra-index-url https://pypi.nvidia.com"


def _install_libraries(builder: Builder) -> str:
    """Return the command that installs what runs a builder's engines, without Torch-TensorRT."""
    if builder is TENSORRT or (releases := _releases()) is None:
        return _install_tensorrt()
    return f"pip install --no-deps {_rtx_libraries(releases[1])}"


def _rtx_libraries(release: str) -> str:
    parts = ("", "-libs", "-bindings")
    return " ".join(f"tensorrt-rtx-cu13{part}=={release}" for part in parts)


def _gpu() -> str:
    """Return the GPU that PyTorch can use, as ``sm_90``; empty without one, or without PyTorch."""
    if importlib.util.find_spec("torch") is None or not present.cuda_device():
        return ""
    import torch

    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


def _compiler() -> str:
    return shlex.split(os.environ.get("CXX") or "g++")[0]


def _has_cpp() -> bool:
    """Whether the installed ExecuTorch has its C++ libraries, as wheels from 1.5 on."""
    try:
        files = importlib.metadata.files("executorch") or ()
    except importlib.metadata.PackageNotFoundError:
        return False
    # 1.4's has that file elsewhere, of a build of sources, and no libraries.
    return any(
        file.match("lib/cmake/executorch/executorch-config.cmake") for file in files
    )


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON.")] = False,
) -> None:
    """Print what this machine can build, run and check, and the command that installs what is missing."""
    all_abilities = abilities()
    if as_json:
        print(json.dumps([asdict(ability) for ability in all_abilities], indent=2))
        return
    table = Table("", "here", "", "", box=None, pad_edge=False)
    for ability in all_abilities:
        can = Text("yes", "green") if ability.can else Text("no", "yellow")
        table.add_row(ability.kind, ability.what, can, Text(ability.about))
    console = Console(highlight=False)
    console.print(table)
    by_command: dict[str, list[str]] = {}
    for ability in all_abilities:
        if ability.command:
            by_command.setdefault(ability.command, []).append(
                f"{ability.kind} {ability.what}"
            )
    for command, names in by_command.items():
        console.print(Text(f"\nto {', to '.join(names)}:", "dim"), soft_wrap=True)
        console.print(Text(f"    {command}"), soft_wrap=True)


__all__ = ["TENSORRT_RTX_RELEASES", "Ability", "abilities", "doctor"]
