"""Exit statuses, and error messages without tracebacks."""

from __future__ import annotations

import functools
import os
import sys
from typing import Any, Callable

import typer
from rich.console import Console
from rich.text import Text

from torchtrt_executorch.nogpu.host import present, quiet

#: Found or differs; can't be done.
FOUND, UNABLE = 1, 2

#: Said at the end of each command's help, and in docs/inspect.md.
EXITS = {
    "": "Every command exits with 0 when all is well, and with 2 when it can't do what it was "
    "asked: wrong options, a file that can't be read or written, a package that isn't there.",
    "status": "Exits with 0 whatever it reports; 1 for a patch that failed, with --try; 2 for a "
    "patch that there is none of.",
    "doctor": "Exits with 0 whatever it reports.",
    "targets": "Exits with 0.",
    "cache": "Exits with 0.",
    "inspect": "Exits with 0; 1 with --strict when there are warnings; 2 when a file can't be read "
    "or written.",
    "run": "Exits with 0; 1 when outputs differ from --compare or could not be compared; 2 when "
    "the program is unsound or can't be run.",
    "export": "Exits with 0; 1 when logits are further from transformers' than the model's type explains; 2 when the "
    "folder is no language model's or can't be exported so.",
    "build": "Exits with 0; 2 when an engine can't be built, or there is none to build.",
    "generate": "Exits with 0; 1 when the cache is full before the text ends, or as many tokens as were asked for "
    "are there; 2 when the program is no language model or can't be run.",
    "tune": "Exits with 0; 2 without a GPU.",
}


#: Packages that a command may need.
_PACKAGES = ("torch", "executorch", "jinja2", "tokenizers", "torchao", "transformers")


def unable(message: str) -> typer.Exit:
    """Print why something can't be done, and return what to raise."""
    Console(stderr=True, soft_wrap=True).print(Text(message, "red"))
    return typer.Exit(UNABLE)


def in_sentences(
    command: Callable[..., None], *, imports_torch: bool = True
) -> Callable[..., None]:
    """Wrap a command so that missing packages, and files it can't read or write, are one-sentence errors."""

    @functools.wraps(command)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            if imports_torch and not present.cuda_device():
                quiet.quieten()
            command(*args, **kwargs)
            sys.stdout.flush()
        except ModuleNotFoundError as error:
            package = (error.name or "").partition(".")[0]
            if package not in _PACKAGES:
                raise
            raise unable(
                f"{command.__name__} needs {package}, which isn't installed: pip install {package}"
            ) from None
        except BrokenPipeError:
            # The reader has closed the pipe, as `head` does: Python would complain once more at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        except OSError as error:
            raise unable(str(error)) from None

    return wrapper
