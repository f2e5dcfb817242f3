"""However much a file holds, what is shown of it is bounded; whatever it says, it is no markup."""

from __future__ import annotations

from functools import cache
from xml.etree import ElementTree

import pytest

from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.inspection.drawing.diagram import svg
from torchtrt_executorch.inspection.drawing.page import page
from torchtrt_executorch.runtime.errors import ProgramError
from torchtrt_executorch.runtime.inputs import flatten, read_tree

from ..hostile import (
    nested,
    with_list_over_and_over,
    with_methods,
    with_names,
    with_nesting,
    with_values,
)
from ..programs import planned, repeated

LARGEST = 40_000_000


@cache
def long_program() -> bytes:
    return repeated(planned(), 30_000)


def test_very_many_values() -> None:
    facts = read(with_values(planned(), 100_000))
    (method,) = facts.methods
    assert len(method.values) > 100_000 and len(method.inputs) > 100_000
    assert len(page(facts, advise(facts))) < 200_000
    assert len(svg(method)) < 100_000


def test_a_long_key_above_many_inputs() -> None:
    """Names don't take the product of what a file takes, and nothing where they are of other inputs."""
    text = nested(["a" * 100_000], 1000)
    of_others = read(with_nesting(planned(), text)).methods[0]
    assert of_others.input_names == ()
    count = 1000 - len(of_others.inputs)
    (method,) = read(with_nesting(with_values(planned(), count), text)).methods
    assert len(method.input_names) == 1000
    assert sum(map(len, method.input_names)) < 200_000
    assert method.input_names[999].endswith("[999]")


def test_a_key_twice() -> None:
    text = nested(["a", "a", "b"], 1)
    assert read(with_nesting(planned(), text)).methods[0].input_names == ()
    assert flatten([{"a": 1, "b": 2}], read_tree(text), "forward") == [1, 2]


def test_more_instructions_than_are_drawn() -> None:
    facts = read(long_program())
    made = page(facts, advise(facts))
    assert len(made) < LARGEST
    assert "instructions more: --json has all" in made


def test_many_methods() -> None:
    facts = read(with_methods(planned(), 300))
    assert len(facts.methods) == 300
    made = page(facts, advise(facts))
    assert "288 more methods are not shown" in made
    assert made.count('<section class="method"') == 12


def test_long_names() -> None:
    name = "<b>" * 100_000
    facts = read(with_names(planned(), name))
    made = page(facts, advise(facts))
    assert "<b>1" not in made and "<b><b>" not in made
    assert len(made) < 400_000


@pytest.mark.parametrize("name", ["a\0b", "\x1b[31mred", "\u202eevil", "</svg>", "]]>"])
def test_pictures_are_xml(name: str) -> None:
    """Whatever the names are, the picture is a well-formed file without scripts."""
    (method,) = read(with_names(planned(), name)).methods
    root = ElementTree.fromstring(svg(method).encode())
    tags = {each.tag.rpartition("}")[2] for each in root.iter()}
    assert not tags & {"script", "foreignObject", "image", "a"}


def test_a_list_over_and_over() -> None:
    """A small file can't unfold into a large one."""
    with pytest.raises(ProgramError, match="over and over"):
        read(with_list_over_and_over(planned(), 20_000))
