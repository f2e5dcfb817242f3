"""Language models in ``TextLLMRunner``, the runner of ExecuTorch's wheel, on CPU kernels and XNNPACK."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower

from tests.torchtrt_executorch.generation import toy
from torchtrt_executorch.generation import Generator, constant_methods
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.runtime import load

runner: Any = pytest.importorskip(
    "executorch.extension.llm.runner", reason="this executorch has no runner"
)
BACKENDS = {"portable": [], "xnnpack": [XnnpackPartitioner()]}
ENDS = SimpleNamespace(bos_token_id=None, eos_token_id=[92, 93])


@cache
def saved(
    backend: str, chunk: int, decode: bool = False, shared: bool = False
) -> bytes:
    methods = {"forward": toy.exported(chunk, min(chunk, 1))}
    if decode:
        methods = {"prefill": methods["forward"], "decode": toy.exported(1)}
    options = {"generation_config": ENDS, "shared_by_host": shared}
    edge = to_edge_transform_and_lower(
        methods,
        partitioner={name: BACKENDS[backend] for name in methods},
        constant_methods=constant_methods(methods, toy.CAPACITY, **options),
    )
    return bytes(toy.emitted(edge, shared=decode).buffer)


def generated(
    path: Path, prompt: list[int], count: int, runs: int = 1, **options: Any
) -> list[list[int]]:
    """What the runner makes of a prompt, once and again."""
    tokenizer = path.parent / "tokenizer.json"
    toy.save_tokenizer(tokenizer)
    program = runner.TextLLMRunner(str(path), str(tokenizer))
    config = runner.GenerationConfig(
        max_new_tokens=count, temperature=0.0, echo=False, **options
    )
    found = []
    for _ in range(runs):
        pieces: list[str] = []
        program.generate(toy.text(prompt), config, token_callback=pieces.append)
        found.append(toy.tokens_of("".join(pieces)))
        program.reset()
    return found


@pytest.mark.parametrize("chunk", [toy.CAPACITY, 8, 1])
@pytest.mark.parametrize("backend", BACKENDS)
def test_one_method_generates_eager_s_tokens(
    backend: str, chunk: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """64 of them, after prompts that are shorter than a chunk, and longer."""
    path = tmp_path / "model.pte"
    path.write_bytes(saved(backend, chunk))
    assert not [f for f in advise(read(path)) if f.name.startswith("runner")]
    for prompt in (toy.PROMPT[:1], toy.PROMPT):
        wanted = toy.eager(prompt, 64)
        assert len({*wanted}) > 8 and not {*wanted} & {92, 93}
        assert generated(path, prompt, 64, runs=2) == [wanted, wanted]
        assert [*Generator(load(path))(prompt, 64)] == wanted
    steps = capfd.readouterr().err.count("Prefill token result")
    assert steps == {toy.CAPACITY: 4, 8: 8, 1: 0}[chunk]  # of the prompts of 1 and 20


@pytest.mark.parametrize("backend", BACKENDS)
def test_two_methods_are_refused_rather_than_wrong(
    backend: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The runner would give each a cache of its own; ours, and hosts that share, have one."""
    path = tmp_path / "model.pte"
    path.write_bytes(saved(backend, 8, decode=True))
    wanted = toy.eager(toy.PROMPT, 64)
    assert [*Generator(load(path))(toy.PROMPT, 64)] == wanted
    with pytest.raises(RuntimeError, match="Failed to create text llm runner"):
        generated(path, toy.PROMPT, 64)
    assert "get_max_seq_len not found" in capfd.readouterr().err
    (finding,) = (f for f in advise(read(path)) if f.name.startswith("runner"))
    assert finding.name == "runner-caches" and finding.level == "note"
    assert "refuses the file" in finding.text and "shared_memory.h" in finding.text
    assert "Module's share_memory_arenas" in finding.text


def test_two_methods_for_hosts_that_share_memory(tmp_path: Path) -> None:
    """If the runner's tokens were eager's here, it would share: then nothing has to be refused."""
    path = tmp_path / "model.pte"
    path.write_bytes(saved("portable", 8, decode=True, shared=True))
    wanted = toy.eager(toy.PROMPT, 64)
    assert [*Generator(load(path))(toy.PROMPT, 64)] == wanted
    try:
        assert generated(path, toy.PROMPT, 64) != [wanted]
    except RuntimeError as error:  # before 1.5 it knows no two methods
        assert str(error) == "Generation failed"
    (finding,) = (f for f in advise(read(path)) if f.name.startswith("runner"))
    assert finding.name == "runner-caches" and finding.level == "warning"
    assert "tokens are wrong" in finding.text and "shared_memory.h" in finding.text


def test_texts_end_with_the_file_s_tokens(tmp_path: Path) -> None:
    """Any of them, as in the runner so in ours."""
    path = tmp_path / "model.pte"
    wanted = toy.eager(toy.PROMPT, 64)
    ends = sorted({*wanted}, key=wanted.index)[-2:]
    methods = {"forward": toy.exported(toy.CAPACITY)}
    config = SimpleNamespace(bos_token_id=1, eos_token_id=ends)
    constants = constant_methods(methods, toy.CAPACITY, generation_config=config)
    edge = to_edge_transform_and_lower(methods, constant_methods=constants)
    path.write_bytes(bytes(edge.to_executorch().buffer))
    generator = Generator(load(path))
    assert generator.metadata.eos_ids == (*ends,) and generator.metadata.bos_id == 1
    until = wanted[: wanted.index(ends[0]) + 1]
    assert generated(path, toy.PROMPT, 64) == [until]
    assert [*generator(toy.PROMPT, 64)] == until
    assert [*generator(toy.PROMPT, 64, stop=())] == wanted


def test_no_more_than_the_cache_has_room_for(tmp_path: Path) -> None:
    """A chunk as long as the cache has the runner count positions, too."""
    path = tmp_path / "model.pte"
    path.write_bytes(saved("portable", toy.CAPACITY))
    prompt = [*toy.PROMPT, *toy.PROMPT, *toy.PROMPT, *toy.PROMPT]
    (made,) = generated(path, prompt, 64)
    wanted = [*Generator(load(path))(prompt, 64)]
    assert len(made) == toy.CAPACITY - len(prompt)  # it leaves the last position
    assert wanted[: len(made)] == made and len(wanted) == len(made) + 1
