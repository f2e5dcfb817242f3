"""GPU descriptions (``TORCHTRT_GPU``): the targets that a host without a GPU compiles for.

``TORCHTRT_GPU=sm_90:80GiB`` describes it: compute capability and memory. Several are separated by
commas, ``sm_80:16GiB,sm_90:80GiB``: compiled code then runs on each. Operating system and
processor of the machine come before them, ``linux-aarch64:sm_87:16GiB``, where they aren't this
machine's. Without the variable they are those that the installed builder's engines run on:
``sm_90:80GiB`` for TensorRT, ``sm_80``, ``sm_86``, ``sm_89`` and ``sm_120`` with 24 GiB for
TensorRT-RTX. It is only in force where PyTorch can't use a CUDA device; a real GPU is never masked.

The partitioners of a program can name the target as well (:func:`compiling_for`), anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import os
import platform as this_machine
import re
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar

from torchtrt_executorch.nogpu.builder.installed import installed_builder
from torchtrt_executorch.nogpu.host import present

VARIABLE = "TORCHTRT_GPU"
#: Key of a partitioner's compile spec that names the same. It is obeyed where there is a GPU as well.
GPU_COMPILE_SPEC_KEY = "gpu"

_PATTERN = re.compile(
    r"sm_(?P<major>[1-9]\d?)(?P<minor>\d)[af]?:(?P<size>\d+)(?P<unit>[GM]iB)",
    re.ASCII,
)
_CAPABILITY = re.compile(r"sm_[1-9]\d?\d[af]?", re.ASCII)
#: Operating systems and processors that there is something to compile with for.
PLATFORMS = ("linux-x86_64", "linux-aarch64", "windows-x86_64")
_UNIT_BYTES = {"GiB": 1 << 30, "MiB": 1 << 20}


@dataclasses.dataclass(frozen=True)
class GpuDescription:
    """A GPU by description.

    The attributes are those of ``torch.cuda.get_device_properties`` that upstream reads.

    Attributes:
        major: first part of the compute capability, 8 for ``sm_87``.
        minor: second part of the compute capability, 7 for ``sm_87``.
        total_memory: in bytes.
        targets: what engines are built for, if not only for this GPU.
        platform: operating system and processor of its machine, one of :data:`PLATFORMS`.
    """

    major: int
    minor: int
    total_memory: int
    targets: str = ""
    platform: str = dataclasses.field(default_factory=lambda: own_platform())

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, as ``torch.cuda.get_device_capability`` returns it."""
        return self.major, self.minor

    @property
    def name(self) -> str:
        """Name in an engine's record, which says that there was no device, and what the target is."""
        name = f"described sm_{self.major}{self.minor}"
        return f"{name}, built for {self.targets}" if self.targets else name

    @property
    def text(self) -> str:
        """The description that :meth:`parse` reads."""
        capability = f"sm_{self.major}{self.minor}"
        mebibytes = self.total_memory >> 20
        memory = f"{mebibytes}MiB" if mebibytes % 1024 else f"{mebibytes >> 10}GiB"
        return f"{self.platform}:{capability}:{memory}"

    @classmethod
    def parse(cls, text: str, named: str = VARIABLE) -> GpuDescription:
        """Read a description such as ``sm_90:80GiB`` or ``linux-aarch64:sm_87:16GiB``.

        Args:
            text: The description.
            named: Name of its source, for errors.

        Raises:
            ValueError: with ``text``, what is wrong with it, and the form.
        """
        platform, description = _divided(text)
        match = _PATTERN.fullmatch(description)
        if match is None:
            bare = _CAPABILITY.fullmatch(description)
            what = "gives no memory" if bare else "is not a description of a GPU"
            raise _malformed(text, what, named)
        total_memory = int(match["size"]) * _UNIT_BYTES[match["unit"]]
        if total_memory == 0:
            raise _malformed(text, "describes a GPU without memory", named)
        major, minor = int(match["major"]), int(match["minor"])
        return cls(major, minor, total_memory, platform=platform)

    @classmethod
    def parse_list(cls, text: str, named: str = VARIABLE) -> tuple[GpuDescription, ...]:
        """Read descriptions with commas between them, one or more, of GPUs of one kind of machine.

        Args:
            text, named: As :meth:`parse` takes them.

        Returns:
            One for each compute capability, in its order; of two of one, the smaller.

        Raises:
            ValueError: as :meth:`parse`.
        """
        platform, descriptions = _divided(text)
        gpus = sorted(
            (
                cls.parse(f"{platform}:{part}", named)
                for part in descriptions.split(",")
            ),
            key=lambda gpu: (gpu.capability, -gpu.total_memory),
        )
        return tuple({gpu.capability: gpu for gpu in gpus}.values())


#: GPUs that are only in machines with an Arm processor: Jetson, DRIVE, DGX Spark.
ON_ARM_ALONE = {(5, 3), (6, 2), (7, 2), (8, 7), (10, 1), (11, 0), (12, 1)}


def own_platform() -> str:
    """Operating system and processor of this machine, in the form of :data:`PLATFORMS`."""
    return f"{sys.platform}-{this_machine.machine()}"


def _divided(text: str) -> tuple[str, str]:
    """Return the platform that a description begins with, or this machine's, and the rest."""
    first, colon, rest = text.partition(":")
    return (
        (first, rest)
        if colon and first in (*PLATFORMS, own_platform())
        else (own_platform(), text)
    )


def _malformed(text: str, what: str, named: str) -> ValueError:
    text = text.removeprefix(f"{own_platform()}:")
    return ValueError(
        f"{named}={text!r} {what}. Write the compute capability and the memory, in GiB or "
        f"MiB, as in {named}=sm_90:80GiB, commas between several, and before them the machine's "
        f"operating system and processor where they aren't this one's, as in {named}="
        f"linux-aarch64:sm_87:16GiB; there are {', '.join(PLATFORMS)}."
    )


_named: ContextVar[tuple[GpuDescription, ...]] = ContextVar("_named", default=())


@contextlib.contextmanager
def compiling_for(named: Sequence[tuple[str, str]]) -> Iterator[None]:
    """Scope in which all that is compiled is for one target, in the place of a GPU that is here.

    Args:
        named: Who names a target, and the description, as :meth:`GpuDescription.parse_list` reads it. The
            scope changes nothing if nobody does.

    Raises:
        ValueError: One is no description, or they disagree with each other, or with ``$TORCHTRT_GPU``
            where that is in force.
    """
    gpus = agreed(named)
    token = _named.set(gpus or _named.get())
    try:
        yield
    finally:
        _named.reset(token)


def agreed(named: Sequence[tuple[str, str]] = ()) -> tuple[GpuDescription, ...]:
    """Return the target that ``named`` and the environment agree on; none if neither names one.

    Raises:
        ValueError: As :func:`compiling_for`.
    """
    if (text := os.environ.get(VARIABLE)) and not present.cuda_device():
        named = [(VARIABLE, text), *named]
    for who, text in named[1:]:
        if _parsed(text) != _parsed(named[0][1]):
            first, its = named[0]
            raise ValueError(
                f"{first}={its!r} and {who}={text!r} are two targets, and a program has one: name it "
                "once, or the same GPUs in both, with commas between several"
            )
    return _parsed(named[0][1]) if named else ()


#: Read time and again while something is compiled.
_parsed = functools.cache(GpuDescription.parse_list)


def chosen() -> tuple[GpuDescription, ...]:
    """Return the target GPUs that the user configured; none for the one at hand, or the default.

    Raises:
        ValueError: ``$TORCHTRT_GPU`` has something that is not a description.
    """
    return _named.get() or agreed()


def configured_gpus() -> tuple[GpuDescription, ...]:
    """Return the GPUs that are :func:`chosen`; the installed builder's default without.

    Raises:
        ValueError: as :func:`chosen`.
    """
    return chosen() or without_gpu()


def without_gpu() -> tuple[GpuDescription, ...]:
    """Return the targets of compilation without a GPU, if partitioners name none.

    Raises:
        ValueError: as :func:`chosen`.
    """
    return _parsed(os.environ.get(VARIABLE) or installed_builder().default_gpus)


def configured_gpu() -> GpuDescription:
    """Return a GPU that each of :func:`configured_gpus` can stand for: the lowest capability, the least memory."""
    first, *others = gpus = configured_gpus()
    if not others:
        return first
    names = ", ".join(f"sm_{gpu.major}{gpu.minor}" for gpu in gpus)
    return dataclasses.replace(
        first,
        total_memory=min(gpu.total_memory for gpu in gpus),
        targets=names if chosen() else installed_builder().default_targets,
    )
