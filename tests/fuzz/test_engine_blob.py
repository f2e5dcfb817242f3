"""Replays the fuzzer's corpus; the slow one goes on looking."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from . import engine_blob

CORPUS = sorted(path for path in engine_blob.CORPUS.iterdir() if path.is_file())


def test_the_corpus_is_small() -> None:
    assert 10 <= len(CORPUS) <= 100
    assert sum(path.stat().st_size for path in CORPUS) <= 32 << 10


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_every_input_of_the_corpus(path: Path) -> None:
    engine_blob.check(path.read_bytes())


@pytest.mark.slow
def test_looking_for_a_counterexample() -> None:
    pytest.importorskip("atheris", reason="pip install atheris")
    run = [sys.executable, engine_blob.__file__]
    done = subprocess.run(run, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
