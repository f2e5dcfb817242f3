"""``torchtrt-executorch build``: build the engines of a ``.pte`` that was exported with emulated ones."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated

import typer

from torchtrt_executorch.cli.output.error_handling import unable


def build(
    program: Annotated[
        Path,
        typer.Argument(
            exists=True,
            dir_okay=False,
            help="The .pte, exported in emulated_engines() for this machine.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(help="The .pte to write; by default it is replaced."),
    ] = None,
) -> None:
    """Build the TensorRT engines of a .pte on the machine that is to run it, and leave the rest as it is."""
    from torchtrt_executorch import build_engines
    from torchtrt_executorch.nogpu.host import present

    try:
        built = build_engines(program, out)
    except ValueError as error:
        raise unable(str(error)) from None
    for engine in built:
        typer.echo(
            f"{engine.name}: {engine.operators} operators, an engine of {engine.nbytes:,} bytes, {engine.seconds:.1f} s"
        )
    written = out or program
    typer.echo(f"{written}: {written.stat().st_size:,} bytes")
    if not present.can_run_engines():
        _save_stand_ins(program, written)


def _save_stand_ins(program: Path, written: Path) -> None:
    """Write the engines' stand-ins beside the file, with those that the export wrote for its libraries."""
    from torchtrt_executorch import runtime
    from torchtrt_executorch.nogpu.stand_ins import keep
    from torchtrt_executorch.nogpu.stand_ins.file import StandInFile

    for file in map(StandInFile, StandInFile.named_after(program)):
        for payload in file.payloads:
            if (stand_in := file.find(payload)) is not None:
                keep(payload, stand_in.program)
    with contextlib.suppress(runtime.ProgramError):  # all runs here
        runtime.save_stand_ins(written, written.with_suffix(".stand_ins"))
