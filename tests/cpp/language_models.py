"""The host for language models, ``examples/cpp/llm.cpp``, on each form that a file has, beside eager's tokens.

A tiny Qwen3 is lowered as ``torchtrt-executorch export`` does it: one method by XNNPACK, two by ExecuTorch's CPU
kernels, and two by stand-ins for a GPU's delegates, which have the cache inside, or in planned memory of the device.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from emulated import Whole, pose
from executorch.exir import to_edge_transform_and_lower
from tokenizers import (
    Regex,
    Tokenizer,
    decoders,
    models,
    pre_tokenizers,
    trainers,
)
from transformers import TopPLogitsWarper

from torchtrt_executorch.generation import Generator
from torchtrt_executorch.runtime import load
from torchtrt_executorch.transformers import language_model as lm
from torchtrt_executorch.transformers.exportable import Form
from torchtrt_executorch.transformers.lowering import emitted, lowered

LENGTH, CHUNK = 48, 8
#: Of three chunks, after which tokens are of many kinds.
PROMPT = [3 * i + 1 for i in range(21)]
COUNT = 27
#: As Qwen's, which looks ahead.
WORDS = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEXT = "Naïve: twice upon a time, in 漢字 and in words"

Run = Callable[..., subprocess.CompletedProcess[bytes]]


def check(host: Path, folder: Path) -> list[str]:
    """Make and run all forms, print a line for each, and return what is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    llm = lm.with_cache(lm.tiny(), LENGTH)
    eager = _eager(llm, PROMPT, COUNT)
    ends = [255, eager[-3]]
    files = _save(llm, folder, ends)

    def run(name: str, *options: object, streams: str = "own") -> Any:
        command = [host, files[name], *options]
        return subprocess.run(
            [*map(str, command)],
            capture_output=True,
            env={**os.environ, "STREAM": streams},
            timeout=300,
        )

    tokens = "--tokens", ",".join(map(str, PROMPT))
    wrong = []
    for name in files:
        for streams in ("own", "both") if name in EMULATED else ("own",):
            done = run(name, *tokens, "--count", COUNT, streams=streams)
            wanted = eager if name != "one method" else _until(eager, ends)
            right = done.stdout.split() == [str(each).encode() for each in wanted]
            said = f"language model, {name}, {streams}: {'' if right else 'not '}eager's tokens"
            print(said, flush=True)
            if done.returncode or not right:
                wrong.append(f"{said}\n{done.stdout.decode()}{done.stderr.decode()}")
    checks = {
        "sampled by the host": _sampling(run, llm, eager),
        "sampled in the method": _sampling_in_method(run, files["sampled"]),
        "text": _text(run, llm, folder),
        "exit status": _exits(run),
        "logits that are NaN": _not_a_number(run, files, llm),
    }
    for name, right in checks.items():
        print(f"language model, {name}: {'right' if right else 'wrong'}", flush=True)
    return wrong + [name for name, right in checks.items() if not right]


#: The stand-ins of each method, and whether they have the cache inside.
EMULATED = {
    "CUDA, cache inside": ("CudaBackend", "CudaBackend", True),
    "TensorRT and CUDA, planned cache": ("TensorRTBackend", "CudaBackend", False),
}


def _save(llm: Any, folder: Path, ends: list[int]) -> dict[str, Path]:
    """Save each form; one of them ends with a token of ``ends``."""
    forms = {
        "one method": Form("xnnpack", None, LENGTH, CHUNK),
        "two methods": Form("portable", "portable", LENGTH, CHUNK),
        "sampled": Form("portable", "portable", LENGTH, CHUNK, sampled=True),
        **dict.fromkeys(EMULATED, Form("cuda", "cuda", LENGTH, CHUNK)),
    }
    files = {}
    for name, form in forms.items():
        llm.generation_config.eos_token_id = ends if name == "one method" else None
        files[name] = _save_form(llm, folder, name, form)
    return files


def _save_form(llm: Any, folder: Path, name: str, form: Form) -> Path:
    model = lm.LanguageModel(llm, form)
    methods = model.programs()
    constants = model.constants(methods)
    if name in EMULATED:
        edge = _emulated(methods, constants, name)
    else:
        edge = lowered(methods, model.backends, constants, None)
    file = folder / f"{name.replace(' ', '_')}.pte"
    emitted(edge, shared=len(methods) > 1).save(str(file))
    return file


def _emulated(methods: dict[str, Any], constants: dict[str, Any], name: str) -> Any:
    prefill, decode, inside = EMULATED[name]
    edge = to_edge_transform_and_lower(
        methods,
        partitioner={method: [Whole(inside)] for method in methods},
        constant_methods=constants,
    )
    return pose(edge, {"prefill": prefill, "decode": decode})


def _eager(llm: Any, prompt: list[int], count: int) -> list[int]:
    tokens = [*prompt]
    for _ in range(count):
        tokens.append(int(_logits(llm, tokens)[-1].argmax()))
    return tokens[len(prompt) :]


@torch.no_grad()
def _logits(llm: Any, tokens: list[int]) -> torch.Tensor:
    """Those of each token, by the whole sequence."""
    logits: torch.Tensor = llm(torch.tensor([tokens]), use_cache=False).logits[0]
    return logits


def _until(tokens: list[int], ends: list[int]) -> list[int]:
    last = next(i for i, token in enumerate(tokens) if token in ends)
    return tokens[: last + 1]


def _sampling(run: Run, llm: Any, eager: list[int]) -> bool:
    """A seed gives its tokens, all of them among the likeliest; a small top_p gives eager's."""

    def sampled(*options: object) -> list[int]:
        tokens = ",".join(map(str, PROMPT))
        done = run("two methods", "--tokens", tokens, "--count", COUNT, *options)
        return [*map(int, done.stdout.split())]

    draw = "--temperature", 2, "--top-p", 0.5, "--seed"
    one, again, other = sampled(*draw, 1), sampled(*draw, 1), sampled(*draw, 2)
    scores = _logits(llm, PROMPT + one)[len(PROMPT) - 1 : -1] / 2
    kept: Any = TopPLogitsWarper(0.5)(None, scores)  # type: ignore[arg-type]
    return (
        one == again != other
        and len({*one}) > 1
        and bool(kept[range(len(one)), one].isfinite().all())
        and sampled("--top-p", 1e-6) == eager
    )


def _sampling_in_method(run: Run, file: Path) -> bool:
    """Tokens are those of the Python runtime."""
    tokens = ",".join(map(str, PROMPT))
    options = "--temperature", 0.9, "--seed", 5, "--count", COUNT
    done = run("sampled", "--tokens", tokens, *options)
    wanted = Generator(load(file))(PROMPT, COUNT, temperature=0.9, seed=5)
    return [*map(int, done.stdout.split())] == [*wanted]


def _text(run: Run, llm: Any, folder: Path) -> bool:
    """Text comes out as Python's tokenizer has it, characters of several tokens among it."""
    tokenizer = Tokenizer(models.BPE())
    by_words = pre_tokenizers.Split(Regex(WORDS), "isolated")
    by_bytes = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([by_words, by_bytes])  # type: ignore[assignment]
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]
    trainer = trainers.BpeTrainer(vocab_size=256, special_tokens=["<|end|>"])
    page = Path(__file__).parents[2] / "docs" / "language_models.md"
    tokenizer.train_from_iterator([TEXT, page.read_text()], trainer)
    assert tokenizer.get_vocab_size() == llm.config.vocab_size
    file = folder / "tokenizer.json"
    tokenizer.save(str(file))
    prompt = tokenizer.encode(TEXT).ids
    wanted = tokenizer.decode(_eager(llm, prompt, 12), skip_special_tokens=False)
    options = "--prompt", TEXT, "--tokenizer", file, "--count", 12
    done = run("two methods", *options)
    return bool(done.stdout.decode(errors="replace") == wanted + "\n")


def _not_a_number(run: Run, files: dict[str, Path], llm: Any) -> bool:
    """No token is chosen by such logits."""
    with torch.no_grad():
        llm.model.norm.weight[0] = float("nan")
    form = Form("portable", None, LENGTH, CHUNK)
    files["NaN"] = _save_form(llm, files["one method"].parent, "NaN", form)
    done = run("NaN", "--tokens", "1,2")
    return done.returncode == 2 and b"no logit is a number" in done.stderr


def _exits(run: Run) -> bool:
    """1 with a full cache, 2 on errors, a sentence each."""
    cases = {
        ("--tokens", "1,2", "--count", 64): (
            1,
            "the cache is full: it has room for 48",
        ),
        ("--tokens", ",".join(["1"] * 49)): (2, "has 49 tokens, and the program has"),
        ("--tokens", "256"): (2, "token 256 of the prompt is outside of the"),
        ("--tokens", "1", "--bos"): (2, "the file has no get_bos_id"),
        ("--tokens", "1", "--top-p", "2"): (2, "--top-p is 2"),
        ("--tokens", "one"): (2, "--tokens is one"),
        ("--prompt", "a", "--tokenizer", "no.json"): (2, "no.json is no tokenizer"),
        (): (2, "llm MODEL.pte"),
    }
    for options, (status, words) in cases.items():
        done = run("two methods", *options)
        *_, said = done.stderr.decode().splitlines()
        if done.returncode != status or words not in said:
            print(options, done.returncode, said, flush=True)
            return False
    return True
