"""The GPU that a host without one compiles for, or the GPUs.

``TORCHTRT_GPU=sm_87:16GiB`` describes it: compute capability and memory. Several are separated by
commas, ``sm_80:16GiB,sm_90:80GiB``: what is compiled then runs on each. Without the variable it is
one that the installed builder's engines run on: ``sm_90:80GiB`` for TensorRT, ``sm_89:24GiB`` for
TensorRT-RTX. It is only in force where PyTorch can't use a CUDA device; a real GPU is never masked.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re

from torchtrt_executorch.host.builder import installed_builder

VARIABLE = "TORCHTRT_GPU"

_PATTERN = re.compile(
    r"sm_(?P<major>[1-9]\d?)(?P<minor>\d)[af]?:(?P<size>\d+)(?P<unit>[GM]iB)",
    re.ASCII,
)
_UNIT_BYTES = {"GiB": 1 << 30, "MiB": 1 << 20}


@dataclasses.dataclass(frozen=True)
class DescribedGpu:
    """A GPU by description.

    The attributes are those of ``torch.cuda.get_device_properties`` that upstream reads.

    Attributes:
        major: first part of the compute capability, 8 for ``sm_87``.
        minor: second part of the compute capability, 7 for ``sm_87``.
        total_memory: in bytes.
        targets: what engines are built for, if not for this GPU alone.
    """

    major: int
    minor: int
    total_memory: int
    targets: str = ""

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, as ``torch.cuda.get_device_capability`` returns it."""
        return self.major, self.minor

    @property
    def name(self) -> str:
        """Name that tells in an engine's record that no device was there, and what it is for."""
        name = f"described sm_{self.major}{self.minor}"
        return f"{name}, built for {self.targets}" if self.targets else name

    @classmethod
    def parse(cls, text: str) -> DescribedGpu:
        """Read a description such as ``sm_90:80GiB``.

        Raises:
            ValueError: with ``text``, what is wrong with it, and the form.
        """
        match = _PATTERN.fullmatch(text)
        if match is None:
            raise _malformed(text, "is not a description of a GPU")
        total_memory = int(match["size"]) * _UNIT_BYTES[match["unit"]]
        if total_memory == 0:
            raise _malformed(text, "describes a GPU without memory")
        return cls(int(match["major"]), int(match["minor"]), total_memory)

    @classmethod
    def parse_list(cls, text: str) -> tuple[DescribedGpu, ...]:
        """Read descriptions with commas between them, one or more.

        Returns:
            One for each compute capability, in its order; of two of one, the smaller.

        Raises:
            ValueError: as :meth:`parse`.
        """
        found = sorted(
            (cls.parse(part) for part in text.split(",")),
            key=lambda gpu: (gpu.capability, -gpu.total_memory),
        )
        return tuple({gpu.capability: gpu for gpu in found}.values())


def _malformed(text: str, what: str) -> ValueError:
    return ValueError(
        f"{VARIABLE}={text!r} {what}. Write the compute capability and the memory, in GiB or "
        f"MiB, as in {VARIABLE}=sm_90:80GiB or {VARIABLE}=sm_87:16GiB, and commas between several."
    )


def is_set() -> bool:
    """Whether the user has described a GPU, rather than left it to the default."""
    return bool(os.environ.get(VARIABLE))


@functools.cache
def described_gpus() -> tuple[DescribedGpu, ...]:
    """The GPUs of ``$TORCHTRT_GPU``, read once; the installed builder's default without it.

    Raises:
        ValueError: the variable has something that is not a description.
    """
    if is_set():
        return DescribedGpu.parse_list(os.environ[VARIABLE])
    builder = installed_builder()
    gpu = DescribedGpu.parse(builder.default_gpu)
    return (dataclasses.replace(gpu, targets=builder.default_targets),)


def described_gpu() -> DescribedGpu:
    """What each of :func:`described_gpus` can do: the lowest capability, the least memory."""
    first, *others = gpus = described_gpus()
    if not others:
        return first
    return dataclasses.replace(
        first,
        total_memory=min(gpu.total_memory for gpu in gpus),
        targets=", ".join(f"sm_{gpu.major}{gpu.minor}" for gpu in gpus),
    )
