"""The language model of the examples, whose tokens have to be transformers'."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from torchtrt_executorch import emulated_engines
from torchtrt_executorch.inspection import read

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


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
    options = ["--tokens", "8", "--length", "48", "--piece", "4", "--out", str(out)]
    if "decode" in methods:
        options += ["--decode", "tensorrt"]
    monkeypatch.setattr(sys, "argv", ["language_model.py", *options])
    with emulated_engines(), pytest.raises(SystemExit) as exited:
        importlib.import_module("language_model").main()
    said = capsys.readouterr().out
    assert exited.value.code == 0 and "transformers' own: the same" in said, said
    facts = read(out)
    assert {each.name for each in facts.methods} == {*methods, "get_max_seq_len"}
    assert bool(facts.common.arenas) == (len(methods) > 1)
