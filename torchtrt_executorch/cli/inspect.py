"""``torchtrt-executorch inspect``: what is in a ``.pte``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text


def inspect(
    path: Annotated[
        Path, typer.Argument(help="The .pte.", exists=True, dir_okay=False)
    ],
) -> None:
    """Print the methods, delegates, engines and kernels of a .pte, without running any of it."""
    # Here, so that commands that need no torch don't wait for it.
    from torchtrt_executorch.cli.contents import tables
    from torchtrt_executorch.runtime.errors import ProgramError
    from torchtrt_executorch.runtime.files import read_program

    console = Console()
    try:
        for table in tables(read_program(path)):
            console.print(table)
    except ProgramError as error:
        Console(stderr=True).print(Text(f"{path}: {error}", "red"))
        raise typer.Exit(2) from None
