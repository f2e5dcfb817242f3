"""The language model of the examples, whose tokens have to be transformers'."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.torchtrt_executorch.generation import toy
from torchtrt_executorch import emulated_engines
from torchtrt_executorch.inspection import read
from torchtrt_executorch.inspection.advice import advise
from torchtrt_executorch.runtime import load

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def test_logits_are_compared_not_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two tokens that are nearly as likely either may come; of a wrong cache no logits are near."""
    pytest.importorskip("transformers.integrations.executorch")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    example = importlib.import_module("language_model")
    program = load(toy.saved())

    def difference(change: float) -> tuple[list[int], float]:
        model = toy.Attention()
        model.head.weight += change * torch.randn_like(model.head.weight)

        def llm(tokens: torch.Tensor, **_: bool) -> SimpleNamespace:
            return SimpleNamespace(logits=model(tokens, torch.arange(tokens.shape[1])))

        found: tuple[list[int], float] = example.compared(llm, program, toy.PROMPT, 40)
        return found

    tokens, found = difference(0)
    assert tokens == toy.eager(toy.PROMPT, 40) and found < 1e-5
    assert 1e-5 < difference(1e-4)[1] < 0.01 < 0.05 < difference(0.3)[1]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["xnnpack", "portable"])
def test_executorch_s_runner_takes_it(
    backend: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("transformers.integrations.executorch")
    runner = pytest.importorskip(
        "executorch.extension.llm.runner", reason="this executorch has no runner"
    )
    monkeypatch.syspath_prepend(str(EXAMPLES))
    out, tokenizer = tmp_path / "model.pte", tmp_path / "tokenizer.json"
    options = ["--prefill", backend, "--tokens", "64", "--length", "96"]
    monkeypatch.setattr(sys, "argv", ["main", *options, "--out", str(out)])
    with pytest.raises(SystemExit):
        importlib.import_module("language_model").main()
    said = capfd.readouterr().out
    assert "transformers' own logits: the same" in said, said
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
    "form",
    [
        ["prefill", "decode"],
        pytest.param(["forward"], marks=pytest.mark.slow),
        pytest.param(["forward", "--sample"], marks=pytest.mark.slow),
    ],
)
def test_generates(
    form: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    pytest.importorskip("transformers.integrations.executorch")
    monkeypatch.syspath_prepend(str(EXAMPLES))
    out = tmp_path / "model.pte"
    methods = [each for each in form if not each.startswith("--")]
    options = ["--tokens", "8", "--length", "48", "--chunk", "4", "--out", str(out)]
    if "--sample" in form:
        options += ["--sample", "--prefill", "portable"]
    if "decode" in methods:
        options += ["--decode", "tensorrt"]
    monkeypatch.setattr(sys, "argv", ["language_model.py", *options])
    with emulated_engines(), pytest.raises(SystemExit) as exited:
        importlib.import_module("language_model").main()
    said = capsys.readouterr().out
    assert exited.value.code == 0, said
    assert "transformers' own logits: the same" in said, said
    facts = read(out)
    assert {each.name for each in facts.methods if each.inputs} == {*methods}
    findings = {f.name: f.level for f in advise(facts) if f.name.startswith("runner")}
    assert findings == ({"runner-caches": "note"} if len(methods) > 1 else {})
    # TensorRT's methods share memory of a GPU, which Module can't.
    assert not any("share_memory_arenas" in f.text for f in advise(facts))
    assert bool(facts.common.arenas) == (len(methods) > 1)
