"""Payload of an emulated engine: a stand-in behind a magic of its own.

Needs torch alone, so that a ``.pte`` can be run where torch_tensorrt isn't installed.

Loading one deserializes a PyTorch program. That is safe if this process wrote it, and otherwise as
trustworthy as its author: reading payloads from files has to be enabled
(:func:`torchtrt_executorch.nogpu.emulation.emulation_enabled`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.export import ExportedProgram

from torchtrt_executorch.nogpu.emulation import flat
from torchtrt_executorch.nogpu.stand_ins import Buffer, StandIn, digest, find
from torchtrt_executorch.operators import UnknownOperatorError

#: Readable in a hex dump; no TensorRT engine starts so.
MAGIC = b"EMULATED-TRT-ENGINE-3\0"


def is_emulated(engine: Buffer) -> bool:
    """Whether ``engine`` is the payload of an emulated engine, judged by its first bytes."""
    return bytes(memoryview(engine)[: len(MAGIC)]) == MAGIC


def dump(program: ExportedProgram, settings: Mapping[str, Any] | None = None) -> bytes:
    """Return the payload that holds ``program``; equal programs give equal bytes.

    Args:
        program: The engine's computation.
        settings: Settings of the engine's build, as :mod:`.settings` writes them.
    """
    return flat.write(program, MAGIC, settings)


def load_plain(engine: Buffer) -> tuple[ExportedProgram, dict[str, Any]]:
    """Return the program in the payload ``engine``, and the settings, from an untrusted file.

    Raises:
        ValueError: As :func:`load`, or the program has more than
            :func:`~torchtrt_executorch.nogpu.stand_ins.plain.check_plain` allows.
    """
    data = memoryview(engine)[len(MAGIC) :]
    try:
        with unset_fake_temporarily():
            return flat.read(data, plain=True), flat.read_settings(data)
    except (UnknownOperatorError, RuntimeError) as error:
        raise ValueError(f"an emulated engine can't be loaded here: {error}") from error
    except Exception as error:
        raise ValueError(f"damaged emulated engine: {error}") from error


def load(engine: Buffer) -> StandIn:
    """Return the program in the payload ``engine``, whose bytes its weights are views of.

    Raises:
        ValueError: ``engine`` is not the payload of an emulated engine, is damaged, or can't be loaded
            here.
    """
    if not is_emulated(engine):
        start = bytes(memoryview(engine)[: len(MAGIC)])
        raise ValueError(f"not an emulated engine: it starts with {start!r}")
    try:
        # The weights are real, whoever traces around us.
        with unset_fake_temporarily():
            return StandIn(flat.read(memoryview(engine)[len(MAGIC) :]))
    except (UnknownOperatorError, RuntimeError) as error:
        raise ValueError(f"an emulated engine can't run here: {error}") from error
    except Exception as error:
        raise ValueError(f"damaged emulated engine: {error}") from error


def stand_in_of(engine: Buffer) -> StandIn | None:
    """Return what runs in the place of ``engine``: its own program if it is emulated, else what
    this process keeps for it; None without.

    Raises:
        ValueError: ``engine`` is a damaged emulated engine.
    """
    return load(engine) if is_emulated(engine) else find(digest(engine))
