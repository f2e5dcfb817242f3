"""The engine blob: byte for byte upstream's, and read back as if an enemy had written it."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
import tracemalloc
from dataclasses import asdict
from types import ModuleType
from typing import Any, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch_tensorrt.executorch import serialization
from torch_tensorrt.executorch.engines.record import Slot
from torch_tensorrt.executorch.serialization import (
    HEADER_FORMAT,
    HEADER_SIZE,
    Layout,
    TensorRTBlobMetadata,
    TensorRTIOBinding,
    deserialize_engine,
    serialize_engine,
)

from torchtrt_executorch.overlay.upstream import load_upstream

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
names = texts.filter(bool)
shapes = st.lists(st.integers(-1, 2**40), max_size=8)


@st.composite
def metadatas(draw: Callable, aliased: bool = False) -> TensorRTBlobMetadata:
    bindings = [
        TensorRTIOBinding(name, draw(texts), draw(shapes), is_input)
        for is_input in (True, False)
        for name in draw(
            st.lists(names, min_size=int(aliased), max_size=4, unique=True)
        )
    ]
    inputs = [each.name for each in bindings if each.is_input]
    outputs = [each.name for each in bindings if not each.is_input]
    alias = st.tuples(
        st.sampled_from(inputs), st.sampled_from(["user", "kv_cache_update"])
    )
    return TensorRTBlobMetadata(
        io_bindings=bindings,
        aliased_io=(
            draw(st.dictionaries(st.sampled_from(outputs), alias, min_size=1))
            if aliased
            else {}
        ),
        hardware_compatible=draw(st.booleans()),
        device_id=draw(st.integers(0, 2**31 - 1)),
        serialized_metadata=draw(texts),
        target_platform=draw(texts),
    )


@pytest.fixture(scope="module")
def upstream() -> ModuleType:
    return load_upstream("torch_tensorrt.executorch.serialization")


def theirs(upstream: ModuleType, metadata: TensorRTBlobMetadata) -> Any:
    fields = asdict(metadata)
    fields["io_bindings"] = [
        upstream.TensorRTIOBinding(**each) for each in fields["io_bindings"]
    ]
    if Layout.installed() is not Layout.TR02:
        del fields["aliased_io"]
    return upstream.TensorRTBlobMetadata(**fields)


# Against the upstream code of the installed release


@given(engine=st.binary(max_size=300), metadata=metadatas())
def test_a_blob_is_upstreams_byte_for_byte(
    upstream: ModuleType, engine: bytes, metadata: TensorRTBlobMetadata
) -> None:
    expected = upstream.serialize_engine(engine, theirs(upstream, metadata))
    assert serialize_engine(engine, metadata) == expected


@pytest.mark.skipif(
    Layout.installed() is not Layout.TR02,
    reason="blobs know aliased outputs from 2.14 on",
)
@given(engine=st.binary(max_size=300), metadata=metadatas(aliased=True))
def test_an_aliased_blob_is_upstreams_byte_for_byte(
    upstream: ModuleType, engine: bytes, metadata: TensorRTBlobMetadata
) -> None:
    expected = upstream.serialize_engine(engine, theirs(upstream, metadata))
    assert serialize_engine(engine, metadata) == expected


@given(engine=st.binary(max_size=300), metadata=metadatas())
def test_upstream_reads_what_we_read(
    upstream: ModuleType, engine: bytes, metadata: TensorRTBlobMetadata
) -> None:
    blob = serialize_engine(engine, metadata)
    assert upstream.deserialize_engine(blob) == (engine, theirs(upstream, metadata))
    assert deserialize_engine(blob) == (engine, metadata)


def test_every_public_name_of_upstream_is_there(upstream: ModuleType) -> None:
    public = {name for name in vars(upstream) if not name.startswith("_")}
    imported = {"annotations", "dataclasses", "dataclass", "field", "json", "struct"}
    typing = {"Dict", "List", "Tuple", "Union", "SERIALIZATION_LEN"}
    assert public - imported - typing <= set(serialization.__all__)


def test_constants_are_upstreams(upstream: ModuleType) -> None:
    for name in ("TENSORRT_MAGIC", "HEADER_FORMAT", "HEADER_SIZE"):
        assert getattr(serialization, name) == getattr(upstream, name)


# Every layout, whatever is installed


@pytest.mark.parametrize("layout", Layout)
@given(engine=st.binary(max_size=300), metadata=metadatas())
def test_round_trip(
    layout: Layout, engine: bytes, metadata: TensorRTBlobMetadata
) -> None:
    blob = serialize_engine(engine, metadata, layout=layout)
    assert deserialize_engine(blob) == (engine, metadata)


@given(engine=st.binary(max_size=300), metadata=metadatas(aliased=True))
def test_round_trip_with_aliases(engine: bytes, metadata: TensorRTBlobMetadata) -> None:
    blob = serialize_engine(engine, metadata, layout=Layout.TR02)
    assert blob.startswith(b"TR02")
    assert deserialize_engine(blob) == (engine, metadata)
    with pytest.raises(ValueError, match="aliased_io.*2.14"):
        serialize_engine(engine, metadata, layout=Layout.TR01)


def record(**changes: Any) -> list[Any]:
    values = [""] * 12
    values[Slot.NAME] = "_run_on_acc_0_engine"
    values[Slot.DEVICE] = "1%9%0%0%NVIDIA H200"
    values[Slot.ENGINE] = b"engine"
    values[Slot.INPUT_NAMES] = "x%y"
    values[Slot.OUTPUT_NAMES] = "output0"
    values[Slot.HARDWARE_COMPATIBLE] = "1"
    values[Slot.METADATA] = "gAN9"
    values[Slot.TARGET_PLATFORM] = "linux_x86_64"
    for slot, value in changes.items():
        values[Slot[slot]] = value
    return values


@pytest.mark.parametrize(
    "release, layout",
    [
        ("2.13.0", Layout.TR01),
        ("2.13.1+cu130", Layout.TR01),
        ("2.14.0.dev20260901", Layout.TR02),
        ("3.0", Layout.TR02),
    ],
)
def test_the_release_decides_the_layout(release: str, layout: Layout) -> None:
    assert Layout.of_release(release) is layout


def test_a_release_without_blobs_has_no_layout() -> None:
    with pytest.raises(ValueError, match="2.12.1"):
        Layout.of_release("2.12.1")


def test_neither_torch_nor_torch_tensorrt_is_needed() -> None:
    script = (
        "import sys, torchtrt_executorch.payloads.engine_blob\n"
        "assert not {'torch', 'torch_tensorrt', 'executorch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


# Bytes


@pytest.mark.parametrize("layout", Layout)
def test_writing_copies_the_engine_once(layout: Layout) -> None:
    engine = bytearray(8 << 20)
    tracemalloc.start()
    try:
        blob = serialize_engine(
            memoryview(engine), TensorRTBlobMetadata(), layout=layout
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(blob) > len(engine)
    assert peak < 1.01 * len(engine)


def test_an_engine_is_read_as_a_view_of_a_view() -> None:
    blob = bytearray(
        serialize_engine(b"engine", TensorRTBlobMetadata(), layout=Layout.TR01)
    )
    engine, _ = deserialize_engine(memoryview(blob))
    blob[-1] = ord("!")
    assert engine == b"engin!"


# Hostile blobs


def header(**changes: Any) -> bytes:
    """A blob with 16 bytes of engine, its header changed; its JSON is ``{}``."""
    fields: dict[str, Any] = {
        "magic": b"TR01",
        "offset": HEADER_SIZE,
        "length": 2,
        "engine_offset": 48,
        "engine_size": 16,
        "version": b"\1" + bytes(7),
        **changes,
    }
    return struct.pack(HEADER_FORMAT, *fields.values()) + b"{}" + bytes(14 + 16)


def test_the_header_under_test_is_fine() -> None:
    assert deserialize_engine(header()) == (bytes(16), TensorRTBlobMetadata())


@pytest.mark.parametrize(
    "blob, complaint",
    [
        (b"", "begins with b''"),
        (b"TR0", "begins with b'TR0'"),
        (header(magic=b"TR03"), "begins with b'TR03'"),
        (b"\x0d\0\0\0" + bytes(64), "begins with"),
        (header()[: HEADER_SIZE - 1], "31 bytes, fewer than the header's 32"),
        (header(version=b"\2" + bytes(7)), "version"),
        (header(version=b"\1" + bytes(6) + b"\1"), "version"),
        (header(offset=31), "metadata at 31, inside the header"),
        (header(offset=0), "metadata at 0, inside the header"),
        (header(offset=2**32 - 1, length=2**32 - 1), "overlaps the engine at 48"),
        (header(length=17), "metadata from 32 to 49 overlaps the engine at 48"),
        (header(engine_offset=47, engine_size=17), "47, not a multiple of 16"),
        (header(engine_size=17), "engine from 48 to 65, but the blob has 64 bytes"),
        (header(engine_size=15), "engine from 48 to 63, but the blob has 64 bytes"),
        (header(engine_size=2**64 - 1), "but the blob has 64 bytes"),
        (header(engine_offset=2**32 - 16), "but the blob has 64 bytes"),
        (header() + b"\0", "engine from 48 to 64, but the blob has 65 bytes"),
        (header(magic=b"TR02"), "b'TR02' with 0 aliased outputs"),
        (header(length=1), "metadata: "),
        (header(length=0), "metadata: "),
    ],
)
def test_a_bad_header_is_refused(blob: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match="engine blob") as refusal:
        deserialize_engine(blob)
    assert complaint in str(refusal.value)


def with_json(text: bytes) -> bytes:
    padding = -(HEADER_SIZE + len(text)) % 16
    offset = HEADER_SIZE + len(text) + padding
    head = struct.pack(
        HEADER_FORMAT, b"TR01", HEADER_SIZE, len(text), offset, 0, b"\1" + bytes(7)
    )
    return head + text + bytes(padding)


def with_metadata(**changes: Any) -> bytes:
    return with_json(json.dumps(changes).encode())


def with_binding(**changes: Any) -> bytes:
    return with_metadata(io_bindings=[{"name": "x"}, {"name": "y", **changes}])


BOMB = 300_000


@pytest.mark.parametrize(
    "blob, complaint",
    [
        (with_json(b"[]"), "metadata is [], not an object"),
        (with_json(b"null"), "metadata is None, not an object"),
        (with_json(b'{"device_id": 0'), "metadata: "),
        (with_json(b'{"target_platform": "\xff"}'), "can't decode byte 0xff"),
        (with_json('{"target_platform": ""}'.encode("utf-16")), "decode"),
        (with_json(b"\xef\xbb\xbf{}"), "metadata: "),
        (with_json(b"[" * BOMB + b"]" * BOMB), "more objects and lists"),
        (with_json(b"[]," * BOMB), "more objects and lists"),
        (with_json(b'{"":' * BOMB), "more objects and lists"),
        (with_json(b'{"x":' + b"[" * 100_000 + b" " * 1_600_000), "recursion"),
        (with_json(b'{"device_id":' + b"1" * BOMB + b"}"), "300000 digits"),
        (with_json(b'{"device_id": 1e999}'), "no integer: 1e999"),
        (with_json(b'{"device_id": NaN}'), "no integer: NaN"),
        (with_json(b'{"device_id": 1.0}'), "no integer: 1.0"),
        (with_json(b'{"device_id": 1, "device_id": 2}'), "a key twice"),
        (with_metadata(**{f"k{i}": i for i in range(33)}), "33 members"),
        (with_metadata(device_id="0"), "device_id is '0', not an integer"),
        (with_metadata(device_id=True), "device_id is True, not an integer"),
        (with_metadata(device_id=-1), "device_id is -1, not an integer"),
        (with_metadata(device_id=2**31), "device_id is 2147483648, not an integer"),
        (with_metadata(hardware_compatible=1), "hardware_compatible is 1, not true"),
        (with_metadata(serialized_metadata=None), "serialized_metadata is None"),
        (with_metadata(target_platform="a\0b"), "text without NUL"),
        (with_metadata(target_platform="\ud800"), "text that UTF-8 can hold"),
        (with_metadata(io_bindings={}), "io_bindings is {}, not a list"),
        (with_metadata(io_bindings=[1]), "io_bindings[0] is 1, not an object"),
        (with_metadata(io_bindings=[{}]), "io_bindings[0].name is '', not text"),
        (with_binding(name=""), "io_bindings[1].name is '', not text"),
        (with_binding(name=["y"]), "io_bindings[1].name is ['y'], not text"),
        (with_binding(name="x"), "io_bindings[1].name is 'x', not a name of its own"),
        (with_binding(name="\udcff"), "io_bindings[1].name is '\\udcff', not text"),
        (with_binding(dtype=0), "io_bindings[1].dtype is 0, not text"),
        (with_binding(is_input=None), "io_bindings[1].is_input is None"),
        (with_binding(shape=3), "io_bindings[1].shape is 3, not a list"),
        (with_binding(shape=[1, -2]), "io_bindings[1].shape[1] is -2"),
        (with_binding(shape=[2**63]), "io_bindings[1].shape[0] is"),
        (with_binding(shape=[[1]]), "io_bindings[1].shape[0] is [1]"),
        (with_metadata(aliased_io=[{"output": []}]), "aliased_io[0].output is []"),
        (with_metadata(aliased_io=[{"output": "o"}]), "aliased_io[0].input is ''"),
        (
            with_metadata(aliased_io=[{"output": "o", "input": "i"}] * 2),
            "aliased_io[1].output is 'o', not a name that no other entry has",
        ),
        (
            with_metadata(aliased_io=[{"output": "o", "input": "i", "kind": 3}]),
            "aliased_io[0].kind is 3",
        ),
        (
            with_metadata(aliased_io=[{"output": "o", "input": "i"}]),
            "b'TR01' with 1 aliased outputs",
        ),
        (
            with_metadata(
                io_bindings=[{"name": "o", "is_input": False}, {"name": "i"}],
                aliased_io=[{"output": "i", "input": "o"}],
            ),
            "aliased_io[0] is ('i', 'o'), not an output and an input of the engine",
        ),
    ],
)
def test_bad_metadata_is_refused(blob: bytes, complaint: str) -> None:
    with pytest.raises(ValueError, match="engine blob: ") as refusal:
        deserialize_engine(blob)
    assert complaint in str(refusal.value)
    assert len(str(refusal.value)) < 500


def test_unknown_keys_are_skipped() -> None:
    blob = with_metadata(
        device_id=1, later={"a": [1]}, io_bindings=[{"name": "x", "z": 1}]
    )
    _, metadata = deserialize_engine(blob)
    assert metadata == TensorRTBlobMetadata([TensorRTIOBinding("x")], device_id=1)


@pytest.mark.parametrize(
    "slots, complaint",
    [
        ({"INPUT_NAMES": b"\xff"}, "INPUT_NAMES"),
        ({"METADATA": b"\xff"}, "METADATA"),
        ({"INPUT_NAMES": "x%x"}, "a name of its own"),
        ({"INPUT_NAMES": "a%" * 20000}, "over 16384 names"),
    ],
)
def test_a_bad_record_is_refused(slots: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ValueError) as refusal:
        TensorRTBlobMetadata.from_record(record(**slots))
    assert complaint in str(refusal.value)


def blobs() -> st.SearchStrategy[bytes]:
    return st.one_of(
        st.builds(
            serialize_engine,
            st.binary(max_size=64),
            metadatas(),
            layout=st.sampled_from(Layout),
        ),
        st.builds(
            serialize_engine,
            st.binary(max_size=64),
            metadatas(aliased=True),
            layout=st.just(Layout.TR02),
        ),
    )


@given(data=st.data())
def test_every_truncated_or_oversized_blob_is_refused(data: st.DataObject) -> None:
    blob = serialize_engine(
        data.draw(st.binary(max_size=64)), data.draw(metadatas()), layout=Layout.TR01
    )
    with pytest.raises(ValueError):
        deserialize_engine(blob[: data.draw(st.integers(0, len(blob) - 1))])
    with pytest.raises(ValueError):
        deserialize_engine(blob + data.draw(st.binary(min_size=1)))


@given(data=st.data())
def test_damage_is_refused_or_read_as_a_valid_blob(data: st.DataObject) -> None:
    blob = bytearray(data.draw(blobs()))
    for _ in range(data.draw(st.integers(1, 4))):
        blob[data.draw(st.integers(0, len(blob) - 1))] = data.draw(st.integers(0, 255))
    try:
        engine, metadata = deserialize_engine(bytes(blob))
    except ValueError:
        return
    assert engine in blob
    metadata.validate()
    again = serialize_engine(engine, metadata, layout=Layout.TR02)
    assert deserialize_engine(again) == (engine, metadata)


@given(data=st.data())
def test_what_we_accept_upstream_reads_alike(
    upstream: ModuleType, data: st.DataObject
) -> None:
    blob = bytearray(
        data.draw(st.builds(serialize_engine, st.binary(max_size=64), metadatas()))
    )
    at = data.draw(st.integers(0, len(blob) - 1))
    blob[at] = data.draw(st.integers(0, 255))
    try:
        engine, metadata = deserialize_engine(bytes(blob))
    except ValueError:
        return
    assert upstream.deserialize_engine(bytes(blob)) == (
        engine,
        theirs(upstream, metadata),
    )


CROWDS = {
    "lists": b"[],",
    "wide lists": b"[],".ljust(17),
    "integers": b"999,",
    "strings": b'"ab",',
    "objects": b'{"a":0},'.ljust(17),
    "bindings": b'{"name":"%d"},   ',
    "members": b'"abc%d":0,',
}


@pytest.mark.parametrize("kind", CROWDS)
@pytest.mark.parametrize("count", [1000, 20_000])
def test_reading_allocates_a_small_multiple_of_the_blob(kind: str, count: int) -> None:
    pattern = CROWDS[kind]
    items = b"".join(pattern % i if b"%d" in pattern else pattern for i in range(count))
    items = items.rstrip(b", ")
    body = items if kind == "members" else b'"io_bindings":[' + items + b"]"
    blob = with_json(b"{" + body + b"}")
    tracemalloc.start()
    try:
        deserialize_engine(blob)
    except ValueError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 32 * len(blob) + 65536, peak / len(blob)


# Writing


@pytest.mark.parametrize(
    "metadata, complaint",
    [
        (TensorRTBlobMetadata([TensorRTIOBinding("")]), "io_bindings[0].name"),
        (TensorRTBlobMetadata([TensorRTIOBinding("\ud800")]), "UTF-8"),
        (TensorRTBlobMetadata([TensorRTIOBinding("x")] * 2), "a name of its own"),
        (TensorRTBlobMetadata(device_id=-1), "device_id"),
        (TensorRTBlobMetadata(device_id="1"), "device_id"),  # type: ignore[arg-type]
    ],
)
def test_what_can_not_be_read_is_not_written(
    metadata: TensorRTBlobMetadata, complaint: str
) -> None:
    with pytest.raises(ValueError) as refusal:
        serialize_engine(b"", metadata, layout=Layout.TR01)
    assert complaint in str(refusal.value)
