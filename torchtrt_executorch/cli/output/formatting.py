"""Format option names and counts in messages of the command."""

from __future__ import annotations

import re

#: The command's options by the names of :func:`torchtrt_executorch.runtime.load`'s parameters.
_OPTIONS = {"data_files": "--data"}
_ARGUMENT = re.compile(
    r"(?P<call>load\((?:\.\.\., ?)?)?\b(?P<name>[a-z_]+)=(?:True|False|FILE|\[\.\.\.\])(?(call)\))"
)
_SCOPE = re.compile(r",? (?:inside of|in|within) emulated_engines\(\)")


def as_options(message: str) -> str:
    """Return an error of the Python API with the command's options in the place of arguments."""
    said = _ARGUMENT.sub(lambda match: _option(match["name"]), message)
    return _SCOPE.sub("", said)


def _option(name: str) -> str:
    return _OPTIONS.get(name, f"--{name.replace('_', '-')}")
