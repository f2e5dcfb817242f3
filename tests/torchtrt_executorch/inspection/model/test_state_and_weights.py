"""What is said of state that crosses, of what is stored twice, and of buffers that methods keep."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import cache

import pytest
import torch
from executorch.exir._serialize._named_data_store import NamedDataStore
from executorch.exir._serialize._program import (
    deserialize_pte_binary,
    serialize_pte_binary,
)

from torchtrt_executorch.inspection import Facts, read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.cpp_host import needs
from torchtrt_executorch.inspection.model.state import buffers, first_call_alone
from torchtrt_executorch.payloads.native_library import NativeLibrary
from torchtrt_executorch.runtime.reading.common_state import CommonState

from ...runtime.programs import needs_device_copies
from ..hostile import with_methods
from ..programs import delegated, planned


class Cache(torch.nn.Module):
    """x (32, 32) float32 -> what all calls have added up to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("cache", torch.zeros(32, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        new = self.cache + x
        self.cache.copy_(new)
        return new


@cache
def cached(planned: bool) -> bytes:
    config = {"enable_non_cpu_memory_planning": planned}
    return delegated(Cache(), ["cuda:0"], 32, emit_mutable_buffer_names=True, **config)


def found(facts: Facts, name: str) -> list[str]:
    return [each.text for each in advise(facts) if each.name == name]


def test_a_cache_that_crosses_in_every_call() -> None:
    (text,) = found(read(cached(False)), "state-crosses")
    assert "1 buffer, cache, cross" in text and "KiB" in text


@needs_device_copies
def test_one_that_lives_on_its_device_does_not() -> None:
    assert not found(read(cached(True)), "state-crosses")
    assert not found(read(planned()), "state-crosses")


def test_many_jumps_are_looked_at_once() -> None:
    """A jump that goes over all the others: with a look at each that it leaves out this takes minutes."""
    (method,) = read(planned()).methods
    count = 100_000
    fields = {"kind": "jump", "reads": (), "writes": (), "destination": count}
    jump = replace(method.instructions[0], **fields)
    move = replace(jump, kind="move", reads=(1,), writes=(1,))
    kinds = enumerate([jump] * (count - 2) + [move] * 2)
    steps = [replace(each, index=index) for index, each in kinds]
    long = replace(method, instructions=steps)
    before = time.process_time()
    assert first_call_alone(long) == {*range(1, count)}
    assert [each.value.index for each in buffers(long)] == [1]
    assert time.process_time() - before < 30


@pytest.mark.parametrize("same", [True, False])
def test_what_is_stored_twice(same: bool) -> None:
    file = deserialize_pte_binary(planned())
    store = NamedDataStore()
    store.add_named_data("one", bytes(100_000))
    store.add_named_data("two", bytes([1]) + bytes(99_999))
    output = store.get_named_data_store_output()
    if same:
        output = replace(output, buffers=[bytes(100_000), bytes(100_000)])
    data = bytes(serialize_pte_binary(replace(file, named_data=output)))
    texts = found(read(data), "stored-twice")
    assert len(texts) == same
    assert not same or ("97.7 KiB in vain" in texts[0] and "one, two" in texts[0])


def test_a_payload_of_two_methods_is_there_once() -> None:
    assert read(with_methods(planned(), 3)).twice == []


def test_buffers_of_two_methods_without_a_table() -> None:
    facts = read(with_methods(cached(False), 2))
    (text,) = found(replace(facts, common=CommonState()), "separate-state")
    assert "method0 and method1 each keep a buffer cache" in text


def test_which_buffer_is_named_does_not_depend_on_hashes() -> None:
    facts = read(with_methods(cached(False), 2))
    many = []
    for method in facts.methods:
        values = [replace(v, name="", initialized=True) for v in method.values]
        for name in "hgfedcba":
            values.append(replace(values[0], index=len(values), name=name))
        writes = replace(method.instructions[0], writes=tuple(range(len(values))))
        many.append(replace(method, values=values, instructions=[writes]))
    changed = replace(facts, methods=many, common=CommonState())
    (text,) = found(changed, "separate-state")
    assert "a buffer a and 7 more" in text


def test_a_library_of_another_machine() -> None:
    facts = read(planned())
    (method,) = facts.methods
    library = NativeLibrary(platform="linux-mips")
    delegates = [replace(each, native=library) for each in method.delegates]
    strange = replace(facts, methods=[replace(method, delegates=delegates)])
    (text,) = found(strange, "platform")
    assert "for linux-mips, and this machine is" in text


def test_what_a_host_needs() -> None:
    wanted = dict(needs(read(planned())))
    assert "planned on cuda:0, cuda:1" in wanted["device memory"]
    assert "operators" in wanted["portable or optimized kernels"]
    assert any(each.startswith("backend ") for each in wanted)
    alone = dict(needs(read(with_methods(cached(False), 1))))
    assert "device memory" not in alone
