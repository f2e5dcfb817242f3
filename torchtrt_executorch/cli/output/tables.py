"""Tables of ``inspect``."""

from __future__ import annotations

from collections import Counter
from typing import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from torchtrt_executorch.inspection.advice import Finding
from torchtrt_executorch.inspection.cpp_host import needs
from torchtrt_executorch.inspection.difference import Change
from torchtrt_executorch.inspection.formatting import counted, duration, payload, short
from torchtrt_executorch.inspection.model.facts import HOST, Facts, Method
from torchtrt_executorch.inspection.model.state import buffers

_COLOURS = {"warning": "yellow", "note": "cyan"}
#: Rows of each kind; a file may hold any number.
_MOST = 500
#: The number of slowest instructions to list.
_MOST_TIMES = 20


def tables(facts: Facts) -> Iterator[Table]:
    """Yield a table per method, and one of named data if there is any.

    What the file calls things is shown as it stands: a name like ``[red]`` is no markup.
    """
    for method in facts.methods[:_MOST]:
        yield _method(method)
    if host := needs(facts):
        table = Table("a C++ host needs", "")
        for what, why in host:
            table.add_row(Text(what), Text(why))
        yield table
    if facts.named_data:
        table = Table("named data", "bytes")
        for key, nbytes in list(facts.named_data.items())[:_MOST]:
            table.add_row(Text(short(key)), f"{nbytes:,}")
        yield table


def _method(method: Method) -> Table:
    inputs, outputs = len(method.inputs), len(method.outputs)
    sizes = f"{counted(inputs, 'input')}, {counted(outputs, 'output')}"
    table = Table(title=Text(f"{short(method.name)}: {sizes}"))
    table.add_column("delegate", overflow="fold")
    table.add_column("device", no_wrap=True)
    table.add_column("bytes", justify="right", no_wrap=True)
    table.add_column("engine", overflow="fold")
    for delegate in method.delegates[:_MOST]:
        device = "" if delegate.device == HOST else delegate.device
        cells = (
            short(delegate.backend),
            device,
            f"{delegate.nbytes:,}",
            payload(delegate),
        )
        table.add_row(*map(Text, cells))
    state = buffers(method)
    for buffer in state[:_MOST]:
        value = buffer.value
        name = f"state {short(value.name) or f'value {value.index}'}"
        device = "cpu" if value.device == HOST else value.device
        table.add_row(*map(Text, (name, device, f"{value.nbytes:,}", buffer.notes)))
    kernels = Counter(
        (step.name, step.orders)
        for step in method.instructions
        if step.kind in ("kernel", "copy")
    )
    for (name, orders), count in kernels.most_common(_MOST):
        why = ", of one byte: orders delegates" if orders else ""
        said = f"called {counted(count, 'time')}{why}"
        table.add_row(Text(f"kernel {short(name)}"), "cpu", "", said)
    ways: dict[tuple[str, str], list[int]] = {}
    for transfer in method.between_gpus:
        ways.setdefault((transfer.source, transfer.target), []).append(transfer.nbytes)
    for (source, target), moved in ways.items():
        said = f"{counted(len(moved), 'value')}, through the host"
        table.add_row(f"from {source}", target, f"{sum(moved):,}", said)
    several = (method.delegates, state, kernels)
    left_out = sum(max(len(items) - _MOST, 0) for items in several)
    if left_out:
        table.add_row(f"and {left_out} more: --json has all")
    return table


def times_tables(facts: Facts) -> Iterator[Table]:
    """Yield a table for each method whose times were measured: the slowest instructions."""
    for method in facts.methods[:_MOST]:
        if (times := method.times) is None:
            continue
        said = f"{counted(times.calls, 'call')} of {duration(times.call)}"
        table = Table(title=Text(f"{short(method.name)}: {said}"))
        for heading in ("time", "share", "#"):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("instruction", overflow="fold")
        table.add_column("device", no_wrap=True)
        slowest = sorted(times.instructions.items(), key=lambda entry: -entry[1])
        for index, nanoseconds in slowest[:_MOST_TIMES]:
            step = method.instructions[index]
            cells = duration(nanoseconds), f"{times.share(nanoseconds):.1%}", str(index)
            name = ", ".join(filter(None, (short(step.name), times.instead.get(index))))
            table.add_row(*map(Text, (*cells, name, step.device)))
        yield table


def show_findings(console: Console, findings: Sequence[Finding]) -> None:
    """Print what could be better, and what to change."""
    for finding in findings[:_MOST]:
        level = (f"{finding.level} {finding.name}: ", f"bold {_COLOURS[finding.level]}")
        console.print(Text.assemble(level, finding.text, (f" {finding.advice}", "dim")))
    if len(findings) > _MOST:
        console.print(f"and {len(findings) - _MOST} findings more: --json has all")


def changes_table(changes: Sequence[Change]) -> Table | Text:
    """Return what changed as a table, or the words that nothing did."""
    if not changes:
        return Text("Nothing changed.")
    table = Table()
    for heading in ("method", "what", "which"):
        table.add_column(heading, overflow="fold")
    for heading in ("before", "after"):
        table.add_column(heading, justify="right", no_wrap=True)
    for change in changes[:_MOST]:
        what = f"{change.what}, {change.unit}" if change.unit else change.what
        cells = short(change.method), what, short(change.name)
        table.add_row(*map(Text, cells), f"{change.before:,}", f"{change.after:,}")
    return table
