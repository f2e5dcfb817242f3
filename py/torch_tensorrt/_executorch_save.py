"""``torch_tensorrt.save(..., output_format="executorch")`` by way of :func:`torch_tensorrt.executorch.export`.

It needs no C++ runtime, and writes the program and its external weights whole, or nothing.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

#: Options of ``save`` for other formats, which mean nothing to ExecuTorch.
_OTHER_FORMATS = ("extra_files", "pickle_protocol", "use_legacy_exporter")


def executorch_by_export(save: Callable[..., Any]) -> Callable[..., Any]:
    """Have ``save`` write ExecuTorch's format with :func:`save_executorch`, and others as before."""

    @functools.wraps(save)
    def save_by_format(module: Any, file_path: Any = "", **options: Any) -> Any:
        if options.get("output_format") != "executorch":
            return save(module, file_path, **options)
        for name in ("output_format", *_OTHER_FORMATS):
            options.pop(name, None)
        return save_executorch(module, file_path, **options)

    return save_by_format


def save_executorch(
    module: Any,
    file_path: str | os.PathLike[str] = "",
    *,
    backend_config: Any | None = None,
    generate_etrecord: bool = False,
    **options: Any,
) -> None:
    """Lower ``module`` and write it to ``file_path``, external weights as ``.ptd`` files beside it.

    Args:
        module: As :func:`torch_tensorrt.executorch.export` takes it.
        file_path: Where the ``.pte`` goes.
        backend_config: An ``ExecutorchBackendConfig``, for ``to_executorch``.
        generate_etrecord: Write an ETRecord as well, to ``<stem>_etrecord.bin``.
        options: Those of :func:`torch_tensorrt.executorch.export`.

    Raises:
        OSError: ``file_path`` can't be written; known before any work is done.
        TypeError: ``module`` isn't compiled, or an option is unknown.
        ValueError: ``file_path`` is empty; and whatever ``export`` raises.
    """
    if not file_path:
        raise ValueError("file_path is empty: say where the .pte goes")
    target = _writable(file_path)
    from torch_tensorrt.executorch import export

    edge = export(module, generate_etrecord=generate_etrecord, **options)
    program = edge.to_executorch(backend_config)
    with _staged(target) as folder:
        _write_program(program, folder / target.name)
        if generate_etrecord:
            program.get_etrecord().save(folder / f"{target.stem}_etrecord.bin")


def _writable(path: str | os.PathLike[str]) -> Path:
    """Return ``path`` without links, if a file can be put there."""
    target = Path(path).resolve()  # a link stays a link: what it names is written
    if target.is_dir():
        raise IsADirectoryError(f"can't write {target}: it is a folder")
    if not target.parent.is_dir():
        raise FileNotFoundError(
            f"can't write {target}: there is no folder {target.parent}"
        )
    if not os.access(target.parent, os.W_OK | os.X_OK):
        raise PermissionError(
            f"can't write {target}: no permission to write in {target.parent}"
        )
    return target


@contextmanager
def _staged(target: Path) -> Iterator[Path]:
    """Yield an empty folder; what is written there moves beside ``target`` at the end, ``target`` last."""
    prefix = f".{target.name}."
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=prefix) as folder:
        yield Path(folder)
        for file in sorted(Path(folder).iterdir(), key=lambda f: f.name == target.name):
            os.replace(file, target.parent / file.name)


def _write_program(program: Any, file: Path) -> None:
    """Write a program and its external weights, which are named after it rather than after ExecuTorch's key."""
    with open(file, "wb") as stream:
        program.write_to_file(stream)
    with tempfile.TemporaryDirectory(dir=file.parent) as folder:
        program.write_tensor_data_to_file(folder)
        for data in sorted(Path(folder).iterdir()):
            only = data.name == "_default_external_constant.ptd"
            name = f"{file.stem}.ptd" if only else f"{file.stem}.{data.name}"
            os.replace(data, file.parent / name)
