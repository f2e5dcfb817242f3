"""What is done while TensorRT holds its lock, by several threads at once."""

from __future__ import annotations

import gc

import pytest

from torchtrt_executorch.runtime.delegates.tensorrt_library import uncollected


@pytest.mark.parametrize("first", [0, 1])
def test_nothing_is_collected_until_the_last_one_is_done(first: int) -> None:
    scopes = uncollected(), uncollected()
    assert gc.isenabled()
    for scope in scopes:
        scope.__enter__()
    scopes[first].__exit__(None, None, None)
    assert not gc.isenabled()
    scopes[1 - first].__exit__(None, None, None)
    assert gc.isenabled()


def test_a_process_that_collects_nothing_still_does_not() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
