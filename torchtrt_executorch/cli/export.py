"""``torchtrt-executorch export``: export a language model of transformers' to a ``.pte``."""

from __future__ import annotations

import contextlib
import logging
import warnings
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from torchtrt_executorch.cli.error_handling import FOUND, unable


class Backend(str, Enum):
    """What lowers a method."""

    TENSORRT = "tensorrt"
    CUDA = "cuda"
    XNNPACK = "xnnpack"
    PORTABLE = "portable"


class Scheme(str, Enum):
    """What weights are quantized to."""

    INT8 = "int8"
    INT4 = "int4"
    FLOAT8 = "float8"


_Folder = typer.Argument(
    exists=True,
    file_okay=False,
    help="As transformers saves a model: config.json, weights if there are any. A tiny Qwen3 without one.",
)


def export(
    folder: Annotated[Path | None, _Folder] = None,
    prefill: Annotated[
        Backend, typer.Option(help="Lowers the method for prompts, or the only one.")
    ] = Backend.TENSORRT,
    decode: Annotated[
        Backend | None,
        typer.Option(help="Lowers a method of its own for one token; none by default."),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option(
            help="The machine that it is for, as linux-x86_64:sm_90:80GiB; by default as TORCHTRT_GPU says."
        ),
    ] = None,
    quantize: Annotated[
        Scheme | None, typer.Option(help="Quantize the weights of linears.")
    ] = None,
    length: Annotated[
        int, typer.Option(min=2, help="How many tokens the cache has room for.")
    ] = 128,
    chunk: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Tokens that a prompt is cut into; by default as many as --length.",
        ),
    ] = None,
    sample: Annotated[
        bool, typer.Option("--sample", help="Have methods return tokens, not logits.")
    ] = False,
    compare: Annotated[
        int,
        typer.Option(
            min=0,
            help="Compare the logits of so many tokens with transformers'; 0 doesn't.",
        ),
    ] = 32,
    out: Annotated[Path, typer.Option(help="The .pte to write.")] = Path("model.pte"),
) -> None:
    """Write a language model's .pte, with its weights, stand-ins and what runners are to know of it."""
    warnings.simplefilter("ignore")
    from torchtrt_executorch import report, runtime
    from torchtrt_executorch.runtime.reading.data_files import data_files
    from torchtrt_executorch.transformers import language_model as lm

    logging.getLogger("torchtrt_executorch.runtime").setLevel(logging.ERROR)
    form = lm.Form(
        prefill.value,
        decode.value if decode else None,
        length,
        chunk,
        sample,
        target,
    )
    try:
        llm = lm.load_model(folder, length)
        if quantize is not None:
            lm.quantize(llm, quantize.value, form)
        edge = lm.lowered(llm, form)
    except ValueError as error:
        raise unable(str(error)) from None
    typer.echo(str(report(edge)))
    lm.emitted(edge, form).save(str(out))
    for file in (out, *data_files(out)):
        typer.echo(f"{file}: {file.stat().st_size:,} bytes")
    if decode is not None:
        typer.echo(
            "Its methods share a cache in torchtrt_executorch.runtime, and in hosts that give both the same "
            "memory; ExecuTorch's TextLLMRunner doesn't, and refuses it: leave out --decode for that."
        )
    with contextlib.suppress(runtime.ProgramError):  # there are none where all runs
        runtime.save_stand_ins(out, out.with_suffix(".stand_ins"))
    if not compare:
        return
    words = min(90, llm.config.get_text_config().vocab_size)
    prompt = [
        (7 * i + 3) % words for i in range(min(form.longest + 5, 21, length // 2))
    ]
    count = min(compare, length - len(prompt))
    made, off = lm.compared(llm, runtime.load(out), prompt, count, sample)
    allowed = lm.TOLERANCE.get(llm.dtype, max(lm.TOLERANCE.values()))
    verdict = "the same" if off <= allowed else "others"
    typer.echo(f"tokens: {' '.join(map(str, made))}")
    typer.echo(
        f"transformers' own logits: {verdict}, within {off:.2g} of the largest; {allowed:.2g} is allowed"
    )
    if not off <= allowed:
        raise typer.Exit(FOUND)
