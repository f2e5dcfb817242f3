"""The language model of the examples, whose tokens have to be transformers'."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from tests.torchtrt_executorch.generation import toy
from torchtrt_executorch import emulated_engines
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["xnnpack", "portable"])
def test_executorch_s_runner_takes_it(
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("transformers.integrations.executorch")
    runner = pytest.importorskip("executorch.extension.llm.runner")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    out, tokenizer = tmp_path / "model.pte", tmp_path / "tokenizer.json"
    options = ["--prefill", backend, "--tokens", "64", "--length", "96"]
    monkeypatch.setattr(sys, "argv", ["main", *options, "--out", str(out)])
    with pytest.raises(SystemExit):
        importlib.import_module("language_model").main()
    said = capfd.readouterr().out
    assert "transformers' own: the same" in said, said
    (line,) = (line for line in said.splitlines() if line.startswith("tokens: "))
    wanted = [*map(int, line.split()[1:])]
    assert len({*wanted}) > 8
    toy.save_tokenizer(tokenizer, 256)
    prompt = toy.text([(7 * i + 3) % 90 for i in range(21)])
    pieces: list[str] = []
    runner.TextLLMRunner(str(out), str(tokenizer)).generate(
        prompt,
        runner.GenerationConfig(max_new_tokens=64, temperature=0.0, echo=False),
        token_callback=pieces.append,
    )
    assert toy.tokens_of("".join(pieces)) == wanted


@pytest.mark.parametrize(
    "methods",
    [["prefill", "decode"], pytest.param(["forward"], marks=pytest.mark.slow)],
)
def test_generates(
    methods: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("transformers.integrations.executorch")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    out = tmp_path / "model.pte"
    options = ["--tokens", "8", "--length", "48", "--chunk", "4", "--out", str(out)]
    if "decode" in methods:
        options += ["--decode", "tensorrt"]
    monkeypatch.setattr(sys, "argv", ["language_model.py", *options])
    with emulated_engines(), pytest.raises(SystemExit) as exited:
        importlib.import_module("language_model").main()
    said = capsys.readouterr().out
    assert exited.value.code == 0 and "transformers' own: the same" in said, said
    facts = read(out)
    assert {each.name for each in facts.methods if each.inputs} == {*methods}
    findings = {f.name: f.level for f in advise(facts) if f.name.startswith("runner")}
    assert findings == ({"runner-caches": "note"} if len(methods) > 1 else {})
    assert bool(facts.common.arenas) == (len(methods) > 1)
