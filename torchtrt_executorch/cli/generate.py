"""``torchtrt-executorch generate``: generate text with a language model's ``.pte``."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from torchtrt_executorch.cli.output.error_handling import FOUND, unable

_File = typer.Argument(exists=True, dir_okay=False, help="The .pte to run.")
_Option = {"exists": True, "dir_okay": False}


def generate(
    program: Annotated[Path, _File],
    prompt: Annotated[
        str, typer.Option(help="The text to go on with, or token numbers: 1 15 8.")
    ],
    tokenizer: Annotated[
        Path | None,
        typer.Option(
            exists=True,
            help="The model's tokenizer.json, or its folder as transformers saves one; without one, numbers "
            "are printed.",
        ),
    ] = None,
    chat: Annotated[
        bool,
        typer.Option(
            "--chat", help="Put the prompt into the chat template of --tokenizer."
        ),
    ] = False,
    system: Annotated[
        str | None, typer.Option(help="The system's message of a --chat.")
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="A .ptd file; repeatable. By default those beside it.", **_Option
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="How many at most.")] = 64,
    temperature: Annotated[
        float | None,
        typer.Option(
            min=0,
            help="0 takes the likeliest token: the default, or 1 with --top-k or --top-p.",
        ),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(min=1, help="Draw from so many likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option(help="Draw from the likeliest tokens of this probability."),
    ] = None,
    repetition_penalty: Annotated[
        float | None,
        typer.Option(help="Divide by it the logits of tokens that were there before."),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of the tokens drawn.")] = None,
    stop: Annotated[
        list[int] | None,
        typer.Option(
            help="A token that ends it; repeatable. By default those of the file."
        ),
    ] = None,
    cuda_graphs: Annotated[
        bool, typer.Option("--cuda-graphs", help="Launch delegates as CUDA graphs.")
    ] = False,
    emulated_engines: Annotated[
        bool | None,
        typer.Option(
            "--emulated-engines/--no-emulated-engines",
            help="Load emulated engines; by default as TORCHTRT_EMULATE says.",
        ),
    ] = None,
    stand_ins: Annotated[
        Path | None,
        typer.Option(
            help="The stand-ins saved with the .pte. By default those beside it.",
            **_Option,
        ),
    ] = None,
) -> None:
    """Print what a language model makes of a prompt, as it comes."""
    from torchtrt_executorch.generation import Generator
    from torchtrt_executorch.runtime import load

    try:
        if chat and tokenizer is None:
            raise ValueError("--chat needs --tokenizer, a folder with a chat template")
        if system is not None and not chat:
            raise ValueError("--system is the system's message of a --chat")
        known = None if tokenizer is None else _tokenizer(tokenizer)
        if known is None:
            prompt_tokens = _token_ids(prompt)
        else:
            prompt_tokens = known.chat(prompt, system) if chat else known.encode(prompt)
        loaded = load(
            program,
            data,
            emulated_engines=emulated_engines,
            stand_ins=stand_ins,
            cuda_graphs=cuda_graphs,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            generator = Generator(loaded)
        for warning in caught:
            typer.echo(str(warning.message), err=True)
        made: list[int] = []
        text, whole, first = "", "", 0.0
        for token in generator(
            prompt_tokens,
            tokens,
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            repetition_penalty=repetition_penalty,
            seed=seed,
            stop=stop,
        ):
            first = first or time.perf_counter()
            made.append(token)
            whole = known.decode(made) if known else " ".join(map(str, made))
            if not whole.endswith("\ufffd"):  # a character in several tokens
                typer.echo(whole[len(text) :], nl=False)
                text = whole
        typer.echo(whole[len(text) :] if made else "")
    except ValueError as error:
        raise unable(str(error)) from None
    took = time.perf_counter() - first
    if len(made) > 1:
        typer.echo(f"{(len(made) - 1) / took:.1f} tokens a second", err=True)
    if generator.finish_reason == "full":
        room = generator.metadata.max_context_len
        typer.echo(
            f"the cache is full: it has room for {room} tokens, and the text may go on; export the program "
            "with a longer one",
            err=True,
        )
        raise typer.Exit(FOUND)


def _token_ids(prompt: str) -> list[int]:
    try:
        return [*map(int, prompt.split())]
    except ValueError:
        raise ValueError(
            f"without --tokenizer a prompt is token numbers, as 1 15 8, and not {prompt!r}"
        ) from None


class _Tokenizer(NamedTuple):
    """Encoder and decoder of text."""

    encode: Callable[[str], list[int]]
    decode: Callable[[list[int]], str]
    chat: Callable[[str, str | None], list[int]]


def _tokenizer(path: Path) -> _Tokenizer:
    if path.is_dir():
        return _of_transformers(path)
    from tokenizers import Tokenizer

    try:
        known = Tokenizer.from_file(str(path))
    except Exception as error:  # it raises no class of its own
        raise ValueError(f"{path} is no tokenizer.json: {error}") from None

    def chat(prompt: str, system: str | None) -> list[int]:
        raise ValueError(
            f"{path} has no chat template: name the folder that it is in, with tokenizer_config.json"
        )

    return _Tokenizer(lambda text: known.encode(text).ids, known.decode, chat)


def _of_transformers(folder: Path) -> _Tokenizer:
    from transformers import AutoTokenizer

    try:
        known = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # of a dozen classes
        reason, *_ = str(error).splitlines() or [type(error).__name__]
        raise ValueError(
            f"{folder} is no folder of a tokenizer's, as transformers saves one: {reason}"
        ) from None

    def chat(prompt: str, system: str | None) -> list[int]:
        if not known.chat_template:
            raise ValueError(f"{folder} has no chat template: leave out --chat")
        messages = [{"role": "system", "content": system}] if system else []
        messages.append({"role": "user", "content": prompt})
        text = known.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True
        )
        # Templates begin with the tokens that a text begins with.
        tokens: list[int] = known.encode(text, add_special_tokens=False)
        return tokens

    def decode(tokens: list[int]) -> str:
        return str(known.decode(tokens, skip_special_tokens=True))

    return _Tokenizer(known.encode, decode, chat)
