"""Damage real files of every kind, and read, describe and prepare what is left.

``python -m tests.fuzz.files FIRST COUNT [FILE...]`` takes the mutations ``FIRST`` and on of the files in
``corpus/files``, in turn. Nothing but the documented exceptions may come of one, in a second of CPU, with a multiple of
the file's memory. They run in a forked process, which is forked anew where one ends it.

Half of the mutations are of bytes. The others are of what the bytes say: a FlatBuffer is decoded, one to three fields
of its tables become something else that their type allows, and it is written anew.
"""

from __future__ import annotations

import lzma
import os
import random
import resource
import signal
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import torch

from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.data import as_data
from torchtrt_executorch.inspection.drawing.page import page
from torchtrt_executorch.nogpu.stand_ins.file import StandInFile
from torchtrt_executorch.runtime import InputError, ProgramError, load
from torchtrt_executorch.runtime.profile import etdump
from torchtrt_executorch.runtime.reading import schemas
from torchtrt_executorch.runtime.reading.files import read_data
from torchtrt_executorch.runtime.reading.flatbuffer import (
    BYTES,
    STRING,
    Enum,
    Schema,
    Union,
    decode,
)
from torchtrt_executorch.runtime.reading.schemas import FlatTensor, schema

from .collect import FILES
from .flatbuffers_writer import write

#: Seconds of CPU that one may take, and bytes: for each byte of the file, and for any.
SECONDS, EACH, ALWAYS = 1.0, 64, 192 << 20
#: Larger inputs are not made: a program may ask for any.
LARGEST = 1 << 16
INTS = (0, 1, 2, 3, 4, 5, 7, 8, 16, 255, 256, -1, -2, 1000, 2**31 - 1, -(2**31))
LONG = (*INTS, 2**31, 2**32, 2**40, 2**62, 2**63 - 1, -(2**63))


class TooLong(BaseException):
    """A mutation took more than its seconds."""


@cache
def content(name: str) -> bytes:
    """A file of the corpus; a large one is there compressed."""
    path = FILES / name
    return path.read_bytes() if path.exists() else lzma.open(f"{path}.xz").read()


def all_names() -> list[str]:
    """The files of the corpus."""
    return sorted(each.name.removesuffix(".xz") for each in FILES.iterdir())


# Mutations of bytes.


def of_bytes(data: bytes, rng: random.Random) -> bytes:
    """One to four bytes, words or pieces of ``data`` become others."""
    found = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, how = rng.randrange(max(len(found), 1)), rng.random()
        # What is at the front says where all the rest is.
        if rng.random() < 0.3:
            at = rng.randrange(max(min(len(found), 256), 1))
        if how < 0.35 and found:
            found[at] ^= 1 << rng.randrange(8)
        elif how < 0.5 and found:
            found[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif how < 0.75:
            at -= at % 4
            number = rng.choice((*INTS, len(found), at, rng.randrange(64)))
            found[at : at + 4] = struct.pack("<i", number & 0x7FFFFFFF)
        elif how < 0.85:
            start, size = rng.randrange(len(found) or 1), rng.choice((1, 4, 16, 64))
            found[at : at + size] = found[start : start + size]
        elif how < 0.9:
            del found[at:]
        elif how < 0.95:
            del found[at : at + rng.choice((1, 4, 16))]
        else:
            found[at:at] = bytes(rng.choice((1, 4, 16, 64)))
    return bytes(found)


# Mutations of what the bytes say.


@dataclass
class Program:
    """A ``.pte`` or ``.ptd`` taken apart: its tables, and what follows them."""

    tables: Schema
    identifier: bytes
    root: Any
    header: Callable[[int, int, int], bytes]
    rest: bytes

    def write(self) -> bytes:
        """The file: all offsets in a FlatBuffer but the first are relative, so a header has room."""
        flat = write(self.tables, self.root, self.identifier)
        gap = len(self.header(0, 0, 0))
        size = len(flat) + gap
        base = -(-size // 16) * 16
        first = struct.pack("<I", struct.unpack_from("<I", flat)[0] + gap)
        header = self.header(size, base, len(self.rest))
        whole = first + flat[4:8] + header + flat[8:]
        return whole + bytes(base - size) + self.rest


def _pte_header(size: int, base: int, rest: int) -> bytes:
    return struct.pack("<4sIQQQ", b"eh00", 32, size, base, rest)


def _ptd_header(size: int, base: int, rest: int) -> bytes:
    return struct.pack("<4sIQQQQQ", b"FH01", 40, 0, size, base, rest, 0)


@cache
def parsed(name: str) -> Program | None:
    """A file's tables, None of a kind that has none."""
    data = memoryview(content(name))
    if name.endswith(".pte"):
        flat, base, size = schemas.split_pte(data)
        root = decode(schemas.PROGRAM, schema.Program, b"ET12", flat)
        rest = bytes(data[base : base + size]) if base else b""
        return Program(schemas.PROGRAM, b"ET12", root, _pte_header, rest)
    if name.endswith(".ptd"):
        flat, base, size = schemas.split_ptd(data)
        root = decode(schemas.FLAT_TENSOR, FlatTensor, b"FT01", flat)
        rest = bytes(data[base : base + size])
        return Program(schemas.FLAT_TENSOR, b"FT01", root, _ptd_header, rest)
    return None


def of_fields(program: Program, rng: random.Random) -> bytes:
    """One to three fields of a program's tables become others."""
    changed = copied(program)
    tables = program.tables
    places = [*_places(tables, changed.root)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        owner, name, kind = rng.choice(places)
        setattr(owner, name, _other(tables, getattr(owner, name), kind, places, rng))
    return changed.write()


def copied(program: Program) -> Program:
    """One whose tables may be changed."""
    return replace(program, root=_copied(program.root))


def _copied(value: Any) -> Any:
    """A copy of tables, with the same views into the file."""
    if isinstance(value, memoryview):
        return value
    if isinstance(value, list):
        return [_copied(each) for each in value]
    if isinstance(value, (str, int, float, bool)) or value is None:
        return value
    return type(value)(**{n: _copied(v) for n, v in vars(value).items()})


def _places(tables: Schema, table: Any) -> Iterator[tuple[Any, str, Any]]:
    """Each field of each table: the table, the field's name and kind."""
    for name, kind in tables[type(table)].items():
        yield table, name, kind
        held = getattr(table, name)
        for each in held if isinstance(held, list) else [held]:
            if type(each) in tables:
                yield from _places(tables, each)


def _other(
    tables: Schema, held: Any, kind: Any, places: Sequence[Any], rng: random.Random
) -> Any:
    """Something else of a field's kind."""
    if isinstance(kind, tuple):
        kind = kind[0]
    if isinstance(kind, list):
        return _other_list(tables, held or [], kind, places, rng)
    alike = [getattr(o, n) for o, n, k in places if k is kind or k == kind]
    if rng.random() < 0.5 and alike:
        return rng.choice(alike)
    if isinstance(kind, Union):
        made = rng.choice([*kind.members.values()])
        return made(**{n: _none(k) for n, k in tables[made].items()})
    if isinstance(kind, Enum):
        return rng.choice([*kind.members])
    if kind == STRING:
        text = held or ""
        return rng.choice(("", "x", text + "x", text[1:], "\0", "aten::add", "out"))
    if kind == BYTES:
        return memoryview(of_bytes(bytes(held), rng))
    if isinstance(kind, type):
        return None
    if kind == "?":
        return not held
    if kind == "d":
        return rng.choice((0.0, -1.0, float("nan"), float("inf"), 1e300))
    low, high = _RANGES[kind]
    near = (held + 1, held - 1, held * 2)
    number = rng.choice(near) if rng.random() < 0.5 else rng.choice(LONG)
    return min(max(number, low), high)


def _other_list(
    tables: Schema, held: list[Any], kind: Any, places: Sequence[Any], rng: Any
) -> list[Any]:
    items, how = [*held], rng.random()
    index = rng.randrange(len(items)) if items else 0
    scalar = isinstance(kind[0], str) and kind[0] != STRING
    if items and how < 0.25:
        del items[index]
    elif items and how < 0.45:
        items.insert(rng.randrange(len(items)), items[index])
    elif items and how < 0.6:
        other = rng.randrange(len(items))
        items[index], items[other] = items[other], items[index]
    elif items and how < 0.65:
        items = items * 3
    elif how < 0.72:
        return []
    elif scalar:
        number = _other(tables, items[index] if items else 0, kind[0], (), rng)
        items[index : index + 1] = [number]
    return items


def _none(kind: Any) -> Any:
    if isinstance(kind, tuple):
        return kind[1]
    if isinstance(kind, Enum):
        return kind.members(0)
    if isinstance(kind, list):
        return []
    if kind == BYTES:
        return memoryview(b"")
    return None if kind == STRING or isinstance(kind, type) else 0


_RANGES = {
    **{"b": (-(2**7), 2**7 - 1), "B": (0, 2**8 - 1)},
    **{"i": (-(2**31), 2**31 - 1), "I": (0, 2**32 - 1)},
    **{"q": (-(2**63), 2**63 - 1), "Q": (0, 2**64 - 1)},
}


def mutation(index: int, names: Sequence[str]) -> tuple[str, bytes]:
    """Mutation ``index``: of which file, and what it makes of it."""
    name = names[index % len(names)]
    rng = random.Random(f"{name} {index}")
    program = parsed(name)
    if program is not None and rng.random() < 0.6:
        return name, of_fields(program, rng)
    return name, of_bytes(content(name), rng)


# What is done with a file.


def use(name: str, data: bytes, folder: Path) -> str:
    """Do all that may be done with an untrusted file. Return ``read`` or ``refused``."""
    try:
        if name.endswith(".ptd"):
            read_data(data)
            load(content("external.pte"), [data]).method("forward")
        elif name.endswith(".zip"):
            path = folder / name
            path.write_bytes(data)
            StandInFile(path)
        elif name.endswith(".etdp"):
            etdump.read(data)
        else:
            _use_program(data)
    except ProgramError:
        return "refused"
    except ValueError:
        if name.endswith(".zip"):  # documented
            return "refused"
        raise
    return "read"


def _use_program(data: bytes) -> None:
    facts = read(data)
    findings = advise(facts)
    as_data(facts, findings)
    page(facts, findings)
    program = load(data, simulate_devices=True)
    for facts_of in facts.methods:
        # Delegates are native code, which trusts its own bytes.
        if facts_of.delegates:
            continue
        method = program.method(facts_of.name)
        planned = sum(arena.nbytes for arena in facts_of.arenas)
        straight = all(step.destination is None for step in facts_of.instructions)
        inputs = [_input(each) for each in method.inputs]
        if straight and planned < LARGEST and len(inputs) < 50:
            with suppress(InputError):
                method(*inputs)


def _input(info: Any) -> Any:
    if info.kind != "tensor":
        return {"int": 1, "float": 1.0, "bool": True, "str": ""}.get(info.kind)
    count = 1
    for size in info.shape:
        count *= size
    if count > LARGEST:
        return torch.zeros(0)
    return torch.zeros(info.shape, dtype=info.dtype)


def _child(first: int, last: int, names: Sequence[str], pipe: int) -> None:
    def stop(signum: int, frame: Any) -> None:
        raise TooLong

    signal.signal(signal.SIGPROF, stop)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    for name in names:
        parsed(name)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    largest = max(len(content(name)) for name in names)
    used = int(Path("/proc/self/statm").read_text().split()[5]) * 4096
    room = used + EACH * largest + ALWAYS
    resource.setrlimit(resource.RLIMIT_DATA, (room, room))
    with tempfile.TemporaryDirectory() as folder:
        for index in range(first, last):
            name, data = mutation(index, names)
            os.write(pipe, f"at {index} {name}\n".encode())
            try:
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
                said = use(name, data, Path(folder))
                signal.setitimer(signal.ITIMER_PROF, 0)
            except BaseException as error:
                signal.setitimer(signal.ITIMER_PROF, 0)
                frames = traceback.extract_tb(error.__traceback__)[:-5:-1]
                places = [f"{Path(f.filename).name}:{f.lineno}" for f in frames]
                said = f"{type(error).__name__}: {error!s:.150} at {' < '.join(places)}"
                said = f"found {said}".replace("\n", " ")
            os.write(pipe, f"{said}\n".encode())


def run(
    first: int, count: int, names: Sequence[str] = ()
) -> tuple[dict[str, int], list[str]]:
    """Try mutations. Return how many were read and refused, and what was found at fault."""
    names = names or all_names()
    outcomes = {"read": 0, "refused": 0}
    found: list[str] = []
    last = first + count
    while first < last:
        read_end, write_end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(read_end)
            try:
                _child(first, last, names, write_end)
            finally:
                os._exit(0)
        os.close(write_end)
        at = ""
        with os.fdopen(read_end, errors="replace") as lines:
            for line in lines:
                word, _, rest = line.rstrip("\n").partition(" ")
                if word == "at":
                    at, first = rest, int(rest.split()[0]) + 1
                elif word == "found":
                    found.append(f"{at}: {rest}")
                    at = ""
                else:
                    outcomes[word] += 1
                    at = ""
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if at or status:
            found.append(f"{at}: ended with {status}")
        if not at and first < last and status == 0:
            found.append(f"{first}: ended early")
            first += 1
    return outcomes, found


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    begin, many, *only = sys.argv[1:]
    outcomes, found = run(int(begin), int(many), only)
    print(*outcomes.values())
    print(*found, sep="\n")
    sys.exit(bool(found))
