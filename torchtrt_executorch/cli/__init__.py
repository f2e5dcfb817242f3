"""The command ``torchtrt-executorch``."""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from torchtrt_executorch import __version__
from torchtrt_executorch.cli.build import build
from torchtrt_executorch.cli.cache import cache
from torchtrt_executorch.cli.doctor import doctor
from torchtrt_executorch.cli.export import export
from torchtrt_executorch.cli.generate import generate
from torchtrt_executorch.cli.inspect import inspect
from torchtrt_executorch.cli.output.error_handling import EXITS, in_sentences
from torchtrt_executorch.cli.run import run
from torchtrt_executorch.cli.status import status
from torchtrt_executorch.cli.targets import targets
from torchtrt_executorch.cli.tune import tune

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None)
app.command(epilog=EXITS["status"])(in_sentences(status, imports_torch=False))
app.command(epilog=EXITS["doctor"])(in_sentences(doctor, imports_torch=False))
app.command(epilog=EXITS["targets"])(in_sentences(targets, imports_torch=False))
app.command(epilog=EXITS["cache"])(in_sentences(cache, imports_torch=False))
app.command(epilog=EXITS["inspect"])(in_sentences(inspect))
app.command(epilog=EXITS["run"])(in_sentences(run))
app.command(epilog=EXITS["export"])(in_sentences(export))
app.command(epilog=EXITS["build"])(in_sentences(build))
app.command(epilog=EXITS["generate"])(in_sentences(generate))
app.command(epilog=EXITS["tune"])(in_sentences(tune))


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"torchtrt-executorch {__version__}")
        raise typer.Exit


@app.callback(epilog=EXITS[""])
def main(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version and exit.",
        ),
    ] = False,
) -> None:
    """One .pte over TensorRT, ExecuTorch's CUDA backend and CPU kernels."""
    # Of PyTorch, which most commands import, hardly anything is garbage: a fifth of the time went into looking.
    gc.set_threshold(1_000_000, 20, 50)
