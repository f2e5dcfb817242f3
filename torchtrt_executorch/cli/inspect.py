"""``torchtrt-executorch inspect``: print the contents of a ``.pte``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from torchtrt_executorch.cli.output.error_handling import FOUND, unable
from torchtrt_executorch.files import check_writable, staged

if TYPE_CHECKING:
    from torchtrt_executorch.inspection.model.facts import Facts, Method


def inspect(
    path: Annotated[Path, typer.Argument(help="The .pte.")],
    html: Annotated[
        Path | None,
        typer.Option(help="Write a page of it: one file, no network."),
    ] = None,
    svg: Annotated[
        Path | None,
        typer.Option(help="Write the diagram of only one method."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print all of it as JSON.")
    ] = False,
    diff: Annotated[
        Path | None,
        typer.Option(help="An earlier export; say what changed since."),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(help="A .ptd file; repeatable. By default those beside the .pte."),
    ] = None,
    times: Annotated[
        Path | None,
        typer.Option(help="An ETDump: show how long each instruction took."),
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="The method that --svg draws, and that --times are of where they don't say."
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        typer.Option(help="A GPU that it has to run on, such as sm_87."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="A machine that it has to run on, such as linux-aarch64:sm_87:16GiB."
        ),
    ] = None,
    strict: Annotated[
        bool,
        typer.Option(
            "--strict",
            help="Exit with 1 if there are warnings; ExecuTorch is asked whether it loads XNNPACK's delegates.",
        ),
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="A kind of finding to leave out, such as emulated."),
    ] = None,
) -> None:
    """Say what is in a .pte: methods, delegates, engines, kernels, and what could be better.

    Nothing of the file is run. With --strict a process of its own loads delegates that are no code, as XNNPACK's.
    """
    targets = [_target(out, kind) for out, kind in ((html, ".html"), (svg, ".svg"))]
    # Here, so that commands that need no torch don't wait for it.
    from torchtrt_executorch.cli.output.tables import (
        changes_table,
        show_findings,
        tables,
        times_tables,
    )
    from torchtrt_executorch.inspection.advice import advise
    from torchtrt_executorch.inspection.data import as_data
    from torchtrt_executorch.inspection.difference import difference
    from torchtrt_executorch.inspection.drawing.diagram import svg as diagram
    from torchtrt_executorch.inspection.drawing.page import page
    from torchtrt_executorch.inspection.loading import refused_delegates

    facts = _read(path, data)
    if times is not None:
        facts = _timed(facts, times, method)
    changes = None if diff is None else difference(_read(diff, None), facts)
    try:
        advice = advise(facts, gpu, target)
    except ValueError as error:
        raise unable(str(error).replace("target=", "--target ")) from None
    if strict:
        advice += refused_delegates(facts, path, data)
    findings = [finding for finding in advice if finding.name not in (ignore or ())]
    findings.sort(key=lambda finding: finding.level != "warning")
    drawn = None if svg is None else _drawn(facts, method)
    if targets[0] is not None:
        _write(targets[0], page(facts, findings))
    if targets[1] is not None and drawn is not None:
        _write(targets[1], diagram(drawn))
    console = Console()
    if as_json:
        print(json.dumps(as_data(facts, findings, changes)))
    elif changes is not None:
        console.print(changes_table(changes))
    elif html is None and svg is None:
        for table in tables(facts):
            console.print(table)
    if not as_json and changes is None:
        for measured in times_tables(facts):
            console.print(measured)
    if not as_json:
        show_findings(console, findings)
    if strict and any(finding.level == "warning" for finding in findings):
        raise typer.Exit(FOUND)


def _target(out: Path | None, kind: str) -> Path | None:
    """Return the path of an output file, checked before any work is done."""
    if out is None:
        return None
    if out.suffix.lower() != kind:
        raise unable(f"{out}: --{kind[1:]} writes a file that ends in {kind}")
    try:
        return check_writable(out)
    except OSError as error:
        raise unable(str(error)) from None


def _write(target: Path, text: str) -> None:
    try:
        with staged(target) as folder:
            (folder / target.name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise unable(f"{target}: {error.strerror or error}") from None
    Console(stderr=True).print(Text(f"Wrote {target}"), soft_wrap=True)


def _read(path: Path, data: list[Path] | None) -> Facts:
    from torchtrt_executorch.inspection import read
    from torchtrt_executorch.runtime.errors import ProgramError

    try:
        return read(path, data)
    except IsADirectoryError:
        raise unable(f"{path}: it is a folder; give it the .pte") from None
    except OSError as error:
        raise unable(f"{path}: {error.strerror or error}") from None
    except ProgramError as error:
        raise unable(f"{path}: {error}") from None


def _timed(facts: Facts, path: Path, method: str | None) -> Facts:
    from torchtrt_executorch.inspection.model.times import with_times
    from torchtrt_executorch.runtime.errors import ProgramError

    try:
        return with_times(facts, path, method)
    except OSError as error:
        raise unable(f"{path}: {error.strerror or error}") from None
    except ProgramError as error:
        raise unable(str(error)) from None


def _drawn(facts: Facts, name: str | None) -> Method:
    methods = {method.name: method for method in facts.methods}
    if name is None and methods:
        return methods.get("forward", facts.methods[0])
    if name not in methods:
        known = ", ".join(methods) or "none"
        raise unable(f"there is no method {name!r}; the program has {known}")
    return methods[name]
