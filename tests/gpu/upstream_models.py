"""Models that upstream shows with CUDA, made on one machine, without a GPU if it has none, and run on another.

    PYTHONPATH=. python tests/gpu/upstream_models.py make FOLDER [NAME...] [--gpu sm_90:80GiB]
    PYTHONPATH=. python tests/gpu/upstream_models.py run FOLDER [NAME...]

``make`` exports each small model of ``tiny_models`` for CUDA, by upstream's method names, and writes its stand-ins, what
eager returns of the same inputs, and transformers' tokens beside it. ``run`` needs no transformers: it compares outputs
of each method, and tokens, once as it is and once with CUDA graphs; without a GPU stand-ins compute them.
"""

from __future__ import annotations

import argparse
import contextlib
import resource
import sys
import warnings
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from tests.torchtrt_executorch.transformers import tiny_models
from torchtrt_executorch import runtime
from torchtrt_executorch.generation import Generator
from torchtrt_executorch.generation.multimodal import generate, transcribe, transduce

NAMES = [*tiny_models.CONFIGS, "silero_vad"]
LENGTH, TOKENS = 48, 16
PROMPT = [3, 14, 15, 9, 26, 5, 35]
TOLERANCE = 1e-3


def make(folder: Path, name: str, gpu: str | None) -> None:
    """Write the program of a model, and what is expected of it."""
    from torchtrt_executorch.transformers import kinds, lowering
    from torchtrt_executorch.transformers.exportable import Form, WithMethods

    decode = "cuda" if name == "qwen3" else None
    form = Form("cuda", decode, length=LENGTH)
    saved = tiny_models.silero if name == "silero_vad" else tiny_models.saved
    model = kinds.load(saved(*_arguments(folder, name)), form)
    expected: dict[str, Any] = {"methods": {}, "tokens": []}
    if isinstance(model, WithMethods):
        for each, method in model.methods.items():
            with torch.no_grad():
                outputs = pytree.tree_leaves(method.module(*method.inputs))
            outputs = [output.clone() for output in outputs]
            expected["methods"][each] = ([*method.inputs], outputs)
        for encoder in {"encoder", "vision_encoder", "audio_encoder"} & {
            *model.methods
        }:
            value, *_ = model.methods[encoder].inputs
            expected["tokens"] = tiny_models.tokens_of_transformers(
                name, model.module, value, TOKENS
            )
    else:
        expected["tokens"] = tiny_models.tokens_after(model.module, PROMPT, TOKENS)
    started = _cpu_seconds()
    programs = model.programs()
    edge = lowering.lowered(programs, model.backends, model.constants(programs), gpu)
    program = lowering.emitted(edge, shared="decode" in programs)
    seconds = _cpu_seconds() - started
    file = folder / f"{name}.pte"
    program.save(str(file))
    with contextlib.suppress(runtime.ProgramError):  # there are none beside a GPU
        runtime.save_stand_ins(file, file.with_suffix(".stand_ins"))
    torch.save(expected, folder / f"{name}.pt")
    size = sum(each.stat().st_size for each in folder.glob(f"{name}.*")) >> 10
    delegates = {
        plan.name: len(plan.delegates)
        for plan in program.executorch_program.execution_plan
        if plan.inputs
    }
    print(
        f"{name:14} {seconds:4.0f} CPU s {size:6} KiB  delegates {delegates}",
        flush=True,
    )


def _cpu_seconds() -> float:
    """Those of this process and its compilers."""
    ours = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    used = [resource.getrusage(each) for each in ours]
    return sum(each.ru_utime + each.ru_stime for each in used)


def _arguments(folder: Path, name: str) -> tuple[Any, ...]:
    path = folder / "models" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return (path,) if name == "silero_vad" else (name, path)


def tokens(name: str, program: Any, methods: dict[str, Any]) -> list[int]:
    """What a program makes of the inputs that were expected."""
    if name == "qwen3":
        return [*Generator(program)(PROMPT, TOKENS)]
    if name == "whisper":
        return transcribe(program, methods["encoder"][0][0], [1], TOKENS)[0]
    if name == "parakeet_tdt":
        features = methods["encoder"][0][0]
        return transduce(program, features, features.shape[-1], range(5))
    for encoder in {"vision_encoder", "audio_encoder"} & {*methods}:
        parts = [
            ("token_embedding", torch.tensor([tiny_models.BEFORE])),
            (encoder, methods[encoder][0][0]),
            ("token_embedding", torch.tensor([tiny_models.AFTER])),
        ]
        return generate(program, parts, TOKENS)[0]
    return []


def run(folder: Path, name: str) -> bool:
    """Compare a program with what is expected. Returns whether it differs."""
    expected = torch.load(folder / f"{name}.pt", weights_only=True)
    failed = False
    for options in ({}, {"cuda_graphs": True}):
        program = runtime.load(folder / f"{name}.pte", **options)
        worst = {}
        for each, (inputs, outputs) in expected["methods"].items():
            made = program.method(each)(*inputs)
            worst[each] = max(map(_off, made, outputs))
        found = tokens(name, program, expected["methods"])
        same = found == expected["tokens"]
        failed |= not same or any(not off <= TOLERANCE for off in worst.values())
        differences = "  ".join(f"{each} {off:.1e}" for each, off in worst.items())
        alike = sum(map(int.__eq__, found, expected["tokens"]))
        count = (
            f"{alike} of {len(expected['tokens'])} tokens" if found or not same else ""
        )
        graphs = "graphs" if options else ""
        print(f"{name:14} {graphs:6} {differences}  {count}", flush=True)
    return failed


def _off(made: torch.Tensor, wanted: torch.Tensor) -> float:
    """The largest difference, as a part of the largest value."""
    largest = float(wanted.double().abs().max()) or 1.0
    return float((made.cpu().double() - wanted.double()).abs().max()) / largest


def main() -> None:
    """Run the command line."""
    warnings.simplefilter("ignore")
    # Random weights have tokens that are nearly as likely as one another: TF32 in convolutions chooses others.
    torch.backends.cudnn.allow_tf32 = False
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("command", choices=("make", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*", default=NAMES)
    parser.add_argument("--gpu", help="described, as TORCHTRT_GPU does")
    arguments = parser.parse_args()
    if arguments.command == "make":
        arguments.folder.mkdir(parents=True, exist_ok=True)
        for name in arguments.names:
            make(arguments.folder, name, arguments.gpu)
        return
    sys.exit(sum([run(arguments.folder, name) for name in arguments.names]))


if __name__ == "__main__":
    main()
