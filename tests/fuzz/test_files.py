"""Damaged files of every kind, in a process of their own: nothing but the documented errors come of them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from torchtrt_executorch.cli import app
from torchtrt_executorch.runtime import ProgramError, load
from torchtrt_executorch.runtime.reading.schemas import schema

from .. import fresh
from . import files

ROOT = Path(__file__).parents[2]
TRY = """
import sys, warnings
import torch
from tests.fuzz.files import run

warnings.simplefilter("ignore")
torch.set_num_threads(1)
outcomes, found = run(*map(int, sys.argv[1:]))
print(*outcomes.values())
print(*found, sep="\\n")
"""
HARM = """
import os, signal
from tests.fuzz import files

def harm(name, data, folder):
    if name == "cache.pte":
        raise TypeError("not ours")
    if name == "convnet.pte":
        os.kill(os.getpid(), signal.SIGSEGV)
    while name == "map.pte":
        pass
    if name == "times.etdp":
        bytearray(1 << 30)
    return "read"

files.use = harm
outcomes, found = files.run(0, len(files.all_names()))
print(*found, sep="\\n")
"""


def _try(first: int, count: int) -> tuple[int, int]:
    """Return how many mutations were read, and how many refused."""
    done = fresh.run(TRY, str(first), str(count), env=dict(os.environ), cwd=ROOT)
    counts, _, found = done.stdout.partition("\n")
    assert counts and not found.strip(), found or done.stderr[-2000:]
    read, refused = map(int, counts.split())
    assert read + refused == count
    return read, refused


def test_a_thousand_damaged_files() -> None:
    read, refused = _try(0, 1000)
    assert read > 100 and refused > 300


def test_what_was_found_stays_mended(tmp_path: Path) -> None:
    """A zip file of a version to come: the first fault in 300,000 mutations."""
    for index in (1648435,):
        files.use(*files.mutation(index, files.all_names()), tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_a_million_damaged_files() -> None:
    """``FUZZ_FIRST`` is the first mutation, ``FUZZ_COUNT`` how many there are."""
    first = int(os.environ.get("FUZZ_FIRST", "1000"))
    _try(first, int(os.environ.get("FUZZ_COUNT", "1000000")))


def test_the_fuzzer_sees_harm() -> None:
    """Another exception, a process that ended, a loop, and too much memory."""
    done = fresh.run(HARM, env=dict(os.environ), cwd=ROOT)
    found = done.stdout.splitlines()
    for word in ("TypeError: not ours", "ended with -11", "TooLong", "MemoryError"):
        assert any(word in line for line in found), (word, done.stdout, done.stderr)
    assert len(found) == 4


@pytest.mark.parametrize("kind", schema.ScalarType, ids=lambda kind: kind.name)
def test_inputs_of_every_dtype(kind: schema.ScalarType) -> None:
    """One that torch makes plain tensors of, or a ``ProgramError``."""
    found = files.parsed("cache.pte")
    assert found is not None
    for index in found.root.execution_plan[0].inputs:
        program = files.copied(found)
        program.root.execution_plan[0].values[index].val.scalar_type = kind
        try:
            inputs = load(program.write()).method("forward").inputs
        except ProgramError:
            continue
        for each in inputs:
            torch.zeros(each.shape, dtype=each.dtype)


def test_inspect_exits_as_documented(tmp_path: Path) -> None:
    """With 0, or with 2 and a sentence."""
    statuses = set()
    names = [name for name in files.all_names() if name.endswith("pte")]
    for index in range(4 * len(names)):
        name, data = files.mutation(index, names)
        path = tmp_path / name
        path.write_bytes(data)
        done = CliRunner().invoke(app, ["inspect", str(path)])
        assert done.exit_code in (0, 2), (index, name, done.output, done.exception)
        assert done.exception is None or isinstance(done.exception, SystemExit)
        statuses.add(done.exit_code)
    assert statuses == {0, 2}


@pytest.mark.parametrize("name", [n for n in files.all_names() if n.endswith(".pte")])
def test_instructions_with_fewer_arguments(name: str, tmp_path: Path) -> None:
    """Whatever looks at an instruction's arguments, by their number, can't rely on it."""
    found = files.parsed(name)
    assert found is not None
    calls = found.root.execution_plan[0].chains[0].instructions
    for index, call in enumerate(calls):
        for count in range(min(len(getattr(call.instr_args, "args", ())), 4)):
            program = files.copied(found)
            chain = program.root.execution_plan[0].chains[0]
            del chain.instructions[index].instr_args.args[count:]
            files.use(name, program.write(), tmp_path)
