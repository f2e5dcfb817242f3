"""Engines told apart by their first bytes, whatever those are."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torchtrt_executorch.nogpu.builder.installed import BUILDERS, TENSORRT, TENSORRT_RTX
from torchtrt_executorch.nogpu.emulation.payload import MAGIC
from torchtrt_executorch.payloads.engine_header import origin


def plan(magic: bytes, *version: int) -> bytes:
    return magic.ljust(24, b"\0") + bytes(version) + b"the rest"


@pytest.mark.parametrize(
    ("magic", "builder"), [(b"ftrt", TENSORRT), (b"vtrt", TENSORRT_RTX)]
)
def test_the_two_builders_and_their_versions(magic: bytes, builder) -> None:
    found = origin(memoryview(plan(magic, 11, 0, 0, 114)))
    assert (found.builder, found.version) == (builder, "11.0.0.114")
    assert found.text == f"{builder.name} 11.0.0.114"


def test_an_emulated_engine() -> None:
    assert origin(MAGIC + b"PK") == origin(MAGIC)
    assert origin(MAGIC).text == "EMULATED" and origin(MAGIC).builder is None


@pytest.mark.parametrize("length", [4, 20, 27])
def test_one_that_is_cut_short(length: int) -> None:
    found = origin(plan(b"vtrt", 1, 5, 0, 114)[:length])
    assert found.builder is TENSORRT_RTX and not found.version
    assert "cut short" in found.text


@given(st.binary(max_size=40))
def test_anything_else(data: bytes) -> None:
    found = origin(data)
    assert found.builder in (None, *BUILDERS)
    if not data.startswith((b"ftrt", b"vtrt", MAGIC)):
        assert repr(data[:4]) in found.text
