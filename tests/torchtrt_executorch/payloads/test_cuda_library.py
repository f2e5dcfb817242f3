"""Kernels in a CUDA library: what they take is read from their bytes, and whatever contradicts is found."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
import torch  # noqa: F401  puts the overlay in force
from executorch.backends.cuda.tuning.gpu_properties import properties
from hypothesis import given
from hypothesis import strategies as st

from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.model.facts import Delegate, Facts, Method
from torchtrt_executorch.nogpu.target.gpu_description import GpuDescription
from torchtrt_executorch.payloads import cubin, gpus
from torchtrt_executorch.payloads.cuda_library import (
    Image,
    KernelBinary,
    capabilities,
    kernels,
    with_launch_record,
)

NAME = "triton_tem_fused_addmm_0"
GPUS = [*gpus.SHARED_KIB]


def machine_code(
    gpu: int, registers: int = 32, threads: int = 128, shared: int = 0, frame: int = 0
) -> bytes:
    """A cubin of one kernel, without instructions, as CUDA 13's assembler writes its sections."""
    reserved = 1024 if gpu >= 90 else 0
    infos = struct.pack("<BBHIIBBHII", 4, 0x2F, 8, 1, registers, 4, 0x11, 8, 1, frame)
    own = struct.pack("<BBHBBH3I", 3, 0x1B, 255, 4, 0x10, 12, threads, 1, 1)
    contents = [
        ("", 0, b"", 0),
        (".shstrtab", 3, b"", 0),
        (".nv.info", 0x70000000, infos, 0),
        (f".nv.info.{NAME}", 0x70000000, own, 0),
        (f".text.{NAME}", 1, bytes(128), 0),
        (f".nv.shared.{NAME}", 8, b"", shared + reserved),
    ]
    names = b"\0".join(name.encode() for name, *_ in contents) + b"\0"
    contents[1] = (".shstrtab", 3, names, 0)
    body, headers, at = b"", b"", 64
    for name, kind, data, size in contents:
        where = names.index(name.encode() + b"\0") if name else 0
        sizes = at + len(body), len(data) or size
        headers += struct.pack("<IIQQQQIIQQ", where, kind, 0, 0, *sizes, 0, 0, 1, 0)
        body += data
    ident = b"\x7fELF\x02\x01\x01\x41\x08".ljust(16, b"\0")
    head = struct.pack("<HHIQQQI", 2, 190, 1, 0, 0, at + len(body), gpu << 8)
    head += struct.pack("<6H", 64, 56, 0, 64, len(contents), 1)
    return ident + head + body + headers


def fat_binary(*entries: tuple[int, int, bytes]) -> bytes:
    """A fat binary of entries: kind, capability and data."""
    body = b"".join(
        struct.pack("<HHIQ12xI32x", kind, 0x101, 64, len(data), gpu) + data
        for kind, gpu, data in entries
    )
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(body)) + body


def ptx(gpu: int) -> bytes:
    return b".version 8.8\n.target sm_%d\n.address_size 64\n" % gpu


def for_gpus(*each: int, ptx_for: int = 0, **figures: int) -> bytes:
    entries = [(2, gpu, machine_code(gpu, **figures)) for gpu in each]
    return fat_binary(*entries, *([(1, ptx_for, ptx(ptx_for))] if ptx_for else []))


def findings(library: bytes, gpu: int) -> list[tuple[str, str, str]]:
    """What ``inspect --gpu`` says of a library."""
    found = tuple(kernels(library))
    names = capabilities(library)
    shown = [n.replace("compute", "sm") + "+" * (n[0] == "c") for n in names]
    delegate = Delegate(0, "CudaBackend", "cuda:0", 1, owner="cuda", gpus=tuple(shown))
    delegate = replace(delegate, kernels=(found,))
    method = Method("forward", (), (), [], [], [delegate], [])
    advice = advise(Facts("model.pte", 1, [method]), f"sm_{gpu}")
    return [(each.name, each.level, each.text) for each in advice]


figures = st.fixed_dictionaries(
    {
        "registers": st.integers(16, 255),
        "threads": st.sampled_from([32, 64, 128, 256, 512]),
        "shared": st.integers(0, 48 << 10),
        "frame": st.integers(0, 512),
    }
)
several = st.lists(st.sampled_from(GPUS), min_size=1, max_size=4, unique=True)
launches = st.tuples(st.integers(0, 227 << 10), st.sampled_from([32, 128, 1024]))


@given(several, figures, st.sampled_from([0, 75, 80]), launches)
def test_what_is_written_is_read(
    each: list[int], taken: dict[str, int], later: int, launch: tuple[int, int]
) -> None:
    binary = for_gpus(*each, ptx_for=later, **taken)
    expected = cubin.Kernel(NAME, **taken)
    images = [Image(gpu, False, (expected,)) for gpu in each]
    images += [Image(later, True)] if later else []
    (bare,) = kernels(b"host" + binary + b"code")
    assert bare == KernelBinary(NAME, tuple(images))
    (found,) = kernels(b"host" + with_launch_record(binary, NAME, *launch) + b"code")
    assert found == replace(bare, shared=launch[0], threads=launch[1])


def test_one_behind_another() -> None:
    """Machine code for one GPU stands by itself; a kernel isn't looked for within another."""
    one, two = machine_code(87, shared=16), for_gpus(80, 90, ptx_for=80)
    library = b"\x7fELF" + with_launch_record(one, NAME, 1, 32) + bytes(7)
    library += with_launch_record(two, NAME, 2, 64) + two + one
    found = kernels(library)
    assert [len(each.images) for each in found] == [1, 3, 3, 1]
    assert [each.shared for each in found] == [1, 2, None, None]
    assert capabilities(library) == ["sm_80", "sm_87", "sm_90", "compute_80"]


@given(st.lists(st.sampled_from(GPUS), min_size=2, max_size=4, unique=True), st.data())
def test_a_header_that_names_another_gpu_is_found(
    each: list[int], data: st.DataObject
) -> None:
    """Of machine code and of PTX, with a launch record or without."""
    binary = bytearray(for_gpus(*each, ptx_for=80))
    starts, at = [], 16
    while at < len(binary):
        starts.append(at)
        header, size = struct.unpack_from("<IQ", binary, at + 4)
        at += header + size
    start = data.draw(st.sampled_from(starts))
    (named,) = struct.unpack_from("<I", binary, start + 28)
    other = data.draw(st.sampled_from([gpu for gpu in GPUS if gpu != named]))
    struct.pack_into("<I", binary, start + 28, other)
    (found,) = kernels(bytes(binary))
    assert f"_{other}, and the code is " in found.damaged
    assert f"_{named}" in found.damaged


def test_a_fat_binary_that_reaches_into_its_launch_record_is_damaged() -> None:
    """As long as an entry's header isn't reached, no entry goes beyond the end."""
    whole = with_launch_record(for_gpus(75, 80, ptx_for=75), NAME, 0, 128)
    size = struct.unpack_from("<Q", whole, 8)[0]
    for more in (1, 8, 47):
        longer = whole[:8] + struct.pack("<Q", size + more) + whole[16:]
        (kernel,) = kernels(longer)
        assert "behind its last entry" in kernel.damaged


@given(several, figures, launches, st.data())
def test_a_changed_byte_behind_a_launch_record_is_found(
    each: list[int], taken: dict[str, int], launch: tuple[int, int], data: Any
) -> None:
    """Whichever it is: of the headers, the code, what a launch takes, the name."""
    whole = with_launch_record(for_gpus(*each, ptx_for=75, **taken), NAME, *launch)
    changed = bytearray(whole)
    at = data.draw(st.integers(0, len(whole) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    found = kernels(bytes(changed))
    # Without its magic there is no fat binary, and without the record's no record.
    assert found != kernels(whole)
    record = len(whole) - len(NAME) - 44
    if at >= 8 and not record <= at < record + 16:
        assert any(kernel.damaged for kernel in found)


@pytest.mark.parametrize("value", [0x7F, 0x80, 0xFF])
def test_any_byte_of_a_fat_binary_may_be_wrong(value: int) -> None:
    """The highest one of an offset as well, which is more than an index can be."""
    whole = for_gpus(90)
    for at in range(len(whole)):
        kernels(whole[:at] + bytes([value]) + whole[at + 1 :])


@given(several, figures, st.data())
def test_damage_is_survived(
    each: list[int], taken: dict[str, int], data: st.DataObject
) -> None:
    whole = bytearray(for_gpus(*each, **taken) + machine_code(each[0], **taken))
    places = st.integers(0, len(whole) - 1)
    for _ in range(data.draw(st.integers(0, 8))):
        whole[data.draw(places)] = data.draw(st.sampled_from([0, 1, 255]))
    end = data.draw(st.integers(0, len(whole)))
    assert all(name[:3] in ("sm_", "com") for name in capabilities(bytes(whole[:end])))


@pytest.mark.parametrize(
    ("built", "launch", "gpu", "words"),
    [
        # pytorch/executorch#21827: 131,072 bytes, chosen for an A100, on an RTX 5090 by PTX.
        (for_gpus(80, ptx_for=80), (131_072, 128), 120, "131,072 bytes of shared memory"),
        (for_gpus(80, ptx_for=80), (131_072, 128), 86, "most 101,376"),
        (for_gpus(90), (233_472, 128), 90, "most 232,448"),
        (for_gpus(86, shared=4096), (99 << 10, 128), 86, "105,472 bytes"),
        (for_gpus(90, threads=1024), (0, 2048), 90, "blocks of 2,048 threads"),
        (for_gpus(90, threads=128), (0, 256), 90, "compiled for 128"),
        (for_gpus(90, registers=255, threads=512), (0, 512), 90, "255 registers in each of 512"),
    ],
)  # fmt: skip
def test_a_kernel_that_does_not_fit_is_named(
    built: bytes, launch: tuple[int, int], gpu: int, words: str
) -> None:
    library = with_launch_record(built, NAME, *launch)
    name, level, text = findings(library, gpu)[0]
    assert (name, level) == ("kernel", "warning")
    assert NAME in text and f"sm_{gpu}" in text and words in text


@given(several, figures, launches, st.sampled_from(GPUS))
def test_what_fits_by_the_tables_is_no_finding_and_nothing_else_is(
    each: list[int], taken: dict[str, int], launch: tuple[int, int], gpu: int
) -> None:
    library = with_launch_record(for_gpus(*each, ptx_for=75, **taken), NAME, *launch)
    (found,) = kernels(library)
    image = gpus.image_on(found, gpu)
    assert image is not None
    static = 0 if image.is_ptx else taken["shared"]
    fits = static + launch[0] <= gpus.SHARED_KIB[gpu] << 10
    if not image.is_ptx:
        warps = launch[1] // 32
        fits &= launch[1] <= taken["threads"]
        fits &= -(-taken["registers"] // 8) * 8 * 32 * warps <= 1 << 16
    assert (findings(library, gpu) == []) == fits


def test_a_kernel_without_code_for_a_gpu_that_others_have() -> None:
    library = for_gpus(86, 90) + for_gpus(86, ptx_for=86) + for_gpus(86)
    found = findings(library, 90)
    assert [(name, level) for name, level, _ in found] == [("kernel", "warning")]
    assert "only has code for sm_86," in found[0][2]


def test_shared_memory_that_another_exporter_did_not_note() -> None:
    library = for_gpus(80, ptx_for=80) * 3
    assert findings(library, 80) == findings(library, 90) == []
    ((name, level, text),) = findings(library, 120)
    assert (name, level) == ("kernel", "note")
    assert f"{NAME} and 2 more" in text


@pytest.mark.parametrize("gpu", range(50, 140))
def test_the_limit_is_that_of_the_compilers(gpu: int) -> None:
    try:
        known = properties(GpuDescription.parse(f"sm_{gpu}:8GiB"))
    except ValueError:  # nothing is compiled for it
        assert gpus.shared_memory(gpu) is None
    else:
        assert gpus.shared_memory(gpu) == known.shared_memory_per_block_optin
