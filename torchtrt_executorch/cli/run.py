"""``torchtrt-executorch run``: run a ``.pte`` on inputs, and compare with expected outputs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchtrt_executorch.cli.output.error_handling import FOUND, UNABLE
from torchtrt_executorch.cli.output.formatting import as_options
from torchtrt_executorch.files import check_writable

if TYPE_CHECKING:
    from torchtrt_executorch.runtime import Profile, Stats

#: Lines of times that are printed.
_MOST_TIMES = 22

_File = typer.Argument(exists=True, dir_okay=False, help="The .pte to run.")
_Option = {"exists": True, "dir_okay": False}


def run(
    program: Annotated[Path, _File],
    inputs: Annotated[
        Path,
        typer.Option(
            exists=True,
            help="The inputs, as torch.save wrote a tuple, or a folder with input_0.npy, ...",
        ),
    ],
    compare: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="The expected outputs likewise, or a folder with output_0.npy, ...",
        ),
    ] = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="A .ptd file; repeatable.", **_Option)
    ] = None,
    method: Annotated[str, typer.Option(help="The method to call.")] = "forward",
    simulate_devices: Annotated[
        bool,
        typer.Option(
            "--simulate-devices",
            help="Run in host memory; check that every tensor is on the right device.",
        ),
    ] = False,
    ordered_streams: Annotated[
        bool | None,
        typer.Option(
            "--ordered-streams/--no-ordered-streams",
            help="With --simulate-devices: whether the host runs all delegates on one stream; "
            "by default as the program says that it needs.",
        ),
    ] = None,
    emulated_engines: Annotated[
        bool | None,
        typer.Option(
            "--emulated-engines/--no-emulated-engines",
            help="Load emulated engines, which are PyTorch programs from the file; "
            "by default as TORCHTRT_EMULATE says.",
        ),
    ] = None,
    stand_ins: Annotated[
        Path | None,
        typer.Option(
            help="The stand-ins saved with the .pte, PyTorch programs that run where its "
            "payloads can't. By default those beside it.",
            **_Option,
        ),
    ] = None,
    calls: Annotated[
        int,
        typer.Option(min=1, help="Call it so often; the first call's outputs count."),
    ] = 1,
    profile: Annotated[
        Path | None,
        typer.Option(
            help="Time every instruction, print the slowest, and write an ETDump to this file.",
            dir_okay=False,
        ),
    ] = None,
    rtol: Annotated[float, typer.Option(help="Relative tolerance.")] = 1e-3,
    atol: Annotated[float, typer.Option(help="Absolute tolerance.")] = 1e-4,
) -> None:
    """Run a .pte, print its statistics, and compare its outputs with expected ones.

    Exits with 1 if they differ beyond the tolerance, 2 if the program is unsound or can't be run.
    """
    from torchtrt_executorch.cli.output.comparison import Comparison
    from torchtrt_executorch.runtime import load

    if profile is not None:
        check_writable(profile)
    console = Console()
    try:
        loaded = load(
            program,
            data,
            simulate_devices=simulate_devices,
            ordered_streams=ordered_streams,
            emulated_engines=emulated_engines,
            stand_ins=stand_ins,
            profile=profile is not None,
        )
        arguments, called = _sequence(read(inputs, "input")), loaded.method(method)
        outputs = called(*arguments)
        for _ in range(calls - 1):
            called(*arguments)
    except (ValueError, OSError) as error:
        said = as_options(str(error))
        console.print(Text.assemble((f"{type(error).__name__}:", "red"), f" {said}"))
        raise typer.Exit(UNABLE) from None
    stats = loaded.stats()
    console.print(_outputs_table(outputs), _stats_table(stats))
    if compare is None:
        differs = False
    elif stats.not_run:
        absent = ", ".join(sorted(stats.not_run))
        console.print(
            Text.assemble(("not compared:", "red"), f" {absent} did not run here")
        )
        differs = True
    else:
        comparison = Comparison(outputs, read(compare, "output"), rtol, atol)
        for line in comparison.differences:
            console.print(Text(line, "red"))
        differs = bool(comparison.differences)
        if not differs:
            console.print(Text(comparison.summary(), "green"))
    if profile is not None:
        _show_times(console, loaded.profile(), program, profile)
    if compare is not None and (in_pytorch := stats.in_pytorch):
        console.print(Text(_not_here(in_pytorch), "yellow"))
    if differs:
        raise typer.Exit(FOUND)


def _not_here(in_pytorch: Mapping[str, str]) -> str:
    """Describe what a comparison doesn't verify, where PyTorch has computed both sides."""
    kinds = " and ".join(sorted({f"{kind}s" for kind in in_pytorch.values()}))
    names = ", ".join(in_pytorch)
    end = "itself hasn't" if len(in_pytorch) == 1 else "themselves haven't"
    return f"by {kinds}: {names} {end} run here"


def _show_times(console: Console, times: Profile, program: Path, target: Path) -> None:
    lines = str(times).splitlines()
    console.print(Text("\n".join(lines[:_MOST_TIMES])), soft_wrap=True)
    times.save(target)
    if len(lines) > _MOST_TIMES:
        print(f"and more: torchtrt-executorch inspect {program} --times {target}")


def read(path: Path, role: str) -> Any:
    """Load a file of ``torch.save``'s: tensors and containers, never anything else.

    Or the ``ROLE_0.npy``, ... of a folder, as ``examples/cpp`` reads and writes them.
    """
    import torch

    if path.is_dir():
        return _arrays(path, role)
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        raise typer.BadParameter(
            f"{path}: {error}".splitlines()[0]
            + "; save a tuple of tensors with torch.save"
        ) from None


def _arrays(folder: Path, role: str) -> tuple[Any, ...]:
    import numpy
    import torch

    tensors: list[torch.Tensor] = []
    while (file := folder / f"{role}_{len(tensors)}.npy").exists():
        try:
            array = numpy.load(file)
            bfloat16 = array.dtype == "V2"  # which numpy doesn't know
            tensor = torch.from_numpy(array.view("i2") if bfloat16 else array)
        except (ValueError, TypeError, OSError, EOFError) as error:
            raise typer.BadParameter(f"{file}: {error}".splitlines()[0]) from None
        tensors.append(tensor.view(torch.bfloat16) if bfloat16 else tensor)
    if not tensors:
        raise typer.BadParameter(f"{folder} has no {role}_0.npy")
    return tuple(tensors)


def _sequence(value: Any) -> Any:
    return value if isinstance(value, (tuple, list)) else (value,)


def _outputs_table(outputs: tuple[Any, ...]) -> Table:
    table = Table("output", "shape", "dtype", title="Outputs")
    for index, output in enumerate(outputs):
        shape = list(output.shape) if hasattr(output, "shape") else repr(output)
        kind = getattr(output, "dtype", type(output).__name__)
        table.add_row(str(index), Text(str(shape)), str(kind))
    return table


def _stats_table(stats: Stats) -> Table:
    table = Table("what", "name", "times", "bytes", title="Statistics")
    for what, counts in (("kernel", stats.kernels), ("delegate", stats.delegates)):
        for name, count in sorted(counts.items()):
            note = f", {stats.payloads[name]}" if name in stats.payloads else ""
            note += ", did not run here" if name in stats.not_run else ""
            note += ", by a stand-in" if name in stats.stand_ins else ""
            table.add_row(what, Text(name + note), str(count), "")
    for direction, traffic in sorted(stats.copies.items()):
        table.add_row("copy", direction, str(traffic.copies), str(traffic.nbytes))
    for engine, staging in sorted(stats.staged.items()):
        for role, traffic in (("in", staging.inputs), ("out", staging.outputs)):
            row = str(traffic.copies), str(traffic.nbytes)
            table.add_row(f"staged {role}", Text(engine), *row)
    return table
