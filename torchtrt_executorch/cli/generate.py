"""``torchtrt-executorch generate``: generate text with a language model's ``.pte``."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer

from torchtrt_executorch.cli.error_handling import unable

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
            help="The model's tokenizer.json; without one, numbers are printed.",
            **_Option,
        ),
    ] = None,
    data: Annotated[
        list[Path] | None,
        typer.Option(
            help="A .ptd file; repeatable. By default those beside it.", **_Option
        ),
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="How many at most.")] = 64,
    temperature: Annotated[
        float, typer.Option(min=0, help="0 takes the likeliest token.")
    ] = 0.0,
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
        known = None if tokenizer is None else _tokenizer(tokenizer)
        numbers = known.encode(prompt).ids if known else _numbers(prompt)
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
        for each in caught:
            typer.echo(str(each.message), err=True)
        made: list[int] = []
        text, whole, first = "", "", 0.0
        for token in generator(
            numbers, tokens, temperature=temperature, seed=seed, stop=stop
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


def _numbers(prompt: str) -> list[int]:
    try:
        return [*map(int, prompt.split())]
    except ValueError:
        raise ValueError(
            f"without --tokenizer a prompt is token numbers, as 1 15 8, and not {prompt!r}"
        ) from None


def _tokenizer(path: Path) -> Any:
    from tokenizers import Tokenizer

    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # it raises no class of its own
        raise ValueError(f"{path} is no tokenizer.json: {error}") from None
