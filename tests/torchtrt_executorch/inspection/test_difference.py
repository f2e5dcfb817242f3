"""What changed between two exports of one model."""

from __future__ import annotations

from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.difference import difference

from ..runtime.programs import needs_device_copies
from .programs import planned, pte, straight, there_and_back, unplanned


def test_nothing() -> None:
    assert difference(read(planned()), read(planned())) == []


@needs_device_copies
def test_device_planning() -> None:
    """Copies instead of staging, device memory instead of the host's; the same delegates."""
    before, after = read(unplanned()), read(planned())
    found = difference(before, after)
    assert not [each for each in found if each.what in ("delegates", "kernels")]
    copies = {each.name: each for each in found if each.what == "copies"}
    assert copies["host to cuda:0"].before == 0 < copies["host to cuda:0"].after
    staged = copies["host to cuda:0, staged by delegates"]
    assert staged.before > 0 == staged.after
    memory = {each.name: each for each in found if each.what == "memory"}
    assert memory["cuda:1"].unit == "bytes" and memory["cuda:1"].before == 0
    assert memory["host"].before > memory["host"].after
    back = {(each.what, each.name): each for each in difference(after, before)}
    assert back["memory", "host"].after == memory["host"].before


def test_an_operator_that_moved() -> None:
    """What no delegate takes any more is a kernel of the host."""
    delegated, moved = read(pte(straight)), read(pte(straight, ("cuda:1",)))
    found = {(each.what, each.name): each for each in difference(delegated, moved)}
    gone = found["delegates", "NamedDeviceBackend on cuda:0"]
    assert (gone.before, gone.after) == (3, 0)
    found = {
        (each.what, each.name): each
        for each in difference(delegated, read(pte(there_and_back)))
    }
    fewer = found["delegates", "NamedDeviceBackend on cuda:0"]
    kernel = found["kernels", "aten::sigmoid.out"]
    assert (fewer.before, fewer.after) == (3, 2)
    assert (kernel.before, kernel.after) == (0, 1)
