"""Stand-ins: what a payload computes, as a PyTorch program, where the payload can't run.

A host that can build a payload, a TensorRT engine or a CUDA library, and not run it keeps the
partition's own program beside it. They are associated by the payload's digest, and by nothing in the
payload: a program that is shipped has no trace of its stand-ins. In this process they are found
for the payload in a compiled module, an edge program or a ``.pte``; across processes
they are passed in a file of their own (:mod:`.file`). Each use of one is reported.

An emulated engine is the case in which the payload is its own stand-in
(:mod:`torchtrt_executorch.nogpu.emulation.payload`).

A kind of delegate joins in two places:

- Where its payload is built and can't be run, it calls :func:`keep` with :func:`digest` of the
  payload's parts, or :func:`digest_of_digests`, and the partition's ``ExportedProgram`` on the CPU.
- The runtime's class for it tells the digests of those parts of a :class:`~torchtrt_executorch.runtime.plans.plan.Payload`
  in its ``about``, and asks :func:`torchtrt_executorch.runtime.delegates.on_gpu.stand_in_for` for a
  :class:`StandIn` before it says that the payload can't run here. That looks in the file that the user
  gave, and in this process, and reports what it finds.

Statistics, ``save(..., stand_ins=True)``, ``load(..., stand_ins=FILE)`` and the command line follow.

Needs torch alone, so that a ``.pte`` can be run where torch_tensorrt isn't installed.
"""

from __future__ import annotations

import hashlib
import threading

from torch.export import ExportedProgram

from torchtrt_executorch.nogpu.stand_ins.program import StandIn

Buffer = bytes | bytearray | memoryview

_kept: dict[str, StandIn] = {}
_lock = threading.Lock()


def digest(*parts: Buffer) -> str:
    """Return the digest that a payload is known by: of one part its ``sha256sum``, in hex.

    Args:
        parts: The parts of the payload.
    """
    return digest_of_digests(*(hashlib.sha256(part).digest() for part in parts))


def digest_of_digests(*digests: bytes) -> str:
    """Return the digest that a payload is known by, given those of its parts, which may take long to read."""
    *others, last = digests
    return hashlib.sha256(b"".join(digests)).hexdigest() if others else last.hex()


def keep(
    payload: str, program: ExportedProgram, *, share_weights: bool = False
) -> None:
    """Register ``program`` as a payload's stand-in, until this process ends.

    Args:
        payload: The payload's :func:`digest`.
        program: The partition's computation, on the CPU. Its weights and constants are copied:
            the payload has its own, whatever becomes of the model's.
        share_weights: Copy only what the partition writes to. Weights of gigabytes then aren't
            there once more, and the stand-in refuses to run once somebody has written to them.
    """
    stand_in = StandIn(program).copy(share_weights=share_weights)
    with _lock:
        _kept[payload] = stand_in


def find(payload: str) -> StandIn | None:
    """Return the stand-in that this process keeps for a payload, by its :func:`digest`."""
    with _lock:
        return _kept.get(payload)


def forget(*payloads: str) -> None:
    """Drop the stand-ins of ``payloads``, by :func:`digest`; all without any."""
    with _lock:
        for payload in payloads or tuple(_kept):
            _kept.pop(payload, None)


__all__ = ["StandIn", "digest", "digest_of_digests", "find", "forget", "keep"]
