"""``torchtrt-executorch generate``: how it samples, chats, and ends."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from tests.torchtrt_executorch.generation import toy
from torchtrt_executorch.cli import app

TEMPLATE = (
    "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}a{% endif %}"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.pte"
    path.write_bytes(toy.saved())
    return path


def generate(model: Path, *options: str) -> Result:
    return CliRunner().invoke(app, ["generate", str(model), *options])


def test_a_full_cache_is_said(model: Path) -> None:
    prompt = " ".join(map(str, (toy.PROMPT * 5)[:90]))
    done = generate(model, "--prompt", prompt, "--tokens", "8")
    assert done.exit_code == 1
    assert len(done.stdout.split()) == 7
    assert "the cache is full: it has room for 96 tokens" in done.stderr
    done = generate(model, "--prompt", prompt, "--tokens", "7")
    assert done.exit_code == 0 and "cache" not in done.stderr


@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (["--prompt", "3 94"], "token 94 of the prompt, number 1, is outside"),
        (["--prompt", "3", "--top-p", "1.5"], "top_p is 1.5"),
        (["--prompt", "3", "--repetition-penalty", "-1"], "repetition_penalty is -1"),
        (["--prompt", "3", "--chat"], "--chat needs --tokenizer"),
        (["--prompt", "3", "--system", "Be"], "--system is the system's message of"),
    ],
)
def test_what_is_wrong_is_a_sentence(
    model: Path, options: list[str], wrong: str
) -> None:
    done = generate(model, *options)
    assert done.exit_code == 2 and wrong in " ".join(done.stderr.split())


def test_sampling(model: Path) -> None:
    pytest.importorskip("transformers")
    prompt = ("--prompt", " ".join(map(str, toy.PROMPT)), "--tokens", "20")
    greedy = " ".join(map(str, toy.eager(toy.PROMPT, 20)))
    assert generate(model, *prompt).stdout.strip() == greedy
    assert generate(model, *prompt, "--top-k", "1").stdout.strip() == greedy
    for options in (["--top-k", "5"], ["--top-p", "0.9"], ["--temperature", "1"]):
        one, same, other = (
            generate(model, *prompt, *options, "--seed", seed).stdout for seed in "112"
        )
        assert one == same != other and one.strip() != greedy
    penalty = generate(model, *prompt, "--repetition-penalty", "1e9").stdout
    assert len({*penalty.split()}) == 20


def test_a_chat_by_the_template_of_the_tokenizer_s_folder(
    model: Path, tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    file, folder, bare = (tmp_path / name for name in ("t.json", "chat", "bare"))
    toy.save_tokenizer(file)
    known = transformers.PreTrainedTokenizerFast(tokenizer_file=str(file))
    known.save_pretrained(bare)
    known.chat_template = TEMPLATE
    known.save_pretrained(folder)

    def said(options: list[str], prompt: str) -> None:
        done = generate(model, "--tokens", "9", *options)
        assert done.exit_code == 0, done.output
        assert done.stdout.strip() == toy.text(toy.eager(toy.tokens_of(prompt), 9))

    hello = ["--prompt", "Hello!", "--tokenizer", str(folder)]
    said(hello, "Hello!")
    said([*hello, "--chat"], "uHello!a")
    said([*hello, "--chat", "--system", "Short."], "sShort.uHello!a")
    for where, wrong in (
        (bare, "has no chat template: leave out --chat"),
        (file, "has no chat template: name the folder that it is in"),
        (tmp_path, "is no folder of a tokenizer's, as transformers saves one"),
    ):
        options = ["--prompt", "Hello!", "--tokenizer", str(where), "--chat"]
        done = generate(model, *options)
        assert done.exit_code == 2 and wrong in " ".join(done.stderr.split())
