"""Payloads of CUDA delegates of every release: what they name, and that damage is an error that says so."""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtrt_executorch.payloads.cuda_payload import (
    ITEM_SIZES,
    CudaPayload,
    CudaPayloadError,
    Library,
    Weight,
    read,
)


def text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<I", len(data)) + data


def written(libraries: list[Library], weights: list[Weight], one: bool) -> bytes:
    """Write a payload as 1.5.1 does, or with several libraries, as what comes after it."""
    data = b"ETCUDAFQN3" if one else b"ETCUDAFQN0" + struct.pack("<I", len(libraries))
    for library in libraries:
        if not one:
            flags = int(library.is_fallback)
            data += struct.pack("<III", library.gpu, library.ptx, flags)
        data += text(library.key)
    data += struct.pack("<I", len(weights))
    for weight in weights:
        data += text(weight.name) + text(weight.key)
        numbers = weight.nbytes, weight.dtype, int(weight.on_gpu), weight.offset
        data += struct.pack("<QiiqI", *numbers, len(weight.sizes))
        data += struct.pack(
            f"<{2 * len(weight.sizes)}q", *weight.sizes, *weight.strides
        )
    return data


names = st.text(min_size=1, max_size=9).filter(str.strip)


@st.composite
def weights(draw: st.DrawFn) -> Weight:
    dims = draw(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 50)), max_size=4))
    offset, dtype = draw(st.integers(0, 9)), draw(st.sampled_from([*ITEM_SIZES]))
    last = offset + sum(max(0, size - 1) * step for size, step in dims)
    nbytes = (last + 1) * ITEM_SIZES[dtype] + draw(st.integers(0, 8))
    name, key, on_gpu = draw(names), draw(names), draw(st.booleans())
    sizes, strides = (tuple(dim[i] for dim in dims) for i in (0, 1))
    return Weight(name, key, nbytes, dtype, on_gpu, offset, sizes, strides)


@st.composite
def payloads(draw: st.DrawFn) -> tuple[CudaPayload, bytes]:
    held = draw(st.lists(weights(), max_size=4))
    one = draw(st.booleans())
    if one:
        libraries = [Library(draw(names))]
    else:
        gpus = draw(st.lists(st.integers(50, 130), min_size=1, max_size=4, unique=True))
        libraries = [Library(draw(names), gpu) for gpu in gpus]
        if draw(st.booleans()):
            ptx = draw(st.integers(50, 90))
            libraries.append(Library(draw(names), 90, ptx, True))
    payload = CudaPayload(tuple(libraries), weights=tuple(held))
    return payload, written(libraries, held, one)


@given(payloads())
def test_what_is_written_is_read(payload: tuple[CudaPayload, bytes]) -> None:
    expected, data = payload
    assert read(data) == expected
    assert read(memoryview(data)) == expected


@given(payloads(), st.data())
def test_what_is_cut_or_followed_is_refused(
    payload: tuple[CudaPayload, bytes], data: st.DataObject
) -> None:
    _, whole = payload
    cut = data.draw(st.integers(10, len(whole) - 1))
    with pytest.raises(CudaPayloadError):
        read(whole[:cut])
    with pytest.raises(CudaPayloadError, match="follow the last weight"):
        read(whole + b"\0")


@given(payloads(), st.data())
def test_a_changed_byte_is_read_or_refused(
    payload: tuple[CudaPayload, bytes], data: st.DataObject
) -> None:
    changed = bytearray(payload[1])
    at = data.draw(st.integers(0, len(changed) - 1))
    changed[at] ^= data.draw(st.integers(1, 255))
    try:
        found = read(bytes(changed))
    except CudaPayloadError:
        return
    for weight in found.weights:
        dims = zip(weight.sizes, weight.strides, strict=True)
        last = weight.offset + sum((size - 1) * step for size, step in dims)
        fits = (last + 1) * ITEM_SIZES[weight.dtype] <= weight.nbytes
        assert fits or 0 in weight.sizes


@given(st.binary(max_size=200), st.sampled_from([b"", b"ETCUDAFQN3", b"ETCUDAFQN0"]))
def test_anything_is_read_or_refused(data: bytes, magic: bytes) -> None:
    with contextlib.suppress(CudaPayloadError):
        read(magic + data)


def test_keys_of_1_4() -> None:
    assert read(b"library\nweights") == CudaPayload((Library("library"),), "weights")
    for damaged in (b"", b"library", b"library\n", b"a\nb\nc", b"\xff\n"):
        with pytest.raises(CudaPayloadError):
            read(damaged)
    with pytest.raises(CudaPayloadError, match="ETCUDAFQN7"):  # a format of tomorrow
        read(b"ETCUDAFQN7" + bytes(20))


def test_a_huge_number_of_weights_takes_no_memory() -> None:
    data = b"ETCUDAFQN3" + text("library")
    with pytest.raises(CudaPayloadError, match="4294967295 weights"):
        read(data + struct.pack("<I", 0xFFFFFFFF))


def test_the_library_for_a_gpu() -> None:
    own = [Library("a", 80), Library("b", 90), Library("rest", 90, 80, True)]
    payload = read(written(own, [], one=False))
    chosen = {gpu: payload.library_for(gpu) for gpu in (75, 80, 90, 100, None)}
    keys = {gpu: library and library.key for gpu, library in chosen.items()}
    assert keys == {75: None, 80: "a", 90: "b", 100: "rest", None: "a"}
    alone = read(written([Library("a", 80, 80)], [], one=False))
    assert alone.library_for(90) == alone.libraries[0]
    assert alone.library_for(75) is None


AMBIGUOUS = {
    "none": [],
    "two for one GPU": [Library("a", 90), Library("b", 90)],
    "two for all others": [Library("a", 90, 90, True), Library("b", 80, 80, True)],
    "for all others, without PTX": [Library("a", 90, 0, True)],
    "one of several for no GPU": [Library("a", 0), Library("b", 90)],
    "PTX beside others": [Library("a", 80, 80), Library("b", 90)],
    "PTX for later than machine code": [Library("a", 80, 90)],
}


@pytest.mark.parametrize("case", AMBIGUOUS)
def test_libraries_of_which_none_can_be_chosen(case: str) -> None:
    with pytest.raises(CudaPayloadError):
        read(written(AMBIGUOUS[case], [], one=False))
