"""The command ``torchtrt-executorch``."""

from __future__ import annotations

import typer

from torchtrt_executorch.cli.inspect import inspect
from torchtrt_executorch.cli.run import run
from torchtrt_executorch.cli.status import status

app = typer.Typer(
    help="One .pte over TensorRT, ExecuTorch's CUDA backend and CPU kernels.",
    no_args_is_help=True,
    add_completion=False,
)
app.command()(status)
app.command()(inspect)
app.command()(run)
