"""``torchtrt-executorch tune``: autotune kernels on this GPU, for machines without one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from torchtrt_executorch.cli.output.error_handling import unable


def tune(
    file: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Where to write, sm_90.json or so if not said."
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(help="Processes that compile, as processors if not said."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="When to end at the latest.")] = 1800,
) -> None:
    """Time matmuls and convolutions on this machine's GPU, by tile configuration.

    CUDA delegates that are compiled elsewhere for GPUs of its kind then have the fastest: with
    TORCHTRT_TUNED=FILE.
    """
    import torch

    from torchtrt_executorch.files import check_writable, staged
    from torchtrt_executorch.nogpu import tuning
    from torchtrt_executorch.nogpu.tuning.problem import problems

    rows, total = [], len(problems())
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    try:
        tuning.check_gpu()
        major, minor = torch.cuda.get_device_capability()
        target = check_writable(file or f"sm_{major}{minor}.json")
        if file is None and target.exists():
            raise FileExistsError(
                f"{target} is there already: to replace it, name it with --output"
            )
        with console.status("") as status:
            for row in tuning.measure(jobs or os.cpu_count() or 1, seconds):
                rows.append(row)
                status.update(f"{len(rows)} of {total}")
    except RuntimeError as error:
        raise unable(str(error)) from None
    with staged(target) as folder:
        (folder / target.name).write_text(tuning.as_file(rows))
    console.print(f"{target}: {len(rows)} of {total} problems")
