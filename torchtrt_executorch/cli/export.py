"""``torchtrt-executorch export``: export a model of transformers' to a ``.pte``."""

from __future__ import annotations

import contextlib
import logging
import warnings
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from torchtrt_executorch.cli.output.error_handling import FOUND, unable
from torchtrt_executorch.cli.output.variants import Variant, parse_form, variants

if TYPE_CHECKING:
    from torchtrt_executorch.transformers.exportable import Exportable


class Backend(str, Enum):
    """The backend of a method."""

    TENSORRT = "tensorrt"
    CUDA = "cuda"
    XNNPACK = "xnnpack"
    PORTABLE = "portable"


class Cache(str, Enum):
    """The dtype of keys and values in the cache."""

    INT8 = "int8"


class Scheme(str, Enum):
    """The quantized dtype of weights."""

    INT8 = "int8"
    INT4 = "int4"
    FLOAT8 = "float8"


_Folder = typer.Argument(
    exists=True,
    file_okay=False,
    help="As transformers saves a model: config.json, weights if there are any. Language models, Gemma 3, Voxtral, "
    "Whisper, Parakeet TDT, DINOv2; or silero_vad's folder data. A tiny Qwen3 without one.",
)


def export(
    folder: Annotated[Path | None, _Folder] = None,
    prefill: Annotated[
        Backend,
        typer.Option(help="Lowers the method for prompts, encoders, or the only one."),
    ] = Backend.TENSORRT,
    decode: Annotated[
        Backend | None,
        typer.Option(
            help="Lowers a language model's own method for one token, none by default; of other models what is "
            "called for each token, by default as --prefill."
        ),
    ] = None,
    target: Annotated[
        list[str] | None,
        typer.Option(
            help="The machine that it is for, as linux-x86_64:sm_90:80GiB; by default as TORCHTRT_GPU says. Several are "
            "given one by one, and have a folder each."
        ),
    ] = None,
    form: Annotated[
        list[str] | None,
        typer.Option(
            help="In place of --prefill and --decode, to export several: xnnpack, or tensorrt+cuda for two methods. Each "
            "has a folder."
        ),
    ] = None,
    scheme: Annotated[
        Scheme | None,
        typer.Option("--quantize", help="Quantize the weights of linears."),
    ] = None,
    cache: Annotated[
        Cache | None,
        typer.Option(
            help="Keep keys and values in it; in the model's type by default."
        ),
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
            help="Compare the logits of so many tokens, or outputs, with transformers'; 0 doesn't.",
        ),
    ] = 32,
    shard: Annotated[
        str | None,
        typer.Option(
            help="The most that a .ptd may hold, as 2GiB: weights go into as many as that takes."
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="The .pte to write.")] = Path("model.pte"),
) -> None:
    """Write a model's .pte, with its weights, stand-ins and what runners are to know of it."""
    warnings.simplefilter("ignore")
    from torchtrt_executorch.cache.sizes import parse_size
    from torchtrt_executorch.progress import step
    from torchtrt_executorch.transformers.exportable import Form
    from torchtrt_executorch.transformers.kinds import load
    from torchtrt_executorch.transformers.lowering import quantize

    most = None if shard is None else parse_size(shard)
    if shard is not None and not most:
        raise unable(f"--shard {shard!r} is no size such as 2GiB")
    logging.getLogger("torchtrt_executorch.runtime").setLevel(logging.ERROR)
    names = [one_backend.value for one_backend in Backend]
    right = True
    try:
        forms = [parse_form(text, names) for text in form or ()]
        forms = forms or [(prefill.value, decode.value if decode else None)]
        rows = variants(forms, target or (), out)
        with step("load"):
            first = Form(*forms[0], length, chunk, sample, cache is Cache.INT8)
            model = load(folder, first)
        if scheme is not None:
            with step(f"quantize to {scheme.value}"):
                backends = set()
                for row in rows:
                    model.form = row.of(model.form)
                    backends |= {*model.backends.values()}
                unquantized = quantize(model.module, scheme.value, backends)
            if unquantized:
                typer.echo(
                    f"not quantized, of features that no group of 32 divides: {', '.join(unquantized)}"
                )
        for row in rows:
            model.form = row.of(model.form)
            row.out.parent.mkdir(parents=len(rows) > 1, exist_ok=True)
            right &= _write(model, row, most, compare)
    except ValueError as error:
        raise unable(str(error)) from None
    if not right:
        raise typer.Exit(FOUND)


def _write(model: Exportable, row: Variant, most: int | None, compare: int) -> bool:
    """Lower a model and write its files; whether its outputs are those of transformers."""
    from torchtrt_executorch import report, runtime
    from torchtrt_executorch.progress import step
    from torchtrt_executorch.runtime.reading.data_files import data_files
    from torchtrt_executorch.transformers.kinds import tolerance
    from torchtrt_executorch.transformers.lowering import emitted, lowered

    out, methods = row.out, model.programs()
    edge = lowered(methods, model.backends, model.constants(methods), row.target)
    typer.echo(str(report(edge)))
    made = emitted(edge, "decode" in methods, most)
    with step("write"):
        made.save(str(out))
    for file in (out, *data_files(out)):
        typer.echo(f"{file}: {file.stat().st_size:,} bytes")
    if "decode" in methods:
        typer.echo(
            "Its methods share a cache in torchtrt_executorch.runtime, and in hosts that are told to, as "
            "`torchtrt-executorch inspect` says; ExecuTorch's TextLLMRunner isn't, and refuses it: leave out --decode for that."
        )
    # There are none where all runs.
    with contextlib.suppress(runtime.ProgramError), step("write stand-ins"):
        runtime.save_stand_ins(out, out.with_suffix(".stand_ins"))
    if not compare:
        return True
    tokens, off = model.compared(runtime.load(out), compare)
    allowed = tolerance(model)
    agreement = "the same" if off <= allowed else "others"
    if tokens:
        typer.echo(f"tokens: {' '.join(map(str, tokens))}")
    typer.echo(
        f"transformers' own logits: {agreement}, within {off:.2g} of the largest; {allowed:.2g} is allowed"
    )
    return off <= allowed
